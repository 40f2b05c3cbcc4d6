/* SPDX-License-Identifier: MIT OR Apache-2.0 */
/* What dwell.h promises: bytes, counts and errors. Arguments: a file to be made, "direct" or "buffered". */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <dwell.h>

#define CHECK(holds)                                                                              \
    do {                                                                                          \
        if (!(holds)) {                                                                           \
            fprintf(stderr, "%s:%d: %s (errno %d, %s)\n", __FILE__, __LINE__, #holds, errno,      \
                    dwell_last_error());                                                          \
            exit(1);                                                                              \
        }                                                                                         \
    } while (0)

/* The call fails so, and says it in these words. */
#define FAILS(call, number, word)                                                                 \
    do {                                                                                          \
        errno = 0;                                                                                \
        CHECK((call) == -1);                                                                      \
        CHECK(errno == (number));                                                                 \
        CHECK(strstr(dwell_last_error(), word) != NULL);                                          \
    } while (0)

enum { BLOCK = 4096 };

static void *not_null = (void *)1;

static dwell_file *opened(const char *path, uint32_t flags, const char *policy)
{
    dwell_options options = DWELL_OPTIONS_INIT;
    options.flags = flags;
    options.policy = policy;
    dwell_file *file = NULL;
    CHECK(dwell_open(path, &options, &file) == 0 && file != NULL);
    return file;
}

static dwell_stats stats_of(const dwell_file *file)
{
    dwell_stats stats = DWELL_STATS_INIT;
    CHECK(dwell_file_stats(file, &stats) == 0 && stats.size == sizeof stats);
    return stats;
}

static void bad_arguments(const char *path)
{
    dwell_file *file = NULL;
    CHECK(dwell_last_error()[0] == 0);
    FAILS(dwell_open(NULL, NULL, &file), EINVAL, "path is NULL");
    FAILS(dwell_open(path, NULL, NULL), EINVAL, "file is NULL");
    FAILS(dwell_open("/nonexistent/file", NULL, &file), ENOENT, "/nonexistent/file");
    FAILS(dwell_open("/", NULL, &file), EINVAL, "directory");
    FAILS(dwell_open("/dev/null", NULL, &file), EINVAL, "/dev/null");
    FAILS(dwell_open("emu:no-such", NULL, &file), EINVAL, "no-such");

    dwell_options options = { 0 };
    FAILS(dwell_open(path, &options, &file), EINVAL, "sizeof(dwell_options)");
    options = (dwell_options)DWELL_OPTIONS_INIT;
    options.flags = 1u << 31;
    FAILS(dwell_open(path, &options, &file), EINVAL, "flags");
    options = (dwell_options)DWELL_OPTIONS_INIT;
    options.policy = "no-such";
    FAILS(dwell_open(path, &options, &file), EINVAL, "no such policy: \"no-such\"; there are adaptive");
    struct { dwell_options now; void *later; } grown = { .now = { .size = sizeof grown } };
    CHECK(dwell_open("emu:z-nand", &grown.now, &file) == 0 && dwell_close(file) == 0);
    grown.later = not_null;
    FAILS(dwell_open("emu:z-nand", &grown.now, &file), E2BIG, "dwell_options");

    file = opened(path, DWELL_WRITE | DWELL_CREATE, NULL);
    char byte = 0;
    struct iovec piece = { NULL, 1 };
    dwell_stats stats = { 0 };
    dwell_info info = { 0 };
    FAILS(dwell_close(NULL), EINVAL, "NULL");
    FAILS(dwell_read_at(NULL, &byte, 1, 0), EINVAL, "NULL");
    FAILS(dwell_read_at(file, NULL, 1, 0), EINVAL, "buffer is NULL");
    FAILS(dwell_read_at(file, &byte, 1, UINT64_MAX), EINVAL, path);
    FAILS(dwell_write_at(file, NULL, 1, 0), EINVAL, "buffer is NULL");
    FAILS(dwell_readv_at(file, &piece, 1, 0), EINVAL, "pieces[0].iov_base");
    FAILS(dwell_readv_at(file, NULL, 1, 0), EINVAL, "pieces is NULL");
    FAILS(dwell_readv_at(file, &piece, -1, 0), EINVAL, "count is -1");
    FAILS(dwell_writev_at(file, &piece, 1025, 0), EINVAL, "count is 1025");
    FAILS(dwell_sync(NULL), EINVAL, "NULL");
    FAILS(dwell_sync_data(NULL), EINVAL, "NULL");
    FAILS(dwell_file_stats(file, NULL), EINVAL, "NULL");
    FAILS(dwell_file_stats(file, &stats), EINVAL, "sizeof(dwell_stats)");
    FAILS(dwell_file_info(file, &info), EINVAL, "sizeof(dwell_info)");
    CHECK(dwell_read_at(file, NULL, 0, 0) == 0);
    CHECK(dwell_readv_at(file, NULL, 0, 0) == 0);

    dwell_queue *queue = NULL;
    dwell_completion done;
    FAILS(dwell_queue_create(NULL, 1, &queue), EINVAL, "NULL");
    FAILS(dwell_queue_create(file, 1, NULL), EINVAL, "NULL");
    FAILS(dwell_queue_create(file, 0, &queue), EINVAL, "depth is 0");
    FAILS(dwell_queue_create(file, 4097, &queue), EINVAL, "depth is 4097");
    CHECK(dwell_queue_create(file, 1, &queue) == 0);
    FAILS(dwell_queue_read(NULL, &byte, 1, 0, NULL), EINVAL, "queue is NULL");
    FAILS(dwell_queue_read(queue, NULL, 1, 0, NULL), EINVAL, "buffer is NULL");
    FAILS(dwell_queue_write(queue, &byte, 1, UINT64_MAX, NULL), EINVAL, path);
    FAILS(dwell_queue_submit(NULL), EINVAL, "queue is NULL");
    FAILS(dwell_queue_wait(queue, 1, NULL, 1, 0), EINVAL, "out is NULL");
    FAILS(dwell_queue_wait(queue, 0, &done, 0, 0), EINVAL, "max is 0");
    FAILS(dwell_queue_wait(queue, 2, &done, 1, 0), EINVAL, "min is 2");
    FAILS(dwell_queue_close(NULL), EINVAL, "queue is NULL");
    CHECK(dwell_queue_wait(queue, 1, &done, 1, -1) == 0);
    CHECK(dwell_queue_close(queue) == 0);
    CHECK(dwell_close(file) == 0);
}

static void bytes(const char *path, uint32_t flags)
{
    unlink(path);
    dwell_file *file = opened(path, DWELL_WRITE | DWELL_CREATE | flags, NULL);
    char *out = aligned_alloc(BLOCK, 4 * BLOCK), *in = aligned_alloc(BLOCK, 4 * BLOCK);
    for (int i = 0; i < 4 * BLOCK; i++)
        out[i] = (char)(i * 7 + i / BLOCK);
    CHECK(dwell_write_at(file, out, 4 * BLOCK, 0) == 4 * BLOCK);
    CHECK(dwell_sync_data(file) == 0 && dwell_sync(file) == 0);
    memset(in, 0, 4 * BLOCK);
    CHECK(dwell_read_at(file, in, 4 * BLOCK, 0) == 4 * BLOCK && memcmp(in, out, 4 * BLOCK) == 0);
    /* Any memory, length and offset will do for a read. */
    CHECK(dwell_read_at(file, in + 1, 1000, 333) == 1000 && memcmp(in + 1, out + 333, 1000) == 0);
    CHECK(dwell_read_at(file, in, BLOCK, 4 * BLOCK - 10) == 10);
    CHECK(dwell_read_at(file, in, BLOCK, 9 * BLOCK) == 0);

    struct iovec pieces[3] = { { in, BLOCK }, { NULL, 0 }, { in + 2 * BLOCK, 2 * BLOCK } };
    memset(in, 0, 4 * BLOCK);
    CHECK(dwell_readv_at(file, pieces, 3, BLOCK) == 3 * BLOCK);
    CHECK(memcmp(in, out + BLOCK, BLOCK) == 0);
    CHECK(memcmp(in + 2 * BLOCK, out + 2 * BLOCK, 2 * BLOCK) == 0);
    pieces[0].iov_base = out;
    pieces[2].iov_base = out + 2 * BLOCK;
    CHECK(dwell_writev_at(file, pieces, 3, 4 * BLOCK) == 3 * BLOCK);
    CHECK(dwell_read_at(file, in, BLOCK, 5 * BLOCK) == BLOCK);
    CHECK(memcmp(in, out + 2 * BLOCK, BLOCK) == 0);

    dwell_info info = DWELL_INFO_INIT;
    CHECK(dwell_file_info(file, &info) == 0 && info.size == sizeof info);
    CHECK(info.length_bytes == 7 * BLOCK && strcmp(info.policy, "adaptive") == 0);
    CHECK((flags & DWELL_DIRECT) ? info.alignment >= 512 : info.alignment == 1);
    dwell_stats stats = stats_of(file);
    CHECK(stats.bytes_written == 7 * BLOCK && stats.syncs == 2 && stats.errors == 0);
    uint64_t reasons = 0;
    for (int i = 0; i < DWELL_REASONS; i++)
        reasons += stats.by_reason[i];
    CHECK(reasons == stats.requests);
    CHECK(stats.inline_calls + stats.spun + stats.blocked + stats.hybrid == stats.requests);
    CHECK(dwell_close(file) == 0);

    file = opened(path, flags, NULL);
    FAILS(dwell_write_at(file, out, BLOCK, 0), EBADF, path);
    CHECK(stats_of(file).errors == 1);
    CHECK(dwell_close(file) == 0);
    free(in);
    free(out);
}

/* Two versions of the program and of the library: what one of them does not have is left alone. */
static void structures_grow(const char *path)
{
    dwell_file *file = opened(path, 0, NULL);
    struct { dwell_stats now; uint64_t later[2]; } grown = { .now = { .size = sizeof grown } };
    grown.later[0] = grown.later[1] = 7;
    CHECK(dwell_file_stats(file, &grown.now) == 0);
    CHECK(grown.now.size == sizeof grown.now && grown.later[0] == 0 && grown.later[1] == 0);
    CHECK(dwell_close(file) == 0);
}

static void queue(const char *path, const char *policy, uint32_t flags)
{
    enum { DEPTH = 8, MANY = 500 };
    dwell_file *file = opened(path, DWELL_WRITE | flags, policy);
    char *out = aligned_alloc(BLOCK, DEPTH * BLOCK), *in = aligned_alloc(BLOCK, DEPTH * BLOCK);
    memset(out, 0, DEPTH * BLOCK);
    dwell_queue *queue;
    dwell_completion done[DEPTH];
    CHECK(dwell_queue_create(file, DEPTH, &queue) == 0);
    for (int i = 0; i < DEPTH; i++) {
        memset(out + i * BLOCK, 'a' + i, BLOCK);
        CHECK(dwell_queue_write(queue, out + i * BLOCK, BLOCK, (uint64_t)i * BLOCK,
                                out + i * BLOCK) == 0);
    }
    FAILS(dwell_queue_read(queue, in, BLOCK, 0, NULL), EAGAIN, "8 requests");
    CHECK(dwell_queue_submit(queue) == 0);
    CHECK(dwell_queue_wait(queue, DEPTH, done, DEPTH, -1) == DEPTH);
    int seen = 0;
    for (int i = 0; i < DEPTH; i++) {
        CHECK(done[i].result == BLOCK);
        seen |= 1 << (((char *)done[i].user - out) / BLOCK);
    }
    CHECK(seen == (1 << DEPTH) - 1);
    CHECK(dwell_queue_sync(queue, 1, not_null) == 0);
    CHECK(dwell_queue_wait(queue, 1, done, DEPTH, 1000000000000) == 1);
    CHECK(done[0].user == not_null && done[0].result == 0);

    int sent = 0, taken = 0;
    while (taken < MANY) {
        while (sent < MANY && sent - taken < DEPTH) {
            char *block = in + sent % DEPTH * BLOCK;
            CHECK(dwell_queue_read(queue, block, BLOCK, (uint64_t)(sent % DEPTH) * BLOCK,
                                   block) == 0);
            sent++;
        }
        /* All are waited for, so that a block is not in flight twice. */
        int got = dwell_queue_wait(queue, DEPTH, done, DEPTH, -1);
        CHECK(got == (MANY - taken < DEPTH ? MANY - taken : DEPTH));
        for (int i = 0; i < got; i++) {
            char *block = done[i].user;
            CHECK(done[i].result == BLOCK);
            CHECK(block[0] == 'a' + (block - in) / BLOCK && block[BLOCK - 1] == block[0]);
        }
        taken += got;
    }
    if (flags & DWELL_DIRECT)
        FAILS(dwell_queue_read(queue, in + 1, BLOCK, 0, NULL), EINVAL, "multiples of");

    /* A file may be closed before its queue, and a queue before its requests are done. */
    CHECK(stats_of(file).errors == 0);
    CHECK(dwell_close(file) == 0);
    for (int i = 0; i < DEPTH; i++)
        CHECK(dwell_queue_read(queue, in + i * BLOCK, BLOCK, 0, NULL) == 0);
    CHECK(dwell_queue_wait(queue, 0, done, DEPTH, 0) >= 0);
    CHECK(dwell_queue_close(queue) == 0);

    file = opened(path, flags, policy);
    CHECK(dwell_queue_create(file, 1, &queue) == 0);
    CHECK(dwell_queue_write(queue, out, BLOCK, 0, not_null) == 0);
    CHECK(dwell_queue_wait(queue, 1, done, 1, -1) == 1);
    CHECK(done[0].result == -EBADF && done[0].user == not_null);
    CHECK(dwell_queue_write(queue, out, BLOCK, 0, not_null) == 0);
    FAILS(dwell_queue_close(queue), EBADF, path);
    CHECK(dwell_close(file) == 0);
    free(in);
    free(out);
}

static void *from_another_thread(void *queue)
{
    dwell_completion done;
    CHECK(dwell_last_error()[0] == 0);
    FAILS(dwell_queue_wait(queue, 1, &done, 1, -1), EPERM, "thread");
    FAILS(dwell_queue_submit(queue), EPERM, "thread");
    FAILS(dwell_queue_close(queue), EPERM, "thread");
    return NULL;
}

static void *closes(void *queue)
{
    CHECK(dwell_queue_close(queue) == 0);
    return NULL;
}

static void threads_and_time(void)
{
    char byte;
    dwell_file *file = opened("emu:latency=1s,size=1MiB", 0, "block");
    dwell_queue *queue;
    dwell_completion done;
    CHECK(dwell_queue_create(file, 1, &queue) == 0);
    CHECK(dwell_queue_read(queue, &byte, 1, 0, not_null) == 0);
    CHECK(dwell_queue_wait(queue, 1, &done, 1, 1000000) == 0);
    CHECK(dwell_queue_wait(queue, 1, &done, 1, 0) == 0);
    pthread_t other;
    CHECK(pthread_create(&other, NULL, from_another_thread, queue) == 0);
    CHECK(pthread_join(other, NULL) == 0);
    CHECK(dwell_queue_wait(queue, 1, &done, 1, -1) == 1 && done.result == 1);
    CHECK(pthread_create(&other, NULL, closes, queue) == 0);
    CHECK(pthread_join(other, NULL) == 0);
    CHECK(dwell_close(file) == 0);
}

static void fork_amid(const char *path)
{
    dwell_file *file = opened(path, 0, "spin");
    dwell_queue *queue;
    dwell_completion done;
    char first[2] = { 0, 0 };
    CHECK(dwell_queue_create(file, 2, &queue) == 0);
    CHECK(dwell_queue_read(queue, first, 1, 0, not_null) == 0);
    pid_t child = fork();
    if (child == 0) {
        CHECK(dwell_queue_wait(queue, 1, &done, 1, -1) == 1 && done.result == -ECANCELED);
        CHECK(dwell_read_at(file, first, 1, 0) == 1 && first[0] == 'a');
        CHECK(dwell_queue_read(queue, first + 1, 1, BLOCK, NULL) == 0);
        CHECK(dwell_queue_wait(queue, 1, &done, 1, -1) == 1 && first[1] == 'b');
        CHECK(dwell_queue_close(queue) == 0 && dwell_close(file) == 0);
        _exit(0);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0);
    CHECK(dwell_queue_wait(queue, 1, &done, 1, -1) == 1 && done.result == 1 && first[0] == 'a');
    CHECK(dwell_queue_close(queue) == 0 && dwell_close(file) == 0);
}

/* A file over a descriptor of the caller's, which stays open; a second one has the first one's policy, and outlives it. */
static void adopted(const char *path)
{
    dwell_options options = DWELL_OPTIONS_INIT;
    options.policy = "hybrid";
    dwell_file *first = NULL, *second = NULL;
    int descriptor = open(path, O_RDWR), other = open("/proc/version", O_RDONLY), directory = open("/", O_RDONLY);
    CHECK(descriptor >= 0 && other >= 0 && directory >= 0);
    FAILS(dwell_fdopen(descriptor, NULL, &options, &first), EINVAL, "path is NULL");
    FAILS(dwell_fdopen(descriptor, path, &options, NULL), EINVAL, "file is NULL");
    FAILS(dwell_fdopen(-1, path, &options, &first), EBADF, path);
    FAILS(dwell_fdopen(1000000, path, &options, &first), EBADF, path);
    FAILS(dwell_fdopen(directory, "/", &options, &first), EINVAL, "directory");
    options.flags = DWELL_WRITE;
    FAILS(dwell_fdopen(descriptor, path, &options, &first), EINVAL, "flags");
    options.flags = 0;
    CHECK(dwell_fdopen(descriptor, path, &options, &first) == 0);
    FAILS(dwell_fdopen_beside(NULL, descriptor, path, &second), EINVAL, "file is NULL");
    FAILS(dwell_fdopen_beside(first, descriptor, NULL, &second), EINVAL, "path is NULL");
    FAILS(dwell_fdopen_beside(first, descriptor, path, NULL), EINVAL, "file is NULL");
    FAILS(dwell_fdopen_beside(first, -1, path, &second), EBADF, path);
    FAILS(dwell_fdopen_beside(first, other, "/proc/version", &second), EXDEV, "/proc/version");
    CHECK(dwell_fdopen_beside(first, descriptor, path, &second) == 0 && dwell_close(first) == 0);
    char byte = 'b', found = 0;
    dwell_info info = DWELL_INFO_INIT;
    CHECK(dwell_file_info(second, &info) == 0 && strcmp(info.policy, "hybrid") == 0);
    CHECK(dwell_write_at(second, &byte, 1, 5) == 1 && dwell_sync_data(second) == 0);
    CHECK(dwell_read_at(second, &found, 1, 5) == 1 && found == 'b');
    CHECK(dwell_close(second) == 0);
    found = 0;
    CHECK(pread(descriptor, &found, 1, 5) == 1 && found == 'b');
    CHECK(close(descriptor) == 0 && close(other) == 0 && close(directory) == 0);
}

static void maps(const char *path)
{
    dwell_file *file = opened(path, 0, NULL);
    dwell_region *region = NULL;
    dwell_map_options how = DWELL_MAP_OPTIONS_INIT;
    how.flags = DWELL_MAP_AUTO;
    CHECK(dwell_map(file, &how, &region) == 0 && dwell_region_bytes(region) > 0);
    CHECK(strstr(dwell_region_why_mapped(region), "budget") != NULL);
    CHECK(dwell_region_why_mapped(NULL) == NULL && dwell_unmap(region) == 0);
    how.flags = 0;
    how.budget_bytes = 1 << 20;
    how.granule_bytes = 12345;
    FAILS(dwell_map(file, &how, &region), EINVAL, "granule");
    CHECK(dwell_close(file) == 0);
}

static void decisions(void)
{
    char byte;
    dwell_file *file = opened("emu:latency=20us,size=1MiB", 0, "spin");
    for (int i = 0; i < 20; i++)
        CHECK(dwell_read_at(file, &byte, 1, 0) == 1);
    dwell_stats stats = stats_of(file);
    CHECK(stats.requests == 20 && stats.spun == 20 && stats.spun_ns > 0);
    CHECK(stats.by_reason[0] + stats.by_reason[15] == 20);
    CHECK(stats.spun_latency.measured == 20 && stats.blocked_latency.measured == 0);
    CHECK(stats.spun_latency.max_ns >= 20000 && stats.spun_latency.p50_ns > 0);
    CHECK(dwell_close(file) == 0);
    CHECK(strcmp(dwell_reason_name(0), "fixed") == 0 && dwell_reason_name(1000) == NULL);
    CHECK(strcmp(dwell_reason_name(15), "spin-expired") == 0);
    CHECK(strcmp(dwell_policy_name(0), "adaptive") == 0 && dwell_policy_name(1000) == NULL);
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", DWELL_VERSION_MAJOR, DWELL_VERSION_MINOR,
             DWELL_VERSION_PATCH);
    CHECK(strcmp(version, dwell_version()) == 0);
}

int main(int argc, char **argv)
{
    if (argc != 3)
        return 2;
    const char *path = argv[1];
    uint32_t direct = strcmp(argv[2], "direct") == 0 ? DWELL_DIRECT : 0;
    bad_arguments(path);
    bytes(path, 0);
    structures_grow(path);
    queue(path, "block", direct);
    queue(path, "spin", 0);
    queue(path, NULL, direct);
    if (direct)
        bytes(path, DWELL_DIRECT);
    queue(path, NULL, 0);
    threads_and_time();
    fork_amid(path);
    adopted(path);
    maps(path);
    decisions();
    puts("contract kept");
    return 0;
}
