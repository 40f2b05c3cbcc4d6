// SPDX-License-Identifier: MIT OR Apache-2.0
//! A timer that is a descriptor.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use dwell_policy::Ns;

use crate::clock;
use crate::fork::ForkMark;

/// A timerfd on the monotonic clock. It is readable from when it fired until it is set again. A
/// forked child, whose descriptor is of the same timer, leaves it to its parent.
#[derive(Debug)]
pub(crate) struct Timer {
    descriptor: OwnedFd,
    mark: ForkMark,
}

impl Timer {
    pub(crate) fn new() -> io::Result<Self> {
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        // SAFETY: two numbers.
        let fd = unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else's.
        let descriptor = unsafe { OwnedFd::from_raw_fd(fd) };
        Ok(Timer { descriptor, mark: ForkMark::new()? })
    }

    /// Fires at `due`, however soon or past; says whether the kernel agreed.
    pub(crate) fn set(&self, due: Ns) -> bool {
        self.change(due.max(1))
    }

    /// Neither fires nor is readable.
    pub(crate) fn clear(&self) {
        self.change(0);
    }

    fn change(&self, at: Ns) -> bool {
        if !self.is_ours() {
            return false;
        }
        let never_again = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        let value = libc::itimerspec { it_interval: never_again, it_value: clock::timespec(at) };
        // SAFETY: an open timerfd and a live structure; the old value is not asked for.
        let rc = unsafe {
            libc::timerfd_settime(
                self.descriptor.as_raw_fd(),
                libc::TFD_TIMER_ABSTIME,
                &value,
                std::ptr::null_mut(),
            )
        };
        rc == 0
    }

    /// Whether this is the process that made it.
    pub(crate) fn is_ours(&self) -> bool {
        self.mark.same_process()
    }

    pub(crate) fn descriptor(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}
