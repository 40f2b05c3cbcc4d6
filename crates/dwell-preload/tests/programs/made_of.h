// SPDX-License-Identifier: MIT OR Apache-2.0
#pragma once
#include <stdint.h>
#include <stdio.h>
#include <string.h>

// Whether the kernel says that the memory is a mapped file.
static void made_of(const char *what, const void *memory) {
	FILE *maps = fopen("/proc/self/maps", "r");
	char line[4096];
	unsigned long from, to;
	while (fgets(line, sizeof line, maps))
		if (sscanf(line, "%lx-%lx", &from, &to) == 2 && from <= (uintptr_t)memory && (uintptr_t)memory < to)
			fprintf(stderr, "%s: %s\n", what, strchr(line, '/') ? "kernel" : "pager");
	fclose(maps);
}
