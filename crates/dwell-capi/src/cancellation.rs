// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls amid which a thread is not cancelled.
#![allow(unsafe_code)]

use std::ffi::c_int;

unsafe extern "C" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
}

/// As long as this lives, the calling thread is not cancelled: that would unwind what is in the
/// middle of a request, and C has no say in it. It is cancelled at a place of its own, later.
pub(crate) struct Uncancelled {
    before: c_int,
}

impl Uncancelled {
    #[inline]
    pub fn new() -> Self {
        const DISABLED: c_int = 1;
        let mut before = 0;
        // SAFETY: a live place to write to.
        unsafe { pthread_setcancelstate(DISABLED, &mut before) };
        Uncancelled { before }
    }
}

impl Drop for Uncancelled {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: what the other call gave, and a live place to write to.
        unsafe { pthread_setcancelstate(self.before, &mut self.before) };
    }
}
