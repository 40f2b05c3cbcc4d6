// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the monitor shares with the I/O path and with other processes. A model checker runs the
//! same sources over words of its own, and over fewer.

pub(super) use crate::shared_atomics::SharedAtomics;
pub(super) use std::sync::atomic::AtomicU64;
pub(super) use std::thread::Thread;

/// Most threads of a process that may spin at once.
pub(super) const LEASES: usize = 256;
/// Slots: processes that can take part.
pub(super) const SLOTS: usize = 256;
/// Length of the page in words, and in bytes a multiple of 4096.
pub(super) const WORDS: usize = 4608;
const _: () = assert!(WORDS.is_multiple_of(512));
