// SPDX-License-Identifier: MIT OR Apache-2.0
//! What trials showed of an arm, and when it is tried again.

use crate::Ns;

const MS: Ns = 1_000_000;

/// How long an arm is left alone: at first, at most, and as a multiple of what its trials took,
/// which grows by two each time.
pub(crate) const FIRST_NS: Ns = 1_000 * MS;
pub(crate) const LAST_NS: Ns = 64_000 * MS;
const RARE: Ns = 4;
const RAREST: u32 = 7;
/// Share by which another arm must be cheaper.
pub const MARGIN: f64 = 0.02;
/// Trials after which an arm that is neither cheaper nor dearer is left alone.
pub(crate) const TRIALS: u32 = 8;
/// Of how many times the spread of single looks the mean of so many may be off: 1.5 over the root
/// of their number.
const SPREAD_OF_MEAN: [f64; TRIALS as usize + 1] =
    [1.5, 1.5, 1.06, 0.87, 0.75, 0.67, 0.61, 0.57, 0.53];
/// An arm that is slow to become fast shows that only after settling as long as an incumbent. One
/// sequence of trials in so many lets it.
const LONG_ONE_IN: u32 = 4;

/// What one look or trial counts for in an arm's CPU time.
const CPU_TIME_WEIGHT: f64 = 0.25;

/// What trials showed of an arm.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rival {
    /// When it is tried next, in active time, and how long after that again.
    pub due: Ns,
    pub patience_ns: Ns,
    /// Its cost ÷ the incumbent's, in the trials of this sequence: their number, sum and range; and
    /// how long they took.
    pub tried: u32,
    pub sum: f32,
    pub low: f32,
    pub high: f32,
    pub took_ns: Ns,
    /// What the last sequence promises of it; 0 where it is no cheaper.
    pub promise: f64,
    /// Sequences of trials that ended, and whether the last one found it dearer.
    pub sequences: u32,
    pub dearer: bool,
    /// What it cost as incumbent, and until which active time that counts for more than a trial.
    pub kept: f64,
    pub kept_until: Ns,
    /// Whether this process itself tried it since the incumbent or its cost last changed.
    pub own: bool,
    /// Whether the incumbent's cost changed since its last trial, and one more is to recheck it.
    pub doubted: bool,
    pub told: Told,
}

/// What an arm is known to cost, for whoever wants to see it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Told {
    /// Trials so far.
    pub trials: u32,
    /// When the last of them ended; 0 before the first.
    pub tried: Ns,
    /// Its cost when it was tried last or was the incumbent, in nanoseconds; 0 when unknown.
    pub cost_ns: f64,
    /// The thread's CPU time for a request, in nanoseconds; 0 when unknown.
    pub cpu_ns: f64,
    /// What its trials cost beyond what the incumbent would have, in nanoseconds.
    pub regret_ns: f64,
    /// After how much more time in which requests are made it is due again, in nanoseconds.
    pub due_in_ns: Ns,
}

impl Told {
    pub(crate) const NOTHING: Told =
        Told { trials: 0, tried: 0, cost_ns: 0.0, cpu_ns: 0.0, regret_ns: 0.0, due_in_ns: 0 };

    pub(crate) fn note_cpu_time(&mut self, cpu_ns: f64) {
        let known = self.cpu_ns > 0.0;
        self.cpu_ns += (cpu_ns - self.cpu_ns) * if known { CPU_TIME_WEIGHT } else { 1.0 };
    }
}

impl Rival {
    pub const fn new(due: Ns, told: Told, sequences: u32) -> Rival {
        Rival {
            due,
            patience_ns: FIRST_NS,
            tried: 0,
            sum: 0.0,
            low: 0.0,
            high: 0.0,
            took_ns: 0,
            promise: 0.0,
            sequences,
            dearer: false,
            kept: 0.0,
            kept_until: 0,
            own: false,
            doubted: false,
            told,
        }
    }

    /// Mean of the ratios, and how far chance may have moved it: their range over their number
    /// less one, which for two is all of it, or what the incumbent's own looks are off by.
    pub fn evidence(&self, spread: f64) -> (f64, f64) {
        let count = f64::from(self.tried);
        let range = f64::from(self.high - self.low) / (count - 1.0).max(1.0);
        let of_looks = spread * SPREAD_OF_MEAN[self.tried.min(TRIALS) as usize];
        (f64::from(self.sum) / count, range.max(of_looks))
    }

    /// Its sequence of trials is over: it is left alone for a while, and for longer each time.
    pub fn rest(&mut self, active: Ns, times: Ns) {
        let rare_ns = self.rarely(self.took_ns);
        self.patience_ns = (self.patience_ns * times).min(LAST_NS);
        self.due = active.saturating_add(self.patience_ns.max(rare_ns));
        self.sequences = self.sequences.saturating_add(1);
        (self.tried, self.took_ns, self.promise) = (0, 0, 0.0);
    }

    /// It is tried now, for it may cost something else, but neither for long nor more often after
    /// that.
    pub fn again(&mut self, active: Ns) {
        self.due = active;
        (self.tried, self.took_ns, self.promise, self.kept_until) = (0, 0, 0.0, 0);
        (self.own, self.doubted) = (false, false);
        self.sequences += u32::from(self.is_long());
    }

    /// What its trials showed may no longer hold.
    pub fn doubt(&mut self) {
        (self.tried, self.took_ns, self.promise) = (0, 0, 0.0);
        (self.own, self.doubted, self.kept_until) = (false, true, 0);
    }

    /// How long it is left alone for having taken so long.
    pub fn rarely(&self, took_ns: Ns) -> Ns {
        took_ns.saturating_mul(RARE << self.sequences.min(RAREST))
    }

    /// Whether the trials of this sequence found it cheaper so far.
    pub fn is_promising(&self) -> bool {
        self.tried > 0 && self.evidence(0.0).0 < 1.0 - MARGIN
    }

    /// Notes how a trial turned out: its cost ÷ the incumbent's. None is free.
    pub fn note(&mut self, ratio: f64) {
        let ratio = ratio.max(f64::from(f32::MIN_POSITIVE)) as f32;
        (self.sum, self.low, self.high) = match self.tried {
            0 => (ratio, ratio, ratio),
            _ => (self.sum + ratio, self.low.min(ratio), self.high.max(ratio)),
        };
        self.tried += 1;
        self.own = true;
    }

    /// Whether it is to be let settle as long as an incumbent.
    pub fn is_long(&self) -> bool {
        self.sequences % LONG_ONE_IN == LONG_ONE_IN - 1
    }
}
