// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one file's requests did: counted per thread without locked instructions, summed on demand.

use std::sync::atomic::{AtomicU64, Ordering};

use dwell_policy::{Decision, Kind, Mode, Ns, Outcome, Reason, Route};

const REASONS: usize = Reason::ALL.len();
const ROUTES: [Route; 3] = [Route::Inline, Route::Polled, Route::Interrupt];
const MODES: [Mode; 3] = [Mode::Block, Mode::Spin, Mode::Hybrid { sleep_ns: 0 }];

/// One thread's counters. Only that thread writes, so a load and a store suffice.
#[derive(Debug)]
pub(crate) struct Counters {
    requests: [AtomicU64; REASONS * 9],
    bytes_read: AtomicU64,
    bytes_written: AtomicU64,
    syncs: AtomicU64,
    errors: AtomicU64,
    spun_ns: AtomicU64,
    offered_ns: AtomicU64,
    slept_ns: AtomicU64,
    parked_ns: AtomicU64,
    inline_sampled: AtomicU64,
    inline_sampled_ns: AtomicU64,
}

impl Default for Counters {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Counters {
            requests: [const { AtomicU64::new(0) }; REASONS * 9],
            bytes_read: zero(),
            bytes_written: zero(),
            syncs: zero(),
            errors: zero(),
            spun_ns: zero(),
            offered_ns: zero(),
            slept_ns: zero(),
            parked_ns: zero(),
            inline_sampled: zero(),
            inline_sampled_ns: zero(),
        }
    }
}

#[inline]
fn bump(counter: &AtomicU64, by: u64) -> u64 {
    let before = counter.load(Ordering::Relaxed);
    counter.store(before.wrapping_add(by), Ordering::Relaxed);
    before
}

const fn cell(route: Route, mode: Mode, why: Reason) -> usize {
    let mode = match mode {
        Mode::Block => 0,
        Mode::Spin => 1,
        Mode::Hybrid { .. } => 2,
    };
    (route as usize * 3 + mode) * REASONS + why as usize
}

impl Counters {
    /// Counts a request; returns how many went this way before it.
    #[inline]
    pub fn decided(&self, route: Route, mode: Mode, why: Reason) -> u64 {
        bump(&self.requests[cell(route, mode, why)], 1)
    }

    #[inline]
    pub fn moved(&self, kind: Kind, result: i32) {
        if result < 0 {
            bump(&self.errors, 1);
            return;
        }
        match kind {
            Kind::Read => bump(&self.bytes_read, result as u64),
            Kind::Write => bump(&self.bytes_written, result as u64),
            Kind::Sync => bump(&self.syncs, 1),
        };
    }

    pub fn sampled(&self, latency_ns: Ns) {
        bump(&self.inline_sampled, 1);
        bump(&self.inline_sampled_ns, latency_ns);
    }

    /// Counts a wait on a queue. A spin that passed its deadline counts under its own reason.
    pub fn waited(&self, decision: &Decision, outcome: &Outcome) {
        let why = if outcome.expired { Reason::SpinExpired } else { decision.why };
        self.decided(decision.route, decision.mode, why);
        self.passed(outcome);
    }

    /// Counts where the time of a wait went.
    pub fn passed(&self, outcome: &Outcome) {
        bump(&self.spun_ns, outcome.spun_ns);
        bump(&self.offered_ns, outcome.offered_ns);
        bump(&self.slept_ns, outcome.slept_ns);
        bump(&self.parked_ns, outcome.parked_ns);
    }
}

/// Requests that were issued and waited for in one way, for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// How they were issued.
    pub route: Route,
    /// How they were waited for; the sleep of a hybrid is given as 0.
    pub mode: Mode,
    /// Why.
    pub why: Reason,
    /// How many.
    pub requests: u64,
}

/// What the requests of one file did, over all threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests by route, mode and reason; only ways that occurred.
    pub rows: Vec<Row>,
    /// Bytes read.
    pub bytes_read: u64,
    /// Bytes written.
    pub bytes_written: u64,
    /// Syncs that succeeded.
    pub syncs: u64,
    /// Requests that failed.
    pub errors: u64,
    /// Time spent busy-waiting, in nanoseconds.
    pub spun_ns: Ns,
    /// Idle time that was used for something else, in nanoseconds.
    pub offered_ns: Ns,
    /// Time asleep on a timer, in nanoseconds.
    pub slept_ns: Ns,
    /// Time parked on a queue, in nanoseconds.
    pub parked_ns: Ns,
    /// Inline requests that were timed.
    pub inline_sampled: u64,
    /// Their time, in nanoseconds.
    pub inline_sampled_ns: Ns,
}

impl Stats {
    pub(crate) fn sum<'a>(threads: impl Iterator<Item = &'a Counters>) -> Stats {
        let mut requests = [0u64; REASONS * 9];
        let mut stats = Stats::default();
        for thread in threads {
            let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            for (sum, counter) in requests.iter_mut().zip(&thread.requests) {
                *sum += get(counter);
            }
            stats.bytes_read += get(&thread.bytes_read);
            stats.bytes_written += get(&thread.bytes_written);
            stats.syncs += get(&thread.syncs);
            stats.errors += get(&thread.errors);
            stats.spun_ns += get(&thread.spun_ns);
            stats.offered_ns += get(&thread.offered_ns);
            stats.slept_ns += get(&thread.slept_ns);
            stats.parked_ns += get(&thread.parked_ns);
            stats.inline_sampled += get(&thread.inline_sampled);
            stats.inline_sampled_ns += get(&thread.inline_sampled_ns);
        }
        for route in ROUTES {
            for mode in MODES {
                for why in Reason::ALL {
                    let requests = requests[cell(route, mode, why)];
                    if requests > 0 {
                        stats.rows.push(Row { route, mode, why, requests });
                    }
                }
            }
        }
        stats
    }

    /// All requests.
    pub fn requests(&self) -> u64 {
        self.rows.iter().map(|row| row.requests).sum()
    }

    /// Requests that went one way, for whatever reason.
    pub fn count(&self, route: Route, mode: &str) -> u64 {
        let matching = self.rows.iter().filter(|r| r.route == route && r.mode.as_str() == mode);
        matching.map(|row| row.requests).sum()
    }

    /// Requests decided for one reason.
    pub fn because(&self, why: Reason) -> u64 {
        self.rows.iter().filter(|row| row.why == why).map(|row| row.requests).sum()
    }

    /// Requests on a queue whose thread kept the CPU until the completion came: each saved the
    /// switches that blocking would have cost.
    pub fn switches_avoided(&self) -> u64 {
        let kept = |row: &&Row| {
            row.route != Route::Inline && row.mode == Mode::Spin && row.why != Reason::SpinExpired
        };
        self.rows.iter().filter(kept).map(|row| row.requests).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_has_a_cell_of_its_own() {
        let mut seen = std::collections::HashSet::new();
        for route in ROUTES {
            for mode in MODES {
                for why in Reason::ALL {
                    assert!(seen.insert(cell(route, mode, why)));
                }
            }
        }
        assert_eq!(seen.len(), REASONS * 9);
    }

    #[test]
    fn an_expired_spin_is_not_a_switch_avoided() {
        let counters = Counters::default();
        let decision = Decision::new(Route::Interrupt, Mode::Spin, 0, Reason::Pays);
        counters.waited(&decision, &Outcome { expired: true, spun_ns: 5, ..Outcome::default() });
        counters.waited(&decision, &Outcome { spun_ns: 2, ..Outcome::default() });
        let stats = Stats::sum([&counters].into_iter());
        assert_eq!(stats.switches_avoided(), 1);
        assert_eq!(stats.because(Reason::SpinExpired), 1);
        assert_eq!(stats.spun_ns, 7);
    }
}
