// SPDX-License-Identifier: MIT OR Apache-2.0
// What programs share whose file is 1 MiB of 4 KiB blocks that begin with their number.
#ifndef BLOCKS_H
#define BLOCKS_H
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BLOCK = 4096, BLOCKS = 256 };

// The file, and this program.
static const char *path, *self;

static void fail(const char *what) {
    printf("%s: %s\n", what, strerror(errno));
    fflush(stdout);
    _exit(9);
}

static void *block(void) {
    void *memory;
    if (posix_memalign(&memory, BLOCK, BLOCK)) fail("memory");
    return memory;
}

static int opened(int flags) {
    int fd = open(path, flags);
    if (fd < 0) fail("open");
    return fd;
}

// Reads one block and looks whether it is that one.
static int right(int fd, void *memory, uint64_t number) {
    ssize_t done = pread(fd, memory, BLOCK, number * BLOCK);
    return done == BLOCK && *(volatile uint64_t *)memory == number;
}

static void read_into(void *memory, int fd, int times) {
    for (int i = 0; i < times; i++) {
        if (!right(fd, memory, i % BLOCKS)) fail("a wrong block");
    }
}

static void read_all(int fd, int times) {
    void *memory = block();
    read_into(memory, fd, times);
    free(memory);
}

// A system call that no library sees.
static long unseen(long number, long a, long b, long c, long d) {
#if defined(__x86_64__)
    long result;
    register long r10 __asm__("r10") = d;
    __asm__ volatile("syscall"
                     : "=a"(result)
                     : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10)
                     : "rcx", "r11", "memory");
    return result;
#else
    register long x8 __asm__("x8") = number;
    register long x0 __asm__("x0") = a;
    register long x1 __asm__("x1") = b;
    register long x2 __asm__("x2") = c;
    register long x3 __asm__("x3") = d;
    __asm__ volatile("svc 0" : "+r"(x0) : "r"(x8), "r"(x1), "r"(x2), "r"(x3) : "memory");
    return x0;
#endif
}

#endif
