/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Sums a file that is memory, within a budget, adds one to each of its pages, and prints what the
 * faults did.
 *
 *     cc mapped.c $(pkg-config --cflags --libs dwell) -o mapped
 *     ./mapped FILE BUDGET_KIB [inline|thread]
 *
 * FILE is changed: the first byte of each page becomes one more than it was.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <dwell.h>

enum { PAGE_BYTES = 4096, AHEAD_PAGES = 16 };

static int failed(const char *what)
{
    fprintf(stderr, "mapped: %s: %s (%s)\n", what, dwell_last_error(), strerror(errno));
    return 1;
}

static uint64_t sum(const unsigned char *memory, size_t bytes)
{
    uint64_t all = 0;
    for (size_t at = 0; at < bytes; at++)
        all += memory[at];
    return all;
}

/* Every other page from the last to the first, told some pages ahead. */
static void count_up(dwell_region *region, unsigned char *memory, size_t pages)
{
    for (int odd = 0; odd < 2; odd++) {
        for (size_t turn = pages; turn-- > 0;) {
            if (turn % 2 != (size_t)odd)
                continue;
            if (turn >= AHEAD_PAGES)
                dwell_region_hint(region, (turn - AHEAD_PAGES) * PAGE_BYTES);
            memory[turn * PAGE_BYTES]++;
        }
    }
}

/* A system call is given pinned memory. */
static int write_first_page(dwell_region *region, const unsigned char *memory)
{
    dwell_pin *pin;
    if (dwell_region_pin(region, 0, 1, &pin) != 0)
        return failed("pinning");
    int ends[2];
    if (pipe(ends) != 0 || write(ends[1], memory, 1) != 1) {
        perror("mapped: writing pinned memory to a pipe");
        return 1;
    }
    close(ends[0]);
    close(ends[1]);
    return dwell_region_unpin(pin) != 0;
}

static int use(dwell_region *region)
{
    unsigned char *memory = dwell_region_start(region);
    size_t bytes = dwell_region_bytes(region);
    if (dwell_region_register(region) != 0)
        return failed("registering");
    printf("before             %" PRIu64 "\n", sum(memory, bytes));
    count_up(region, memory, (bytes + PAGE_BYTES - 1) / PAGE_BYTES);
    printf("after              %" PRIu64 "\n", sum(memory, bytes));
    if (write_first_page(region, memory) != 0)
        return 1;
    if (dwell_region_sync(region, 0, bytes) != 0)
        return failed("syncing");

    dwell_region_stats stats = DWELL_REGION_STATS_INIT;
    if (dwell_region_stats_of(region, &stats) != 0)
        return failed("statistics");
    printf("faults             %" PRIu64 "\n", stats.faults);
    printf("  waited           %" PRIu64 "\n", stats.waited);
    printf("read ahead, used   %" PRIu64 "\n", stats.read_ahead_used);
    printf("written back       %" PRIu64 "\n", stats.written_back);
    printf("most pages at once %" PRIu64 "\n", stats.peak_pages);
    return 0;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        fprintf(stderr, "usage: mapped FILE BUDGET_KIB [inline|thread]\n");
        return 1;
    }
    dwell_options options = DWELL_OPTIONS_INIT;
    options.flags = DWELL_WRITE;
    dwell_file *file;
    if (dwell_open(argv[1], &options, &file) != 0)
        return failed("opening");

    dwell_map_options how = DWELL_MAP_OPTIONS_INIT;
    how.flags = DWELL_MAP_SHARED;
    if (argc > 3 && strcmp(argv[3], "thread") == 0)
        how.flags |= DWELL_MAP_THREAD;
    how.budget_bytes = strtoull(argv[2], NULL, 10) * 1024;
    dwell_region *region;
    if (dwell_map(file, &how, &region) != 0) {
        dwell_close(file);
        return failed("mapping");
    }
    int status = use(region);
    if (dwell_unmap(region) != 0)
        status = failed("unmapping");
    if (dwell_close(file) != 0)
        status = failed("closing");
    return status;
}
