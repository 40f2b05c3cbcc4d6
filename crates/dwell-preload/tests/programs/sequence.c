// SPDX-License-Identifier: MIT OR Apache-2.0
// A long random sequence of file calls, the same for the same seed: each one's result, error,
// position and data are printed. FILE SEED COUNT DIRECT
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST = 6, ROOM = 1 << 17, LENGTH = 1 << 20 };

static uint64_t state;

static uint64_t dice(uint64_t sides) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (state >> 11) % sides;
}

static uint64_t sum(const unsigned char *bytes, size_t count) {
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t at = 0; at < count; at++) hash = (hash ^ bytes[at]) * 0x100000001b3;
    return hash;
}

static const char *path;
static int direct, fds[MOST], flags_of[MOST];
static unsigned char *memory;

static void open_one(int slot) {
    static const int ways[] = {O_RDWR, O_RDWR, O_RDWR, O_RDONLY, O_WRONLY, O_RDWR | O_APPEND};
    int flags = ways[dice(6)] | (dice(8) ? 0 : O_CLOEXEC);
    if (direct && dice(2)) flags |= O_DIRECT;
    switch (dice(4)) {
    case 0: fds[slot] = open(path, flags | O_CREAT, 0600); break;
    case 1: fds[slot] = open64(path, flags); break;
    case 2: fds[slot] = openat(AT_FDCWD, path, flags); break;
    default: fds[slot] = openat64(AT_FDCWD, path, flags);
    }
    flags_of[slot] = flags;
    printf("open %d\n", fds[slot] >= 0 ? 0 : errno);
}

static void told(const char *what, int slot, ssize_t result, int error) {
    struct stat status = {0};
    int fd = fds[slot];
    off_t at = lseek(fd, 0, SEEK_CUR);
    fstat(fd, &status);
    printf("%s slot %d result %zd errno %d at %lld length %lld\n", what, slot, result,
           result < 0 ? error : 0, (long long)at, (long long)status.st_size);
}

#define TELL(what, call)                                                                            \
    do {                                                                                           \
        errno = 0;                                                                                 \
        ssize_t result_ = (call);                                                                  \
        int error_ = errno;                                                                        \
        told(what, slot, result_, error_);                                                         \
        got = result_;                                                                             \
    } while (0)

int main(int count, char **arguments) {
    if (count != 5) return 64;
    path = arguments[1];
    state = strtoull(arguments[2], NULL, 10) * 0x9e3779b97f4a7c15 + 1;
    int steps = atoi(arguments[3]);
    direct = atoi(arguments[4]);
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    if (posix_memalign((void **)&memory, 4096, ROOM + 8192)) return 70;
    for (int slot = 0; slot < MOST; slot++) open_one(slot);
    for (int step = 0; step < steps; step++) {
        int slot = dice(MOST), fd = fds[slot];
        // Where direct I/O is aligned and where it is not, near the end and beyond it.
        size_t bytes = dice(4) ? 4096 * (1 + dice(8)) : dice(20000);
        off_t offset = dice(4) ? 4096 * (off_t)dice(LENGTH / 4096 + 8) : (off_t)dice(LENGTH + 9999);
        unsigned char *at = memory + (dice(8) ? 0 : dice(700));
        ssize_t got = 0;
        int reads = 0;
        for (size_t fill = 0; fill < bytes; fill += 61) at[fill] = (unsigned char)dice(256);
        struct iovec pieces[4] = {
            {at, bytes / 2 & ~511ul}, {at + 40960, 4096}, {at + 61440, dice(2) ? 0 : 8192}, {at + 81920, 512}};
        int how_many = 1 + dice(4);
        switch (dice(32)) {
        case 0: case 1: case 2: case 3: TELL("pread", pread(fd, at, bytes, offset)); reads = 1; break;
        case 4: TELL("pread64", pread64(fd, at, bytes, offset)); reads = 1; break;
        case 5: case 6: case 7: TELL("pwrite", pwrite(fd, at, bytes, offset)); break;
        case 8: TELL("pwrite64", pwrite64(fd, at, bytes, offset)); break;
        case 9: case 10: case 11: TELL("read", read(fd, at, bytes)); reads = 1; break;
        case 12: case 13: TELL("write", write(fd, at, bytes)); break;
        case 14: TELL("readv", readv(fd, pieces, how_many)); reads = 2; break;
        case 15: TELL("writev", writev(fd, pieces, how_many)); break;
        case 16: TELL("preadv", preadv(fd, pieces, how_many, offset)); reads = 2; break;
        case 17: TELL("pwritev", pwritev(fd, pieces, how_many, offset)); break;
        case 18: TELL("preadv2", preadv2(fd, pieces, how_many, dice(2) ? -1 : offset, 0)); reads = 2; break;
        case 19: TELL("pwritev2", pwritev2(fd, pieces, how_many, dice(2) ? -1 : offset, dice(2) ? RWF_DSYNC : 0)); break;
        case 20: {
            static const int whence[] = {SEEK_SET, SEEK_CUR, SEEK_END};
            off_t by = dice(2) ? offset : -(off_t)dice(9000);
            TELL("lseek", lseek(fd, by, whence[dice(3)]));
            break;
        }
        case 21: TELL("lseek start", lseek64(fd, 4096 * dice(64), SEEK_SET)); break;
        case 22: TELL("sync", dice(2) ? fsync(fd) : fdatasync(fd)); break;
        case 23: TELL("ftruncate", ftruncate(fd, dice(2) ? LENGTH : (off_t)(LENGTH - 4096 * dice(9)))); break;
        case 24: close(fd); open_one(slot); break;
        case 25: {
            int other = dice(MOST);
            if (other != slot) {
                close(fds[other]);
                switch (dice(4)) {
                case 0: fds[other] = dup(fd); break;
                case 1: fds[other] = dup2(fd, fds[other]); break;
                case 2: fds[other] = dup3(fd, fds[other], O_CLOEXEC); break;
                default: fds[other] = fcntl(fd, F_DUPFD, 3);
                }
                flags_of[other] = flags_of[slot];
            }
            told("dup", slot, 0, 0);
            break;
        }
        case 26: {
            int flags = fcntl(fd, F_GETFL);
            if (flags >= 0) {
                flags ^= dice(2) ? O_APPEND : direct ? O_DIRECT : 0;
                TELL("fcntl", fcntl(fd, F_SETFL, flags));
            }
            break;
        }
        case 27: // What nobody may do.
            switch (dice(8)) {
            case 0: TELL("nowhere", pread(fd, (void *)64, 4096, offset)); break;
            case 1: TELL("from nowhere", pwrite(fd, (void *)64, 4096, 0)); break;
            case 2: TELL("before all", pread(fd, at, bytes, -1)); break;
            case 3: TELL("before all", pwrite(fd, at, bytes, -4096)); break;
            case 4: TELL("no pieces", preadv(fd, pieces, -1, offset)); break;
            case 5: TELL("pieces nowhere", readv(fd, (void *)64, 2)); break;
            case 6: TELL("nothing", pread(fd, at, 0, offset)); break;
            default: TELL("far", pread(fd, at, bytes, (off_t)0x7ffffffffffff000));
            }
            break;
        case 28: {
            // A child goes on where its parent stands, and moves it.
            if (dice(8)) break;
            fflush(stdout);
            pid_t child = fork();
            if (child == 0) {
                ssize_t one = read(fd, at, 4096);
                ssize_t other = pread(fd, at + 8192, 4096, offset);
                printf("child %zd %zd %016llx\n", one, other, (unsigned long long)sum(at, one > 0 ? one : 0));
                fflush(stdout);
                _exit(0);
            }
            int status = -1;
            waitpid(child, &status, 0);
            told("fork", slot, status, 0);
            break;
        }
        case 29: {
            int ends[2];
            if (pipe(ends)) break;
            printf("pipe %zd\n", write(ends[1], "twelve bytes", 12));
            errno = 0;
            ssize_t refused = pread(ends[0], at, 4, 0);
            printf("pread of a pipe %zd %d\n", refused, errno);
            printf("read %zd\n", read(ends[0], at, 4096));
            close(ends[0]);
            close(ends[1]);
            break;
        }
        case 30: {
            // By the C library's streams, which read and write inside it.
            int twin = dup(fd);
            FILE *stream = fdopen(twin, "r");
            if (stream) {
                printf("stream %zu\n", fread(at, 1, 5000, stream));
                fclose(stream);
            } else {
                close(twin);
            }
            told("stream", slot, 0, 0);
            break;
        }
        default: {
            // Gone, and gone again.
            close(fd);
            errno = 0;
            ssize_t refused = pread(fd, at, 4096, 0);
            printf("closed %zd %d\n", refused, errno);
            open_one(slot);
        }
        }
        if (reads == 1 && got > 0) printf("%016llx\n", (unsigned long long)sum(at, got));
        if (reads == 2 && got > 0) printf("%016llx\n", (unsigned long long)sum(at, 90112));
    }
    for (int slot = 0; slot < MOST; slot++) close(fds[slot]);
    return 0;
}
