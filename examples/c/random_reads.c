/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Reads 4 KiB blocks of a file at random, one at a time and 32 at a time, and prints what was
 * decided for them.
 *
 *     cc random_reads.c $(pkg-config --cflags --libs dwell) -o random_reads
 *     ./random_reads FILE [POLICY [REQUESTS]]
 *
 * It reads around the page cache. To have something to decide, probe the device first
 * (dwell probe FILE), or read one that is emulated: ./random_reads emu:z-nand
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dwell.h>

enum { BLOCK_BYTES = 4096, DEPTH = 32 };

static int failed(const char *what)
{
    fprintf(stderr, "random_reads: %s: %s (%s)\n", what, dwell_last_error(), strerror(errno));
    return 1;
}

/* Where the next block lies: a small generator will do, the drive does not care. */
static uint64_t next_offset(uint64_t *seed, uint64_t blocks)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed % blocks * BLOCK_BYTES;
}

/* One request after the other: each call returns with the data. */
static int read_one_by_one(dwell_file *file, char *block, uint64_t blocks, unsigned requests)
{
    uint64_t seed = 88172645463325252u;
    for (unsigned i = 0; i < requests; i++) {
        ssize_t got = dwell_read_at(file, block, BLOCK_BYTES, next_offset(&seed, blocks));
        if (got < 0)
            return failed("reading");
        if (got != BLOCK_BYTES) {
            fprintf(stderr, "random_reads: the file became shorter meanwhile\n");
            return 1;
        }
    }
    return 0;
}

/* Thirty-two in flight: a request's block is the library's until its completion is taken. */
static int read_many(dwell_file *file, char *blocks_of_memory, uint64_t blocks, unsigned requests)
{
    dwell_queue *queue;
    if (dwell_queue_create(file, DEPTH, &queue) != 0)
        return failed("making a queue");

    uint64_t seed = 362436069362436069u;
    unsigned sent = 0, done = 0;
    int status = 0;
    while (sent < DEPTH && sent < requests && status == 0) {
        char *block = blocks_of_memory + (size_t)sent * BLOCK_BYTES;
        if (dwell_queue_read(queue, block, BLOCK_BYTES, next_offset(&seed, blocks), block) != 0)
            status = failed("queueing a read");
        sent++;
    }
    while (done < requests && status == 0) {
        dwell_completion completions[DEPTH];
        int taken = dwell_queue_wait(queue, 1, completions, DEPTH, -1);
        if (taken < 0)
            status = failed("waiting");
        for (int i = 0; i < taken && status == 0; i++) {
            if (completions[i].result != BLOCK_BYTES) {
                const char *why = completions[i].result < 0
                    ? strerror((int)-completions[i].result) : "the file became shorter meanwhile";
                fprintf(stderr, "random_reads: a read of the queue: %s\n", why);
                status = 1;
                break;
            }
            done++;
            /* The block is free again: use it for the next request. */
            char *block = completions[i].user;
            if (sent < requests) {
                uint64_t offset = next_offset(&seed, blocks);
                if (dwell_queue_read(queue, block, BLOCK_BYTES, offset, block) != 0)
                    status = failed("queueing a read");
                sent++;
            }
        }
    }
    /* Waits for whatever is still in flight, so that the memory may be freed. */
    if (dwell_queue_close(queue) != 0 && status == 0)
        status = failed("closing the queue");
    return status;
}

static void print_latency(const char *of, const dwell_latency *latency)
{
    if (latency->measured > 0)
        printf("latency, %-12s p50 %.1f us, p99 %.1f us, longest %.1f us\n", of,
               (double)latency->p50_ns / 1e3, (double)latency->p99_ns / 1e3,
               (double)latency->max_ns / 1e3);
}

static void print_stats(const dwell_file *file)
{
    dwell_stats stats = DWELL_STATS_INIT;
    if (dwell_file_stats(file, &stats) != 0) {
        failed("asking for statistics");
        return;
    }
    printf("requests           %" PRIu64 "\n", stats.requests);
    printf("  system calls     %" PRIu64 "\n", stats.inline_calls);
    printf("  busy-waited      %" PRIu64 "\n", stats.spun);
    printf("  blocked          %" PRIu64 "\n", stats.blocked);
    printf("  slept, then spun %" PRIu64 "\n", stats.hybrid);
    printf("switches avoided   %" PRIu64 "\n", stats.switches_avoided);
    printf("bytes read         %" PRIu64 "\n", stats.bytes_read);
    printf("busy-waiting       %.3f ms\n", (double)stats.spun_ns / 1e6);
    printf("asleep             %.3f ms\n", (double)(stats.slept_ns + stats.parked_ns) / 1e6);
    print_latency("system calls", &stats.inline_latency);
    print_latency("blocked", &stats.blocked_latency);
    print_latency("busy-waited", &stats.spun_latency);
    for (unsigned i = 0; dwell_reason_name(i) != NULL; i++)
        if (stats.by_reason[i] > 0)
            printf("because %-16s %" PRIu64 "\n", dwell_reason_name(i), stats.by_reason[i]);
}

int main(int argc, char **argv)
{
    if (argc < 2 || argc > 4) {
        fprintf(stderr, "usage: random_reads FILE [POLICY [REQUESTS]]\n");
        return 2;
    }
    unsigned requests = argc > 3 ? (unsigned)strtoul(argv[3], NULL, 10) : 10000;

    dwell_options options = DWELL_OPTIONS_INIT;
    options.flags = DWELL_DIRECT;
    options.policy = argc > 2 ? argv[2] : NULL;
    dwell_file *file;
    if (dwell_open(argv[1], &options, &file) != 0)
        return failed("opening");

    dwell_info info = DWELL_INFO_INIT;
    if (dwell_file_info(file, &info) != 0) {
        dwell_close(file);
        return failed("asking about the file");
    }
    printf("device             %s\n", info.device);
    printf("policy             %s\n", info.policy);
    if (info.note != NULL)
        printf("note               %s\n", info.note);

    int status = 1;
    uint64_t blocks = info.length_bytes / BLOCK_BYTES;
    /* Page-aligned memory suits direct I/O on any device. */
    char *memory = aligned_alloc(4096, (size_t)DEPTH * BLOCK_BYTES);
    if (memory == NULL) {
        fprintf(stderr, "random_reads: no memory\n");
    } else if (blocks == 0) {
        fprintf(stderr, "random_reads: %s: shorter than one block of 4096 bytes\n", argv[1]);
    } else {
        status = read_one_by_one(file, memory, blocks, requests)
            || read_many(file, memory, blocks, requests);
        print_stats(file);
    }
    dwell_close(file);
    free(memory);
    return status;
}
