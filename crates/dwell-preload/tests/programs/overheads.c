// SPDX-License-Identifier: MIT OR Apache-2.0
// What calls cost that need no device, in nanoseconds: the least of several rounds. FILES
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e9 + t.tv_nsec;
}

static char memory[4096];

#define EACH(name, call)                                                                           \
    do {                                                                                           \
        enum { ROUNDS = 25, CALLS = 20000 };                                                       \
        double least = 1e18;                                                                       \
        for (int round = 0; round < ROUNDS; round++) {                                             \
            double began = now();                                                                  \
            for (int i = 0; i < CALLS; i++) {                                                      \
                if ((call) < 0) return 1;                                                          \
            }                                                                                      \
            double took = (now() - began) / CALLS;                                                 \
            if (took < least) least = took;                                                        \
        }                                                                                          \
        printf("%-28s %8.1f ns\n", name, least);                                                   \
    } while (0)

int main(int count, char **arguments) {
    int zero = open("/dev/zero", O_RDONLY), fd;
    EACH("read of /dev/zero, 1 byte", read(zero, memory, 1));
    for (int at = 1; at < count; at++) {
        int file = open(arguments[at], O_RDWR | O_CREAT, 0600);
        if (file < 0 || pwrite(file, memory, sizeof memory, 0) != sizeof memory) return 1;
        char name[300];
        snprintf(name, sizeof name, "cached pread of %.200s", arguments[at]);
        EACH(name, pread(file, memory, sizeof memory, 0));
        snprintf(name, sizeof name, "cached read of %.200s", arguments[at]);
        EACH(name, lseek(file, 0, SEEK_SET) + read(file, memory, sizeof memory));
        EACH("open and close", (fd = open(arguments[at], O_RDONLY)) < 0 ? -1 : close(fd));
        close(file);
    }
    return 0;
}
