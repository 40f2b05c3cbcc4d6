// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors on served mounts: what can be asked of them without asking their daemon.
#![allow(unsafe_code)]

use std::io;
use std::mem;
use std::os::fd::{FromRawFd as _, IntoRawFd as _, OwnedFd};

use dwell_channel::client::Guest;

use crate::raw::{self, bare};
use crate::{own, table};

/// What channels have to know of the program around them.
pub const GUEST: Guest = Guest { keep, epoch: table::epoch };

/// Takes a descriptor that a channel needs out of the program's way.
fn keep(descriptor: OwnedFd) -> io::Result<OwnedFd> {
    let fd = own::keep(descriptor.into_raw_fd());
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: what was given, under another number.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Whether a descriptor is a regular file on the device of that number. The kernel answers from
/// what it has: to ask the daemon would take as long as the request itself.
pub fn is_on(fd: i32, number: u64) -> bool {
    const FLAGS: i32 = libc::AT_EMPTY_PATH | libc::AT_STATX_DONT_SYNC;
    // SAFETY: zero bytes are a valid buffer.
    let mut status: libc::statx = unsafe { mem::zeroed() };
    let done: i32 = bare!(SYS_statx, fd, c"".as_ptr(), FLAGS, libc::STATX_TYPE, &raw mut status);
    done == 0
        && u32::from(status.stx_mode) & libc::S_IFMT == libc::S_IFREG
        && libc::makedev(status.stx_dev_major, status.stx_dev_minor) == number
}

/// Whether writes have to be the kernel's: those that go to the end, as whoever shares what is open
/// may have said meanwhile, and those of a process whose files may only be so long.
pub fn only_kernel_writes(fd: i32) -> bool {
    raw::appends(fd) || has_limit()
}

fn has_limit() -> bool {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live buffer.
    let done = unsafe { libc::getrlimit(libc::RLIMIT_FSIZE, &mut limit) };
    done != 0 || limit.rlim_cur != libc::RLIM_INFINITY
}
