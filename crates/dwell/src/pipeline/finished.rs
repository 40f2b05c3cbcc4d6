// SPDX-License-Identifier: MIT OR Apache-2.0
//! What becomes of a request, and of its buffer.
#![allow(unsafe_code)]

use std::mem::ManuallyDrop;

use crate::error::Result;
use crate::queue::Ticket;

/// A finished request.
#[derive(Debug)]
#[non_exhaustive]
pub struct Finished<B> {
    /// Which one.
    pub ticket: Ticket,
    /// Bytes transferred, or what went wrong, with path and offset.
    pub result: Result<usize>,
    /// Its buffer, back again; none for a sync that carried none, and none that is given up.
    pub buffer: Option<B>,
    /// Its buffer, where the kernel hands out no completions any more (a filter that forbids
    /// `io_uring_enter`, say). The result is `ENOTRECOVERABLE` then.
    pub given_up: Option<GivenUp<B>>,
}

/// A buffer that a device may still write to. It is never freed.
pub struct GivenUp<B>(ManuallyDrop<B>);

impl<B> GivenUp<B> {
    pub(super) fn new(buffer: B) -> Self {
        GivenUp(ManuallyDrop::new(buffer))
    }

    /// The buffer.
    ///
    /// # Safety
    /// As long as the device may write to its memory, the caller neither touches the memory nor
    /// drops the buffer.
    pub unsafe fn into_inner(self) -> B {
        ManuallyDrop::into_inner(self.0)
    }
}

impl<B> std::fmt::Debug for GivenUp<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("GivenUp")
    }
}
