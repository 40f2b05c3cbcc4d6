// SPDX-License-Identifier: MIT OR Apache-2.0
// [stand|cached] FILE: says its number once it has begun, reads 100 blocks with direct I/O for each line of its input, or where the descriptor
// stands, or by the page cache, and says so.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(int count, char **words) {
    void *memory;
    int stand = count > 2 && strcmp(words[1], "stand") == 0, cached = count > 2 && !stand;
    int fd = open(words[count - 1], O_RDONLY | (cached ? 0 : O_DIRECT));
    if (fd < 0 || posix_memalign(&memory, 4096, 4096)) return 1;
    char line[64];
    printf("%d\n", getpid());
    fflush(stdout);
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
