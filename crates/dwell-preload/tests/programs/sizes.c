// SPDX-License-Identifier: MIT OR Apache-2.0
// Reads and writes of all sizes and shapes: more than fits, more than the kernel moves at once, more than there can be. FILE WHAT…;
// what each returned, what it left in memory and in the file is printed. WHAT: direct, no-ring.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define TO_END (1UL << 46)

enum { PAGE = 4096, OWN = 2 * PAGE, LENGTH = 16 * PAGE };

static const char *path;
static int fd, direct;

static uint64_t sum(const unsigned char *bytes, size_t count) {
    uint64_t hash = 0xcbf29ce484222325;
    for (size_t at = 0; at < count; at++) hash = (hash ^ bytes[at]) * 0x100000001b3;
    return hash;
}

// What stands behind the two pages that a call may use; behind that, nothing may be touched.
enum { FORBIDDEN, ANOTHER, CONSTANT, END, LAYOUTS };
static const char *const layouts[] = {"forbidden", "another", "constant", "the end"};

static unsigned char *region;

// Always the same place, far from the end: how far it is decides about some counts.
static unsigned char *anywhere(void) {
    int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE;
    return mmap((void *)0x100000000000, 5 * PAGE, PROT_NONE, kind, -1, 0);
}

// Close below the end of all that a program can have.
static unsigned char *far_up(void) {
#if defined(__x86_64__)
    for (unsigned long at = 0x7ffff0000000; at > 0x7fff80000000; at -= 1 << 28) {
        void *page = mmap((void *)at, 5 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
        if (page == (void *)at) return page;
    }
#endif
    return anywhere();
}

// So many bytes from there to the end.
static size_t to_end(void) {
    return 0x7ffffffff000 - (size_t)region;
}

static unsigned char *memory(int layout) {
    static unsigned char *low, *high;
    if (!low) low = anywhere(), high = far_up();
    region = layout == END ? high : low;
    int kind = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED;
    if (mmap(region, 4 * PAGE, PROT_READ | PROT_WRITE, kind, -1, 0) == MAP_FAILED) _exit(70);
    memset(region, 0x5a, 4 * PAGE);
    // Elsewhere a hole would be somebody else's soon.
    if (layout == END) munmap(region + OWN, OWN);
    if (layout == FORBIDDEN) mprotect(region + OWN, OWN, PROT_NONE);
    if (layout == CONSTANT) mprotect(region + OWN, OWN, PROT_READ);
    return region;
}

static void fresh_file(void) {
    static unsigned char data[LENGTH];
    int plain = open(path, O_WRONLY), all = SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE | SYNC_FILE_RANGE_WAIT_AFTER;
    for (int at = 0; at < LENGTH; at++) data[at] = (unsigned char)(at / 7 ^ at >> 9);
    if (syscall(SYS_pwrite64, plain, data, sizeof data, 0) != LENGTH || ftruncate(plain, LENGTH)) _exit(71);
    // So that it can leave the page cache.
    sync_file_range(plain, 0, 0, all);
    close(plain);
}

static void told(const char *call, const char *where, const char *what, long long offset, ssize_t result, int error) {
    static unsigned char data[2 * LENGTH + PAGE];
    int readable = strcmp(where, "another") == 0 || strcmp(where, "constant") == 0 ? 4 * PAGE : OWN;
    printf("%s, %s behind, %s bytes at %lld: %zd %s, memory %llx", call, where, what, offset, result,
           result < 0 ? strerrorname_np(error) : "", (unsigned long long)sum(region, readable));
    struct stat status;
    fstat(fd, &status);
    printf(", stands at %lld, length %lld", (long long)lseek(fd, 0, SEEK_CUR), (long long)status.st_size);
    if (strstr(call, "write") && result > 0) {
        int plain = open(path, O_RDONLY);
        ssize_t all = syscall(SYS_pread64, plain, data, sizeof data, 0);
        printf(", file %llx", (unsigned long long)sum(data, all < 0 ? 0 : all));
        close(plain);
        fresh_file();
    }
    puts("");
    // So that the next read has to wait.
    posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
}

static const off_t offsets[] = {0, PAGE, LENGTH - PAGE, LENGTH, -1, LONG_MIN, LONG_MAX, LONG_MAX - PAGE + 1, 1L << 44};
enum { OFFSETS = sizeof offsets / sizeof *offsets };

#define EACH(name, call)                                                                           \
    do {                                                                                           \
        unsigned char *at = memory(layout);                                                        \
        (void)at;                                                                                  \
        lseek(fd, 0, SEEK_SET);                                                                    \
        errno = 0;                                                                                 \
        ssize_t result = (call);                                                                   \
        told(name, layouts[layout], what, (long long)offset, result, errno);                       \
    } while (0)

static void plain(void) {
    static const size_t counts[] = {
        0, 1, PAGE, OWN - 1, OWN, OWN + 1, OWN + 512, OWN + PAGE, LENGTH, LENGTH + PAGE, 1 << 20, TO_END, TO_END - 1, 0x7fffefff,
        0x7ffff000, 0x7ffff001, 0x7fffffff, 0x80000000, 0xfffff000, 0xffffffff, 1L << 32, (1L << 32) + PAGE, 1L << 40, (1L << 47) - PAGE,
        1L << 47, 1L << 48, SSIZE_MAX - PAGE, SSIZE_MAX, (size_t)SSIZE_MAX + 1, SIZE_MAX - PAGE, SIZE_MAX};
    for (int layout = 0; layout < LAYOUTS; layout++) {
        for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
            size_t bytes = counts[i];
            char what[32];
            snprintf(what, sizeof what, "%#zx", bytes);
            if (bytes == TO_END || bytes == TO_END - 1) {
                memory(layout);
                // The end itself, and one byte more.
                bytes = to_end() + (TO_END - bytes);
            }
            off_t offset = 0;
            EACH("read", read(fd, at, bytes));
            EACH("write", write(fd, at, bytes));
            for (int o = 0; o < OFFSETS; o++) {
                offset = offsets[o];
                // Offsets matter little where counts are refused.
                if (layout != ANOTHER && o > 1) continue;
                EACH("pread", pread(fd, at, bytes, offset));
                EACH("pwrite", pwrite(fd, at, bytes, offset));
            }
        }
    }
    int layout = FORBIDDEN;
    off_t offset = 0;
    const char *what = "0x1000";
    EACH("pread to nowhere", pread(fd, NULL, PAGE, 0));
    EACH("pwrite from nowhere", pwrite(fd, NULL, PAGE, 0));
    EACH("pread to the kernel's", pread(fd, (void *)0xffff800000000000, PAGE, 0));
    EACH("pread to the last", pread(fd, (void *)-PAGE, PAGE, 0));
}

// One shape of a vector: so many pieces of such lengths, one after another in memory, the last of its own length.
struct shape {
    int count;
    size_t each, last;
};

static struct iovec pieces[2000];

static const struct iovec *vector(const struct shape *shape, unsigned char *at) {
    for (int i = 0; i < 2000; i++) {
        int is_last = i == shape->count - 1;
        size_t last = shape->last == TO_END || shape->last == TO_END - 1 ? to_end() + (TO_END - shape->last) : shape->last;
        // Pieces of small vectors lie one after another, those of others in the same place.
        unsigned char *where = shape->each <= PAGE && shape->count <= 4 ? at + i * shape->each : at;
        pieces[i] = (struct iovec){where, is_last ? last : shape->each};
    }
    return pieces;
}

static void vectors(void) {
    static const struct shape shapes[] = {
        {0, PAGE, PAGE}, {-1, PAGE, PAGE}, {INT_MIN, PAGE, PAGE}, {INT_MAX, PAGE, PAGE}, {1, PAGE, PAGE}, {1, 0, 0}, {2, 0, 0},
        {2, PAGE, PAGE}, {3, PAGE, 1}, {3, PAGE, PAGE}, {3, PAGE, LENGTH}, {4, PAGE, PAGE}, {64, 512, 512}, {65, 512, 512}, {1024, 512, 512},
        {1025, 512, 512}, {1999, 512, 512}, {1, 0, TO_END}, {1, 0, TO_END - 1}, {1, 0, 0x7ffff000}, {1, 0, 0x7ffff001}, {1, 0, 0x80000000}, {1, 0, 1L << 40}, {1, 0, 1L << 48},
        {1, 0, SSIZE_MAX}, {1, 0, SIZE_MAX}, {2, PAGE, SSIZE_MAX}, {2, PAGE, SIZE_MAX}, {2, PAGE, 0x7ffff000}, {3, SSIZE_MAX, SSIZE_MAX},
        {2, SIZE_MAX, 2 * PAGE}, {2, 1L << 62, 1L << 62}, {3, 1L << 62, 1L << 62}, {64, 1 << 25, 1 << 25}, {2, 0x40000000, 0x40000000},
        {2, 0x3ffff000, 0x40000000}, {2, 0x3ffff000, 0x40000001},
    };
    for (int layout = 0; layout < LAYOUTS; layout++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            const struct shape *shape = &shapes[i];
            int count = shape->count;
            char what[64];
            snprintf(what, sizeof what, "%d of %#zx and %#zx", count, shape->each, shape->last);
            off_t offset = 0;
            EACH("readv", readv(fd, vector(shape, at), count));
            EACH("writev", writev(fd, vector(shape, at), count));
            for (int o = 0; o < OFFSETS; o++) {
                offset = offsets[o];
                if ((layout != ANOTHER || i % 4) && o > 0) continue;
                EACH("preadv", preadv(fd, vector(shape, at), count, offset));
                EACH("pwritev", pwritev(fd, vector(shape, at), count, offset));
                EACH("preadv2", preadv2(fd, vector(shape, at), count, offset, 0));
                EACH("pwritev2", pwritev2(fd, vector(shape, at), count, offset, 0));
                EACH("pwritev2 durable", pwritev2(fd, vector(shape, at), count, offset, RWF_DSYNC));
                EACH("preadv2 of no flags that there are", preadv2(fd, vector(shape, at), count, offset, 1 << 30));
            }
        }
    }
    int layout = FORBIDDEN;
    off_t offset = 0;
    const char *what = "0x1000";
    EACH("readv of no vector", readv(fd, NULL, 1));
    EACH("readv of a vector that is cut off", readv(fd, (void *)(at + OWN - 8), 1));
    EACH("readv into what is constant", readv(fd, vector(&(struct shape){1, 0, PAGE}, (unsigned char *)"text"), 1));
}

static void without_rings(void) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_io_uring_setup, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0)) _exit(72);
}

int main(int count, char **arguments) {
    if (count < 2) return 64;
    path = arguments[1];
    for (int i = 2; i < count; i++) {
        direct |= strcmp(arguments[i], "direct") == 0 ? O_DIRECT : 0;
        if (strcmp(arguments[i], "no-ring") == 0) {
            without_rings();
            // Another program, which does not know of it.
            execl(arguments[0], arguments[0], path, direct ? "direct" : "", NULL);
            return 73;
        }
    }
    setvbuf(stdout, NULL, _IOFBF, 1 << 16);
    fresh_file();
    fd = open(path, O_RDWR | direct);
    if (fd < 0) return 74;
    plain();
    vectors();
    return 0;
}
