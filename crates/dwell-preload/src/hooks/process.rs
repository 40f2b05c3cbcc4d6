// SPDX-License-Identifier: MIT OR Apache-2.0
//! Becoming two processes, becoming another program, ending.
#![allow(unsafe_code)]
// Every function here has the contract of the C library's function of its name.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_char, c_int, c_long, c_void};

use libc::{pid_t, size_t};

use super::descriptors::sends;
use super::{found, real};
use crate::raw::bare;
use crate::{engine, inside, life, own, raw, real, table};

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
        inside::set_errno(-result as i32);
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

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn clone(
    function: *const c_void,
    stack: *mut c_void,
    flags: c_int,
    argument: *mut c_void,
    parent: *mut c_void,
    thread_locals: *mut c_void,
    child: *mut c_void,
) -> c_int {
    has_child();
    let shares = flags & (libc::CLONE_VM | libc::CLONE_SETTLS) == libc::CLONE_VM;
    let before = (shares && !inside::is_inside()).then(inside::begin_sharing);
    let done = found!(clone(function, stack, flags, argument, parent, thread_locals, child), -1);
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
    if !inside::is_inside() && engine::is_on() {
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
    if inside::is_inside() {
        if number == libc::SYS_io_uring_setup {
            // SAFETY: the engine's own arguments.
            let ring =
                unsafe { raw::call_as_c(number, [first, second, third, fourth, fifth, sixth]) };
            return own::adopt(ring as c_int).into();
        }
    } else {
        match number {
            libc::SYS_seccomp => life::before_filter(),
            libc::SYS_unshare if unshared_alone(first as c_int) => life::before_alone(),
            libc::SYS_setns if entered_alone(second as c_int) => life::before_alone(),
            libc::SYS_close if own::is_own(first as c_int) => own::lose(first as c_int),
            libc::SYS_close => table::clear(first as c_int),
            libc::SYS_close_range => table::clear_range(first as u32, second as u32),
            libc::SYS_dup2 | libc::SYS_dup3 => {
                table::share(first as c_int);
                own::lose(second as c_int);
                table::clear(second as c_int);
            }
            libc::SYS_dup => table::share(first as c_int),
            libc::SYS_sendmsg => sends(second as *const libc::msghdr, 1, 0),
            libc::SYS_sendmmsg => {
                sends(second as *const libc::msghdr, third as usize, size_of::<libc::mmsghdr>());
            }
            libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => has_child(),
            _ => {}
        }
    }
    // SAFETY: the caller's arguments, as they came.
    unsafe { raw::call_as_c(number, [first, second, third, fourth, fifth, sixth]) }
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
