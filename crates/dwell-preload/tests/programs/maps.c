// SPDX-License-Identifier: MIT OR Apache-2.0
// Maps a file in every way and tells what it finds there: maps FILE. What a mapping is made of goes to stderr.
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "made_of.h"

static size_t length;
static sigjmp_buf back;

static void jump(int signal) { siglongjmp(back, signal); }

// Every page once, in an order that reading ahead does not guess.
static uint64_t sum(const volatile unsigned char *memory, size_t bytes) {
	size_t pages = (bytes + 4095) / 4096, step = 4099;
	uint64_t hash = 14695981039346656037u;
	for (size_t i = 0; i < pages; i++) {
		size_t at = i * step % pages * 4096;
		for (size_t k = at; k < at + 4096 && k < bytes; k += 61)
			hash = (hash ^ memory[k]) * 1099511628211u;
	}
	return hash;
}

static void *map(int fd, int flags, size_t bytes, off_t offset) {
	void *memory = mmap(NULL, bytes, PROT_READ, flags, fd, offset);
	if (memory == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	return memory;
}

static void *summed(void *memory) {
	return (void *)(uintptr_t)sum(memory, length);
}

static void in_child(const char *what, pid_t child, void *memory, uint64_t expected) {
	int status;
	if (child == 0)
		_exit(sum(memory, length) == expected ? 7 : 8);
	waitpid(child, &status, 0);
	printf("%s %d\n", what, WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
}

static int locks(void *memory) { return mlock(memory, 4096) ? 1 : 7; }

int main(int count, char **words) {
	int fd = open(words[1], O_RDONLY);
	struct stat status;
	if (count < 2 || fd < 0 || fstat(fd, &status))
		return 2;
	length = status.st_size;
	setvbuf(stdout, NULL, _IONBF, 0);

	unsigned char *memory = map(fd, MAP_SHARED, length, 0);
	made_of("whole", memory);
	uint64_t expected = sum(memory, length);
	printf("whole %lx\n", expected);

	unsigned char *again = map(fd, MAP_PRIVATE, length, 0);
	printf("twice %d %lx\n", again != memory, sum(again, length));
	munmap(again, length);

	pthread_t threads[4];
	for (int i = 0; i < 4; i++)
		pthread_create(&threads[i], NULL, summed, memory);
	for (int i = 0; i < 4; i++) {
		void *found;
		pthread_join(threads[i], &found);
		printf("thread %d\n", (uintptr_t)found == expected);
	}

	// The kernel reads what is absent too.
	int null[2];
	char page[4096];
	if (pipe(null))
		return 1;
	madvise(memory, length, MADV_DONTNEED);
	size_t moved = 0;
	for (size_t at = 0; at + 4096 <= length; at += 5 * 4096) {
		moved += write(null[1], memory + at, 4096);
		moved += read(null[0], page, 4096);
		if (memcmp(page, memory + at, 4096))
			printf("differs at %zu\n", at);
	}
	printf("calls %zu\n", moved);

	printf("advice %d %d %d\n", madvise(memory, length, MADV_RANDOM), madvise(memory, length, MADV_WILLNEED),
	       posix_madvise(memory, length, POSIX_MADV_SEQUENTIAL));
	printf("advised %d\n", sum(memory, length) == expected);

	in_child("fork", fork(), memory, expected);
	in_child("_Fork", _Fork(), memory, expected);
	in_child("raw fork", syscall(SYS_fork), memory, expected);
	in_child("vfork", vfork(), memory, expected);
	in_child("shared table", syscall(SYS_clone, CLONE_FILES | SIGCHLD, 0, 0, 0, 0), memory, expected);
	static char stack[256 << 10] __attribute__((aligned(16)));
	pid_t by_clone = clone(locks, stack + sizeof stack, CLONE_FILES | SIGCHLD, memory);
	int locked;
	waitpid(by_clone, &locked, 0);
	printf("child locks %x, parent %d\n", locked, sum(memory, length) == expected);
	pid_t child = fork();
	if (child == 0) {
		// A child's own mappings, and its parent's made private to it.
		unsigned char *own = map(fd, MAP_SHARED, length, 0);
		munmap(memory, length);
		_exit(sum(own, length) == expected ? 9 : 8);
	}
	int ended;
	waitpid(child, &ended, 0);
	printf("child maps %d\n", WEXITSTATUS(ended));

	signal(SIGSEGV, jump);
	int got = sigsetjmp(back, 1);
	if (!got)
		memory[5] = 1;
	printf("written %d\n", got == SIGSEGV);
	made_of("still", memory);

	printf("unmapped %d\n", munmap(memory, length));
	size_t offset = length / 2 & ~4095ul;
	unsigned char *part = map(fd, MAP_SHARED, length - offset, offset);
	made_of("part", part);
	printf("part %lx\n", sum(part, length - offset));
	printf("locked %d\n", mlock(part, 4096));
	made_of("locked", part);
	printf("part %lx\n", sum(part, length - offset));
	munmap(part, length - offset);
	return 0;
}
