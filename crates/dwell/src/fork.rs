// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether this is the process that made something, or a forked child of it.

use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::shared_atomics::SharedAtomics;

/// Tells the process that made a ring, or whatever else both must not use, from its forked
/// children.
#[derive(Debug)]
pub struct ForkMark {
    /// The number of the process that runs; 0 in a child until it makes a mark.
    current: &'static AtomicU64,
    made_by: u64,
}

/// A word that a forked child finds wiped.
static CURRENT: OnceLock<SharedAtomics> = OnceLock::new();
/// The last number given, here or in a parent: a child has this word as it was.
static LAST: AtomicU64 = AtomicU64::new(0);

impl ForkMark {
    /// A mark of the calling process.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn new() -> io::Result<Self> {
        let page = match CURRENT.get() {
            Some(page) => page,
            None => {
                let made = SharedAtomics::wiped_on_fork(512)?;
                CURRENT.get_or_init(|| made)
            }
        };
        let current = &page[0];
        let made_by = match current.load(Ordering::Relaxed) {
            0 => {
                let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
                let set = current.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
                set.map_or_else(|found| found, |_| number)
            }
            number => number,
        };
        Ok(ForkMark { current, made_by })
    }

    /// Whether the calling process made it: one load.
    #[inline]
    pub fn same_process(&self) -> bool {
        self.current.load(Ordering::Relaxed) == self.made_by
    }
}
