// SPDX-License-Identifier: MIT OR Apache-2.0
//! A count that is a descriptor: the kernel or another thread adds to it, and so makes it readable.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// An eventfd that never blocks.
#[derive(Debug)]
pub(crate) struct Event(OwnedFd);

impl Event {
    pub fn new() -> io::Result<Self> {
        // SAFETY: a number and flags.
        match unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) } {
            // SAFETY: just made, and nobody else's.
            fd @ 0.. => Ok(Event(unsafe { OwnedFd::from_raw_fd(fd) })),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Makes it readable. A full one is that already.
    pub fn add(&self) {
        let one = 1u64.to_ne_bytes();
        // SAFETY: an open eventfd and eight bytes.
        unsafe { libc::write(self.0.as_raw_fd(), one.as_ptr().cast(), one.len()) };
    }

    /// Makes it unreadable until something is added.
    pub fn drain(&self) {
        let mut count = [0u8; 8];
        // SAFETY: an open eventfd and room for eight bytes.
        unsafe { libc::read(self.0.as_raw_fd(), count.as_mut_ptr().cast(), count.len()) };
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
