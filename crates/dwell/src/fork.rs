// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether this is the process that made something, or a forked child of it.

use std::io;
use std::sync::atomic::Ordering;

use crate::shared_atomics::SharedAtomics;

/// Tells the process that made a ring, or whatever else both must not use, from its forked
/// children.
#[derive(Debug)]
pub struct ForkMark(SharedAtomics);

impl ForkMark {
    /// A mark of the calling process.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn new() -> io::Result<Self> {
        let word = SharedAtomics::wiped_on_fork(512)?;
        word[0].store(1, Ordering::Relaxed);
        Ok(ForkMark(word))
    }

    /// Whether the calling process made it: one load.
    #[inline]
    pub fn same_process(&self) -> bool {
        self.0[0].load(Ordering::Relaxed) == 1
    }
}
