// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bounded ring in which the program says what it will touch.
//!
//! Any thread publishes and any handler takes. Neither ever waits for another: a handler that meets
//! a hint which is not published whole yet, because its publisher was interrupted, finds the ring
//! empty.

use std::sync::atomic::{AtomicU64, Ordering};

/// Offsets are told by cache line.
const LINE_BITS: u32 = 6;
/// Bits of a slot that say in which turn it was written.
const TURN_BITS: u32 = 16;

/// Fewest and most hints that are followed at once, powers of two. Few keep a slow device busy;
/// many save system calls.
const FEWEST: u64 = 8;
const MOST: u64 = 32;

/// The ring.
#[derive(Debug)]
pub(crate) struct Hints {
    slots: Box<[AtomicU64]>,
    /// Hints published and taken so far.
    published: AtomicU64,
    taken: AtomicU64,
    /// Hints followed at once.
    batch: AtomicU64,
}

impl Hints {
    /// Room for `slots` hints, a power of two.
    pub fn new(slots: usize) -> Hints {
        let slots = slots.next_power_of_two();
        Hints {
            slots: (0..slots).map(|_| AtomicU64::new(0)).collect(),
            published: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            batch: AtomicU64::new(MOST),
        }
    }

    /// Whether so many hints in the ring complete a batch.
    #[inline]
    pub fn is_batch(&self, waiting: u64) -> bool {
        waiting & (self.batch.load(Ordering::Relaxed) - 1) == 0
    }

    /// Has batches become smaller where faults waited for an eighth of the time or more, and larger
    /// where they waited for a thirty-second of it or less.
    pub fn pace(&self, waited_ns: u64, span_ns: u64) {
        let batch = self.batch.load(Ordering::Relaxed);
        let batch = if waited_ns >= span_ns / 8 {
            (batch / 2).max(FEWEST)
        } else if waited_ns <= span_ns / 32 {
            (batch * 2).min(MOST)
        } else {
            batch
        };
        self.batch.store(batch, Ordering::Relaxed);
    }

    /// What a slot holds while the hint of this number is in it. A turn is never 0, as a new slot
    /// is.
    fn slot(&self, number: u64, line: u64) -> u64 {
        let turn = number / self.slots.len() as u64 + 1;
        let turn = turn % ((1 << TURN_BITS) - 1) + 1;
        line << TURN_BITS | turn
    }

    /// Publishes an offset in bytes; how many hints are in the ring now, `None` when it is full.
    #[inline]
    pub fn publish(&self, offset: u64) -> Option<u64> {
        let mut number = self.published.load(Ordering::Relaxed);
        let waiting = loop {
            let waiting = number - self.taken.load(Ordering::Acquire).min(number);
            if waiting >= self.slots.len() as u64 {
                return None;
            }
            match self.published.compare_exchange_weak(
                number,
                number + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => break waiting + 1,
                Err(now) => number = now,
            }
        };
        let at = number as usize & (self.slots.len() - 1);
        self.slots[at].store(self.slot(number, offset >> LINE_BITS), Ordering::Release);
        Some(waiting)
    }

    /// Takes the oldest hint: an offset in bytes, down to its cache line.
    #[inline]
    pub fn take(&self) -> Option<u64> {
        let mut number = self.taken.load(Ordering::Relaxed);
        loop {
            let at = number as usize & (self.slots.len() - 1);
            let slot = self.slots[at].load(Ordering::Acquire);
            let line = slot >> TURN_BITS;
            if slot != self.slot(number, line) {
                return None;
            }
            match self.taken.compare_exchange_weak(
                number,
                number + 1,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(line << LINE_BITS),
                Err(now) => number = now,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_shrink_while_faults_wait_and_grow_while_none_does() {
        let hints = Hints::new(64);
        let batch = |hints: &Hints| (1..=64).find(|waiting| hints.is_batch(*waiting));
        assert_eq!(batch(&hints), Some(32));
        hints.pace(400, 1000);
        assert_eq!(batch(&hints), Some(16));
        (0..9).for_each(|_| hints.pace(400, 1000));
        assert_eq!(batch(&hints), Some(8));
        hints.pace(100, 1000);
        assert_eq!(batch(&hints), Some(8));
        (0..9).for_each(|_| hints.pace(10, 1000));
        assert_eq!(batch(&hints), Some(32));
    }

    #[test]
    fn hints_come_in_their_order_and_a_full_ring_refuses() {
        let hints = Hints::new(4);
        // Miri takes its time.
        for round in 0..if cfg!(miri) { 50 } else { 100_000u64 } {
            assert_eq!(hints.take(), None);
            for at in 0..4 {
                assert_eq!(hints.publish((round * 4 + at) << 12 | 5), Some(at + 1));
            }
            assert_eq!(hints.publish(1), None);
            for at in 0..4 {
                assert_eq!(hints.take(), Some((round * 4 + at) << 12));
            }
        }
    }

    #[test]
    fn every_hint_of_several_publishers_is_taken_once() {
        const EACH: u64 = if cfg!(miri) { 50 } else { 20_000 };
        let hints = Hints::new(64);
        let taken: Vec<u64> = std::thread::scope(|scope| {
            for publisher in 0..3u64 {
                let hints = &hints;
                scope.spawn(move || {
                    for at in 0..EACH {
                        while hints.publish((publisher * EACH + at) << LINE_BITS).is_none() {
                            std::thread::yield_now();
                        }
                    }
                });
            }
            let takers: Vec<_> = (0..2)
                .map(|_| {
                    let hints = &hints;
                    scope.spawn(move || {
                        let mut mine = Vec::new();
                        let until = std::time::Instant::now() + std::time::Duration::from_secs(20);
                        while hints.taken.load(Ordering::Relaxed) < 3 * EACH
                            && std::time::Instant::now() < until
                        {
                            match hints.take() {
                                Some(hint) => mine.push(hint >> LINE_BITS),
                                None => std::thread::yield_now(),
                            }
                        }
                        mine
                    })
                })
                .collect();
            takers.into_iter().flat_map(|taker| taker.join().unwrap()).collect()
        });
        let mut sorted = taken;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..3 * EACH).collect::<Vec<_>>());
    }
}
