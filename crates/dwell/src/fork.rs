// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether this is the process that made something, or a forked child of it.
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use crate::shared_atomics::SharedAtomics;

/// Tells the process that made a ring, or whatever else both must not use, from its forked
/// children.
#[derive(Debug)]
pub struct ForkMark {
    /// The number of the process that runs; 0 in a child until it makes a mark.
    current: &'static AtomicU64,
    made_by: u64,
}

/// A word that a forked child finds wiped. No lock makes it: a child may be forked meanwhile.
static CURRENT: AtomicPtr<SharedAtomics> = AtomicPtr::new(std::ptr::null_mut());
/// The last number given, here or in a parent: a child has this word as it was.
static LAST: AtomicU64 = AtomicU64::new(0);

impl ForkMark {
    /// A mark of the calling process.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn new() -> io::Result<Self> {
        let current = &page()?[0];
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

/// The page, which is made once and stays.
fn page() -> io::Result<&'static SharedAtomics> {
    let mut page = CURRENT.load(Ordering::Acquire);
    if page.is_null() {
        let made = Box::into_raw(Box::new(SharedAtomics::wiped_on_fork(512)?));
        let (null, release, acquire) = (std::ptr::null_mut(), Ordering::Release, Ordering::Acquire);
        page = match CURRENT.compare_exchange(null, made, release, acquire) {
            Ok(_) => made,
            Err(other) => {
                // SAFETY: it was made above and shown to nobody.
                drop(unsafe { Box::from_raw(made) });
                other
            }
        };
    }
    // SAFETY: not null, and whoever put it there left it there for good.
    Ok(unsafe { &*page })
}
