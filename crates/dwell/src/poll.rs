// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waiting for a descriptor.
#![allow(unsafe_code)]

/// What poll(2) does, for one descriptor; without `span` it waits for good. The C library's
/// function is a cancellation point: it would wait for a signal that tells of a cancellation, and
/// the caller may have blocked it.
pub(crate) fn poll(watched: &mut libc::pollfd, mut span: Option<libc::timespec>) -> i64 {
    // The kernel writes there what is left of it.
    let span = span.as_mut().map_or(std::ptr::null_mut(), std::ptr::from_mut);
    // SAFETY: one live pollfd, a live or null timespec, no signal mask.
    unsafe {
        libc::syscall(
            libc::SYS_ppoll,
            std::ptr::from_mut(watched),
            1 as libc::nfds_t,
            span,
            std::ptr::null::<libc::sigset_t>(),
            8usize,
        )
    }
}
