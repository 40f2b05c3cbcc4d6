// SPDX-License-Identifier: MIT OR Apache-2.0
// How programs begin, share their memory, give up rights and end. NAME FILE OTHER; each prints the same whether the library is there or
// not. The file is 1 MiB of 4 KiB blocks that begin with their number.
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

#include "blocks.h"

enum { STACK = 256 << 10 };

static const char *other;

static void waited(pid_t child) {
    int status = -1;
    if (waitpid(child, &status, 0) != child) fail("wait");
    printf("child %x\n", status);
}

static char stack[STACK] __attribute__((aligned(64)));
static int fd;
static void *memory;

// Only system calls by way of the C library, and nothing else of it: there is no thread of its to be had here.
static int without_thread(void *unused) {
    uint64_t *number = memory;
    for (int i = 0; i < 200; i++) {
        if (syscall(SYS_pread64, fd, memory, BLOCK, i * (long)BLOCK) != BLOCK || *number != i) return 1;
        if (pread(fd, memory, BLOCK, i * (long)BLOCK) != BLOCK || *number != i) return 2;
        if (lseek(fd, i * (long)BLOCK, SEEK_SET) < 0) return 3;
        if (read(fd, memory, BLOCK) != BLOCK || *number != i) return 4;
        int again = open(path, O_RDWR | O_DIRECT), twice = dup(again);
        if (again < 0 || pread(again, memory, BLOCK, BLOCK) != BLOCK || *number != 1) return 5;
        if (pwrite(twice, memory, BLOCK, BLOCK) != BLOCK || fsync(twice)) return 6;
        if (close(again) || close(twice)) return 7;
    }
    return syscall(SYS_getppid) > 0 ? 40 : 8;
}

static void no_thread_locals(void) {
#if defined(__x86_64__)
    // As little of a thread as C libraries check: its own address, and no list of thread-locals.
    static struct {
        char before[BLOCK];
        void *self, *locals, *itself;
        char after[BLOCK];
    } thread;
    thread.self = thread.itself = &thread.self;
    void *locals = &thread.self;
#else
    static char thread[2 * BLOCK];
    void *locals = thread + BLOCK;
#endif
    fd = opened(O_RDONLY | O_DIRECT);
    memory = block();
    read_all(fd, 200);
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_SETTLS | SIGCHLD;
    waited(clone(without_thread, stack + STACK, flags, NULL, NULL, locals, NULL));
    read_all(fd, 200);
}

static int reads_and_ends(void *unused) {
    uint64_t *number = memory;
    for (int i = 0; i < 300; i++) {
        if (pread(fd, memory, BLOCK, i % BLOCKS * (long)BLOCK) != BLOCK || *number != i % BLOCKS) _exit(1);
    }
    int own = open("/dev/null", O_RDONLY);
    if (own < 0 || close(own)) _exit(2);
    _exit(41);
}

// A child that has this process's memory and ends as processes do.
static void borrows_memory(int flags) {
    fd = opened(O_RDONLY | O_DIRECT);
    memory = block();
    read_all(fd, 200);
    for (int i = 0; i < 5; i++) {
        waited(clone(reads_and_ends, stack + STACK, CLONE_VM | SIGCHLD | flags, NULL));
        read_all(fd, 100);
    }
}

static void child_in_this_memory(void) {
    borrows_memory(0);
}

static void child_in_this_memory_waited_for(void) {
    borrows_memory(CLONE_VFORK);
}

static void child_in_this_memory_with_files(void) {
    borrows_memory(CLONE_FILES | CLONE_FS);
}

// Beside a child that has this memory and this thread's locals.
static void child_in_this_memory_amid(void) {
    fd = opened(O_RDONLY | O_DIRECT);
    memory = block();
    read_all(fd, 200);
    for (int i = 0; i < 5; i++) {
        pid_t child = clone(reads_and_ends, stack + STACK, CLONE_VM | SIGCHLD, NULL);
        for (int j = 0; j < 5; j++) {
            int own = opened(O_RDONLY | O_DIRECT);
            read_all(own, 50);
            close(own);
        }
        waited(child);
    }
    read_all(fd, 100);
}

static void main_ends_alone(void) {
    read_all(opened(O_RDONLY | O_DIRECT), 300);
    printf("done\n");
    pthread_exit(NULL);
}

static void *outlives(void *main_thread) {
    pthread_join(*(pthread_t *)main_thread, NULL);
    read_all(opened(O_RDONLY | O_DIRECT), 300);
    printf("done\n");
    return NULL;
}

static void main_ends_first(void) {
    static pthread_t this, thread;
    this = pthread_self();
    read_all(opened(O_RDONLY | O_DIRECT), 300);
    if (pthread_create(&thread, NULL, outlives, &this)) fail("thread");
    pthread_detach(thread);
    pthread_exit(NULL);
}

static void children(void) {
    fd = opened(O_RDONLY | O_DIRECT);
    read_all(fd, 200);
    for (int i = 0; i < 3; i++) {
        pid_t child = fork();
        if (child == 0) {
            int own = opened(O_RDONLY | O_DIRECT);
            read_all(fd, 200);
            read_all(own, 200);
            exit(i);
        }
        waited(child);
        read_all(fd, 100);
    }
    printf("done\n");
}

// From now on this process is killed for all but these calls.
static void only(const int *allowed, int count, int by_prctl) {
    struct sock_filter steps[64];
    int at = 0;
    steps[at++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (int i = 0; i < count; i++) {
        steps[at++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, allowed[i], count - i, 0);
    }
    steps[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    steps[at++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {at, steps};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) fail("prctl");
    long refused = by_prctl ? prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0)
                            : syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program);
    if (refused) fail("seccomp");
}

static void *cancels(void *main_thread) {
    pthread_cancel(*(pthread_t *)main_thread);
    return outlives(main_thread);
}

static void main_is_cancelled(void) {
    static pthread_t this, thread;
    this = pthread_self();
    read_all(opened(O_RDONLY | O_DIRECT), 300);
    if (pthread_create(&thread, NULL, cancels, &this)) fail("thread");
    for (;;) pause();
}

#define ONLY(by_prctl, ...)                                                                        \
    do {                                                                                           \
        static const int allowed[] = {__VA_ARGS__};                                                \
        only(allowed, sizeof allowed / sizeof *allowed, by_prctl);                                 \
    } while (0)

// What it takes to read, to write, to say so and to end.
#define FEW                                                                                        \
    SYS_read, SYS_write, SYS_pread64, SYS_pwrite64, SYS_sendmsg, SYS_exit_group, SYS_exit, SYS_lseek, SYS_fdatasync, SYS_newfstatat, SYS_fstat

static void in_a_filter(int by_prctl) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) fail("sockets");
    fd = opened(O_RDWR | O_DIRECT);
    memory = block();
    printf("before\n");
    for (int i = 0; i < 200; i++) {
        if (read(fd, memory, BLOCK) != BLOCK) fail("read");
    }
    ONLY(by_prctl, FEW);
    for (int i = 0; i < 200; i++) {
        if (!right(fd, memory, i)) fail("a wrong block");
        if (pwrite(fd, memory, BLOCK, i * (long)BLOCK) != BLOCK || fdatasync(fd)) fail("write");
        struct iovec piece = {memory, 1};
        struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1};
        if (sendmsg(ends[0], &message, 0) != 1) fail("send");
    }
    printf("done\n");
}

static void filtered_by_prctl(void) {
    in_a_filter(1);
}

static void filtered_by_seccomp(void) {
    in_a_filter(0);
    fflush(stdout);
    _exit(3);
}

static void reads_and_tells(void) {
    fd = opened(O_RDWR | O_DIRECT);
    read_all(fd, 100);
    printf("done\n");
}

static void *filtered_to_its_end(void *unused) {
    int own = opened(O_RDONLY | O_DIRECT);
    read_all(own, 200);
    ONLY(0, FEW, SYS_madvise, SYS_munmap, SYS_mmap, SYS_futex, SYS_close, SYS_rt_sigprocmask);
    read_all(own, 200);
    return NULL;
}

static void thread_filtered(void) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, filtered_to_its_end, NULL)) fail("thread");
    pthread_join(thread, NULL);
    read_all(opened(O_RDONLY | O_DIRECT), 100);
    printf("done\n");
}

// A program that begins with a filter, which allows what loaders do and little else.
static void begins_filtered(void) {
    ONLY(1, FEW, SYS_execve, SYS_brk, SYS_openat, SYS_close, SYS_mmap, SYS_munmap, SYS_mprotect, SYS_set_tid_address, SYS_set_robust_list,
         SYS_rseq, SYS_prlimit64, SYS_getrandom, SYS_futex
#if defined(__x86_64__)
         , SYS_access, SYS_arch_prctl
#else
         , SYS_faccessat
#endif
    );
    execl(self, self, "reads_and_tells", path, other, NULL);
    fail("exec");
}

static void told(const char *what, long result) {
    printf("%s: %s\n", what, result < 0 ? strerror(errno) : "done");
    fflush(stdout);
}

// What takes a process of one thread: namespaces of its own.
static void unshares(void) {
    fd = opened(O_RDONLY | O_DIRECT);
    for (int way = 0; way < 6; way++) {
        read_all(fd, 100);
        pid_t child = fork();
        if (child == 0) {
            read_all(opened(O_RDONLY | O_DIRECT), 100);
            int user = open("/proc/self/ns/user", O_RDONLY), mounts = open("/proc/self/ns/mnt", O_RDONLY);
            switch (way) {
            case 0: told("unshare user", unshare(CLONE_NEWUSER)); break;
            case 1: told("unshare user by number", syscall(SYS_unshare, CLONE_NEWUSER)); break;
            case 2: told("unshare user and mounts", unshare(CLONE_NEWUSER | CLONE_NEWNS)); break;
            case 3: told("set mounts", setns(mounts, CLONE_NEWNS)); break;
            case 4: told("set mounts by number", syscall(SYS_setns, mounts, 0)); break;
            case 5: told("unshare user", unshare(CLONE_NEWUSER)), told("set user", setns(user, CLONE_NEWUSER)); break;
            }
            read_all(fd, 100);
            exit(way);
        }
        waited(child);
    }
    // What any process may do leaves all as it is.
    told("unshare files", unshare(CLONE_FILES));
    read_all(fd, 100);
}

// Where a descriptor stands is two processes' once it was sent.
static void sends(int way) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends)) fail("sockets");
    pid_t child = fork();
    memory = block();
    union {
        char bytes[CMSG_SPACE(sizeof(int))];
        struct cmsghdr aligned;
    } beside = {0};
    struct iovec piece = {"x", 1};
    if (child == 0) {
        char byte;
        piece.iov_base = &byte;
        struct msghdr message = {.msg_iov = &piece, .msg_iovlen = 1, .msg_control = &beside, .msg_controllen = sizeof beside};
        if (recvmsg(ends[1], &message, 0) != 1) fail("receive");
        fd = *(int *)CMSG_DATA(CMSG_FIRSTHDR(&message));
        for (int i = 0; i < 50; i++) {
            if (read(fd, memory, BLOCK) != BLOCK) fail("read");
        }
        exit(0);
    }
    fd = opened(O_RDONLY | O_DIRECT);
    for (int i = 0; i < 100; i++) {
        if (read(fd, memory, BLOCK) != BLOCK) fail("read");
    }
    struct mmsghdr messages[3] = {0};
    for (int i = 0; i < 3; i++) messages[i].msg_hdr = (struct msghdr){.msg_iov = &piece, .msg_iovlen = 1};
    struct msghdr *last = &messages[2].msg_hdr;
    last->msg_control = &beside;
    last->msg_controllen = sizeof beside;
    struct cmsghdr *head = CMSG_FIRSTHDR(last);
    *head = (struct cmsghdr){.cmsg_len = CMSG_LEN(sizeof(int)), .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS};
    *(int *)CMSG_DATA(head) = fd;
    long sent = 0;
    switch (way) {
    case 0: sent = sendmsg(ends[0], last, 0); break;
    case 1: sent = syscall(SYS_sendmsg, ends[0], last, 0); break;
    case 2: sent = sendmmsg(ends[0], messages + 2, 1, 0); break;
    case 3: sent = syscall(SYS_sendmmsg, ends[0], messages + 2, 1, 0); break;
    }
    told("sent", sent);
    for (int i = 0; i < 50; i++) {
        if (read(fd, memory, BLOCK) != BLOCK) fail("read");
    }
    waited(child);
    if (read(fd, memory, BLOCK) != BLOCK) fail("read");
    printf("block %llu\n", *(unsigned long long *)memory);
    // Without a descriptor beside it, and from where there is nothing.
    told("sent more", sendmmsg(ends[0], messages, 2, 0));
    told("sent from nowhere", sendmmsg(ends[0], NULL, 2, 0));
}

static void sends_by_sendmsg(void) {
    sends(0);
}

static void sends_by_number(void) {
    sends(1);
}

static void sends_by_sendmmsg(void) {
    sends(2);
}

static void sends_many_by_number(void) {
    sends(3);
}

// As much as all the rest of what a process reads is little beside it.
static void reads_much(void) {
    enum { LARGE = 256 << 10, TIMES = 256 };
    void *memory;
    if (posix_memalign(&memory, BLOCK, LARGE)) fail("memory");
    fd = opened(O_RDONLY | O_DIRECT);
    for (int i = 0; i < TIMES; i++) {
        if (pread(fd, memory, LARGE, i % 4 * (long)LARGE) != LARGE) fail("pread");
    }
}

static void a_childs_work(void) {
    pid_t child = fork();
    if (child == 0) {
        pid_t grandchild = fork();
        if (grandchild == 0) {
            reads_much();
            exit(1);
        }
        waited(grandchild);
        _exit(2);
    }
    waited(child);
}

// Nobody in the run waits for the one who works.
static void an_orphans_work(void) {
    int ends[2];
    if (pipe(ends)) fail("pipe");
    pid_t child = fork();
    if (child == 0) {
        pid_t parent = getpid();
        if (fork() == 0) {
            while (getppid() == parent) sched_yield();
            reads_much();
            exit(1);
        }
        _exit(2);
    }
    waited(child);
    close(ends[1]);
    char byte;
    printf("end %zd\n", read(ends[0], &byte, 1));
}

#define SCENARIO(name) {#name, name}

int main(int count, char **arguments) {
    static const struct {
        const char *name;
        void (*act)(void);
    } all[] = {
        SCENARIO(no_thread_locals), SCENARIO(child_in_this_memory), SCENARIO(child_in_this_memory_waited_for),
        SCENARIO(child_in_this_memory_with_files), SCENARIO(child_in_this_memory_amid), SCENARIO(main_ends_alone), SCENARIO(main_ends_first), SCENARIO(main_is_cancelled),
        SCENARIO(children), SCENARIO(filtered_by_prctl), SCENARIO(filtered_by_seccomp), SCENARIO(unshares), SCENARIO(reads_and_tells),
        SCENARIO(begins_filtered), SCENARIO(thread_filtered), SCENARIO(reads_much), SCENARIO(a_childs_work), SCENARIO(an_orphans_work),
         SCENARIO(sends_by_sendmsg),
        SCENARIO(sends_by_number), SCENARIO(sends_by_sendmmsg), SCENARIO(sends_many_by_number),
    };
    if (count < 4) return 64;
    self = arguments[0];
    path = arguments[2];
    other = arguments[3];
    for (size_t at = 0; at < sizeof all / sizeof *all; at++) {
        if (strcmp(all[at].name, arguments[1]) == 0) {
            all[at].act();
            return 0;
        }
    }
    return 64;
}
