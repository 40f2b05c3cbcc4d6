// SPDX-License-Identifier: MIT OR Apache-2.0
//! One search of a learner, as requests see it: the step in force, in words that all threads read.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use dwell_policy::switchback::{Step, Switchback};
use dwell_policy::{Arm, Goal, Learned, Ns};

/// One request is timed in so long, and at least one in 2^4, where the incumbent uses the call.
const TIMED_EVERY_NS: Ns = 100_000;
const MOST_UNTIMED_SHIFT: u32 = 4;

/// One direction, load state and size bucket.
#[derive(Debug)]
pub(super) struct Cell {
    /// Whether the CPU time of requests counts, and when one's is to be measured next.
    pub(super) meters: bool,
    pub(super) meter_at: AtomicU64,
    /// The step in force ([`Word`]); 0 before the first request.
    pub(super) word: AtomicU64,
    /// Requests that begin from then on count, and somebody asks for the next step after this.
    pub(super) from: AtomicU64,
    pub(super) until: AtomicU64,
    /// Latency beyond which a request is slow.
    pub(super) slow: AtomicU64,
    /// Of 2^this requests that the incumbent serves by the call, one is timed.
    pub(super) untimed_shift: AtomicU32,
    /// What threads have told so far: requests, latency, slow time, metered requests, CPU time.
    pub(super) seen: [AtomicU64; 5],
    pub(super) search: Mutex<Switchback>,
}

/// A step in one word: its number, whether it is a trial, and one more than its arm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Word(pub(super) u64);

const _: () = assert!(dwell_policy::ARMS < 8);

impl Word {
    pub(super) fn new(number: u64, step: Step) -> Word {
        Word(number << 4 | u64::from(step.trial) << 3 | (step.arm as u64 + 1))
    }

    pub(super) fn number(self) -> u64 {
        self.0 >> 4
    }

    pub(super) fn learned(self) -> Option<Learned> {
        let arm = Arm::ALL.get((self.0 & 7).checked_sub(1)? as usize)?;
        Some(Learned { arm: *arm, trial: self.0 >> 3 & 1 == 1 })
    }
}

impl Cell {
    pub(super) fn new(goal: Goal, others_above: bool) -> Cell {
        let search = Switchback::idle(goal, others_above);
        Cell {
            meters: search.meters(),
            meter_at: AtomicU64::new(0),
            word: AtomicU64::new(0),
            from: AtomicU64::new(0),
            until: AtomicU64::new(0),
            slow: AtomicU64::new(Ns::MAX),
            untimed_shift: AtomicU32::new(0),
            seen: [const { AtomicU64::new(0) }; 5],
            search: Mutex::new(search),
        }
    }

    /// Says how many calls are to be timed from now on, after a step in which so many were made.
    pub(super) fn space(&self, requests: u64, search: &Switchback) {
        let Step { from, until, .. } = search.now();
        if search.is_trying() {
            return;
        }
        let apart = requests.saturating_mul(TIMED_EVERY_NS) / until.saturating_sub(from).max(1);
        let shift = apart.checked_ilog2().unwrap_or(0);
        self.untimed_shift.store(shift.min(MOST_UNTIMED_SHIFT), Relaxed);
    }

    /// Makes a step the one in force. One that is only prolonged keeps its number, so that what was
    /// heard of it still counts.
    pub(super) fn publish(&self, step: Step) {
        let before = Word(self.word.load(Relaxed));
        let same = before != Word::default()
            && self.from.load(Relaxed) == step.from
            && before.learned() == Some(Learned { arm: step.arm, trial: step.trial });
        self.from.store(step.from, Relaxed);
        self.until.store(step.until, Relaxed);
        self.slow.store(step.slow, Relaxed);
        if !same {
            self.word.store(Word::new(before.number() + 1, step).0, Relaxed);
        }
    }
}
