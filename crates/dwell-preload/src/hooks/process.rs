// SPDX-License-Identifier: MIT OR Apache-2.0
//! Becoming two processes, becoming another program, ending.
#![allow(unsafe_code)]
// Every function here has the contract of the C library's function of its name.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_char, c_int, c_long, c_void};
use std::ptr;

use libc::{pid_t, size_t};

use super::descriptors::{close_by, close_range_by, doubles, replaces, sends};
use super::mapping::maps_over;
use super::{came, found, real};
use crate::raw::bare;
use crate::{engine, inside, life, own, process, raw, real, serve, table};

/// A child may have this process's descriptors, and move them.
fn has_child() {
    if !inside::is_inside() {
        table::shared_with_others();
    }
}

extern "C" fn before_vfork() {
    has_child();
    inside::begin_vfork();
}

/// In the parent, once the child is gone.
extern "C" fn after_vfork(result: c_long) -> pid_t {
    inside::end_vfork();
    if result < 0 {
        raw::set_errno(-result as i32);
        return -1;
    }
    result as pid_t
}

/// The child runs on the stack and in the thread-locals of its parent until it ends or becomes
/// another program, so the address to return to is kept where the child cannot overwrite it.
#[cfg(target_arch = "x86_64")]
#[unsafe(no_mangle)]
#[unsafe(naked)]
pub unsafe extern "C" fn vfork() -> pid_t {
    std::arch::naked_asm!(
        "sub rsp, 8",
        "call {before}",
        "add rsp, 8",
        "pop rdi",
        "mov eax, {number}",
        "syscall",
        "push rdi",
        "test rax, rax",
        "jz 2f",
        "mov rdi, rax",
        "sub rsp, 8",
        "call {after}",
        "add rsp, 8",
        "2:",
        "ret",
        before = sym before_vfork,
        after = sym after_vfork,
        number = const libc::SYS_vfork,
    )
}

/// Where the return address cannot be kept from the child, it gets memory of its own.
#[cfg(not(target_arch = "x86_64"))]
#[unsafe(no_mangle)]
pub unsafe extern "C" fn vfork() -> pid_t {
    // SAFETY: a fork does all that a vfork promises.
    unsafe { libc::fork() }
}

macro_rules! spawns {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            child: *mut pid_t,
            path: *const c_char,
            actions: *const c_void,
            attributes: *const c_void,
            arguments: *const *const c_char,
            environment: *const *const c_char,
        ) -> c_int {
            has_child();
            found!($name(child, path, actions, attributes, arguments, environment), libc::ENOSYS)
        }
    )*};
}

spawns! {
    posix_spawn;
    posix_spawnp;
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn system(command: *const c_char) -> c_int {
    has_child();
    found!(system(command), -1)
}

/// What a child of `clone` is to do, in its parent's memory or in a copy.
struct Start {
    function: extern "C" fn(*mut c_void) -> c_int,
    argument: *mut c_void,
    flags: c_int,
}

extern "C" fn start(start: *mut c_void) -> c_int {
    // SAFETY: made below; the child has a copy of all of its parent's memory.
    let Start { function, argument, flags } = unsafe { start.cast::<Start>().read() };
    begins(flags as u32 as u64);
    function(argument)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn clone(
    function: Option<extern "C" fn(*mut c_void) -> c_int>,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut c_void,
    thread_locals: *mut c_void,
    child: *mut c_void,
) -> c_int {
    has_child();
    let begin = function.map(|function| Start { function, argument, flags });
    let shares_memory = flags & libc::CLONE_VM != 0;
    let (mut entry, mut given, mut before) = (function, argument, None);
    if inside::is_inside() {
        // A child of the engine's own.
    } else if shares_memory && flags & libc::CLONE_SETTLS == 0 {
        before = Some(inside::begin_sharing());
    } else if let (Some(begin), false) = (&begin, shares_memory) {
        (entry, given) = (Some(start as _), ptr::from_ref(begin).cast_mut().cast());
    }
    let done = found!(clone(entry, stack, flags, given, parent, thread_locals, child), -1);
    if let Some(before) = before
        && (done < 0 || flags & libc::CLONE_VFORK != 0)
    {
        inside::end_sharing(before);
    }
    done
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_exit(result: *mut c_void) -> ! {
    life::before_thread_ends();
    let () = found!(pthread_exit(result), ());
    std::process::abort()
}

/// Before this process becomes another program: what it did is told now, or never.
fn becomes_another() {
    if !inside::is_inside() && process::is_on() {
        inside::uncancelled(engine::publish);
    }
}

macro_rules! execs {
    ($($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> c_int {
            becomes_another();
            found!($name($($argument),*), -1)
        }
    )*};
}

type Texts = *const *const c_char;

execs! {
    execve(path: *const c_char, arguments: Texts, environment: Texts);
    execv(path: *const c_char, arguments: Texts);
    execvp(path: *const c_char, arguments: Texts);
    execvpe(path: *const c_char, arguments: Texts, environment: Texts);
    fexecve(fd: c_int, arguments: Texts, environment: Texts);
}

/// Those that take their arguments one by one: whatever was passed is passed on as it stands.
macro_rules! execs_of_many {
    ($($name:ident, $before:ident;)*) => {$(
        extern "C" fn $before() -> *const c_void {
            becomes_another();
            real::$name.find().map_or(std::ptr::null(), |function| function as *const c_void)
        }

        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> c_int {
            std::arch::naked_asm!(
                "push rdi",
                "push rsi",
                "push rdx",
                "push rcx",
                "push r8",
                "push r9",
                "push rax",
                "call {before}",
                "mov r11, rax",
                "pop rax",
                "pop r9",
                "pop r8",
                "pop rcx",
                "pop rdx",
                "pop rsi",
                "pop rdi",
                "jmp r11",
                before = sym $before,
            )
        }

        #[cfg(target_arch = "aarch64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub unsafe extern "C" fn $name() -> c_int {
            std::arch::naked_asm!(
                "stp x29, x30, [sp, #-80]!",
                "stp x0, x1, [sp, #16]",
                "stp x2, x3, [sp, #32]",
                "stp x4, x5, [sp, #48]",
                "stp x6, x7, [sp, #64]",
                "bl {before}",
                "mov x16, x0",
                "ldp x0, x1, [sp, #16]",
                "ldp x2, x3, [sp, #32]",
                "ldp x4, x5, [sp, #48]",
                "ldp x6, x7, [sp, #64]",
                "ldp x29, x30, [sp], #80",
                "br x16",
                before = sym $before,
            )
        }
    )*};
}

execs_of_many! {
    execl, before_execl;
    execlp, before_execlp;
    execle, before_execle;
}

/// Whether namespaces are only for a process of one thread.
fn unshared_alone(flags: c_int) -> bool {
    const OF_ONE_THREAD: c_int =
        libc::CLONE_NEWUSER | libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
    flags & OF_ONE_THREAD != 0
}

/// The same of namespaces that are there already; `kind` is 0 where any is meant.
fn entered_alone(kind: c_int) -> bool {
    const NEW_TIME: c_int = 0x80;
    kind == 0 || kind & (libc::CLONE_NEWUSER | libc::CLONE_NEWNS | NEW_TIME) != 0
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn unshare(flags: c_int) -> c_int {
    if unshared_alone(flags) {
        life::before_alone();
    }
    real!(unshare(flags), bare!(SYS_unshare, flags))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn setns(fd: c_int, kind: c_int) -> c_int {
    if entered_alone(kind) {
        life::before_alone();
    }
    real!(setns(fd, kind), bare!(SYS_setns, fd, kind))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn prctl(
    option: c_int,
    second: size_t,
    third: size_t,
    fourth: size_t,
    fifth: size_t,
) -> c_int {
    if option == libc::PR_SET_SECCOMP && !inside::is_inside() {
        life::before_filter();
    }
    real!(
        prctl(option, second, third, fourth, fifth),
        bare!(SYS_prctl, option, second, third, fourth, fifth)
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    first: c_long,
    second: c_long,
    third: c_long,
    fourth: c_long,
    fifth: c_long,
    sixth: c_long,
) -> c_long {
    // SAFETY: the caller's arguments, as they came.
    let straight =
        || unsafe { raw::call_as_c(number, [first, second, third, fourth, fifth, sixth]) };
    let fd = first as c_int;
    if inside::is_inside() {
        return match number {
            libc::SYS_io_uring_setup | libc::SYS_userfaultfd if own::may_keep() => {
                own::keep(straight() as c_int).into()
            }
            libc::SYS_io_uring_setup | libc::SYS_userfaultfd => {
                raw::set_errno(libc::EMFILE);
                -1
            }
            _ => straight(),
        };
    }
    match number {
        libc::SYS_seccomp => life::before_filter(),
        libc::SYS_unshare if unshared_alone(fd) => life::before_alone(),
        libc::SYS_setns if entered_alone(second as c_int) => life::before_alone(),
        libc::SYS_munmap
        | libc::SYS_mremap
        | libc::SYS_mprotect
        | libc::SYS_madvise
        | libc::SYS_mlock
        | libc::SYS_mlock2 => maps_over(first as *const c_void, second as usize),
        libc::SYS_mmap if fourth as c_int & libc::MAP_FIXED != 0 => {
            maps_over(first as *const c_void, second as usize);
        }
        libc::SYS_sendmsg => sends(second as *const libc::msghdr, 1, 0),
        libc::SYS_sendmmsg => {
            sends(second as *const libc::msghdr, third as usize, size_of::<libc::mmsghdr>());
        }
        libc::SYS_close => return close_by(fd, || straight() as c_int).into(),
        libc::SYS_close_range => {
            let flags = third as c_int;
            return close_range_by(first as u32, second as u32, flags, |first, last| {
                bare!(SYS_close_range, first, last, flags)
            })
            .into();
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_open | libc::SYS_creat => return came(straight() as c_int).into(),
        libc::SYS_openat | libc::SYS_openat2 => return came(straight() as c_int).into(),
        libc::SYS_dup => {
            doubles(fd);
            return came(straight() as c_int).into();
        }
        #[cfg(target_arch = "x86_64")]
        libc::SYS_dup2 => return replaced(fd, second as c_int, straight),
        libc::SYS_dup3 => return replaced(fd, second as c_int, straight),
        libc::SYS_fcntl if matches!(second as c_int, libc::F_DUPFD | libc::F_DUPFD_CLOEXEC) => {
            doubles(fd);
            return came(straight() as c_int).into();
        }
        _ => {}
    }
    match forks(number, first) {
        Some(flags) => {
            has_child();
            let result = straight();
            match result {
                0 => begins(flags),
                // What another thread opened meanwhile is the child's too.
                _ => has_child(),
            }
            result
        }
        None => straight(),
    }
}

fn replaced(fd: c_int, other: c_int, replace: impl FnOnce() -> c_long) -> c_long {
    doubles(fd);
    if fd == other {
        return replace();
    }
    replaces(other);
    came(replace() as c_int).into()
}

/// What a child shares with its parent, where a system call makes one.
fn forks(number: c_long, first: c_long) -> Option<u64> {
    match number {
        #[cfg(target_arch = "x86_64")]
        libc::SYS_fork => Some(0),
        #[cfg(target_arch = "x86_64")]
        libc::SYS_vfork => Some(libc::CLONE_VM as u64 | libc::CLONE_VFORK as u64),
        libc::SYS_clone => Some(first as u64),
        // Its flags lie in the program's memory, in what comes first there.
        libc::SYS_clone3 => Some(serve::word_at(first as *const c_void).unwrap_or(u64::MAX)),
        _ => None,
    }
}

/// In a child that did not come by the C library's `fork`. One that borrows its parent's memory has
/// nothing of its own to leave.
fn begins(flags: u64) {
    if flags & libc::CLONE_VM as u64 == 0 {
        life::leave_child(flags & libc::CLONE_FILES as u64 != 0);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _Fork() -> pid_t {
    has_child();
    let child = real!(_Fork(), bare!(SYS_clone, libc::SIGCHLD, 0, 0, 0, 0));
    if child == 0 && !inside::is_inside() {
        begins(0);
    }
    child
}

/// Ends the process without running what `exit` runs.
fn end(status: c_int) -> ! {
    let _: c_int = bare!(SYS_exit_group, status);
    std::process::abort()
}

macro_rules! exits {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(status: c_int) -> ! {
            life::end();
            let () = found!($name(status), ());
            end(status)
        }
    )*};
}

exits! {
    _exit;
    _Exit;
    quick_exit;
}
