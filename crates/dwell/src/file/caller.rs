// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one thread keeps for its requests on one file.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU8, Ordering};

use dwell_policy::Estimator;
use thread_local::ThreadLocal;

use crate::admission::{Again, Standing};
use crate::learner::Hearing;

/// What one thread keeps for its requests on one file.
pub(crate) struct Caller<Q> {
    pub heat: Heat,
    pub again: RefCell<Option<Again>>,
    pub turn: RefCell<Turn<Q>>,
}

/// What a thread's request needs for itself while it is decided and waited for.
pub(crate) struct Turn<Q> {
    pub queue: Option<Q>,
    pub estimator: Estimator,
    pub hearing: Hearing,
    pub standing: Standing,
    pub sequence: u64,
}

impl<Q> Default for Caller<Q> {
    fn default() -> Self {
        let turn = Turn {
            queue: None,
            estimator: Estimator::new(),
            hearing: Hearing::default(),
            standing: Standing::default(),
            sequence: 0,
        };
        Caller { heat: Heat::default(), again: RefCell::default(), turn: RefCell::new(turn) }
    }
}

/// How lately reads missed the page cache: only then is it asked before a wait, because the
/// question costs something too.
#[derive(Debug, Default)]
pub struct Heat(AtomicU8);

impl Heat {
    /// No miss in sight.
    pub const fn new() -> Heat {
        Heat(AtomicU8::new(0))
    }

    /// Forgets all misses.
    pub fn cool(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Whether reads are likely to find their data in the page cache.
    #[inline]
    pub fn is_cold(&self) -> bool {
        self.0.load(Ordering::Relaxed) == 0
    }

    /// After a miss, this many reads ask the page cache before they wait.
    pub(crate) fn missed(&self) {
        const READS: u8 = 32;
        self.0.store(READS, Ordering::Relaxed);
    }

    pub(crate) fn hit(&self) {
        let heat = self.0.load(Ordering::Relaxed);
        self.0.store(heat.saturating_sub(1), Ordering::Relaxed);
    }
}

/// What the calling thread keeps. It is made by a function of its own: that takes kilobytes of
/// stack, and later requests may come on a signal handler's.
#[inline]
pub(super) fn of_thread<T: Default + Send>(kept: &ThreadLocal<T>) -> &T {
    #[cold]
    #[inline(never)]
    fn first<T: Default + Send>(kept: &ThreadLocal<T>) -> &T {
        kept.get_or_default()
    }
    match kept.get() {
        Some(there) => there,
        None => first(kept),
    }
}
