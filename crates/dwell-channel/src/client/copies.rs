// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies between a channel and the memory of requests.
#![allow(unsafe_code)]

use dwell::mapping;
use dwell::queue::Io;

/// Copies `bytes` bytes of a request's memory, from `skip` on, to `to`.
///
/// # Safety
/// The request's memory is valid, has so many bytes, and `to` has room for them elsewhere.
#[inline]
pub unsafe fn gather(io: &Io, skip: u32, to: *mut u8, bytes: u32) -> bool {
    // SAFETY: by the caller's promise.
    each(io, skip, bytes, |memory, at, bytes| unsafe {
        mapping::copy(memory, to.add(at), bytes);
        true
    })
}

/// Copies `bytes` bytes from `from` to a request's memory, from `skip` on.
///
/// # Safety
/// As of [`gather`], the other way round.
#[inline]
pub unsafe fn scatter(io: &Io, skip: u32, from: *mut u8, bytes: u32) -> bool {
    // SAFETY: by the caller's promise.
    each(io, skip, bytes, |memory, at, bytes| unsafe {
        mapping::copy(from.add(at), memory, bytes);
        true
    })
}

/// Tells `part` of each part of a request's memory from `skip` on, `bytes` bytes in all: where it
/// lies, how many bytes came before, how many it has. `false` as soon as `part` says so.
#[inline]
fn each(
    io: &Io,
    skip: u32,
    bytes: u32,
    mut part: impl FnMut(*mut u8, usize, usize) -> bool,
) -> bool {
    let (mut skip, mut at, bytes) = (skip as usize, 0, bytes as usize);
    for (memory, length) in io.each_piece() {
        let skipped = skip.min(length);
        skip -= skipped;
        let now = (length - skipped).min(bytes - at);
        if now > 0 {
            if !part(memory.wrapping_add(skipped), at, now) {
                return false;
            }
            at += now;
        }
    }
    true
}

/// The same where a request's memory may not be there: the kernel copies, and says so.
pub mod careful {
    use super::{Io, each};

    /// As [`gather`](super::gather), by the number of this process; `false` where not all could be
    /// read.
    ///
    /// # Safety
    /// `to` has room for so many bytes.
    pub unsafe fn gather(process: u32, io: &Io, skip: u32, to: *mut u8, bytes: u32) -> bool {
        // SAFETY: by the caller's promise.
        each(io, skip, bytes, |memory, at, bytes| unsafe {
            copy(libc::SYS_process_vm_readv, process, to.add(at), memory, bytes)
        })
    }

    /// As [`scatter`](super::scatter), by the number of this process; `false` where not all could
    /// be written.
    ///
    /// # Safety
    /// So many bytes lie at `from`, and nobody else uses what is there of the request's memory.
    pub unsafe fn scatter(process: u32, io: &Io, skip: u32, from: *mut u8, bytes: u32) -> bool {
        // SAFETY: by the caller's promise.
        each(io, skip, bytes, |memory, at, bytes| unsafe {
            copy(libc::SYS_process_vm_writev, process, from.add(at), memory, bytes)
        })
    }

    /// # Safety
    /// `bytes` bytes lie at `here`.
    unsafe fn copy(
        number: libc::c_long,
        process: u32,
        here: *mut u8,
        there: *mut u8,
        bytes: usize,
    ) -> bool {
        let here = libc::iovec { iov_base: here.cast(), iov_len: bytes };
        let there = libc::iovec { iov_base: there.cast(), iov_len: bytes };
        // Of whole words: an argument that goes by the stack has whatever lies above a shorter one.
        let (one, flags) = (1usize, 0usize);
        // SAFETY: both arrays live through the call; of what the far one names the kernel looks
        // whether it is there, and the near one is the caller's promise.
        let done = unsafe { libc::syscall(number, process, &here, one, &there, one, flags) };
        done == bytes as i64
    }
}
