// SPDX-License-Identifier: MIT OR Apache-2.0
// FILE: reads 100 blocks with direct I/O for each line of its input, and says so.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **words) {
    void *memory;
    int fd = open(words[count - 1], O_RDONLY | O_DIRECT);
    if (fd < 0 || posix_memalign(&memory, 4096, 4096)) return 1;
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        for (int i = 0; i < 100; i++) {
            if (pread(fd, memory, 4096, i * 4096L) != 4096) return 2;
        }
        puts("done");
        fflush(stdout);
    }
    return 0;
}
