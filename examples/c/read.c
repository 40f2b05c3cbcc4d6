/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Reads one block of a file and says whether the thread spun.
 *
 *     cc read.c $(pkg-config --cflags --libs dwell) -o read
 *     ./read FILE [OFFSET]
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <dwell.h>

static int failed(const char *what)
{
    fprintf(stderr, "read: %s: %s (%s)\n", what, dwell_last_error(), strerror(errno));
    return 1;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        fprintf(stderr, "usage: read FILE [OFFSET]\n");
        return 2;
    }
    uint64_t offset = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    dwell_file *file;
    /* Without options: for reading, through the page cache, with the default policy. */
    if (dwell_open(argv[1], NULL, &file) != 0)
        return failed("opening");

    static char block[4096];
    ssize_t bytes = dwell_read_at(file, block, sizeof block, offset);
    dwell_stats stats = DWELL_STATS_INIT;
    int status = 0;
    if (bytes < 0)
        status = failed("reading");
    else if (dwell_file_stats(file, &stats) != 0)
        status = failed("statistics");
    else
        printf("%zd bytes at %" PRIu64 "; %" PRIu64 " requests, %" PRIu64 " of them spun\n", bytes,
               offset, stats.requests, stats.spun);
    dwell_close(file);
    return status;
}
