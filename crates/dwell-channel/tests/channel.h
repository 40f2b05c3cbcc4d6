// SPDX-License-Identifier: MIT OR Apache-2.0
// A client of the daemon that shares no code with the library: the socket, the memory, commands, completions.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stddef.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define MISSING (-0x1000)
#define KERNEL (-0x1001)
#define CHECK(what) do { if (!(what)) { fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #what, errno); exit(1); } } while (0)

enum { ENTRIES = 16, DATA = 65536 };

struct channel {
    int socket, memory;
    uint8_t token[16];
    uint8_t *map;
    _Atomic uint32_t *command_tail, *command_head, *completion_tail, *completion_head;
    _Atomic uint64_t *commands, *completions;
    uint8_t *data;
    uint32_t tail, head, entry, generation;
};

static const char *name;

static inline int dial(void)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    size_t length = strlen(name);
    memcpy(address.sun_path + 1, name, length);
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    CHECK(fd >= 0);
    if (connect(fd, (void *)&address, offsetof(struct sockaddr_un, sun_path) + 1 + length) != 0) {
        close(fd);
        return -1;
    }
    return fd;
}

static inline void hello(int fd, uint32_t entries, uint64_t data)
{
    uint8_t message[24] = "dwell\0\0\2";
    memcpy(message + 8, &entries, 4);
    memcpy(message + 16, &data, 8);
    CHECK(send(fd, message, sizeof message, MSG_NOSIGNAL) == sizeof message);
}

// Maps a channel's memory.
static inline void adopt(int socket, int memory, struct channel *c)
{
    struct stat facts;
    CHECK(fstat(memory, &facts) == 0);
    c->map = mmap(NULL, facts.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    CHECK(c->map != MAP_FAILED);
    c->socket = socket;
    c->memory = memory;
    c->command_tail = (void *)c->map;
    c->command_head = (void *)(c->map + 128);
    c->completion_tail = (void *)(c->map + 256);
    c->completion_head = (void *)(c->map + 384);
    c->commands = (void *)(c->map + 4096);
    c->completions = (void *)(c->map + 8192);
    c->data = c->map + 12288;
}

// The error that the daemon answers with; 0 with a channel in `c`.
static inline int welcome(int fd, struct channel *c)
{
    uint8_t message[64], control[64];
    struct iovec part = { message, sizeof message };
    struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
    struct pollfd watched = { fd, POLLIN, 0 };
    if (poll(&watched, 1, 3000) != 1) return ETIMEDOUT;
    ssize_t got = recvmsg(fd, &header, MSG_CMSG_CLOEXEC);
    if (got <= 0) return ECONNRESET;
    CHECK(got == 48 && memcmp(message, "dwell\0\0\2", 8) == 0);
    uint32_t error;
    memcpy(&error, message + 8, 4);
    if (error) return (int)error;
    struct cmsghdr *control_message = CMSG_FIRSTHDR(&header);
    CHECK(control_message && control_message->cmsg_type == SCM_RIGHTS);
    memset(c, 0, sizeof *c);
    memcpy(&c->memory, CMSG_DATA(control_message), sizeof(int));
    memcpy(c->token, message + 16, 16);
    adopt(fd, c->memory, c);
    return 0;
}

static inline void open_channel(struct channel *c)
{
    int fd = dial();
    CHECK(fd >= 0);
    hello(fd, ENTRIES, DATA);
    CHECK(welcome(fd, c) == 0);
}

// Asks whoever started this program for the next file.
static inline void granted(struct channel *c)
{
    for (int at = 0; at < 16; at++) printf("%02x", c->token[at]);
    printf("\n");
    fflush(stdout);
    CHECK(scanf("%u %u", &c->entry, &c->generation) == 2);
}

static inline void doorbell(struct channel *c)
{
    _Atomic uint32_t *asleep = (void *)(c->map + 512);
    if (*asleep) send(c->socket, "!", 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

static inline void put(struct channel *c, uint64_t first, uint32_t entry, uint32_t generation, uint64_t offset, uint32_t bytes, uint32_t place)
{
    _Atomic uint64_t *slot = c->commands + (c->tail++ % ENTRIES) * 4;
    slot[0] = first;
    slot[1] = entry | (uint64_t)generation << 32;
    slot[2] = offset;
    slot[3] = bytes | (uint64_t)place << 32;
}

static inline void submit(struct channel *c)
{
    *c->command_tail = c->tail;
    doorbell(c);
}

static inline double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec + time.tv_nsec * 1e-9;
}

// The next completion; 0 where none comes within two seconds.
static inline int next(struct channel *c, uint32_t *tag, int32_t *result)
{
    double until = now() + 2;
    while (*c->completion_tail == c->head)
        if (now() > until) return 0;
    uint64_t word = c->completions[c->head++ % ENTRIES];
    *c->completion_head = c->head;
    *tag = (uint32_t)word;
    *result = (int32_t)(word >> 32);
    return 1;
}

static inline int32_t ask(struct channel *c, uint64_t opcode, uint64_t offset, uint32_t bytes, uint32_t place)
{
    uint32_t tag;
    int32_t result;
    put(c, opcode | 77ull << 32, c->entry, c->generation, offset, bytes, place);
    submit(c);
    CHECK(next(c, &tag, &result) && tag == 77);
    return result;
}

static inline void ended(struct channel *c)
{
    char byte;
    struct pollfd watched = { c->socket, POLLIN, 0 };
    double until = now() + 2;
    for (;;) {
        doorbell(c);
        ssize_t got = recv(c->socket, &byte, 1, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno == ECONNRESET)) return;
        CHECK(now() < until);
        poll(&watched, 1, 10);
    }
}
