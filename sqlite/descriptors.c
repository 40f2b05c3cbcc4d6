/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* See descriptors.h for why SQLite's system calls are watched. */
#include "descriptors.h"

#include <sys/stat.h>

static int (*open_beneath)(const char *, int, int);
static int (*fstat_beneath)(int, struct stat *);

/* Of the file that this thread is opening: its descriptor so far; NONE where it opens no file of ours. */
enum { NONE = -2 };
static _Thread_local int seen = NONE;

static void note(int descriptor)
{
    if (seen != NONE)
        seen = descriptor;
}

static int opening(const char *path, int flags, int mode)
{
    int descriptor = open_beneath(path, flags, mode);
    if (descriptor >= 0)
        note(descriptor);
    return descriptor;
}

static int asking(int descriptor, struct stat *status)
{
    note(descriptor);
    return fstat_beneath(descriptor, status);
}

int descriptors_watch(sqlite3_vfs *unix_vfs)
{
    if (unix_vfs->iVersion < 3 || !unix_vfs->xGetSystemCall || !unix_vfs->xSetSystemCall)
        return 0;
    sqlite3_syscall_ptr open_found = unix_vfs->xGetSystemCall(unix_vfs, "open");
    sqlite3_syscall_ptr fstat_found = unix_vfs->xGetSystemCall(unix_vfs, "fstat");
    if (!open_found || !fstat_found)
        return 0;
    open_beneath = (int (*)(const char *, int, int))open_found;
    fstat_beneath = (int (*)(int, struct stat *))fstat_found;
    return unix_vfs->xSetSystemCall(unix_vfs, "open", (sqlite3_syscall_ptr)opening) == SQLITE_OK &&
           unix_vfs->xSetSystemCall(unix_vfs, "fstat", (sqlite3_syscall_ptr)asking) == SQLITE_OK;
}

void descriptors_begin(void)
{
    seen = -1;
}

int descriptors_end(void)
{
    int descriptor = seen;
    seen = NONE;
    return descriptor;
}
