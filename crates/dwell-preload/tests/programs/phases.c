// SPDX-License-Identifier: MIT OR Apache-2.0
// [stand] FILE: reads 100 blocks with direct I/O for each line of its input, where the descriptor stands if told to, and says so.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

int main(int count, char **words) {
    void *memory;
    int fd = open(words[count - 1], O_RDONLY | O_DIRECT);
    if (fd < 0 || posix_memalign(&memory, 4096, 4096)) return 1;
    int stand = count > 2;
    char line[64];
    while (fgets(line, sizeof line, stdin)) {
        if (lseek(fd, 0, SEEK_SET) != 0) return 3;
        for (int i = 0; i < 100; i++) {
            if ((stand ? read(fd, memory, 4096) : pread(fd, memory, 4096, i * 4096L)) != 4096) return 2;
        }
        puts("done");
        fflush(stdout);
    }
    return 0;
}
