// SPDX-License-Identifier: MIT OR Apache-2.0
// A client of the daemon that shares no code with the library and does what no client should. The first
// argument is the name of the daemon's socket, the second the attack. Where the attack needs open files, it
// prints its token and reads entries and generations from its standard input. It exits with 0 when the
// daemon answered as it must.
#include "channel.h"

static void tail_jumps(void)
{
    uint32_t jumps[] = { ENTRIES + 1, ENTRIES * 2, 1000, 1u << 31, UINT32_MAX };
    for (size_t at = 0; at < sizeof jumps / sizeof *jumps; at++) {
        struct channel c;
        open_channel(&c);
        *c.command_tail = jumps[at];
        ended(&c);
    }
    struct channel c;
    open_channel(&c);
    granted(&c);
    CHECK(ask(&c, 1, 0, 512, 0) == 512);
    *c.command_tail = 0;
    ended(&c);
}

static void head_jumps(void)
{
    uint32_t jumps[] = { 100, 1u << 31, UINT32_MAX };
    for (size_t at = 0; at < sizeof jumps / sizeof *jumps; at++) {
        struct channel c;
        open_channel(&c);
        // So many that the daemon has to look how far they were taken.
        for (int round = 0; round < 2 && *c.completion_tail < ENTRIES; round++) {
            *c.completion_head = jumps[at];
            for (int n = 0; n < ENTRIES / 2; n++) put(&c, 1, 0, 0, 0, 0, 0);
            submit(&c);
            usleep(20000);
        }
        for (int n = 0; n < ENTRIES / 2; n++) put(&c, 1, 0, 0, 0, 0, 0);
        submit(&c);
        ended(&c);
    }
}

static void bad_commands(void)
{
    struct channel c;
    open_channel(&c);
    granted(&c);
    uint64_t opcodes[] = { 0, 5, 6, 255, 1 << 8 | 1, 1 << 16 | 1, 1ull << 31 | 2, 1 << 8 | 5 };
    for (size_t at = 0; at < sizeof opcodes / sizeof *opcodes; at++) CHECK(ask(&c, opcodes[at], 0, 512, 0) == -EINVAL);
    CHECK(ask(&c, 1, UINT64_MAX, 4096, 0) == -EINVAL);
    CHECK(ask(&c, 1, UINT64_MAX - 4095, 4096, 0) == -EINVAL);
    CHECK(ask(&c, 1, INT64_MAX, 1, 0) == -EINVAL);
    CHECK(ask(&c, 2, UINT64_MAX, UINT32_MAX, 0) == -EINVAL);
    CHECK(ask(&c, 2, INT64_MAX, 1, 0) == -EINVAL);
    CHECK(ask(&c, 2, 8192, 4096, DATA - 4095) == -EFAULT && ask(&c, 2, 8192, DATA + 1, 0) == -EFAULT);
    CHECK(ask(&c, 2, 1 << 20, 0, 0) == 0);
    CHECK(ask(&c, 1, 0, 4096, DATA - 4095) == -EFAULT);
    CHECK(ask(&c, 2, 0, 4096, UINT32_MAX) == -EFAULT);
    CHECK(ask(&c, 2, 0, UINT32_MAX, UINT32_MAX) == -EFAULT);
    CHECK(ask(&c, 1, 0, DATA + 1, 0) == -EFAULT);
    CHECK(ask(&c, 1, 0, 0, 0) == 0 && ask(&c, 2, 0, 0, DATA) == 0);
    CHECK(ask(&c, 1, 3, 777, 11) == 777);
    CHECK(ask(&c, 1, 1 << 20, 4096, 0) == 0);
    CHECK(ask(&c, 2, 1 << 20, 4096, 0) == KERNEL);
    uint32_t generation = c.generation, entry = c.entry;
    for (uint32_t off = 1; off < 5; off++) {
        c.generation = generation + off;
        CHECK(ask(&c, 1, 0, 512, 0) == MISSING);
    }
    c.generation = generation;
    uint32_t wrong[] = { entry + 1, 1023, 1024, 1u << 31, UINT32_MAX };
    for (size_t at = 0; at < sizeof wrong / sizeof *wrong; at++) {
        c.entry = wrong[at];
        CHECK(ask(&c, 1, 0, 512, 0) == MISSING);
        CHECK(ask(&c, 2, 0, 512, 0) == MISSING);
    }
}

static void same_tags(void)
{
    struct channel c;
    uint32_t tag;
    int32_t result;
    open_channel(&c);
    granted(&c);
    for (int round = 0; round < 1000; round++) {
        for (int n = 0; n < ENTRIES; n++) put(&c, 1 | 5ull << 32, c.entry, c.generation, 0, 512, 0);
        submit(&c);
        for (int n = 0; n < ENTRIES; n++) CHECK(next(&c, &tag, &result) && tag == 5 && result == 512);
    }
}

static void never_consumes(void)
{
    struct channel c;
    open_channel(&c);
    granted(&c);
    // At least 100 rounds, and more until the daemon has got as far as it can.
    for (int round = 0, more = 20; more > 0 && round < 10000; round++) {
        uint32_t room = ENTRIES - (c.tail - *c.command_head);
        for (uint32_t n = 0; n < room; n++) put(&c, 1, c.entry, c.generation, 0, 512, 0);
        submit(&c);
        usleep(1000);
        if (*c.completion_tail == ENTRIES && c.tail == 2 * ENTRIES && round >= 80) more--;
    }
    CHECK(*c.completion_tail == ENTRIES);
    // And now it does, and goes on.
    uint32_t tag;
    int32_t result;
    for (int n = 0; n < ENTRIES; n++) CHECK(next(&c, &tag, &result) && result == 512);
    doorbell(&c);
    for (int n = 0; n < ENTRIES; n++) CHECK(next(&c, &tag, &result) && result == 512);
}

static struct channel flipped;
static _Atomic int over;

static void *flip(void *unused)
{
    (void)unused;
    for (uint64_t n = 0; !over; n++) {
        _Atomic uint64_t *slot = flipped.commands + (n % ENTRIES) * 4;
        slot[0] ^= n & 0x80 ? 3 : 0xff00;
        slot[1] ^= 1ull << (n % 64);
        slot[2] ^= 1ull << (n * 7 % 64);
        slot[3] ^= 1ull << (n * 5 % 64);
        flipped.data[n % DATA] ^= 0x55;
    }
    return NULL;
}

// Every field changes while it is read. Whatever the daemon takes up, it must have checked.
static void flips(void)
{
    pthread_t thread;
    open_channel(&flipped);
    granted(&flipped);
    CHECK(pthread_create(&thread, NULL, flip, NULL) == 0);
    double until = now() + 1.5;
    uint32_t tag;
    int32_t result;
    while (now() < until) {
        for (int n = 0; n < ENTRIES; n++) put(&flipped, 1 + (n & 1), flipped.entry, flipped.generation, (n * 512) & 8191, 512, n * 512);
        submit(&flipped);
        for (int n = 0; n < ENTRIES; n++) {
            CHECK(next(&flipped, &tag, &result));
            CHECK(result >= 0 ? result <= DATA : result == -EINVAL || result == -EFAULT || result == -EBADF || result == MISSING || result == KERNEL);
        }
    }
    over = 1;
    pthread_join(thread, NULL);
}

static void shrinks(void)
{
    struct channel c;
    open_channel(&c);
    granted(&c);
    CHECK(ftruncate(c.memory, 0) != 0 && errno == EPERM);
    CHECK(ftruncate(c.memory, 1 << 30) != 0 && errno == EPERM);
    CHECK(fcntl(c.memory, F_ADD_SEALS, F_SEAL_WRITE) != 0);
    // Holes may be made, and read as zeroes.
    CHECK(fallocate(c.memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 12288, DATA) == 0);
    CHECK(ask(&c, 1, 0, 4096, 0) == 4096);
    CHECK(fallocate(c.memory, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 12288 + DATA) == 0);
}

static void reads_only(void)
{
    struct channel c;
    open_channel(&c);
    granted(&c);
    CHECK(ask(&c, 1, 0, 512, 0) == 512);
    CHECK(ask(&c, 2, 0, 512, 0) == -EBADF);
    CHECK(ask(&c, 2, 8192, 512, 0) == -EBADF);
}

// As far as a file can be long, and further.
static void grows(void)
{
    struct channel c;
    open_channel(&c);
    granted(&c);
    CHECK(ask(&c, 2, 0, 512, 0) == 512);
    uint64_t beyond[] = { 8192, 8191, INT64_MAX - 4096 };
    for (size_t at = 0; at < sizeof beyond / sizeof *beyond; at++) {
        CHECK(ask(&c, 2, beyond[at], 512, 0) == KERNEL);
        CHECK(ask(&c, 1, beyond[at], 512, 0) == (beyond[at] == 8191));
    }
    for (int shift = 13; shift < 63; shift++) {
        CHECK(ask(&c, 2, (1ull << shift) - 1, 2, 0) == KERNEL);
        CHECK(ask(&c, 1, 1ull << shift, 2, 4096) == 0);
    }
}

static void after_close(void)
{
    struct channel c;
    char line[16];
    open_channel(&c);
    granted(&c);
    CHECK(ask(&c, 1, 0, 512, 0) == 512);
    printf("close\n");
    fflush(stdout);
    CHECK(scanf("%15s", line) == 1);
    for (int n = 0; n < 100; n++) CHECK(ask(&c, 1, 0, 512, 0) == MISSING && ask(&c, 2, 0, 512, 0) == MISSING);
}

// More grants than the table has entries: early ones are gone, late ones are there.
static void grant_flood(void)
{
    struct channel c;
    open_channel(&c);
    uint32_t first_entry = 0, first_generation = 0;
    for (int n = 0; n < 40; n++) {
        granted(&c);
        CHECK(c.entry < 16);
        if (n == 0) first_entry = c.entry, first_generation = c.generation;
        CHECK(ask(&c, 1, 0, 512, 0) == 512);
    }
    c.entry = first_entry, c.generation = first_generation;
    CHECK(ask(&c, 1, 0, 512, 0) == MISSING);
}

static void connection_flood(void)
{
    int made = 0, refused = 0;
    for (int n = 0; n < 100; n++) {
        struct channel c;
        int fd = dial();
        CHECK(fd >= 0);
        hello(fd, ENTRIES, DATA);
        int error = welcome(fd, &c);
        if (error == 0) made++;
        else {
            CHECK(error == EMFILE);
            refused++;
        }
    }
    CHECK(made > 0 && refused > 0);
}

static void silent_flood(void)
{
    for (int n = 0; n < 150; n++) dial();
    sleep(2);
}

static void bad_messages(void)
{
    struct { uint32_t entries; uint64_t data; } shapes[] = { { 0, 4096 }, { 3, 4096 }, { 8192, 4096 }, { 16, 0 }, { 16, 5000 }, { 16, UINT64_MAX }, { UINT32_MAX, 4096 } };
    struct channel c;
    for (size_t at = 0; at < sizeof shapes / sizeof *shapes; at++) {
        int fd = dial();
        hello(fd, shapes[at].entries, shapes[at].data);
        CHECK(welcome(fd, &c) == EINVAL);
    }
    int fd = dial();
    CHECK(send(fd, "garbage", 7, 0) == 7);
    CHECK(welcome(fd, &c) == EPROTO);
    // Descriptors that nobody asked for, and a flood of the doorbell.
    open_channel(&c);
    granted(&c);
    for (int n = 0; n < 10000; n++) {
        uint8_t control[CMSG_SPACE(sizeof(int))] = { 0 };
        struct iovec part = { "x", 1 };
        struct msghdr header = { .msg_iov = &part, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control };
        struct cmsghdr *message = CMSG_FIRSTHDR(&header);
        message->cmsg_level = SOL_SOCKET, message->cmsg_type = SCM_RIGHTS, message->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(message), &c.memory, sizeof(int));
        sendmsg(c.socket, &header, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    CHECK(ask(&c, 1, 0, 512, 0) == 512);
    // The socket's flags are shared: the daemon must not come to wait on it.
    fcntl(c.socket, F_SETFL, 0);
    *(_Atomic uint32_t *)(c.map + 640) = 1;
    for (int n = 0; n < 20000; n++) {
        *(_Atomic uint32_t *)(c.map + 640) = 1;
        CHECK(ask(&c, 1, 0, 64, 0) == 64);
    }
}

// What an earlier client left.
static void leftovers(void)
{
    struct channel c;
    for (int round = 0; round < 20; round++) {
        open_channel(&c);
        for (int at = 0; at < DATA; at++) CHECK(c.data[at] == 0);
        memset(c.data, 0xaa, DATA);
        close(c.socket);
    }
    // And past the end of a file of 5000 bytes.
    open_channel(&c);
    granted(&c);
    memset(c.data, 0x33, DATA);
    CHECK(ask(&c, 1, 4096, 4096, 0) == 904);
    for (int at = 904; at < DATA; at++) CHECK(c.data[at] == 0x33);
}

// Floods until it is killed.
static void greedy(void)
{
    struct channel c;
    uint32_t tag;
    int32_t result;
    open_channel(&c);
    granted(&c);
    for (;;) {
        while (c.tail - c.head < ENTRIES) put(&c, 1, c.entry, c.generation, 0, 32768, 0);
        submit(&c);
        next(&c, &tag, &result);
    }
}

int main(int count, char **arguments)
{
    static const struct { const char *name; void (*run)(void); } attacks[] = {
        { "tail_jumps", tail_jumps }, { "head_jumps", head_jumps }, { "bad_commands", bad_commands },
        { "same_tags", same_tags }, { "never_consumes", never_consumes }, { "flips", flips },
        { "shrinks", shrinks }, { "reads_only", reads_only }, { "grows", grows },
        { "after_close", after_close },
        { "grant_flood", grant_flood }, { "connection_flood", connection_flood }, { "silent_flood", silent_flood },
        { "bad_messages", bad_messages }, { "leftovers", leftovers }, { "greedy", greedy },
    };
    CHECK(count == 3);
    name = arguments[1];
    for (size_t at = 0; at < sizeof attacks / sizeof *attacks; at++)
        if (strcmp(arguments[2], attacks[at].name) == 0) {
            attacks[at].run();
            return 0;
        }
    return 2;
}
