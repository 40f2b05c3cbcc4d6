// SPDX-License-Identifier: MIT OR Apache-2.0
// Maps a file, allows itself nothing but read, write and exit, and reads the mapping: maps_filtered FILE.
#define _GNU_SOURCE
#include <fcntl.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int main(int count, char **words) {
	int fd = open(words[1], O_RDONLY);
	struct stat status;
	if (count < 2 || fd < 0 || fstat(fd, &status))
		return 2;
	const unsigned char *memory = mmap(NULL, status.st_size, PROT_READ, MAP_SHARED, fd, 0);
	unsigned long before = memory[4096], sum = 0;
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT, 0, 0, 0))
		return 1;
	for (long at = 0; at < status.st_size; at += 4096)
		sum = sum * 31 + memory[at];
	char text[64];
	int length = 0;
	for (sum += before; sum; sum /= 10)
		text[length++] = '0' + sum % 10;
	text[length++] = '\n';
	write(1, text, length);
	// Strict mode knows no exit_group.
	syscall(SYS_exit, 0);
}
