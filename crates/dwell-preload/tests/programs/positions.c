// SPDX-License-Identifier: MIT OR Apache-2.0
// Where descriptors stand while other threads close them, or change their flags: MODE FILE OTHER. Each prints the same whether a
// library is beneath it or not. The file is 1 MiB of 4 KiB blocks that begin with their number.
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <time.h>

#include "blocks.h"

enum { ROUNDS = 400 };

static pthread_barrier_t begins, ends;
static const char *second;
static int fd;
static volatile int reading;
static ssize_t done;
static char *whole;

static void pause_us(int us) {
    struct timespec from, now;
    clock_gettime(CLOCK_MONOTONIC, &from);
    do clock_gettime(CLOCK_MONOTONIC, &now);
    while ((now.tv_sec - from.tv_sec) * 1000000 + (now.tv_nsec - from.tv_nsec) / 1000 < us);
}

// --- A read that goes on while its descriptor is closed and the number taken by another file.

static void *reads_whole(void *nothing) {
    for (int round = 0; round < ROUNDS; round++) {
        fd = opened(O_RDONLY | O_DIRECT);
        whole[0] = 0;
        pthread_barrier_wait(&begins);
        reading = 1;
        done = read(fd, whole, BLOCK * BLOCKS);
        pthread_barrier_wait(&ends);
        // The other file is closed.
        pthread_barrier_wait(&ends);
    }
    return NULL;
}

static void outlived(void) {
    int moved = 0, taken = 0;
    pthread_t thread;
    pthread_create(&thread, NULL, reads_whole, NULL);
    for (int round = 0; round < ROUNDS; round++) {
        reading = 0;
        pthread_barrier_wait(&begins);
        while (!reading) sched_yield();
        pause_us(round % 100);
        int was = fd;
        close(was);
        int other = open(second, O_RDONLY | O_DIRECT);
        if (other < 0) fail("the other file");
        taken += other == was;
        pthread_barrier_wait(&ends);
        // A read of the other file, which begins with an x, may have moved it.
        if (done <= 0 || whole[0] != 'x') moved += lseek(other, 0, SEEK_CUR) != 0;
        close(other);
        pthread_barrier_wait(&ends);
    }
    pthread_join(thread, NULL);
    printf("%s, %d were moved\n", taken > ROUNDS / 2 ? "the number was taken" : "the number was not taken", moved);
}

// --- Reads of two threads, amid which one says anew what the flags are.

enum { TIMES = 1500, FIRST = 16 };

static int counts[BLOCKS];

// Counts the next block; its number.
static uint64_t takes_one(void *memory) {
    if (read(fd, memory, BLOCK) != BLOCK) fail("read");
    __atomic_add_fetch(&counts[*(uint64_t *)memory], 1, __ATOMIC_RELAXED);
    return *(uint64_t *)memory;
}

static void *takes_the_first(void *memory) {
    for (int time = 0; time < TIMES; time++) {
        fd = opened(O_RDONLY | O_DIRECT);
        takes_one(memory);
        pthread_barrier_wait(&begins);
        while (takes_one(memory) < FIRST);
        pthread_barrier_wait(&ends);
        close(fd);
    }
    return NULL;
}

static void flags_amid(void) {
    void *memory = block();
    pthread_t thread;
    pthread_create(&thread, NULL, takes_the_first, block());
    for (int time = 0; time < TIMES; time++) {
        pthread_barrier_wait(&begins);
        pause_us(time % 100);
        if (fcntl(fd, F_SETFL, O_RDONLY | O_DIRECT)) fail("fcntl");
        takes_one(memory);
        pthread_barrier_wait(&ends);
    }
    pthread_join(thread, NULL);
    int wrong = 0;
    for (int i = 0; i < FIRST; i++) wrong += counts[i] != TIMES;
    printf("%d blocks were not read once each time\n", wrong);
}

int main(int count, char **arguments) {
    if (count < 4) return 64;
    self = arguments[0];
    path = arguments[2];
    second = arguments[3];
    if (posix_memalign((void **)&whole, BLOCK, BLOCK * BLOCKS)) fail("memory");
    pthread_barrier_init(&begins, NULL, 2);
    pthread_barrier_init(&ends, NULL, 2);
    if (strcmp(arguments[1], "outlived") == 0) outlived();
    else if (strcmp(arguments[1], "flags_amid") == 0) flags_amid();
    else return 64;
    return 0;
}
