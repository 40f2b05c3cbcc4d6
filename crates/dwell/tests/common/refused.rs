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
    // SAFETY: a zeroed sigaction with a handler is valid, and the handler adds to a number.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = refuse as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGSYS, &action, std::ptr::null_mut());
    }
    super::forbid::filter(&[call], libc::SECCOMP_RET_TRAP)
}

/// How often the call was made that [`forbid_and_count`] was told of.
pub fn counted() -> usize {
    COUNTED.load(Ordering::Relaxed)
}
