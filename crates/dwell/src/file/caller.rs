// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one thread keeps for its requests on one file.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU8, Ordering};

use dwell_policy::{Estimator, Kind};
use thread_local::ThreadLocal;

use crate::admission::{Again, Standing};
use crate::learner::Hearing;

/// What one thread keeps for its requests on one file.
pub(crate) struct Caller<Q> {
    pub heat: Heat,
    pub again: RefCell<Repeats>,
    /// Apart from its turn: a handler that leaves for good while a call is noted here keeps no
    /// later request from its queue.
    pub hearing: RefCell<Hearing>,
    pub turn: RefCell<Turn<Q>>,
}

/// Requests that went by the call because that costs least, a few kinds and sizes at once: programs
/// alternate between them, as a log does between heads and pages.
#[derive(Default)]
pub(crate) struct Repeats([Option<Again>; Repeats::SLOTS]);

impl Repeats {
    const SLOTS: usize = 4;

    #[inline]
    fn slot(kind: Kind, bytes: u64) -> usize {
        const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
        let both = bytes << 1 | u64::from(kind == Kind::Write);
        (both.wrapping_mul(GOLDEN) >> (64 - Self::SLOTS.ilog2())) as usize
    }

    pub fn note(&mut self, again: Again) {
        self.0[Self::slot(again.kind, again.bytes)] = Some(again);
    }

    /// The last request of exactly that kind and size, if it is known still.
    #[inline]
    pub fn of(&self, kind: Kind, bytes: u64) -> Option<Again> {
        self.0[Self::slot(kind, bytes)].filter(|again| (again.kind, again.bytes) == (kind, bytes))
    }
}

/// What a thread's request needs for itself while it is decided and waited for.
pub(crate) struct Turn<Q> {
    pub queue: Option<Q>,
    pub estimator: Estimator,
    pub standing: Standing,
    pub sequence: u64,
}

impl<Q> Default for Caller<Q> {
    fn default() -> Self {
        let turn = Turn {
            queue: None,
            estimator: Estimator::new(),
            standing: Standing::default(),
            sequence: 0,
        };
        let (again, hearing) = (RefCell::default(), RefCell::default());
        Caller { heat: Heat::default(), again, hearing, turn: RefCell::new(turn) }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sizes_of_a_log_are_remembered_side_by_side() {
        let sizes = [(Kind::Write, 24), (Kind::Write, 4096), (Kind::Read, 4096)];
        let slots = sizes.map(|(kind, bytes)| Repeats::slot(kind, bytes));
        assert!(slots[0] != slots[1] && slots[1] != slots[2] && slots[0] != slots[2], "{slots:?}");
        for bytes in 0..1 << 16 {
            assert!(Repeats::slot(Kind::Read, bytes) < Repeats::SLOTS);
        }
    }
}
