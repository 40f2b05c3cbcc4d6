/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Reads and writes files in a directory in ways that find out who is careless, and says what came of it: the
   same whoever serves the requests. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define SIZE (1 << 20)

static unsigned char shadow[SIZE], buffer[SIZE];
static uint64_t seed = 88172645463325252u;

static uint32_t below(uint32_t bound) {
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return (seed >> 11) % bound;
}

static void fail(const char *what) {
    printf("FAILED %s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(1);
}

#define CHECK(what) do { if (!(what)) fail(#what); } while (0)

static void say(const char *what, long result) {
    if (result < 0) printf("%s: %s\n", what, strerrorname_np(errno));
    else printf("%s: %ld\n", what, result);
    fflush(stdout);
}

static int made(const char *name, int flags) {
    int fd = open(name, O_RDWR | O_CREAT | O_TRUNC | flags, 0600);
    CHECK(fd >= 0);
    CHECK(pwrite(fd, shadow, SIZE, 0) == SIZE);
    return fd;
}

/* By a system call that nobody stands before. */
static void same(int fd, const char *when) {
    CHECK(syscall(SYS_pread64, fd, buffer, SIZE, 0L) == SIZE);
    if (memcmp(buffer, shadow, SIZE) != 0) fail(when);
}

static void mixed(void) {
    int fd = made("mixed", 0);
    for (int round = 0; round < 4000; round++) {
        uint32_t bytes = 1 + below(round % 50 ? 9000 : 300000), at = below(SIZE - bytes);
        struct iovec pieces[3] = {{buffer, bytes / 3}, {buffer + bytes / 3, bytes / 3},
                                  {buffer + bytes / 3 * 2, bytes - bytes / 3 * 2}};
        switch (below(9)) {
        case 0: case 1:
            CHECK(pread(fd, buffer, bytes, at) == (ssize_t)bytes);
            CHECK(memcmp(buffer, shadow + at, bytes) == 0);
            break;
        case 2:
            CHECK(preadv(fd, pieces, 3, at) == (ssize_t)bytes);
            CHECK(memcmp(buffer, shadow + at, bytes) == 0);
            break;
        case 3:
            CHECK(lseek(fd, at, SEEK_SET) == (off_t)at);
            CHECK(read(fd, buffer, bytes) == (ssize_t)bytes);
            CHECK(memcmp(buffer, shadow + at, bytes) == 0);
            CHECK(lseek(fd, 0, SEEK_CUR) == (off_t)(at + bytes));
            break;
        case 4: case 5: case 6: case 7: {
            for (uint32_t i = 0; i < bytes; i++) buffer[i] = round + i * 7;
            memcpy(shadow + at, buffer, bytes);
            int how = below(4);
            if (how == 0) CHECK(pwrite(fd, buffer, bytes, at) == (ssize_t)bytes);
            if (how == 1) CHECK(pwritev(fd, pieces, 3, at) == (ssize_t)bytes);
            if (how == 2) {
                CHECK(lseek(fd, at, SEEK_SET) == (off_t)at);
                CHECK(write(fd, buffer, bytes) == (ssize_t)bytes);
            }
            if (how == 3) CHECK(syscall(SYS_pwrite64, fd, buffer, (long)bytes, (long)at) == bytes);
            break;
        }
        default:
            if (below(20) == 0) CHECK(fdatasync(fd) == 0);
            if (below(40) == 0) same(fd, "mixed");
        }
    }
    same(fd, "mixed at the end");
    CHECK(fsync(fd) == 0);
    say("short read at the end", pread(fd, buffer, 9000, SIZE - 100));
    say("read beyond the end", pread(fd, buffer, 100, SIZE + 5));
    say("growing write", pwrite(fd, buffer, 5000, SIZE - 1000));
    say("length", lseek(fd, 0, SEEK_END));
    say("appended where it stands", write(fd, buffer, 10));
    say("length", lseek(fd, 0, SEEK_END));
    close(fd);
}

static void numbers(void) {
    memset(shadow, 'a', SIZE);
    int first = made("first", 0);
    for (int round = 0; round < 200; round++) {
        char a = 'a' + round % 20;
        int fd = open("first", O_RDWR), other = open("second", O_RDWR | O_CREAT, 0600);
        CHECK(pwrite(other, "zzzz", 4, 0) == 4);
        CHECK(pwrite(fd, &a, 1, round) == 1 && pread(fd, buffer, 2, round) == 2);
        CHECK(buffer[0] == a);
        /* The same number, another file: by close and open, by dup2, behind everyone's back. */
        switch (round % 4) {
        case 0: CHECK(dup2(other, fd) == fd); break;
        case 1: close(fd); CHECK(open("second", O_RDWR) == fd); break;
        case 2: syscall(SYS_close, fd); CHECK(syscall(SYS_openat, AT_FDCWD, "second", O_RDWR) == fd); break;
        case 3: syscall(SYS_dup3, other, fd, 0); break;
        }
        CHECK(pread(fd, buffer, 4, 0) == 4 && memcmp(buffer, "zzzz", 4) == 0);
        CHECK(pwrite(fd, "y", 1, 2) == 1 && pread(other, buffer, 4, 0) == 4);
        CHECK(memcmp(buffer, "zzyz", 4) == 0);
        int twice = dup(fd);
        close(fd);
        CHECK(pread(twice, buffer, 4, 0) == 4 && memcmp(buffer, "zzyz", 4) == 0);
        say(round < 4 ? "closed" : "still closed", pread(fd, buffer, 4, 0));
        close(twice);
        close(other);
    }
    int pipes[2];
    CHECK(pread(first, buffer, 1, 0) == 1 && pipe(pipes) == 0);
    syscall(SYS_dup3, pipes[1], first, 0);
    say("a pipe now", write(first, "pipe", 4));
    say("a pipe now", pwrite(first, "pipe", 4, 0));
    say("from the pipe", read(pipes[0], buffer, 100));
    close(first), close(pipes[0]), close(pipes[1]);
    for (int fd = 3; fd < 20; fd++) close(fd);
    say("lowest", open("/dev/null", O_RDONLY));
}

static void processes(void) {
    memset(shadow, 'p', SIZE);
    int fd = made("processes", 0);
    CHECK(pread(fd, buffer, 10, 0) == 10);
    pid_t child = fork();
    char mine = child ? 'P' : 'C';
    int start = child ? 0 : SIZE / 2;
    for (int at = start; at < start + SIZE / 2; at += 512) {
        memset(buffer, mine, 512);
        CHECK(pwrite(fd, buffer, 512, at) == 512);
        CHECK(pread(fd, buffer + 512, 512, at) == 512 && memcmp(buffer, buffer + 512, 512) == 0);
    }
    int status;
    if (!child) _exit(0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    memset(shadow, 'P', SIZE / 2), memset(shadow + SIZE / 2, 'C', SIZE / 2);
    same(fd, "two processes");
    CHECK(pread(fd, buffer, SIZE, 0) == SIZE && memcmp(buffer, shadow, SIZE) == 0);
    /* Each moves what both share. */
    CHECK(lseek(fd, 0, SEEK_SET) == 0);
    if (!(child = fork())) _exit(write(fd, "0123456789", 10) != 10);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    CHECK(write(fd, "abc", 3) == 3 && pread(fd, buffer, 13, 0) == 13);
    CHECK(memcmp(buffer, "0123456789abc", 13) == 0);
    /* Another process shortens it, and makes it longer. */
    if (!(child = fork())) _exit(truncate("processes", 5000) != 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    say("after truncation", pread(fd, buffer, 8192, 0));
    say("beyond it", pread(fd, buffer, 8192, 8192));
    if (!(child = fork())) _exit(truncate("processes", 9000) != 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    say("longer again", pread(fd, buffer, 10000, 0));
    for (int at = 5000; at < 9000; at++) CHECK(buffer[at] == 0);
    /* Another process says that all writes append. */
    if (!(child = fork())) _exit(fcntl(fd, F_SETFL, O_APPEND) != 0);
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    say("write that appends", pwrite(fd, "end", 3, 0));
    say("length", lseek(fd, 0, SEEK_END));
    /* A child that borrows our memory. */
    if (!(child = vfork())) { close(fd); _exit(0); }
    CHECK(waitpid(child, &status, 0) == child);
    say("after a vfork", pread(fd, buffer, 3, 9000));
    say("removed", unlink("processes"));
    say("still there", pread(fd, buffer, 3, 9000));
    close(fd);
}

static void memory(void) {
    memset(shadow, 'm', SIZE);
    int fd = made("memory", 0), only = open("memory", O_RDONLY);
    char *page = mmap(0, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mprotect(page + 4096, 4096, PROT_NONE) == 0);
    say("read to nowhere", pread(fd, (void *)16, 4096, 0));
    say("write from nowhere", pwrite(fd, (void *)16, 4096, 0));
    say("read to nowhere", pread(fd, page + 4096, 10, 0));
    say("write from nowhere", pwrite(fd, page + 4096, 10, 0));
    struct iovec bad[2] = {{page, 4096}, {(void *)16, 4096}};
    say("no piece", preadv(fd, (void *)16, 1, 0));
    bad[0].iov_base = (void *)16;
    say("read to bad pieces", preadv(fd, bad, 2, 0));
    CHECK(mprotect(page, 4096, PROT_READ) == 0);
    say("read to what is not to be written", pread(fd, page, 4096, 0));
    say("write from there", pwrite(fd, page, 1, 0));
    say("write to what is only read", pwrite(only, "x", 1, 0));
    say("nothing", pread(fd, page, 0, 0));
    say("negative", pread(fd, buffer, 1, -1));
    /* The file itself, mapped, as the memory of a request on it. */
    char *file = mmap(0, 65536, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (file != MAP_FAILED) {
        CHECK(pread(fd, file + 8192, 4096, 4096) == 4096);
        CHECK(pwrite(fd, "mapped", 6, 100) == 6 && memcmp(file + 100, "mapped", 6) == 0);
        memcpy(file + 200, "stored", 6);
        CHECK(msync(file, 4096, MS_SYNC) == 0);
        CHECK(pread(fd, buffer, 6, 200) == 6 && memcmp(buffer, "stored", 6) == 0);
        munmap(file, 65536);
    }
    close(fd), close(only);
}

static volatile sig_atomic_t ticks;
static int of_signals;
static char from_signal[512];

static void tick(int signal) {
    ticks++;
    if (pread(of_signals, from_signal, 512, 512 * (ticks % 100)) != 512) _exit(3);
    if (from_signal[0] != 's') _exit(4);
}

static void signals(void) {
    memset(shadow, 's', SIZE);
    int fd = of_signals = made("signals", 0);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    timer_t timer;
    struct itimerspec each = {{0, 1000000}, {0, 1000000}};
    CHECK(timer_create(CLOCK_MONOTONIC, 0, &timer) == 0 && timer_settime(timer, 0, &each, 0) == 0);
    while (ticks < 100) {
        int at = below(SIZE - 512);
        CHECK(pwrite(fd, shadow + at, 512, at) == 512 && pread(fd, buffer, 512, at) == 512);
    }
    timer_delete(timer);
    same(fd, "signals");
    close(fd);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec / 1e9;
}

/* Reads until the daemon is gone; then again when it is back. */
static void gone(void) {
    memset(shadow, 'g', SIZE);
    int fd = made("gone", 0);
    CHECK(pwrite(fd, "acknowledged", 12, 77) == 12 && fsync(fd) == 0);
    say("ready", 0);
    double last = now();
    while (pread(fd, buffer, 12, 77) == 12) last = now();
    int error = errno;
    if (error != EIO && error != ENOTCONN && error != ECONNABORTED) fail("another error");
    say("within a second", now() - last < 1);
    say("and then", pread(fd, buffer, 12, 77) < 0);
    CHECK(getchar() == '\n');
    close(fd);
    chdir("/");
    CHECK(chdir(getenv("SERVED")) == 0 && (fd = open("gone", O_RDWR)) >= 0);
    for (int round = 0; round < 2000; round++) {
        CHECK(pread(fd, buffer, 12, 77) == 12 && memcmp(buffer, "acknowledged", 12) == 0);
        CHECK(pwrite(fd, "again", 5, 1000 + round) == 5);
    }
    say("back", 0);
}

/* Ends and leaves a child behind that does so when it is told. */
static void outlived(void) {
    int fd = made("outlived", 0);
    CHECK(pread(fd, buffer, 512, 0) == 512);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child > 0) return;
    getchar();
    CHECK(pread(fd, buffer, 512, 0) == 512 && memcmp(buffer, shadow, 512) == 0);
    say("read by the child", 512);
}

int main(int count, char **arguments) {
    CHECK(count == 3 && chdir(arguments[2]) == 0);
    for (int at = 0; at < SIZE; at++) shadow[at] = below(256);
    struct { const char *name; void (*act)(void); } all[] = {
        {"mixed", mixed}, {"numbers", numbers}, {"processes", processes}, {"memory", memory},
        {"signals", signals}, {"gone", gone}, {"outlived", outlived},
    };
    for (unsigned at = 0; at < sizeof all / sizeof *all; at++)
        if (strcmp(all[at].name, arguments[1]) == 0) return all[at].act(), 0;
    return 2;
}
