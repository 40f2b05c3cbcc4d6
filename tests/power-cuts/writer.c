// SPDX-License-Identifier: MIT OR Apache-2.0
// A program that knows nothing of Dwell: writes and syncs FILE as its standard input says, and answers each order with one byte.
// 'w', the offset and 4096 bytes: a write past the page cache. 's': fdatasync. 'S': fsync. The end: it exits.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { BLOCK = 4096 };

static void want(size_t got, size_t wanted, const char *what) {
    if (got == wanted) return;
    perror(what);
    exit(1);
}

int main(int argc, char **argv) {
    if (argc != 2) return 2;
    int file = open(argv[1], O_WRONLY | O_DIRECT);
    if (file < 0) return perror(argv[1]), 1;
    void *block = NULL;
    if (posix_memalign(&block, BLOCK, BLOCK)) return 1;
    for (int order; (order = getchar()) != EOF;) {
        uint64_t at;
        if (order == 'w') {
            want(fread(&at, 1, sizeof at, stdin), sizeof at, "offset");
            want(fread(block, 1, BLOCK, stdin), BLOCK, "block");
            want(pwrite(file, block, BLOCK, at), BLOCK, "pwrite");
        } else {
            want(order == 's' ? fdatasync(file) : fsync(file), 0, "sync");
        }
        want(write(STDOUT_FILENO, "k", 1), 1, "answer");
    }
    return 0;
}
