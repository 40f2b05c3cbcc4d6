// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sleeping on a word of this process, and waking who does.
#![allow(unsafe_code)]

use std::sync::atomic::AtomicU32;

use dwell_policy::Ns;

/// Sleeps while `word` is `seen`, at most until the monotonic clock shows `until`. May come back
/// early.
pub(crate) fn wait(word: &AtomicU32, seen: u32, until: Option<Ns>) {
    let at = until.map(|at| libc::timespec {
        tv_sec: (at / 1_000_000_000) as libc::time_t,
        tv_nsec: (at % 1_000_000_000) as libc::c_long,
    });
    let at = at.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the word outlives the call; the time, an absolute one, is live or null.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT_BITSET | libc::FUTEX_PRIVATE_FLAG,
            seen,
            at,
            std::ptr::null::<u32>(),
            u32::MAX,
        )
    };
}

/// Wakes everyone who sleeps on `word`.
pub(crate) fn wake_all(word: &AtomicU32) {
    let operation = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: a live word; nothing is read or written.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), operation, i32::MAX) };
}
