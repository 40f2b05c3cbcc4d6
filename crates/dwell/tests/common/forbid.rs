// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls that a test takes away from its own process.

use std::sync::atomic::{AtomicUsize, Ordering};

/// Makes these system calls fail with `errno` from here on, in every thread.
pub fn forbid(calls: &[libc::c_long], errno: i32) -> bool {
    filter(calls, libc::SECCOMP_RET_ERRNO | errno as u32)
}

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
    filter(&[call], libc::SECCOMP_RET_TRAP)
}

/// How often the call was made that [`forbid_and_count`] was told of.
pub fn counted() -> usize {
    COUNTED.load(Ordering::Relaxed)
}

fn filter(calls: &[libc::c_long], answer: u32) -> bool {
    let statement =
        |code: u32, k: u32, jt: u8, jf: u8| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut filter = vec![statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0)];
    for call in calls {
        filter.push(statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, *call as u32, 0, 1));
        filter.push(statement(libc::BPF_RET | libc::BPF_K, answer, 0, 0));
    }
    filter.push(statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0));
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: the program and its filter are live; both calls only restrict this process.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_TSYNC,
                &program,
            ) == 0
    }
}
