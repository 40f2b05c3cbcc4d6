/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * The VFS "dwell" for SQLite, a loadable extension:
 *
 *     sqlite3 :memory: '.load target/sqlite/dwell_vfs' ".open 'file:data.db?vfs=dwell&policy=adaptive'"
 *
 * It stands on the VFS "unix". Names, locks, shared memory and lengths of files are that one's. Dwell reads, writes and syncs
 * main databases, rollback journals and write-ahead logs. All other files are the unix VFS's alone. sqlite/build makes it.
 */
#include <sqlite3ext.h>
SQLITE_EXTENSION_INIT1

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include "descriptors.h"
#include "files.h"

/* sqlite3_filename_database came with 3.31. */
enum { OLDEST_SQLITE = 3031000, TEXT_BYTES = 1024 };

/* Files that Dwell reads and writes. */
enum { OURS = SQLITE_OPEN_MAIN_DB | SQLITE_OPEN_MAIN_JOURNAL | SQLITE_OPEN_WAL };

typedef struct {
    sqlite3_file base;
    sqlite3_io_methods methods;
    served *served;
    dwell_file *file;
    /* A new journal: its name in the directory is not durable yet. */
    int is_new;
    /* Of Dwell's last failed call on this file; 0 where the base's counts. */
    int last_errno;
    /* Behind it: the base VFS's file. */
} vfs_file;

static sqlite3_vfs *beneath;
/* What the last failed opening was about, for all threads. */
static char last_failure[TEXT_BYTES];
static sqlite3_mutex *failure_lock;

static sqlite3_file *base_of(sqlite3_file *file)
{
    return (sqlite3_file *)((vfs_file *)file + 1);
}

#define BASE(file, method, ...) (base_of(file)->pMethods->method(base_of(file), ##__VA_ARGS__))

/* Keeps and logs a failed opening; SQLite's own message names no reason. */
static int cannot_open(const char *path, const char *why)
{
    sqlite3_mutex_enter(failure_lock);
    sqlite3_snprintf(sizeof last_failure, last_failure, "%s: %s", path, why);
    sqlite3_mutex_leave(failure_lock);
    sqlite3_log(SQLITE_CANTOPEN, "dwell: %s: %s", path, why);
    return SQLITE_CANTOPEN;
}

static int failed(vfs_file *file, int code)
{
    file->last_errno = errno;
    sqlite3_log(code, "dwell: %s", dwell_last_error());
    return code;
}

static int file_close(sqlite3_file *opened)
{
    vfs_file *file = (vfs_file *)opened;
    served_close(file->served);
    int code = BASE(opened, xClose);
    opened->pMethods = NULL;
    return code;
}

static int file_read(sqlite3_file *opened, void *memory, int bytes, sqlite3_int64 offset)
{
    vfs_file *file = (vfs_file *)opened;
    int done = 0;
    while (done < bytes) {
        ssize_t now = dwell_read_at(file->file, (char *)memory + done, (size_t)(bytes - done), (uint64_t)offset + done);
        if (now == 0)
            break;
        if (now < 0) {
            /* As the unix VFS: what a damaged file system or device answers. */
            int damaged = errno == ERANGE || errno == EIO || errno == ENXIO;
            return failed(file, damaged ? SQLITE_IOERR_CORRUPTFS : SQLITE_IOERR_READ);
        }
        done += (int)now;
    }
    if (done == bytes)
        return SQLITE_OK;
    memset((char *)memory + done, 0, (size_t)(bytes - done));
    return SQLITE_IOERR_SHORT_READ;
}

static int file_write(sqlite3_file *opened, const void *memory, int bytes, sqlite3_int64 offset)
{
    vfs_file *file = (vfs_file *)opened;
    int done = 0;
    while (done < bytes) {
        ssize_t now = dwell_write_at(file->file, (const char *)memory + done, (size_t)(bytes - done), (uint64_t)offset + done);
        if (now < 0)
            return failed(file, errno == ENOSPC ? SQLITE_FULL : SQLITE_IOERR_WRITE);
        if (now == 0)
            return SQLITE_FULL;
        done += (int)now;
    }
    return SQLITE_OK;
}

static int file_sync(sqlite3_file *opened, int flags)
{
    vfs_file *file = (vfs_file *)opened;
    /* The base syncs the directory of a new journal too. */
    if (file->is_new) {
        int code = BASE(opened, xSync, flags);
        file->is_new = code != SQLITE_OK;
        return code;
    }
    /* It includes the length of the file, which is all of the metadata that SQLite needs. */
    return dwell_sync_data(file->file) == 0 ? SQLITE_OK : failed(file, SQLITE_IOERR_FSYNC);
}

static int file_truncate(sqlite3_file *opened, sqlite3_int64 bytes)
{
    return BASE(opened, xTruncate, bytes);
}

static int file_size(sqlite3_file *opened, sqlite3_int64 *bytes)
{
    return BASE(opened, xFileSize, bytes);
}

static int file_lock(sqlite3_file *opened, int level)
{
    return BASE(opened, xLock, level);
}

static int file_unlock(sqlite3_file *opened, int level)
{
    return BASE(opened, xUnlock, level);
}

static int file_check_reserved(sqlite3_file *opened, int *reserved)
{
    return BASE(opened, xCheckReservedLock, reserved);
}

/* One line of what was decided for a file, in memory of SQLite's. */
static char *told(const dwell_file *file)
{
    dwell_stats stats = DWELL_STATS_INIT;
    if (dwell_file_stats(file, &stats) != 0)
        return sqlite3_mprintf("%s", dwell_last_error());
    sqlite3_uint64 cached = 0;
    for (uint32_t reason = 0; reason < DWELL_REASONS; reason++) {
        const char *name = dwell_reason_name(reason);
        if (name && strcmp(name, "cached") == 0)
            cached = stats.by_reason[reason];
    }
    return sqlite3_mprintf("%llu requests: %llu from the page cache, %llu by other system calls, %llu spun, %llu blocked, "
                           "%llu hybrid; spun for %llu ns, blocked for %llu ns",
                           (sqlite3_uint64)stats.requests, cached, (sqlite3_uint64)stats.inline_calls - cached,
                           (sqlite3_uint64)stats.spun, (sqlite3_uint64)stats.blocked, (sqlite3_uint64)stats.hybrid,
                           (sqlite3_uint64)stats.spun_ns, (sqlite3_uint64)stats.parked_ns);
}

/* PRAGMA dwell_policy and dwell_stats; words is the error or answer, the name and the value of the pragma. */
static int file_pragma(const vfs_file *file, char **words)
{
    if (sqlite3_stricmp(words[1], "dwell_stats") == 0) {
        words[0] = told(file->file);
    } else if (sqlite3_stricmp(words[1], "dwell_policy") == 0) {
        dwell_info info = DWELL_INFO_INIT;
        words[0] = sqlite3_mprintf("%s", dwell_file_info(file->file, &info) == 0 ? info.policy : dwell_last_error());
    } else {
        return SQLITE_NOTFOUND;
    }
    return words[0] ? SQLITE_OK : SQLITE_NOMEM;
}

static int file_control(sqlite3_file *opened, int what, void *argument)
{
    vfs_file *file = (vfs_file *)opened;
    if (what == SQLITE_FCNTL_PRAGMA && file_pragma(file, argument) == SQLITE_OK)
        return SQLITE_OK;
    int code = BASE(opened, xFileControl, what, argument);
    if (what == SQLITE_FCNTL_VFSNAME && code == SQLITE_OK)
        *(char **)argument = sqlite3_mprintf("dwell/%z", *(char **)argument);
    if (what == SQLITE_FCNTL_LAST_ERRNO && file->last_errno != 0) {
        *(int *)argument = file->last_errno;
        file->last_errno = 0;
    }
    return code;
}

static int file_sector_size(sqlite3_file *opened)
{
    return BASE(opened, xSectorSize);
}

static int file_characteristics(sqlite3_file *opened)
{
    /* A batch that is atomic has to be written by the calls of the base. */
    return BASE(opened, xDeviceCharacteristics) & ~SQLITE_IOCAP_BATCH_ATOMIC;
}

static int file_shm_map(sqlite3_file *opened, int page, int bytes, int extend, void volatile **memory)
{
    return BASE(opened, xShmMap, page, bytes, extend, memory);
}

static int file_shm_lock(sqlite3_file *opened, int offset, int count, int flags)
{
    return BASE(opened, xShmLock, offset, count, flags);
}

static void file_shm_barrier(sqlite3_file *opened)
{
    BASE(opened, xShmBarrier);
}

static int file_shm_unmap(sqlite3_file *opened, int remove)
{
    return BASE(opened, xShmUnmap, remove);
}

static int file_fetch(sqlite3_file *opened, sqlite3_int64 offset, int bytes, void **memory)
{
    return BASE(opened, xFetch, offset, bytes, memory);
}

static int file_unfetch(sqlite3_file *opened, sqlite3_int64 offset, void *memory)
{
    return BASE(opened, xUnfetch, offset, memory);
}

/* SQLite asks by version and by NULL what a file can do, so what the base lacks is lacking here. */
static sqlite3_io_methods methods_over(const sqlite3_io_methods *base)
{
    sqlite3_io_methods methods = {
        .iVersion = base->iVersion < 3 ? base->iVersion : 3,
        .xClose = file_close,
        .xRead = file_read,
        .xWrite = file_write,
        .xTruncate = file_truncate,
        .xSync = file_sync,
        .xFileSize = file_size,
        .xLock = file_lock,
        .xUnlock = file_unlock,
        .xCheckReservedLock = file_check_reserved,
        .xFileControl = file_control,
        .xSectorSize = file_sector_size,
        .xDeviceCharacteristics = file_characteristics,
    };
    if (base->iVersion >= 2 && base->xShmMap) {
        methods.xShmMap = file_shm_map;
        methods.xShmLock = file_shm_lock;
        methods.xShmBarrier = file_shm_barrier;
        methods.xShmUnmap = file_shm_unmap;
    }
    if (base->iVersion >= 3 && base->xFetch) {
        methods.xFetch = file_fetch;
        methods.xUnfetch = file_unfetch;
    }
    return methods;
}

/* Before anything is opened or made: whether there is such a policy. */
static int policy_known(const char *path, const char *policy)
{
    char why[TEXT_BYTES];
    const char *known;
    if (!policy)
        return 1;
    for (uint32_t i = 0; (known = dwell_policy_name(i)) != NULL; i++)
        if (strcmp(known, policy) == 0)
            return 1;
    sqlite3_snprintf(sizeof why, why, "policy=%s: no such policy; there are", policy);
    for (uint32_t i = 0; (known = dwell_policy_name(i)) != NULL; i++) {
        size_t used = strlen(why);
        sqlite3_snprintf((int)(sizeof why - used), why + used, "%s %s", i == 0 ? "" : ",", known);
    }
    cannot_open(path, why);
    return 0;
}

static int vfs_open(sqlite3_vfs *vfs, const char *path, sqlite3_file *opened, int flags, int *out)
{
    (void)vfs;
    if (!path || !(flags & OURS) || (flags & SQLITE_OPEN_DELETEONCLOSE))
        return beneath->xOpen(beneath, path, opened, flags, out);
    vfs_file *file = (vfs_file *)opened;
    memset(file, 0, sizeof *file);
    const char *database = sqlite3_filename_database(path);
    const char *policy = sqlite3_uri_parameter(database, "policy");
    if (!policy_known(path, policy))
        return SQLITE_CANTOPEN;
    descriptors_begin();
    int code = beneath->xOpen(beneath, path, base_of(opened), flags, out);
    int descriptor = descriptors_end();
    const char *why;
    if (code == SQLITE_OK) {
        file->served = served_open(descriptor, path, database, policy, &why);
        if (!file->served)
            code = cannot_open(path, why);
    }
    if (code != SQLITE_OK) {
        if (base_of(opened)->pMethods)
            BASE(opened, xClose);
        return code;
    }
    file->file = served_file(file->served);
    file->is_new = !(flags & SQLITE_OPEN_MAIN_DB) && (flags & SQLITE_OPEN_CREATE);
    file->methods = methods_over(base_of(opened)->pMethods);
    opened->pMethods = &file->methods;
    return SQLITE_OK;
}

static int vfs_delete(sqlite3_vfs *vfs, const char *path, int sync_directory)
{
    (void)vfs;
    return beneath->xDelete(beneath, path, sync_directory);
}

static int vfs_access(sqlite3_vfs *vfs, const char *path, int flags, int *result)
{
    (void)vfs;
    return beneath->xAccess(beneath, path, flags, result);
}

static int vfs_full_pathname(sqlite3_vfs *vfs, const char *path, int bytes, char *full)
{
    (void)vfs;
    return beneath->xFullPathname(beneath, path, bytes, full);
}

static void *vfs_dl_open(sqlite3_vfs *vfs, const char *path)
{
    (void)vfs;
    return beneath->xDlOpen(beneath, path);
}

static void vfs_dl_error(sqlite3_vfs *vfs, int bytes, char *text)
{
    (void)vfs;
    beneath->xDlError(beneath, bytes, text);
}

static void (*vfs_dl_sym(sqlite3_vfs *vfs, void *library, const char *name))(void)
{
    (void)vfs;
    return beneath->xDlSym(beneath, library, name);
}

static void vfs_dl_close(sqlite3_vfs *vfs, void *library)
{
    (void)vfs;
    beneath->xDlClose(beneath, library);
}

static int vfs_randomness(sqlite3_vfs *vfs, int bytes, char *out)
{
    (void)vfs;
    return beneath->xRandomness(beneath, bytes, out);
}

static int vfs_sleep(sqlite3_vfs *vfs, int microseconds)
{
    (void)vfs;
    return beneath->xSleep(beneath, microseconds);
}

static int vfs_current_time(sqlite3_vfs *vfs, double *days)
{
    (void)vfs;
    return beneath->xCurrentTime(beneath, days);
}

static int vfs_last_error(sqlite3_vfs *vfs, int bytes, char *text)
{
    (void)vfs;
    return beneath->xGetLastError(beneath, bytes, text);
}

static int vfs_current_time_ms(sqlite3_vfs *vfs, sqlite3_int64 *milliseconds)
{
    (void)vfs;
    return beneath->xCurrentTimeInt64(beneath, milliseconds);
}

static sqlite3_vfs dwell = {
    .iVersion = 2,
    .zName = "dwell",
    .xOpen = vfs_open,
    .xDelete = vfs_delete,
    .xAccess = vfs_access,
    .xFullPathname = vfs_full_pathname,
    .xDlOpen = vfs_dl_open,
    .xDlError = vfs_dl_error,
    .xDlSym = vfs_dl_sym,
    .xDlClose = vfs_dl_close,
    .xRandomness = vfs_randomness,
    .xSleep = vfs_sleep,
    .xCurrentTime = vfs_current_time,
    .xGetLastError = vfs_last_error,
    .xCurrentTimeInt64 = vfs_current_time_ms,
};

/* SELECT dwell_last_error(): why the last database could not be opened. */
static void last_error(sqlite3_context *context, int count, sqlite3_value **values)
{
    (void)count;
    (void)values;
    sqlite3_mutex_enter(failure_lock);
    sqlite3_result_text(context, last_failure, -1, SQLITE_TRANSIENT);
    sqlite3_mutex_leave(failure_lock);
}

/* Every connection gets the function, as the one that was to be opened has failed. */
static int connected(sqlite3 *db, char **error, const sqlite3_api_routines *api)
{
    (void)error;
    (void)api;
    return sqlite3_create_function(db, "dwell_last_error", 0, SQLITE_UTF8, NULL, last_error, NULL, NULL);
}

static int loaded(sqlite3 *db, char **error, const sqlite3_api_routines *api, int is_default)
{
    /* A program with two copies of SQLite: functions of one must not be called for the other. */
    if (sqlite3_api && sqlite3_api != api) {
        *error = api->mprintf("dwell_vfs is loaded by another copy of SQLite in this process");
        return SQLITE_ERROR;
    }
    if (api->libversion_number() < OLDEST_SQLITE) {
        *error = api->mprintf("dwell_vfs needs SQLite 3.31 or newer; this is %s", api->libversion());
        return SQLITE_ERROR;
    }
    SQLITE_EXTENSION_INIT2(api);
    if (!beneath) {
        sqlite3_vfs *base = sqlite3_vfs_find("unix");
        if (!base || !descriptors_watch(base)) {
            *error = sqlite3_mprintf("dwell_vfs stands on SQLite's VFS \"unix\", which is not there or does not let its calls be watched");
            return SQLITE_ERROR;
        }
        dwell.szOsFile = (int)sizeof(vfs_file) + base->szOsFile;
        dwell.mxPathname = base->mxPathname;
        failure_lock = sqlite3_mutex_alloc(SQLITE_MUTEX_FAST);
        beneath = base;
        sqlite3_auto_extension((void (*)(void))connected);
    }
    int code = sqlite3_vfs_find("dwell") == &dwell && !is_default ? SQLITE_OK : sqlite3_vfs_register(&dwell, is_default);
    if (code == SQLITE_OK)
        code = connected(db, error, api);
    return code == SQLITE_OK ? SQLITE_OK_LOAD_PERMANENTLY : code;
}

#define ENTRY __attribute__((visibility("default"))) int

static int loaded_once_at_a_time(sqlite3 *db, char **error, const sqlite3_api_routines *api, int is_default)
{
    static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&loading);
    int code = loaded(db, error, api, is_default);
    pthread_mutex_unlock(&loading);
    return code;
}

ENTRY sqlite3_dwellvfs_init(sqlite3 *db, char **error, const sqlite3_api_routines *api)
{
    return loaded_once_at_a_time(db, error, api, 0);
}

/* The other entry point: makes it the default VFS as well. */
ENTRY sqlite3_dwellvfs_default_init(sqlite3 *db, char **error, const sqlite3_api_routines *api)
{
    return loaded_once_at_a_time(db, error, api, 1);
}
