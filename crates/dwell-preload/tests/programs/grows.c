// SPDX-License-Identifier: MIT OR Apache-2.0
// Makes files longer by small writes and then looks at them in ways in which nobody asks how long they are. DIR; prints what it finds.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static int dir;

static void fail(const char *what) {
    perror(what);
    exit(9);
}

static int make(const char *name) {
    int fd = openat(dir, name, O_RDWR | O_CREAT | O_TRUNC, 0600);
    if (fd < 0) fail(name);
    return fd;
}

static void append(int fd, long from, long to, int byte) {
    char piece[100];
    memset(piece, byte, sizeof piece);
    for (long at = from; at < to; at += sizeof piece)
        if (pwrite(fd, piece, sizeof piece, at) != sizeof piece) fail("pwrite");
}

static unsigned long sum(const unsigned char *memory, long bytes) {
    unsigned long sum = 0;
    for (long at = 0; at < bytes; at++) sum = sum * 31 + memory[at];
    return sum;
}

static unsigned char *map(int fd, long bytes) {
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) fail("mmap");
    return memory;
}

int main(int count, char **words) {
    char buffer[100000];
    if (count != 2 || (dir = open(words[1], O_RDONLY | O_DIRECTORY)) < 0) fail("DIR");

    // Nobody asks.
    int fd = make("read");
    append(fd, 0, 50000, 1);
    printf("read %zd %zd\n", pread(fd, buffer, sizeof buffer, 0), pread(fd, buffer, 100, 49990));
    struct stat facts;
    if (fstat(fd, &facts)) fail("fstat");
    printf("stat %ld end %ld\n", (long)facts.st_size, (long)lseek(fd, 0, SEEK_END));
    if (write(fd, "at the end", 10) != 10) fail("write");
    printf("stands at %ld, synced %d\n", (long)lseek(fd, 0, SEEK_CUR), fsync(fd));

    // Mapped after it has grown, as databases do with memory that they share, and grown while it is mapped.
    fd = make("mapped");
    append(fd, 0, 50000, 2);
    unsigned char *memory = map(fd, 80000);
    printf("mapped %lu\n", sum(memory, 50000));
    append(fd, 50000, 60000, 3);
    printf("and longer %lu\n", sum(memory, 60000));

    // Mapped before, and looked at only then.
    fd = make("early");
    append(fd, 0, 100, 4);
    memory = map(fd, 80000);
    append(fd, 100, 60000, 5);
    printf("early %lu\n", sum(memory, 60000));

    // Copied by the kernel.
    fd = make("from");
    int to = make("to");
    append(fd, 0, 70000, 6);
    loff_t offset = 0;
    printf("copied %zd\n", copy_file_range(fd, &offset, to, NULL, 1 << 20, 0));

    // A child has the descriptor too.
    fd = make("child");
    append(fd, 0, 5000, 7);
    if (fork() == 0) {
        append(fd, 5000, 9000, 8);
        _exit(0);
    }
    wait(NULL);
    append(fd, 9000, 12000, 9);
    printf("with a child %zd\n", pread(fd, buffer, sizeof buffer, 0));

    // And by a descriptor that appends.
    int appends = openat(dir, "child", O_WRONLY | O_APPEND);
    if (appends < 0 || write(appends, "appended", 8) != 8) fail("append");
    append(fd, 12008, 15000, 10);
    if (write(appends, "appended", 8) != 8) fail("append");
    printf("appended, stands at %ld\n", (long)lseek(appends, 0, SEEK_CUR));
    if (ftruncate(fd, 11000)) fail("ftruncate");
    append(fd, 11000, 13000, 11);
    printf("cut and grown %ld\n", (long)lseek(fd, 0, SEEK_END));
    return 0;
}
