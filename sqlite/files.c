/* SPDX-License-Identifier: MIT OR Apache-2.0 */
#include "files.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct served {
    dev_t device;
    ino_t inode;
    /* "" where the URI names none. */
    const char *policy;
    dwell_file *file;
    served *next;
};

/* Guards the list of open files. Nothing of SQLite is called while it is held. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static served *all;

/* Beside an open connection to the same database, of which everything is known; NULL where there is none. */
static dwell_file *beside(const char *database_path, int descriptor, const char *path, const char *policy)
{
    struct stat status;
    dwell_file *file = NULL;
    if (stat(database_path, &status) != 0)
        return NULL;
    pthread_mutex_lock(&lock);
    for (const served *one = all; one; one = one->next) {
        if (one->device != status.st_dev || one->inode != status.st_ino || strcmp(one->policy, policy) != 0)
            continue;
        if (dwell_fdopen_beside(one->file, descriptor, path, &file) != 0)
            file = NULL;
        break;
    }
    pthread_mutex_unlock(&lock);
    return file;
}

static dwell_file *alone(int descriptor, const char *path, const char *policy, const char **why)
{
    dwell_file *file = NULL;
    dwell_options options = DWELL_OPTIONS_INIT;
    options.policy = *policy ? policy : NULL;
    if (dwell_fdopen(descriptor, path, &options, &file) == 0)
        return file;
    *why = dwell_last_error();
    return NULL;
}

/* Why it cannot be this descriptor; NULL where it can. */
static const char *mistaken(int descriptor, const char *path, struct stat *opened)
{
    struct stat at_path;
    if (descriptor < 0 || fstat(descriptor, opened) != 0)
        return "this SQLite does not show which descriptor it has opened; open the database without vfs=dwell";
    if (stat(path, &at_path) != 0 || at_path.st_dev != opened->st_dev || at_path.st_ino != opened->st_ino)
        return "another file than the one that was opened is at this path; open it again";
    return NULL;
}

served *served_open(int descriptor, const char *path, const char *database_path, const char *policy, const char **why)
{
    struct stat status;
    policy = policy ? policy : "";
    *why = mistaken(descriptor, path, &status);
    if (*why)
        return NULL;
    served *file = calloc(1, sizeof *file);
    if (!file) {
        *why = "out of memory";
        return NULL;
    }
    file->device = status.st_dev;
    file->inode = status.st_ino;
    file->policy = policy;
    file->file = beside(database_path, descriptor, path, policy);
    if (!file->file)
        file->file = alone(descriptor, path, policy, why);
    if (!file->file) {
        free(file);
        return NULL;
    }
    pthread_mutex_lock(&lock);
    file->next = all;
    all = file;
    pthread_mutex_unlock(&lock);
    return file;
}

dwell_file *served_file(const served *file)
{
    return file->file;
}

void served_close(served *file)
{
    pthread_mutex_lock(&lock);
    served **at = &all;
    while (*at && *at != file)
        at = &(*at)->next;
    if (*at)
        *at = file->next;
    pthread_mutex_unlock(&lock);
    dwell_close(file->file);
    free(file);
}
