// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one call to the kernel that std lacks here: how large a mounted file system is.
#![allow(unsafe_code)]

use std::fs::File;
use std::mem::MaybeUninit;
use std::os::fd::AsRawFd;

/// Capacity in bytes of the file system that holds `file`; 0 when it has no limit or tells none.
pub(super) fn capacity_bytes(file: &File) -> u64 {
    let mut answer = MaybeUninit::<libc::statvfs>::zeroed();
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and the kernel writes at
    // most one statvfs, which `answer` has room for.
    let failed = unsafe { libc::fstatvfs(file.as_raw_fd(), answer.as_mut_ptr()) } != 0;
    if failed {
        return 0;
    }
    // SAFETY: statvfs is plain integers, for which the zeroes it started with are valid.
    let answer = unsafe { answer.assume_init() };
    answer.f_blocks.saturating_mul(answer.f_frsize)
}
