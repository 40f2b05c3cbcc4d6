/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* Dwell's files over SQLite's descriptors. What is known of a database's device is looked up once while it is open. */
#ifndef DWELL_FILES_H
#define DWELL_FILES_H

#include <dwell.h>

typedef struct served served;

/* A file that SQLite has opened at a path. database_path is that of its database, or path itself; policy may be NULL. Neither
   may go before the file. NULL with a text in why, which is valid until the next call of Dwell in this thread. */
served *served_open(int descriptor, const char *path, const char *database_path, const char *policy, const char **why);

dwell_file *served_file(const served *file);

/* To be called before SQLite closes its descriptor. */
void served_close(served *file);

#endif
