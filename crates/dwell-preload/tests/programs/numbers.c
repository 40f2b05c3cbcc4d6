// SPDX-License-Identifier: MIT OR Apache-2.0
// Descriptors that come and go: MODE FILE…; each prints the same whether a library is beneath it or not. The first file is 1 MiB of
// 4 KiB blocks that begin with their number.
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

#include "blocks.h"

static char **rest;

// --- A number that is used again while the close of its last use is still on its way to the file server. FIRST SECOND DONE HOW

static int number, second;
static const char *how;

static uint64_t inode(int fd) {
    struct stat status;
    return unseen(SYS_fstat, fd, (long)&status, 0, 0) ? 0 : status.st_ino;
}

static void *gives_up(void *nothing) {
    if (strcmp(how, "close") == 0) close(number);
    if (strcmp(how, "close_range") == 0) close_range(number, number, 0);
    if (strcmp(how, "syscall") == 0) syscall(SYS_close, number);
    if (strcmp(how, "fclose") == 0) fclose(fdopen(number, "r+"));
    if (strcmp(how, "dup2") == 0) dup2(second, number);
    if (strcmp(how, "dup3") == 0) dup3(second, number, O_CLOEXEC);
    if (strcmp(how, "syscall-dup") == 0) syscall(SYS_dup3, second, number, 0);
    return NULL;
}

static void again(void) {
    how = rest[2];
    char *memory = block();
    if ((number = open(path, O_RDWR)) < 0 || (second = open(rest[0], O_RDWR)) < 0) fail("open");
    uint64_t was = inode(number), is = inode(second);
    memset(memory, 'a', BLOCK);
    for (int i = 0; i < 50; i++) {
        if (pwrite(number, memory, BLOCK, 0) != BLOCK) fail("the first file");
    }
    pthread_t thread;
    pthread_create(&thread, NULL, gives_up, NULL);
    while (inode(number) == was) sched_yield();
    // The number is free, or names the other file; that its last use was closed the file server does not know yet.
    while (inode(number) != is) {
        if (fcntl(second, F_DUPFD, number) != number) fail("another number");
    }
    memset(memory, 'b', BLOCK);
    if (pwrite(number, memory, BLOCK, 0) != BLOCK) fail("the second file");
    if (fsync(number)) fail("fsync");
    close(open(rest[1], O_CREAT | O_WRONLY, 0600));
    pthread_join(thread, NULL);
    for (int i = 0; i < 2; i++) {
        int fd = open(i ? rest[0] : path, O_RDONLY);
        if (pread(fd, memory, BLOCK, 0) != BLOCK) fail("looking");
        printf("%c", memory[0]);
    }
    printf("\n");
}

// --- Threads that end.

static int descriptors(void) {
    int count = 0;
    DIR *all = opendir("/proc/self/fd");
    while (readdir(all)) count++;
    closedir(all);
    return count;
}

static void *brief(void *fd) {
    read_all(*(int *)fd, 4);
    return NULL;
}

static void threads(void) {
    int fd = opened(O_RDONLY | O_DIRECT), before = 0;
    for (int i = 0; i < 2000; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, brief, &fd)) fail("thread");
        pthread_join(thread, NULL);
        if (i == 20) before = descriptors();
    }
    int more = descriptors() - before;
    // The system monitor may have a file open just now.
    printf("%s\n", more > 3 || more < -3 ? "another number of descriptors" : "as many descriptors");
}

static pthread_barrier_t has_read, may_end;

static void *stays(void *fd) {
    read_all(*(int *)fd, 4);
    pthread_barrier_wait(&has_read);
    pthread_barrier_wait(&may_end);
    return NULL;
}

static void many_threads(void) {
    enum { MANY = 300 };
    struct rlimit limit = {1024, 1024};
    setrlimit(RLIMIT_NOFILE, &limit);
    int fd = opened(O_RDONLY | O_DIRECT);
    pthread_t threads[MANY];
    pthread_attr_t small;
    pthread_attr_init(&small);
    pthread_attr_setstacksize(&small, 64 << 10);
    pthread_barrier_init(&has_read, NULL, 2);
    pthread_barrier_init(&may_end, NULL, MANY + 1);
    for (int i = 0; i < MANY; i++) {
        if (pthread_create(&threads[i], &small, stays, &fd)) fail("thread");
        pthread_barrier_wait(&has_read);
    }
    printf("%s\n", descriptors() < 160 ? "few descriptors" : "many descriptors");
    // A program may still have most of those that its limit says.
    int mine = 0;
    while (open("/dev/null", O_RDONLY) >= 0) mine++;
    printf("%s\n", mine > 850 ? "most are mine" : "few are mine");
    pthread_barrier_wait(&may_end);
    for (int i = 0; i < MANY; i++) pthread_join(threads[i], NULL);
}

// --- As many as the limit says.

static void limited(void) {
    int fd = open(path, O_RDONLY | O_DIRECT), mine = 0, highest = -1;
    if (fd >= 0) read_all(fd, 100);
    for (int next; (next = open("/dev/null", O_RDONLY)) >= 0; mine++) highest = next;
    printf("%d to %d, then %s\n", mine, highest, strerror(errno));
    if (fd >= 0) read_all(fd, 100);
}

// --- Children that came without their parent's other threads.

static int mine;

static void look(const char *who) {
    DIR *all = opendir("/proc/self/fd");
    struct dirent *entry;
    while ((entry = readdir(all))) {
        int fd = atoi(entry->d_name);
        if (entry->d_name[0] == '.' || fd == dirfd(all) || fd <= 2 || fd == mine) continue;
        char name[64], target[256] = "";
        snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
        if (readlink(name, target, sizeof target - 1) < 0) continue;
        printf("%s has %d: %s\n", who, fd, target);
    }
    closedir(all);
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[512];
    while (fgets(line, sizeof line, maps)) {
        char access[8] = "";
        sscanf(line, "%*s %7s", access);
        if (access[3] == 's') printf("%s maps %s", who, line);
    }
    fclose(maps);
    fflush(stdout);
}

static int child(void *who) {
    look(who);
    read_all(mine, 300);
    // And is a process like any other: it forks too.
    pid_t grandchild = fork();
    if (grandchild == 0) {
        look("a grandchild");
        read_all(mine, 100);
        _exit(0);
    }
    int status = -1;
    if (grandchild < 0 || waitpid(grandchild, &status, 0) < 0 || status) fail("grandchild");
    int own = opened(O_RDONLY | O_DIRECT);
    read_all(own, 100);
    // A stream is not written out twice.
    fflush(stdout);
    _exit(0);
}

static volatile int over;

// Holds no lock of the C library at any time: a child would never get that lock.
static void *reads(void *memory) {
    while (!over) read_into(memory, mine, 50);
    return NULL;
}

pid_t _Fork(void) __attribute__((weak));

static void forked(pid_t pid, const char *who) {
    if (pid == 0) child((void *)who);
    int status = -1;
    if (pid < 0 || waitpid(pid, &status, 0) < 0) fail(who);
    printf("%s: %d\n", who, status);
    fflush(stdout);
}

// Other threads are amid requests all the while.
static void children(void) {
    mine = opened(O_RDONLY | O_DIRECT);
    // By channel, where the file is on a served mount.
    read_all(mine, 300);
    pthread_t others[2];
    for (int i = 0; i < 2; i++) pthread_create(&others[i], NULL, reads, block());
    for (int round = 0; round < 3; round++) {
        read_all(mine, 20);
        forked(fork(), "fork");
        if (_Fork) forked(_Fork(), "_Fork");
        forked(syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0), "a bare clone");
#ifdef SYS_fork
        forked(syscall(SYS_fork), "a bare fork");
#endif
        char *stack = malloc(256 << 10);
        forked(clone(child, stack + (256 << 10), SIGCHLD, "clone"), "clone");
        free(stack);
        read_all(mine, 20);
    }
    over = 1;
    for (int i = 0; i < 2; i++) pthread_join(others[i], NULL);
    pid_t pid = vfork();
    if (pid == 0) {
        execl("/proc/self/exe", "numbers", "program", path, NULL);
        _exit(3);
    }
    forked(pid, "vfork and exec");
}

// What a vfork and an exec lead to: its parent's descriptor is another program's too.
static void program(void) {
    mine = 3;
    look("a program");
}

// A fork that no library sees, amid requests of other threads; its child forks like any other.
static void unseen_forks(void) {
    mine = opened(O_RDONLY | O_DIRECT);
    pthread_t others[3];
    for (int i = 0; i < 3; i++) pthread_create(&others[i], NULL, reads, block());
    for (int round = 0; round < 100; round++) {
        read_all(mine, 2);
        pid_t pid = unseen(SYS_clone, SIGCHLD, 0, 0, 0);
        if (pid == 0) {
            pid_t grandchild = fork();
            if (grandchild == 0) {
                char byte;
                _exit(pread(mine, &byte, 0, 0));
            }
            int status = -1;
            waitpid(grandchild, &status, 0);
            _exit(status != 0);
        }
        int status = -1;
        if (pid < 0 || waitpid(pid, &status, 0) < 0 || status) fail("child");
    }
    over = 1;
    for (int i = 0; i < 3; i++) pthread_join(others[i], NULL);
    printf("all children forked\n");
}

// --- Everything closed, by system calls that go through the C library's syscall.

static void bare_closes(void) {
    int fd = opened(O_RDONLY | O_DIRECT);
    read_all(fd, 200);
    if (syscall(SYS_close_range, 3, ~0u, 0)) fail("close_range");
    fd = opened(O_RDONLY | O_DIRECT);
    printf("number %d\n", fd);
    read_all(fd, 200);
    // The numbers from there on are the program's as much as all others.
    int refused = 0;
    for (int i = 0; i < 20; i++) {
        int high = fcntl(fd, F_DUPFD, 890);
        if (high >= 0) refused += close(high) != 0;
    }
    printf("%d could not be closed\n", refused);
    for (int other = 3; other < 1024; other++) syscall(SYS_close, other);
    fd = opened(O_RDONLY | O_DIRECT);
    printf("number %d\n", fd);
    read_all(fd, 200);
    // What the program puts where the library's were is the program's.
    for (int other = 3; other < 1024; other++) {
        if (other != fd) syscall(SYS_dup3, fd, other, 0);
    }
    pthread_t thread;
    pthread_create(&thread, NULL, brief, &fd);
    pthread_join(thread, NULL);
    int ends[2], heard = 0;
    char byte;
    if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends)) fail("socketpair");
    for (int other = 890; other < 1024; other++) {
        if (syscall(SYS_dup3, ends[0], other, 0) != other) fail("dup3");
    }
    for (int i = 0; i < 200; i++) {
        read_all(fd, 1);
        // Whoever serves may be asleep by the next.
        if (i % 20 == 0) usleep(2000);
        heard += recv(ends[1], &byte, 1, MSG_DONTWAIT) >= 0;
    }
    printf("%d messages from nobody\n", heard);
    int gone = 0;
    for (int other = 3; other < 1024; other++) gone += fcntl(other, F_GETFD) < 0;
    printf("%d are gone\n", gone);
}

// What stands where a thread's ring was is the program's, of whatever kind, when that thread ends.
static void taken_unseen(void) {
    int fd = opened(O_RDONLY | O_DIRECT), event = eventfd(0, 0), gone = 0;
    read_all(fd, 20);
    pthread_barrier_init(&has_read, NULL, 2);
    pthread_barrier_init(&may_end, NULL, 2);
    pthread_t thread;
    if (pthread_create(&thread, NULL, stays, &fd)) fail("thread");
    pthread_barrier_wait(&has_read);
    for (int other = 890; other < 1024; other++) unseen(SYS_dup3, event, other, 0, 0);
    pthread_barrier_wait(&may_end);
    pthread_join(thread, NULL);
    read_all(fd, 20);
    for (int other = 890; other < 1024; other++) gone += fcntl(other, F_GETFD) < 0;
    printf("%d are gone\n", gone);
}

// What is opened unseen under an old number may append: then only the kernel knows where a write ended.
static void appends_unseen(void) {
    int fd = opened(O_RDWR | O_DIRECT);
    read_all(fd, 20);
    if (unseen(SYS_close, fd, 0, 0, 0)) fail("close");
    if (unseen(SYS_openat, AT_FDCWD, (long)path, O_RDWR | O_DIRECT | O_APPEND, 0) != fd) fail("another number");
    void *memory = block();
    memset(memory, 'a', BLOCK);
    for (int at = 0; at < 3; at++) {
        if (write(fd, memory, BLOCK) != BLOCK) fail("write");
        off_t stands = lseek(fd, 0, SEEK_CUR);
        printf("stands %ld before the end\n", (long)(lseek(fd, 0, SEEK_END) - stands));
    }
}

static void *sleeps(void *ends) {
    char byte;
    if (read(*(int *)ends, &byte, 1) != 0) fail("read");
    return NULL;
}

// A new descriptor has the lowest free number, whatever threads of a library open meanwhile. Beside it is a process that
// makes requests and then stands still.
static void lowest(void) {
    pid_t still = fork();
    if (still == 0) {
        read_all(opened(O_RDONLY | O_DIRECT), 20);
        usleep(400000);
        raise(SIGSTOP);
        _exit(0);
    }
    if (waitpid(still, NULL, WUNTRACED) != still) fail("waitpid");
    int fd = opened(O_RDONLY | O_DIRECT), ends[2], least = 1 << 20, higher = 0;
    if (pipe(ends)) fail("pipe");
    pthread_t threads[3];
    for (int at = 0; at < 3; at++)
        if (pthread_create(&threads[at], NULL, sleeps, ends)) fail("thread");
    uint64_t *memory = block();
    read_into(memory, fd, 20);
    // Whatever begins with the first requests has begun.
    usleep(400000);
    time_t until = time(NULL) + 3;
    do {
        read_into(memory, fd, 1);
        for (int at = 0; at < 50; at++) {
            int one = open("/dev/null", O_RDONLY);
            if (one < 0) fail("open");
            if (one < least) least = one;
            higher += one > least;
            close(one);
        }
    } while (time(NULL) < until);
    close(ends[1]);
    for (int at = 0; at < 3; at++) pthread_join(threads[at], NULL);
    kill(still, SIGKILL);
    printf("%d were higher\n", higher);
}

static const struct {
    const char *name;
    void (*act)(void);
} all[] = {
    {"again", again}, {"threads", threads}, {"many_threads", many_threads}, {"limited", limited}, {"children", children},
    {"program", program}, {"unseen_forks", unseen_forks}, {"bare_closes", bare_closes}, {"taken_unseen", taken_unseen},
    {"lowest", lowest}, {"appends_unseen", appends_unseen},
};

int main(int count, char **arguments) {
    if (count < 3) return 64;
    self = arguments[0];
    path = arguments[2];
    rest = arguments + 3;
    for (size_t at = 0; at < sizeof all / sizeof *all; at++) {
        if (strcmp(all[at].name, arguments[1]) == 0) {
            all[at].act();
            return 0;
        }
    }
    return 64;
}
