// SPDX-License-Identifier: MIT OR Apache-2.0
// Maps an immutable file, changes it as its owner may, and maps it again: maps_changed FILE.
// What a mapping is made of goes to stderr.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "made_of.h"

static const char *path;

static void must(const char *what, int ok) {
	if (!ok) {
		perror(what);
		exit(1);
	}
}

static void attribute(int immutable) {
	int fd = open(path, O_RDONLY), flags = 0;
	must("FS_IOC_GETFLAGS", !ioctl(fd, FS_IOC_GETFLAGS, &flags));
	flags = immutable ? flags | FS_IMMUTABLE_FL : flags & ~FS_IMMUTABLE_FL;
	must("FS_IOC_SETFLAGS", !ioctl(fd, FS_IOC_SETFLAGS, &flags));
	close(fd);
}

// Writes one byte all over the file, which gets that many bytes.
static void change(int byte, size_t bytes) {
	attribute(0);
	char *data = malloc(bytes);
	memset(data, byte, bytes);
	int fd = open(path, O_WRONLY | O_TRUNC);
	must("write", write(fd, data, bytes) == (ssize_t)bytes);
	close(fd);
	free(data);
	attribute(1);
}

// Maps all of the file; which byte is all over it.
static const unsigned char *mapped(const char *what) {
	int fd = open(path, O_RDONLY);
	struct stat status;
	must("fstat", !fstat(fd, &status));
	const unsigned char *memory = mmap(NULL, status.st_size, PROT_READ, MAP_SHARED, fd, 0);
	must("mmap", memory != MAP_FAILED);
	made_of(what, memory);
	off_t same = 0;
	while (same < status.st_size && memory[same] == memory[0])
		same++;
	printf("%s: %ld bytes, %ld of %c\n", what, (long)status.st_size, (long)same, memory[0]);
	close(fd);
	return memory;
}

// Whether another process finds a record lock of this one.
static void is_locked(const char *what, int fd) {
	int status;
	pid_t child = fork();
	if (child == 0) {
		struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
		fcntl(fd, F_GETLK, &lock);
		_exit(lock.l_type == F_UNLCK ? 1 : 0);
	}
	waitpid(child, &status, 0);
	printf("%s: %s\n", what, status ? "no lock" : "locked");
}

int main(int count, char **words) {
	path = words[1];
	setvbuf(stdout, NULL, _IONBF, 0);
	change('a', 64 << 10);
	munmap((void *)mapped("first"), 64 << 10);
	change('b', 256 << 10);
	munmap((void *)mapped("longer"), 256 << 10);
	change('c', 16 << 10);
	const unsigned char *kept = mapped("shorter");
	change('d', 128 << 10);
	mapped("while mapped");
	printf("what was mapped: %c\n", kept[5]);

	// A file that is written stays the program's, with its locks.
	attribute(0);
	int fd = open(path, O_RDWR);
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
	must("F_SETLK", !fcntl(fd, F_SETLK, &lock));
	is_locked("before", fd);
	void *memory = mmap(NULL, 4096, PROT_READ, MAP_SHARED, fd, 0);
	must("mmap", memory != MAP_FAILED);
	is_locked("mapped", fd);
	int second = open(path, O_RDONLY);
	must("mmap", mmap(NULL, 4096, PROT_READ, MAP_SHARED, second, 0) != MAP_FAILED);
	is_locked("mapped by another", fd);
	return 0;
}
