/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * Which descriptor the VFS "unix" has of a file that it opens.
 *
 * Dwell's requests go through SQLite's own descriptor, because a second one could never be closed safely. Closing any
 * descriptor of a file drops every fcntl lock that the process holds on it (POSIX). Only SQLite knows when it holds none,
 * and even SQLite takes locks while another thread closes.
 *
 * No interface returns the descriptor. But the unix VFS lets others stand in place of its system calls (xSetSystemCall).
 * While it opens a file, the last descriptor that it opens, or asks fstat(2) about, is that file's: it does the one for a
 * new descriptor and the other for every file with locks, also where it takes up a descriptor that it had kept. The caller
 * compares it with the file at the path, and must refuse what differs.
 */
#ifndef DWELL_DESCRIPTORS_H
#define DWELL_DESCRIPTORS_H

#include <sqlite3.h>

/* Stands in place of open and fstat. Not 0, or 0 where this SQLite does not let it. */
int descriptors_watch(sqlite3_vfs *unix_vfs);

/* From here on the calling thread opens one file through the unix VFS. */
void descriptors_begin(void);

/* The descriptor that it has of the file, or -1. */
int descriptors_end(void);

#endif
