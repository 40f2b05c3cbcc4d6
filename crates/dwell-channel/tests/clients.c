// SPDX-License-Identifier: MIT OR Apache-2.0
// Clients that are killed, fork, become another program or are of different users. The first argument says which, the
// rest is theirs. They exit with 0 when the daemon answered as it must.
#include "channel.h"
#include <sys/ioctl.h>
#include <sys/wait.h>

#define GRANT 0xc020d701ul
#define PLACE 0xc040d702ul

static void say(const char *what)
{
    puts(what);
    fflush(stdout);
}

static void wait_for_input(void)
{
    char byte;
    CHECK(read(0, &byte, 1) >= 0);
}

// A channel of the daemon that serves an open file.
static void channel_of(int file, struct channel *c)
{
    static char place[64];
    uint8_t argument[64] = "dwell\0\0\2";
    CHECK(ioctl(file, PLACE, argument) == 0);
    memcpy(place, argument + 9, argument[8]);
    name = place;
    open_channel(c);
}

// The error that a grant ends with; 0 with its entry in `c`.
static int grant(int file, struct channel *c)
{
    uint8_t argument[32] = { 0 };
    memcpy(argument, c->token, 16);
    if (ioctl(file, GRANT, argument) != 0) return errno;
    memcpy(&c->entry, argument + 8, 4);
    memcpy(&c->generation, argument + 12, 4);
    return 0;
}

// in_flight PLACE OPCODE BYTE: requests of 4 KiB of a file that does not answer, with that byte in all memory; killed while they are
// under way.
static void in_flight(char **words)
{
    struct channel c;
    name = words[0];
    open_channel(&c);
    granted(&c);
    memset(c.data, atoi(words[2]), DATA);
    for (uint32_t at = 0; at < 16; at++)
        put(&c, strtoul(words[1], NULL, 10) | (uint64_t)at << 32, c.entry, c.generation, at * 4096ull, 4096, at * 4096);
    submit(&c);
    while (*c.command_head != 16) doorbell(&c);
    say("in flight");
    for (;;) pause();
}

// after_fork FILE: a child's close takes the grant of what both have open; the parent may ask for it again.
static void after_fork(char **words)
{
    struct channel c;
    int file = open(words[0], O_RDWR | O_CLOEXEC), status;
    CHECK(file >= 0);
    channel_of(file, &c);
    CHECK(grant(file, &c) == 0 && ask(&c, 1, 0, 512, 0) == 512);
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        // It has the memory and the socket: as long as the file is open in it, it may do what the parent may.
        CHECK(ask(&c, 2, 512, 512, 0) == 512);
        close(file);
        CHECK(ask(&c, 1, 0, 512, 0) == MISSING && ask(&c, 2, 0, 512, 0) == MISSING);
        // There is no descriptor left to ask with, and the number is no other file's.
        CHECK(grant(file, &c) == EBADF);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    // What the child did moved the cursors of both.
    c.tail = *c.command_tail, c.head = *c.completion_head;
    CHECK(ask(&c, 1, 0, 512, 0) == MISSING);
    CHECK(grant(file, &c) == 0 && ask(&c, 1, 0, 512, 0) == 512);
    close(file);
    CHECK(ask(&c, 1, 0, 512, 0) == MISSING);
}

// after_exec FILE: becomes `exec_became`, which has the channel but not the file.
static void after_exec(char **words)
{
    struct channel c;
    int file = open(words[0], O_RDWR | O_CLOEXEC);
    CHECK(file >= 0);
    channel_of(file, &c);
    CHECK(grant(file, &c) == 0 && ask(&c, 2, 0, 512, 0) == 512);
    CHECK(fcntl(c.socket, F_SETFD, 0) == 0 && fcntl(c.memory, F_SETFD, 0) == 0);
    char text[5][24];
    uint32_t numbers[5] = { c.socket, c.memory, c.entry, c.generation, c.tail };
    for (int at = 0; at < 5; at++) sprintf(text[at], "%u", numbers[at]);
    execl("/proc/self/exe", "clients", "exec_became", text[0], text[1], text[2], text[3], text[4], NULL);
    CHECK(!"exec");
}

static void exec_became(char **words)
{
    struct channel c;
    adopt(atoi(words[0]), atoi(words[1]), &c);
    c.entry = strtoul(words[2], NULL, 10), c.generation = strtoul(words[3], NULL, 10);
    c.tail = c.head = strtoul(words[4], NULL, 10);
    CHECK(ask(&c, 1, 0, 512, 0) == MISSING && ask(&c, 2, 0, 512, 0) == MISSING);
}

// reads FILE ACCESS: says what opening gives, or what a read and a write by channel give.
static void reads(char **words)
{
    struct channel c;
    int file = open(words[0], strcmp(words[1], "write") == 0 ? O_RDWR : O_RDONLY);
    if (file < 0) {
        printf("open: %s\n", strerror(errno));
        return;
    }
    channel_of(file, &c);
    CHECK(grant(file, &c) == 0);
    int got = ask(&c, 1, 0, 512, 0);
    printf("read %d, byte %d, write %d\n", got, c.data[0], ask(&c, 2, 512, 512, 0));
}

// hoard FILE: channels until there are no more; keeps them until its input ends.
static void hoard(char **words)
{
    static struct channel some[64];
    int file = open(words[0], O_RDONLY), count = 1, error = 0;
    CHECK(file >= 0);
    channel_of(file, &some[0]);
    for (; count < 64 && error == 0; count++) {
        int socket = dial();
        CHECK(socket >= 0);
        hello(socket, ENTRIES, DATA);
        error = welcome(socket, &some[count]);
    }
    printf("%d channels, then: %s\n", count - 1, strerror(error));
    fflush(stdout);
    wait_for_input();
}

int main(int count, char **arguments)
{
    static const struct { const char *name; int words; void (*run)(char **); } clients[] = {
        { "in_flight", 3, in_flight }, { "after_fork", 1, after_fork }, { "after_exec", 1, after_exec },
        { "exec_became", 5, exec_became }, { "reads", 2, reads }, { "hoard", 1, hoard },
    };
    for (size_t at = 0; at < sizeof clients / sizeof *clients; at++)
        if (count > 1 && strcmp(arguments[1], clients[at].name) == 0 && count == clients[at].words + 2) {
            clients[at].run(arguments + 2);
            return 0;
        }
    return 2;
}
