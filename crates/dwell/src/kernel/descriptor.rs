// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors that are closed with their source, and those that others close.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Whose a descriptor is.
#[derive(Debug)]
pub enum Descriptor {
    /// It is closed with its source.
    Own(OwnedFd),
    /// Somebody else's, who closes it once the source is gone.
    Lent(BorrowedFd<'static>),
}

impl AsFd for Descriptor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            Descriptor::Own(descriptor) => descriptor.as_fd(),
            Descriptor::Lent(descriptor) => *descriptor,
        }
    }
}
