// SPDX-License-Identifier: MIT OR Apache-2.0
//! A system call that a test takes away from its own process, and counts.

use std::sync::atomic::{AtomicUsize, Ordering};

static COUNTED: AtomicUsize = AtomicUsize::new(0);

/// Makes this system call fail with `EMFILE` from here on, in every thread, and counts how often it
/// is made: [`counted`].
pub fn forbid_and_count(call: libc::c_long) -> bool {
    extern "C" fn refuse(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        COUNTED.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the kernel hands the context over, and takes the registers back from it.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
        #[cfg(target_arch = "x86_64")]
        let result = &mut registers.gregs[libc::REG_RAX as usize];
        #[cfg(target_arch = "aarch64")]
        let result = &mut registers.regs[0];
        *result = -libc::EMFILE as _;
    }
    handle(refuse);
    super::forbid::filter(&[call], libc::SECCOMP_RET_TRAP)
}

type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);

/// Answers the system calls that a filter takes away.
fn handle(handler: Handler) {
    // SAFETY: a zeroed sigaction with a handler is valid, and the handlers here only add to a
    // number and make system calls.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut());
    }
}

/// How often the call was made that [`forbid_and_count`] was told of.
pub fn counted() -> usize {
    COUNTED.load(Ordering::Relaxed)
}

/// Has each `open` be interrupted twice before it does anything, in every thread.
pub fn interrupt_opens() -> bool {
    extern "C" fn interrupt(_: i32, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
        // SAFETY: the kernel hands the context over, and takes the registers back from it.
        let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext };
        #[cfg(target_arch = "x86_64")]
        let (arguments, result) = {
            let at = [libc::REG_RDI, libc::REG_RSI, libc::REG_RDX, libc::REG_R10];
            (
                at.map(|at| registers.gregs[at as usize]),
                &mut registers.gregs[libc::REG_RAX as usize],
            )
        };
        #[cfg(target_arch = "aarch64")]
        let (arguments, result) = {
            let [a, b, c, d, ..] = registers.regs;
            ([a, b, c, d], &mut registers.regs[0])
        };
        if !(COUNTED.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(3) {
            *result = -libc::EINTR as _;
            return;
        }
        let [directory, path, flags, mode] = arguments;
        let mode = if flags as i32 & libc::O_CREAT == 0 { 0 } else { mode };
        let how = [flags as u64, mode as u64, 0];
        // SAFETY: the arguments of the call that was taken away, for one that does the same.
        let fd = unsafe {
            libc::syscall(libc::SYS_openat2, directory, path, how.as_ptr(), size_of_val(&how))
        };
        *result = fd as _;
    }
    handle(interrupt);
    super::forbid::filter(&[libc::SYS_openat], libc::SECCOMP_RET_TRAP)
}
