// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client remembers of its grants.

use std::os::fd::RawFd;

use super::ask::Granted;
use crate::grants::GrantReply;

/// The client's copy of a descriptor's grant. The daemon never trusts it: it checks each command,
/// and says so when the entry is gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grant {
    pub descriptor: RawFd,
    /// The descriptor's epoch when it was asked for.
    pub epoch: u32,
    pub entry: u32,
    pub generation: u32,
    /// Whether the file is memory.
    pub in_memory: bool,
    /// The file is asked of the kernel so many times more.
    pub refused: u32,
}

pub(super) const NO_GRANT: Grant =
    Grant { descriptor: -1, epoch: 0, entry: 0, generation: 0, in_memory: false, refused: 0 };

impl Grant {
    pub fn of(descriptor: RawFd, epoch: u32, granted: &Granted) -> Grant {
        let GrantReply { entry, generation, in_memory, .. } = *granted;
        Grant { descriptor, epoch, entry, generation, in_memory, refused: 0 }
    }
}
