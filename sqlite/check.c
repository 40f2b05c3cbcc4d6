/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/*
 * What sqlite/test asks of the VFS in C. Usage: check EXTENSION DIRECTORY COMMAND [ARGUMENT…]
 *
 *     locks             no lock of this process is lost when connections are opened and closed beside it
 *     served            which files Dwell serves
 *     errors            what cannot be opened, and what is said of it
 *     full              DIRECTORY is a small file system, which is filled
 *     churn MODE        threads and processes add to one database, through both VFSs, connecting anew each time
 *     writer MODE       adds rows for ever, and writes each one's number to stdout once it is durable
 *     blocked NAME      whether another process cannot begin to write the database: status 0
 */
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sqlite3.h>

enum { PATH_BYTES = 4096, THREADS = 4, PROCESSES = 3, ADDS = 40 };

static const char *program, *extension, *directory;

#define CHECK(holds)                                                                                \
    do {                                                                                            \
        if (!(holds)) {                                                                             \
            fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #holds, errno);           \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

/* A path in the directory; of several calls in one expression only one may be. */
static const char *in(const char *format, ...)
{
    static __thread char path[PATH_BYTES];
    int begun = snprintf(path, sizeof path, "%s/", directory);
    va_list rest;
    va_start(rest, format);
    vsnprintf(path + begun, sizeof path - (size_t)begun, format, rest);
    va_end(rest);
    return path;
}

/* parameters as of a URI, such as "vfs=dwell&policy=spin"; "" is the unix VFS. */
static int try_open(const char *name, const char *parameters, sqlite3 **db)
{
    char uri[PATH_BYTES + 256];
    snprintf(uri, sizeof uri, "file:%s?%s", in("%s", name), *parameters ? parameters : "vfs=unix");
    int code = sqlite3_open_v2(uri, db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_URI, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_exec(*db, "SELECT count(*) FROM sqlite_schema", NULL, NULL, NULL);
    return code;
}

static sqlite3 *connected(const char *name, const char *parameters)
{
    sqlite3 *db;
    int code = try_open(name, parameters, &db);
    if (code != SQLITE_OK) {
        fprintf(stderr, "%s?%s: %s\n", name, parameters, sqlite3_errmsg(db));
        exit(1);
    }
    return db;
}

static void sql(sqlite3 *db, const char *text)
{
    char *error = NULL;
    if (sqlite3_exec(db, text, NULL, NULL, &error) != SQLITE_OK) {
        fprintf(stderr, "%s: %s\n", text, error);
        exit(1);
    }
}

/* The first column of the first row, as text. */
static const char *answer(sqlite3 *db, const char *text)
{
    static __thread char kept[1024];
    sqlite3_stmt *statement;
    CHECK(sqlite3_prepare_v2(db, text, -1, &statement, NULL) == SQLITE_OK);
    CHECK(sqlite3_step(statement) == SQLITE_ROW);
    snprintf(kept, sizeof kept, "%s", (const char *)sqlite3_column_text(statement, 0));
    CHECK(sqlite3_finalize(statement) == SQLITE_OK);
    return kept;
}

static void closed(sqlite3 *db)
{
    CHECK(sqlite3_close(db) == SQLITE_OK);
}

/* Descriptors that this process has of a file in the directory. */
static int descriptors(const char *name)
{
    char real[PATH_BYTES];
    int count = 0;
    CHECK(realpath(in("%s", name), real) != NULL);
    DIR *all = opendir("/proc/self/fd");
    CHECK(all != NULL);
    for (struct dirent *one; (one = readdir(all)) != NULL;) {
        char target[PATH_BYTES];
        ssize_t bytes = readlinkat(dirfd(all), one->d_name, target, sizeof target - 1);
        if (bytes <= 0)
            continue;
        target[bytes] = 0;
        count += strcmp(target, real) == 0;
    }
    closedir(all);
    return count;
}

/* What another process does, which has locks of its own. */
static pid_t started(const char *command, const char *argument)
{
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        execl(program, program, extension, directory, command, argument, (char *)NULL);
        _exit(127);
    }
    return child;
}

static int status_of(pid_t child)
{
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status));
    return WEXITSTATUS(status);
}

static int is_blocked(const char *name)
{
    int status = status_of(started("blocked", name));
    CHECK(status == 0 || status == 1);
    return status == 0;
}

static int blocked(const char *name)
{
    sqlite3 *db;
    int code = try_open(name, "", &db);
    if (code == SQLITE_OK)
        code = sqlite3_exec(db, "BEGIN EXCLUSIVE", NULL, NULL, NULL);
    sqlite3_close(db);
    return code == SQLITE_BUSY ? 0 : code == SQLITE_OK ? 1 : 2;
}

static void locks(void)
{
    static const char *const kinds[] = { "vfs=dwell", "" };
    static const char *const locked[] = { "BEGIN IMMEDIATE", "BEGIN EXCLUSIVE", "BEGIN; SELECT count(*) FROM t" };
    for (int holder = 0; holder < 2; holder++) {
        for (int lock = 0; lock < 3; lock++) {
            const char *name = "locks.db";
            sqlite3 *first = connected(name, kinds[holder]);
            sql(first, "CREATE TABLE IF NOT EXISTS t (x)");
            CHECK(!is_blocked(name));
            sql(first, locked[lock]);
            CHECK(is_blocked(name));
            /* Opening and closing beside it, through either VFS, by the same and by another policy. */
            static const char *const others[] = { "vfs=dwell", "", "vfs=dwell&policy=block", "vfs=dwell&mode=ro" };
            for (int other = 0; other < 4; other++) {
                sqlite3 *second;
                int code = try_open(name, others[other], &second);
                CHECK(code == SQLITE_OK || code == SQLITE_BUSY);
                closed(second);
                CHECK(is_blocked(name));
            }
            /* SQLite keeps what it may not close yet, and takes it up again for the next connection. */
            CHECK(descriptors(name) >= 2);
            sql(first, "COMMIT");
            CHECK(!is_blocked(name));
            closed(first);
            CHECK(descriptors(name) == 0);
        }
    }
    for (int i = 0; i < 100; i++)
        closed(connected("locks.db", "vfs=dwell"));
    CHECK(descriptors("locks.db") == 0);
}

/* How many requests Dwell has served on a file of a connection. */
static int requests(sqlite3 *db, int which)
{
    sqlite3_file *file = NULL;
    char *words[3] = { NULL, "dwell_stats", NULL };
    CHECK(sqlite3_file_control(db, "main", which, &file) == SQLITE_OK && file && file->pMethods);
    CHECK(file->pMethods->xFileControl(file, SQLITE_FCNTL_PRAGMA, words) == SQLITE_OK);
    int count = atoi(words[0]);
    sqlite3_free(words[0]);
    return count;
}

/* Dwell serves the database and its journal or log, by the descriptors that SQLite has of them. */
static void served(void)
{
    static const char *const modes[][2] = { { "DELETE", "-journal" }, { "TRUNCATE", "-journal" }, { "PERSIST", "-journal" }, { "WAL", "-wal" } };
    for (int i = 0; i < 4; i++) {
        char text[128], name[32], beside[64];
        snprintf(name, sizeof name, "served-%s.db", modes[i][0]);
        snprintf(beside, sizeof beside, "%s%s", name, modes[i][1]);
        sqlite3 *db = connected(name, "vfs=dwell&policy=spin");
        snprintf(text, sizeof text, "PRAGMA journal_mode=%s; CREATE TABLE t (x); BEGIN; INSERT INTO t VALUES (1)", modes[i][0]);
        sql(db, text);
        int before = atoi(answer(db, "PRAGMA dwell_stats"));
        CHECK(before > 0 && requests(db, SQLITE_FCNTL_FILE_POINTER) == before);
        CHECK(descriptors(name) == 1 && descriptors(beside) == 1);
        if (i == 3) {
            sql(db, "COMMIT");
            CHECK(requests(db, SQLITE_FCNTL_JOURNAL_POINTER) > 0);
            CHECK(descriptors("served-WAL.db-shm") == 1);
            sql(db, "PRAGMA wal_checkpoint");
        }
        if (i < 3) {
            /* More than the cache holds. */
            sql(db, "PRAGMA cache_size=2; UPDATE t SET x = zeroblob(100000)");
            CHECK(requests(db, SQLITE_FCNTL_JOURNAL_POINTER) > 0);
            sql(db, "COMMIT");
        }
        CHECK(atoi(answer(db, "PRAGMA dwell_stats")) > before);
        closed(db);
        CHECK(descriptors(name) == 0);
        sqlite3 *plain = connected(name, "");
        CHECK(strcmp(answer(plain, "SELECT count(*) FROM t"), "1") == 0);
        CHECK(sqlite3_exec(plain, "PRAGMA dwell_stats", NULL, NULL, NULL) == SQLITE_OK && descriptors(name) == 1);
        closed(plain);
    }
}

/* A connection is refused, and dwell_last_error() says it in these words. */
static void refused(const char *name, const char *parameters, int expected, const char *word)
{
    sqlite3 *db, *other;
    int code = try_open(name, parameters, &db);
    CHECK(code == expected);
    sqlite3_close(db);
    CHECK(sqlite3_open(":memory:", &other) == SQLITE_OK);
    CHECK(!word || strstr(answer(other, "SELECT dwell_last_error()"), word));
    closed(other);
}

/* What comes of reading a table: the result's code and the values. */
static const char *outcome(const char *name, const char *parameters)
{
    static char said[1024];
    sqlite3 *db;
    sqlite3_stmt *statement = NULL;
    int code = try_open(name, parameters, &db);
    if (code == SQLITE_OK)
        code = sqlite3_prepare_v2(db, "SELECT group_concat(hex(x)) FROM t", -1, &statement, NULL);
    if (code == SQLITE_OK)
        code = sqlite3_step(statement);
    const void *text = code == SQLITE_ROW ? sqlite3_column_text(statement, 0) : NULL;
    snprintf(said, sizeof said, "%d %s", code, text ? (const char *)text : "");
    sqlite3_finalize(statement);
    sqlite3_close(db);
    return said;
}

/* Reading past the end, as SQLite's core asks the VFS. */
static void short_read(void)
{
    unsigned char bytes[64];
    sqlite3_file *file = NULL;
    sqlite3_int64 length;
    sqlite3 *db = connected("some.db", "vfs=dwell");
    CHECK(sqlite3_file_control(db, "main", SQLITE_FCNTL_FILE_POINTER, &file) == SQLITE_OK && file);
    CHECK(file->pMethods->xFileSize(file, &length) == SQLITE_OK && length > 64);
    for (int past = 0; past <= 64; past++) {
        memset(bytes, 0xff, sizeof bytes);
        int code = file->pMethods->xRead(file, bytes, 64, length - 64 + past);
        CHECK(code == (past ? SQLITE_IOERR_SHORT_READ : SQLITE_OK));
        for (int i = 64 - past; i < 64; i++)
            CHECK(bytes[i] == 0);
    }
    closed(db);
}

static int (*unix_open)(const char *, int, int);

/* Another process puts another file in the database's place just after SQLite has opened it. */
static int open_and_replace(const char *path, int flags, int mode)
{
    int descriptor = unix_open(path, flags, mode);
    CHECK(rename(in("other.db"), path) == 0);
    return descriptor;
}

static void replaced(void)
{
    sqlite3_vfs *base = sqlite3_vfs_find("unix");
    closed(connected("moved.db", ""));
    closed(connected("other.db", ""));
    unix_open = (int (*)(const char *, int, int))base->xGetSystemCall(base, "open");
    CHECK(base->xSetSystemCall(base, "open", (sqlite3_syscall_ptr)open_and_replace) == SQLITE_OK);
    sqlite3 *db;
    int code = try_open("moved.db", "vfs=dwell", &db);
    CHECK(base->xSetSystemCall(base, "open", (sqlite3_syscall_ptr)unix_open) == SQLITE_OK);
    CHECK(code == SQLITE_CANTOPEN);
    sqlite3_close(db);
    CHECK(strstr(answer(db = connected("moved.db", "vfs=dwell"), "SELECT dwell_last_error()"), "another file than the one"));
    closed(db);
}

static void errors(void)
{
    struct stat status;
    refused("none.db", "vfs=dwell&policy=no-such", SQLITE_CANTOPEN, "policy=no-such: no such policy; there are adaptive, block");
    CHECK(stat(in("none.db"), &status) == -1 && errno == ENOENT);
    refused("none.db", "vfs=dwell&mode=rw", SQLITE_CANTOPEN, NULL);
    CHECK(stat(in("none.db"), &status) == -1);
    refused("no/such/none.db", "vfs=dwell", SQLITE_CANTOPEN, NULL);
    CHECK(mkdir(in("directory"), 0700) == 0);
    refused("directory", "vfs=dwell", SQLITE_CANTOPEN, NULL);

    sqlite3 *db = connected("some.db", "vfs=dwell&policy=hybrid");
    sql(db, "CREATE TABLE t (x); INSERT INTO t VALUES (1)");
    CHECK(strcmp(answer(db, "PRAGMA dwell_policy"), "hybrid") == 0);
    CHECK(strstr(answer(db, "PRAGMA dwell_stats"), " requests: ") && atoi(answer(db, "PRAGMA dwell_stats")) > 0);
    closed(db);

    /* Writing what may only be read. */
    db = connected("some.db", "vfs=dwell&mode=ro");
    CHECK(strcmp(answer(db, "SELECT x FROM t"), "1") == 0);
    CHECK(sqlite3_exec(db, "INSERT INTO t VALUES (2)", NULL, NULL, NULL) == SQLITE_READONLY);
    closed(db);
    CHECK(chmod(in("some.db"), 0444) == 0);
    db = connected("some.db", "vfs=dwell");
    CHECK(strcmp(answer(db, "SELECT x FROM t"), "1") == 0);
    if (geteuid() != 0)
        CHECK(sqlite3_exec(db, "INSERT INTO t VALUES (2)", NULL, NULL, NULL) == SQLITE_READONLY);
    closed(db);

    /* The base has other methods for files without locks. */
    static const char *const unlocked[] = { "vfs=dwell&immutable=1", "vfs=dwell&nolock=1" };
    for (int i = 0; i < 2; i++) {
        db = connected("some.db", unlocked[i]);
        CHECK(strcmp(answer(db, "PRAGMA integrity_check"), "ok") == 0);
        closed(db);
    }

    short_read();
    replaced();

    /* A file that ends too early, as the unix VFS has it. */
    CHECK(chmod(in("some.db"), 0644) == 0 && truncate(in("some.db"), 5000) == 0);
    char theirs[1024];
    snprintf(theirs, sizeof theirs, "%s", outcome("some.db", ""));
    CHECK(strcmp(theirs, outcome("some.db", "vfs=dwell")) == 0);
}

/* Fills the file system, with a journal and with a log: what was committed stays whole. */
static void full(void)
{
    static const char *const modes[] = { "DELETE", "WAL" };
    for (int i = 0; i < 2; i++) {
        char begin[128];
        int code = SQLITE_OK;
        sqlite3 *db = connected("full.db", "vfs=dwell");
        snprintf(begin, sizeof begin, "PRAGMA journal_mode=%s; DROP TABLE IF EXISTS t; CREATE TABLE t (x); PRAGMA cache_size=5", modes[i]);
        sql(db, begin);
        for (int rows = 0; rows < 10000 && code == SQLITE_OK; rows++)
            code = sqlite3_exec(db, "INSERT INTO t VALUES (zeroblob(50000))", NULL, NULL, NULL);
        CHECK(code == SQLITE_FULL);
        CHECK(strcmp(answer(db, "PRAGMA integrity_check"), "ok") == 0);
        closed(db);
        db = connected("full.db", "");
        CHECK(strcmp(answer(db, "PRAGMA integrity_check"), "ok") == 0);
        closed(db);
        static const char *const files[] = { "", "-journal", "-wal", "-shm" };
        for (int file = 0; file < 4; file++)
            unlink(in("full.db%s", files[file]));
    }
}

static void patient(sqlite3 *db)
{
    sqlite3_busy_timeout(db, 120000);
}

/* Adds, each time through a connection of its own. */
static void *added(void *number)
{
    static const char *const ways[] = { "vfs=dwell", "", "vfs=dwell&policy=spin", "vfs=dwell&policy=block" };
    for (int i = 0; i < ADDS; i++) {
        sqlite3 *db;
        char uri[PATH_BYTES + 256];
        const char *way = ways[((long)number + i) % 4];
        snprintf(uri, sizeof uri, "file:%s?%s", in("churn.db"), *way ? way : "vfs=unix");
        CHECK(sqlite3_open_v2(uri, &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_URI, NULL) == SQLITE_OK);
        patient(db);
        sql(db, "BEGIN IMMEDIATE; UPDATE t SET x = x + 1; INSERT INTO filler VALUES (hex(randomblob(300))); COMMIT");
        closed(db);
    }
    return NULL;
}

static void churning(void)
{
    pthread_t threads[THREADS];
    for (long i = 0; i < THREADS; i++)
        CHECK(pthread_create(&threads[i], NULL, added, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_join(threads[i], NULL) == 0);
}

static void churn(const char *mode)
{
    char begin[256];
    sqlite3 *db = connected("churn.db", "vfs=dwell");
    snprintf(begin, sizeof begin, "PRAGMA journal_mode=%s; CREATE TABLE t (x); INSERT INTO t VALUES (0); CREATE TABLE filler (y)", mode);
    sql(db, begin);
    closed(db);
    pid_t children[PROCESSES];
    for (int i = 0; i < PROCESSES; i++)
        children[i] = started("churning", mode);
    for (int i = 0; i < PROCESSES; i++)
        CHECK(status_of(children[i]) == 0);
    db = connected("churn.db", "");
    CHECK(strcmp(answer(db, "PRAGMA integrity_check"), "ok") == 0);
    CHECK(atoi(answer(db, "SELECT x FROM t")) == PROCESSES * THREADS * ADDS);
    CHECK(atoi(answer(db, "SELECT count(*) FROM filler")) == PROCESSES * THREADS * ADDS);
    closed(db);
}

static void writer(const char *mode)
{
    char begin[256];
    sqlite3 *db = connected("crash.db", "vfs=dwell");
    patient(db);
    snprintf(begin, sizeof begin, "PRAGMA journal_mode=%s; PRAGMA synchronous=FULL; PRAGMA cache_size=8; PRAGMA wal_autocheckpoint=20; "
             "CREATE TABLE IF NOT EXISTS t (id INTEGER PRIMARY KEY, body); CREATE INDEX IF NOT EXISTS i ON t (body)", mode);
    sql(db, begin);
    long row = atol(answer(db, "SELECT coalesce(max(id), 0) FROM t"));
    for (;;) {
        char add[256], number[32];
        row++;
        snprintf(add, sizeof add, "BEGIN; INSERT INTO t VALUES (%ld, hex(randomblob(%ld))); "
                 "UPDATE t SET body = hex(randomblob(100)) WHERE id %% 7 = %ld AND id > %ld; COMMIT", row, 20 + row % 2000, row % 7, row - 200);
        sql(db, add);
        int bytes = snprintf(number, sizeof number, "%ld\n", row);
        CHECK(write(STDOUT_FILENO, number, (size_t)bytes) == bytes);
    }
}

/* What went wrong, when a test fails. */
static void logged(void *nothing, int code, const char *text)
{
    (void)nothing;
    if ((code & 0xff) != SQLITE_BUSY)
        fprintf(stderr, "(%d) %s\n", code, text);
}

int main(int argc, char **argv)
{
    if (argc < 4)
        return 2;
    program = argv[0];
    extension = argv[1];
    directory = argv[2];
    const char *command = argv[3], *argument = argc > 4 ? argv[4] : "";
    if (strcmp(command, "blocked") == 0)
        return blocked(argument);
    if (strncmp(command, "churn", 5) == 0)
        CHECK(sqlite3_config(SQLITE_CONFIG_LOG, logged, NULL) == SQLITE_OK);
    sqlite3 *db;
    char *error = NULL;
    CHECK(sqlite3_open(":memory:", &db) == SQLITE_OK);
    CHECK(sqlite3_db_config(db, SQLITE_DBCONFIG_ENABLE_LOAD_EXTENSION, 1, NULL) == SQLITE_OK);
    if (sqlite3_load_extension(db, extension, NULL, &error) != SQLITE_OK) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    closed(db);
    if (strcmp(command, "locks") == 0)
        locks();
    else if (strcmp(command, "served") == 0)
        served();
    else if (strcmp(command, "errors") == 0)
        errors();
    else if (strcmp(command, "full") == 0)
        full();
    else if (strcmp(command, "churn") == 0)
        churn(argument);
    else if (strcmp(command, "churning") == 0)
        churning();
    else if (strcmp(command, "writer") == 0)
        writer(argument);
    else
        return 2;
    return 0;
}
