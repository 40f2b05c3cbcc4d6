// SPDX-License-Identifier: MIT OR Apache-2.0
//! Latency estimates per queue, kept up to date by whoever owns the queue.

use crate::{Decision, Kind, MinComplete, Mode, Ns};

/// Number of size buckets: powers of two from 512 B to 16 MiB.
pub const BUCKETS: usize = 16;

/// The bucket of a request of `size_bytes`.
pub const fn bucket(size_bytes: u64) -> usize {
    if size_bytes <= 512 {
        return 0;
    }
    let log2_ceil = 64 - (size_bytes - 1).leading_zeros() as usize;
    if log2_ceil - 9 < BUCKETS { log2_ceil - 9 } else { BUCKETS - 1 }
}

/// A running mean and mean deviation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Smoothed mean, in nanoseconds; 0 until the first sample.
    pub mean_ns: Ns,
    /// Smoothed mean deviation, in nanoseconds.
    pub deviation_ns: Ns,
}

impl Latency {
    /// Adds a sample with weight 1/8 for the mean and 1/4 for the deviation. One sample counts for
    /// at most eight times the mean, so that a single stall does not decide the next requests.
    pub fn add(&mut self, sample_ns: Ns) {
        if self.mean_ns == 0 {
            *self = Latency { mean_ns: sample_ns.max(1), deviation_ns: sample_ns / 4 };
            return;
        }
        let sample_ns = sample_ns.min(self.mean_ns.saturating_mul(8));
        let off_ns = sample_ns.abs_diff(self.mean_ns);
        self.deviation_ns = self.deviation_ns - self.deviation_ns / 4 + off_ns / 4;
        self.mean_ns = (self.mean_ns - self.mean_ns / 8 + sample_ns / 8).max(1);
    }

    /// A latency that most requests reach: the mean less the mean deviation.
    pub const fn early_ns(&self) -> Ns {
        self.mean_ns.saturating_sub(self.deviation_ns)
    }
}

/// How fast completions come out of a queue that has many requests in flight.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    interval: Latency,
    noted: Ns,
}

impl Pace {
    /// Notes that so many completions came out together at `now`.
    pub fn note(&mut self, now: Ns, completions: u32) {
        if self.noted > 0 && completions > 0 {
            self.interval.add(now.saturating_sub(self.noted) / Ns::from(completions));
        }
        self.noted = now;
    }

    /// Time between two completions, in nanoseconds; 0 while it is unknown.
    pub const fn interval_ns(&self) -> Ns {
        self.interval.mean_ns
    }

    /// How many completions a wait is for when `in_flight` requests are outstanding, and how long
    /// fewer of them lie there before they do, in nanoseconds.
    ///
    /// [`MinComplete::Few`] is as many as come in the time that blocking and coming back costs, for
    /// which a waiting thread may as well wait. It is never more than a quarter of them, so that
    /// the device keeps enough to do and a slow request holds up few; one as long as the pace is
    /// unknown. A spin saves no switch, so there it is the first. [`MinComplete::Half`] is patient
    /// for twice as long as half of them usually take.
    pub fn worth_waiting_for(
        &self,
        decision: &Decision,
        in_flight: u32,
        switch_ns: Ns,
    ) -> (u32, Ns) {
        match decision.min_complete {
            MinComplete::Few if decision.mode == Mode::Spin => (1, 0),
            MinComplete::Few => {
                let meanwhile = switch_ns.checked_div(self.interval.mean_ns).unwrap_or(1);
                (meanwhile.min(Ns::from(in_flight / 4)).max(1) as u32, switch_ns)
            }
            MinComplete::Half => {
                let half = (in_flight / 2).max(1);
                let usual_ns = self.interval.mean_ns.saturating_mul(Ns::from(half));
                (half, usual_ns.saturating_mul(2).max(switch_ns))
            }
        }
    }
}

/// What a queue's own completions say of one kind and size of request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Estimate {
    /// Latency of requests that were spun for.
    pub spun: Latency,
    /// Latency of requests that were blocked on: the switches included.
    pub blocked: Latency,
}

/// All estimates of one queue: by direction, size bucket and mode.
#[derive(Clone, Debug)]
pub struct Estimator {
    cells: [[Estimate; BUCKETS]; 2],
}

impl Estimator {
    /// An estimator without history.
    pub const fn new() -> Self {
        const NONE: Latency = Latency { mean_ns: 0, deviation_ns: 0 };
        const EMPTY: Estimate = Estimate { spun: NONE, blocked: NONE };
        Estimator { cells: [[EMPTY; BUCKETS]; 2] }
    }

    const fn row(kind: Kind) -> usize {
        match kind {
            Kind::Read => 0,
            Kind::Write | Kind::Sync => 1,
        }
    }

    /// The estimate for a request.
    pub fn of(&self, kind: Kind, size_bytes: u64) -> Estimate {
        self.cells[Self::row(kind)][bucket(size_bytes)]
    }

    /// Records a completion. A hybrid wait ends in a spin, so it counts as spun.
    pub fn record(&mut self, kind: Kind, size_bytes: u64, mode: Mode, latency_ns: Ns) {
        if kind == Kind::Sync {
            return;
        }
        let cell = &mut self.cells[Self::row(kind)][bucket(size_bytes)];
        match mode {
            Mode::Block => cell.blocked.add(latency_ns),
            Mode::Spin | Mode::Hybrid { .. } => cell.spun.add(latency_ns),
        }
    }
}

impl Default for Estimator {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Reason, Route};

    #[test]
    fn buckets_are_powers_of_two_and_round_up() {
        assert_eq!(bucket(0), 0);
        assert_eq!(bucket(512), 0);
        assert_eq!(bucket(513), 1);
        assert_eq!(bucket(4096), 3);
        assert_eq!(bucket(4097), 4);
        assert_eq!(bucket(16 << 20), 15);
        assert_eq!(bucket(u64::MAX), 15);
    }

    fn waiting(mode: Mode, min_complete: MinComplete) -> Decision {
        Decision { min_complete, ..Decision::new(Route::Interrupt, mode, 0, Reason::Fixed) }
    }

    fn few(pace: &Pace, in_flight: u32, switch_ns: Ns) -> u32 {
        let blocks = waiting(Mode::Block, MinComplete::Few);
        pace.worth_waiting_for(&blocks, in_flight, switch_ns).0
    }

    #[test]
    fn a_wait_for_half_is_patient_for_twice_as_long_as_half_usually_take() {
        let mut pace = Pace::default();
        let half = waiting(Mode::Spin, MinComplete::Half);
        assert_eq!(pace.worth_waiting_for(&half, 16, 5_000), (8, 5_000));
        for batch in 1..100 {
            pace.note(batch * 8_000, 4);
        }
        assert_eq!(pace.worth_waiting_for(&half, 16, 5_000), (8, 32_000));
        assert_eq!(pace.worth_waiting_for(&half, 1, 5_000), (1, 5_000));
    }

    #[test]
    fn a_wait_takes_what_comes_in_the_time_of_a_switch_and_at_most_a_quarter() {
        let mut pace = Pace::default();
        assert_eq!(few(&pace, 64, 20_000), 1);
        for batch in 1..100 {
            pace.note(batch * 8_000, 4);
        }
        assert_eq!(few(&pace, 64, 20_000), 10);
        let spins = waiting(Mode::Spin, MinComplete::Few);
        assert_eq!(pace.worth_waiting_for(&spins, 64, 20_000), (1, 0), "it saves no switch");
        assert_eq!(few(&pace, 16, 20_000), 4);
        assert_eq!(few(&pace, 3, 20_000), 1);
        assert_eq!(few(&pace, 64, 1_000), 1);
        assert_eq!(few(&pace, 64, 0), 1);
    }

    #[test]
    fn a_queue_that_slows_down_is_soon_waited_for_one_by_one() {
        let mut pace = Pace::default();
        let mut now = 1;
        for _ in 0..50 {
            now += 2_000;
            pace.note(now, 1);
        }
        assert_eq!(few(&pace, 64, 20_000), 10);
        for _ in 0..8 {
            now += 1_000_000;
            pace.note(now, 1);
        }
        assert_eq!(few(&pace, 64, 20_000), 1);
    }

    #[test]
    fn the_mean_follows_a_change_and_a_single_stall_does_not_decide() {
        let mut latency = Latency::default();
        for _ in 0..100 {
            latency.add(10_000);
        }
        assert!(latency.mean_ns.abs_diff(10_000) < 100);
        latency.add(50_000_000);
        assert!(latency.mean_ns < 20_000);
        for _ in 0..100 {
            latency.add(40_000);
        }
        assert!(latency.mean_ns.abs_diff(40_000) < 400);
    }
}
