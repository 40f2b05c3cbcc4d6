/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Threads that are cancelled amid calls end once those are over, and files stay usable. Argument: a file to be made. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include <dwell.h>

#define CHECK(holds)                                                                              \
    do {                                                                                          \
        if (!(holds)) {                                                                           \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #holds);                           \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

static dwell_file *emulated, *real;
static const char *path;
static char block[4096];

/* Blocks on a device of 2 ms, by calls of the C library that are cancellation points. */
static void *waits(void *nothing)
{
    (void)nothing;
    for (;;) {
        CHECK(dwell_read_at(emulated, block, sizeof block, 0) == sizeof block);
        pthread_testcancel();
    }
}

static void closes(void *queue)
{
    CHECK(dwell_queue_close(queue) == 0);
}

static void *queues(void *nothing)
{
    (void)nothing;
    dwell_queue *queue = NULL;
    dwell_completion done;
    CHECK(dwell_queue_create(emulated, 1, &queue) == 0);
    for (;;) {
        CHECK(dwell_queue_read(queue, block, sizeof block, 0, NULL) == 0);
        CHECK(dwell_queue_wait(queue, 1, &done, 1, -1) == 1);
        pthread_cleanup_push(closes, queue);
        pthread_testcancel();
        pthread_cleanup_pop(0);
    }
}

/* Opens, syncs and closes a file. */
static void *syncs(void *nothing)
{
    (void)nothing;
    for (;;) {
        dwell_file *file = NULL;
        CHECK(dwell_open(path, NULL, &file) == 0);
        CHECK(dwell_sync(real) == 0);
        CHECK(dwell_close(file) == 0);
        pthread_testcancel();
    }
}

int main(int count, char **arguments)
{
    if (count != 2) return 64;
    path = arguments[1];
    dwell_options options = DWELL_OPTIONS_INIT;
    options.policy = "block";
    CHECK(dwell_open("emu:latency=2ms,size=64KiB", &options, &emulated) == 0);
    options.flags = DWELL_WRITE | DWELL_CREATE;
    CHECK(dwell_open(path, &options, &real) == 0);
    void *(*all[])(void *) = {waits, queues, syncs};
    for (int round = 0; round < 60; round++) {
        pthread_t thread;
        void *result = NULL;
        struct timespec span = {0, round * 300000};
        CHECK(pthread_create(&thread, NULL, all[round % 3], NULL) == 0);
        nanosleep(&span, NULL);
        CHECK(pthread_cancel(thread) == 0);
        CHECK(pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
    }
    CHECK(dwell_read_at(emulated, block, sizeof block, 0) == sizeof block);
    CHECK(dwell_close(emulated) == 0 && dwell_close(real) == 0);
    printf("all were cancelled\n");
    return 0;
}
