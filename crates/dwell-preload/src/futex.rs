// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sleeping until another thread of this process has changed a word. These are locks, not waits for
//! requests: there is no latency to expect and no route to choose, so no wait policy is asked.
#![allow(unsafe_code)]

use std::ptr;

use crate::raw::{self, bare};

/// Sleeps while the word is `seen`, and at times ends early. Leaves the error number as it was.
pub fn wait(word: *const u32, seen: u32) {
    let errno = raw::errno();
    let how = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    let _: i64 = bare!(SYS_futex, word, how, seen, ptr::null::<libc::timespec>());
    raw::set_errno(errno);
}

/// Wakes all who sleep on the word.
pub fn wake_all(word: *const u32) {
    let errno = raw::errno();
    let how = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    let _: i64 = bare!(SYS_futex, word, how, i32::MAX);
    raw::set_errno(errno);
}
