// SPDX-License-Identifier: MIT OR Apache-2.0
// What programs do that makes life hard for a library beneath them. NAME FILE…; each prints the same
// whether the library is there or not. The file is 1 MiB of 4 KiB blocks that begin with their
// number.
#define _GNU_SOURCE
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <spawn.h>
#include <stddef.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>

#include "blocks.h"

static char **rest;

static void shared_offset(void) {
    int fd = opened(O_RDONLY | O_DIRECT);
    void *memory = block();
    for (int round = 0; round < 20; round++) {
        if (read(fd, memory, BLOCK) != BLOCK) fail("read");
        printf("parent %llu\n", (unsigned long long)*(uint64_t *)memory);
        fflush(stdout);
        pid_t child = fork();
        if (child == 0) {
            for (int i = 0; i < 3; i++) {
                if (read(fd, memory, BLOCK) != BLOCK) fail("read");
                printf("child %llu\n", (unsigned long long)*(uint64_t *)memory);
            }
            fflush(stdout);
            _exit(0);
        }
        waitpid(child, NULL, 0);
    }
}

static void children(void) {
    int fd = opened(O_RDONLY | O_DIRECT);
    read_all(fd, 200);
    for (int i = 0; i < 5; i++) {
        pid_t child = fork();
        if (child == 0) {
            read_all(fd, 300);
            int own = opened(O_RDONLY | O_DIRECT);
            read_all(own, 300);
            exit(0);
        }
        read_all(fd, 100);
        int status = -1;
        waitpid(child, &status, 0);
        printf("child %d\n", status);
    }
}

static void *forks(void *fd) {
    for (int i = 0; i < 30; i++) {
        pid_t child = fork();
        if (child == 0) {
            read_all(*(int *)fd, 50);
            _exit(0);
        }
        int status = -1;
        waitpid(child, &status, 0);
        if (status) fail("child");
    }
    return NULL;
}

static void *reads(void *fd) {
    read_all(*(int *)fd, 3000);
    return NULL;
}

static void *begins(void *fd) {
    read_all(*(int *)fd, 3);
    return NULL;
}

static void forks_amid_threads(void) {
    int fd = opened(O_RDONLY | O_DIRECT);
    pthread_t threads[3];
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, i ? reads : forks, &fd);
    for (int i = 0; i < 100; i++) {
        pthread_t brief;
        if (pthread_create(&brief, NULL, begins, &fd)) fail("thread");
        pthread_join(brief, NULL);
    }
    for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
    printf("done\n");
}

static void vforks(void) {
    int fd = opened(O_RDONLY | O_DIRECT);
    void *memory = block();
    read_all(fd, 100);
    for (int i = 0; i < 20; i++) {
        volatile int seen = -1;
        pid_t child = vfork();
        if (child == 0) {
            // All that a child may not do and programs do.
            seen = right(fd, memory, i);
            int other = open(path, O_RDONLY);
            dup2(other, 17);
            close(other);
            close(fd);
            if (i % 2) _exit(i);
            execl("/bin/sh", "sh", "-c", "exit $0", "7", NULL);
            _exit(99);
        }
        int status = -1;
        waitpid(child, &status, 0);
        printf("%d %d %d\n", seen, WEXITSTATUS(status), right(fd, memory, i));
    }
    errno = 0;
    printf("17: %d\n", fcntl(17, F_GETFD));
}

static void spawns(void) {
    int fd = opened(O_RDONLY | O_DIRECT);
    void *memory = block();
    // Where the parent stands, its child goes on reading.
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    extern char **environ;
    for (int i = 0; i < 10; i++) {
        if (read(fd, memory, BLOCK) != BLOCK) fail("read");
        printf("parent %llu\n", (unsigned long long)*(uint64_t *)memory);
        fflush(stdout);
        char *command[] = {(char *)self, "goes_on", (char *)path, number, NULL};
        pid_t child;
        if (posix_spawn(&child, self, NULL, NULL, command, environ)) fail("spawn");
        int status = -1;
        waitpid(child, &status, 0);
        printf("child ended %d\n", status);
    }
}

// A child of the above, or of `inherits`.
static void goes_on(void) {
    int fd = atoi(rest[0]);
    void *memory = block();
    if (read(fd, memory, BLOCK) != BLOCK) fail("read");
    printf("child %llu\n", (unsigned long long)*(uint64_t *)memory);
    read_all(fd, 100);
}

static void inherits(void) {
    int fd = opened(O_RDONLY | O_DIRECT);
    read_all(fd, 100);
    lseek(fd, 5 * BLOCK, SEEK_SET);
    char number[16];
    snprintf(number, sizeof number, "%d", fd);
    execl(self, self, "goes_on", path, number, NULL);
    fail("exec");
}

static int counts[BLOCKS];

static void *takes(void *fd) {
    void *memory = block();
    while (read(*(int *)fd, memory, BLOCK) == BLOCK) __atomic_add_fetch(&counts[*(uint64_t *)memory], 1, __ATOMIC_RELAXED);
    return NULL;
}

static void threads_share(void) {
    for (int round = 0; round < 10; round++) {
        int fd = opened(O_RDONLY | O_DIRECT);
        // The owner begins alone.
        void *memory = block();
        for (int i = 0; i < 20; i++) {
            if (read(fd, memory, BLOCK) != BLOCK) fail("read");
            counts[*(uint64_t *)memory]++;
        }
        pthread_t threads[3];
        for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, takes, &fd);
        takes(&fd);
        for (int i = 0; i < 3; i++) pthread_join(threads[i], NULL);
        close(fd);
    }
    for (int i = 0; i < BLOCKS; i++) {
        if (counts[i] != 10) printf("block %d was read %d times\n", i, counts[i]);
    }
    printf("done\n");
}

static int alarm_fd;
static void *alarm_memory;
static volatile int alarms, wrong;

static void on_alarm(int signal) {
    int before = errno;
    wrong += !right(alarm_fd, alarm_memory, ++alarms % BLOCKS);
    errno = before;
}

static void every_half_millisecond(void (*handler)(int), int on_own_stack) {
    struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART | (on_own_stack ? SA_ONSTACK : 0)};
    sigaction(SIGALRM, &action, NULL);
    struct itimerval timer = {{0, 500}, {0, 500}};
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void no_more(void) {
    struct itimerval timer = {0};
    setitimer(ITIMER_REAL, &timer, NULL);
}

static void reads_in_handlers(void) {
    alarm_fd = opened(O_RDONLY | O_DIRECT);
    alarm_memory = block();
    // 12 KiB and the frame that this processor needs. Whoever goes beyond ends the program.
    enum { GUARD = 4096, LEAST = 12752 };
    size_t size = (LEAST + getauxval(AT_MINSIGSTKSZ) + GUARD - 1) & ~(size_t)(GUARD - 1);
    char *stack = mmap(NULL, GUARD + size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (stack == MAP_FAILED || mprotect(stack, GUARD, PROT_NONE) != 0) fail("a stack");
    stack_t own = {.ss_sp = stack + GUARD, .ss_size = size};
    sigaltstack(&own, NULL);
    every_half_millisecond(on_alarm, 1);
    void *memory = block();
    for (int i = 0; alarms < 300; i++) {
        if (!right(alarm_fd, memory, i % BLOCKS)) fail("a wrong block");
        // The allocator is what a handler interrupts most easily.
        free(malloc(1 + i % 5000));
    }
    no_more();
    printf("wrong %d\n", wrong);
}

static sigjmp_buf out;
static volatile int jumps;

static void leaves(int signal) {
    jumps++;
    siglongjmp(out, 1);
}

static void jumps_out(void) {
    int direct = opened(O_RDONLY | O_DIRECT), buffered = opened(O_RDONLY);
    void *memory = block();
    // There is a place to jump to before the first signal.
    if (sigsetjmp(out, 1) == 0) every_half_millisecond(leaves, 0);
    while (jumps < 300) {
        for (int i = 0; i < BLOCKS; i++) {
            if (pread(jumps % 2 ? direct : buffered, memory, BLOCK, i * BLOCK) != BLOCK) fail("pread");
        }
    }
    no_more();
    read_all(direct, 1000);
    read_all(buffered, 1000);
    printf("done\n");
}

static void *until_cancelled(void *kind) {
    int fd = opened(O_RDONLY | O_DIRECT), buffered = opened(O_RDONLY);
    void *memory = block();
    pthread_setcanceltype(*(int *)kind, NULL);
    for (;;) {
        right(fd, memory, 3);
        right(buffered, memory, 3);
    }
    return NULL;
}

static void cancels(void) {
    for (int i = 0; i < 60; i++) {
        int kind = i % 2 ? PTHREAD_CANCEL_DEFERRED : PTHREAD_CANCEL_ASYNCHRONOUS;
        pthread_t thread;
        if (pthread_create(&thread, NULL, until_cancelled, &kind)) fail("thread");
        usleep(500 + 137 * i);
        pthread_cancel(thread);
        void *result = NULL;
        pthread_join(thread, &result);
        if (result != PTHREAD_CANCELED) fail("not cancelled");
    }
    read_all(opened(O_RDONLY | O_DIRECT), 500);
    printf("done\n");
}

static void reused(void) {
    int fd = opened(O_RDONLY | O_DIRECT);
    void *memory = block();
    read_all(fd, 200);
    int ends[2];
    if (pipe(ends) || write(ends[1], "abcdefgh", 8) != 8) fail("pipe");
    // Another thing of the same number, by calls that no library sees.
    unseen(SYS_dup3, ends[0], fd, 0, 0);
    for (int i = 0; i < 100; i++) {
        errno = 0;
        ssize_t done = pread(fd, memory, 4, 0);
        if (done != -1 || errno != ESPIPE) printf("pread of a pipe: %zd %d\n", done, errno);
    }
    printf("read %zd\n", read(fd, memory, 4));
    unseen(SYS_close, fd, 0, 0, 0);
    errno = 0;
    ssize_t closed = pread(fd, memory, BLOCK, 0);
    printf("closed %zd %d\n", closed, errno);
    // A file elsewhere.
    int zero = unseen(SYS_openat, AT_FDCWD, (long)"/dev/zero", O_RDONLY, 0);
    if (zero != fd) unseen(SYS_dup3, zero, fd, 0, 0);
    *(uint64_t *)memory = 1;
    ssize_t zeros = pread(fd, memory, 8, 0);
    printf("zeros %zd %llu\n", zeros, (unsigned long long)*(uint64_t *)memory);
}

static void filtered(int action, int number) {
    struct sock_filter steps[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, action),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {4, steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("prctl");
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0)) fail("seccomp");
}

static void then_reads(void) {
    execl(self, self, "reads_only", path, NULL);
    fail("exec");
}

static void reads_only(void) {
    read_all(opened(O_RDONLY | O_DIRECT), 500);
    printf("done\n");
}

static void rings_forbidden(void) {
    filtered(SECCOMP_RET_ERRNO | EPERM, SYS_io_uring_setup);
    then_reads();
}

static void rings_deadly(void) {
    filtered(SECCOMP_RET_KILL_PROCESS, SYS_io_uring_setup);
    then_reads();
}

static void deadly_later(void) {
    int fd = opened(O_RDONLY | O_DIRECT);
    read_all(fd, 200);
    filtered(SECCOMP_RET_KILL_PROCESS, SYS_io_uring_enter);
    filtered(SECCOMP_RET_KILL_PROCESS, SYS_io_uring_setup);
    read_all(fd, 200);
    read_all(opened(O_RDONLY | O_DIRECT), 200);
    printf("done\n");
}

static void few_descriptors(void) {
    struct rlimit limit = {5, 5};
    int fd = opened(O_RDONLY | O_DIRECT);
    setrlimit(RLIMIT_NOFILE, &limit);
    while (open("/dev/null", O_RDONLY) >= 0) continue;
    read_all(fd, 300);
    printf("%d\n", errno);
}

static void closes_everything(void) {
    int fd = opened(O_RDONLY | O_DIRECT);
    read_all(fd, 200);
    for (int other = 3; other < 1024; other++) close(other);
    int again = opened(O_RDONLY | O_DIRECT);
    printf("number %d\n", again);
    read_all(again, 200);
    close(2);
    int log = open(rest[0], O_CREAT | O_WRONLY | O_TRUNC, 0600);
    printf("log %d\n", log);
    if (write(log, "mine\n", 5) != 5) fail("write");
    read_all(again, 200);
    close_range(3, ~0u, 0);
    again = opened(O_RDONLY | O_DIRECT);
    read_all(again, 200);
}

static void lowest_numbers(void) {
    for (int i = 0; i < 3; i++) {
        int fd = opened(O_RDONLY | O_DIRECT);
        read_all(fd, 50);
        int next = opened(O_RDONLY);
        read_all(next, 50);
        close(0);
        read_all(fd, 50);
        printf("%d %d %d\n", fd, next, open("/dev/null", O_RDONLY));
    }
}

static void appends(void) {
    unlink(rest[0]);
    pid_t others[2];
    for (int who = 0; who < 2; who++) {
        others[who] = fork();
        if (others[who] == 0) {
            int fd = open(rest[0], O_WRONLY | O_CREAT | O_APPEND, 0600);
            char record[100];
            memset(record, 'a' + who, sizeof record);
            for (int i = 0; i < 2000; i++) {
                ssize_t done = i % 2 ? write(fd, record, sizeof record) : pwrite(fd, record, sizeof record, 0);
                if (done != sizeof record) fail("write");
            }
            _exit(0);
        }
    }
    for (int who = 0; who < 2; who++) waitpid(others[who], NULL, 0);
    FILE *all = fopen(rest[0], "r");
    char record[100];
    int counted[2] = {0}, torn = 0;
    while (fread(record, sizeof record, 1, all) == 1) {
        for (int i = 1; i < 100; i++) torn += record[i] != record[0];
        counted[record[0] == 'b']++;
    }
    printf("%d %d torn %d\n", counted[0], counted[1], torn);
}

static void file_limit(void) {
    int fd = opened(O_RDWR | O_DIRECT);
    void *memory = block();
    memset(memory, 5, BLOCK);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit limit = {64 * BLOCK, 64 * BLOCK};
    setrlimit(RLIMIT_FSIZE, &limit);
    for (int at = 62; at < 67; at++) {
        errno = 0;
        ssize_t done = pwrite(fd, memory, BLOCK, at * BLOCK);
        printf("%d: %zd %d\n", at, done, done < 0 ? errno : 0);
    }
}

static void *small(void *fd) {
    read_all(opened(O_RDONLY | O_DIRECT), 200);
    return NULL;
}

static void small_stacks(void) {
    pthread_attr_t attributes;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, 32 << 10);
    for (int i = 0; i < 4; i++) {
        pthread_t thread;
        if (pthread_create(&thread, &attributes, small, NULL)) fail("thread");
        pthread_join(thread, NULL);
    }
    printf("done\n");
}

static void leaves_at_once(void) {
    read_all(opened(O_RDONLY | O_DIRECT), 300);
    printf("done\n");
    fflush(stdout);
    _exit(3);
}

#define SCENARIO(name) {#name, name}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*act)(void);
    } all[] = {
        SCENARIO(shared_offset), SCENARIO(children), SCENARIO(forks_amid_threads), SCENARIO(vforks),
        SCENARIO(spawns), SCENARIO(goes_on), SCENARIO(inherits), SCENARIO(threads_share),
        SCENARIO(reads_in_handlers), SCENARIO(jumps_out), SCENARIO(cancels), SCENARIO(reused),
        SCENARIO(rings_forbidden), SCENARIO(rings_deadly), SCENARIO(deadly_later), SCENARIO(reads_only),
        SCENARIO(few_descriptors), SCENARIO(closes_everything), SCENARIO(lowest_numbers),
        SCENARIO(appends), SCENARIO(file_limit), SCENARIO(small_stacks), SCENARIO(leaves_at_once),
    };
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
