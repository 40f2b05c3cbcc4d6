// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one file's requests did: counted per thread without locked instructions, summed on demand.

use std::sync::atomic::{AtomicU64, Ordering};

use dwell_policy::{Decision, Kind, Mode, Ns, Outcome, Reason, Route};

use crate::latency::{Counted, Histogram};
use crate::learner::Heard;

mod words;

const REASONS: usize = Reason::ALL.len();
/// Plain counts of [`Stats`].
const FIGURES: usize = 10;
/// Ways that a request can be counted under.
pub(crate) const CELLS: usize = REASONS * 9;
pub(crate) const ROUTES: [Route; 3] = [Route::Inline, Route::Polled, Route::Interrupt];
pub(crate) const MODES: [Mode; 3] = [Mode::Block, Mode::Spin, Mode::Hybrid { sleep_ns: 0 }];

/// A request that goes by its caller's call, and is counted but for what comes of it.
#[doc(hidden)]
#[must_use = "what came of it is counted by `done`"]
pub struct Settled<'a> {
    counters: &'a Counters,
    kind: Kind,
    /// Where it is timed.
    pub(crate) heard: Option<Heard<'a>>,
}

impl<'a> Settled<'a> {
    pub(crate) fn new(counters: &'a Counters, kind: Kind) -> Self {
        Settled { counters, kind, heard: None }
    }

    /// It moved so many bytes, or ended with a negative error number.
    #[inline]
    pub fn done(self, result: i32) {
        if let Some(heard) = self.heard {
            self.counters.took(Family::Inline, heard.done(result));
        }
        self.counters.moved(self.kind, result);
    }
}

/// One thread's counters. Only that thread writes, so a load and a store suffice.
#[derive(Debug)]
pub(crate) struct Counters {
    requests: [AtomicU64; CELLS],
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
    latency: [Counted; Family::ALL.len()],
}

impl Default for Counters {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Counters {
            requests: [const { AtomicU64::new(0) }; CELLS],
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
            latency: Default::default(),
        }
    }
}

#[inline]
fn bump(counter: &AtomicU64, by: u64) -> u64 {
    let before = counter.load(Ordering::Relaxed);
    counter.store(before.wrapping_add(by), Ordering::Relaxed);
    before
}

pub(crate) const fn cell(route: Route, mode: Mode, reason: Reason) -> usize {
    let mode = match mode {
        Mode::Block => 0,
        Mode::Spin => 1,
        Mode::Hybrid { .. } => 2,
    };
    (route as usize * 3 + mode) * REASONS + reason as usize
}

impl Counters {
    /// Counts a request; returns how many went this way before it.
    #[inline]
    pub fn decided(&self, route: Route, mode: Mode, reason: Reason) -> u64 {
        bump(&self.requests[cell(route, mode, reason)], 1)
    }

    /// How many requests went this way so far.
    #[inline]
    pub fn before(&self, route: Route, mode: Mode, reason: Reason) -> u64 {
        self.requests[cell(route, mode, reason)].load(Ordering::Relaxed)
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

    /// Counts the time of one of many requests that went one way.
    pub fn sampled(&self, family: Family, latency_ns: Ns) {
        bump(&self.inline_sampled, 1);
        bump(&self.inline_sampled_ns, latency_ns);
        self.took(family, latency_ns);
    }

    #[inline]
    pub fn took(&self, family: Family, latency_ns: Ns) {
        self.latency[family as usize].note(latency_ns);
    }

    /// Counts a wait on a queue. A spin that passed its deadline counts under its own reason.
    pub fn waited(&self, decision: &Decision, outcome: &Outcome) {
        let reason = if outcome.expired { Reason::SpinExpired } else { decision.reason };
        self.decided(decision.route, decision.mode, reason);
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

/// Requests whose latencies are kept together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Family {
    /// Synchronous calls that had to ask the device.
    Inline,
    /// Blocked on a queue.
    Blocked,
    /// Spun for, after a timed sleep or without; also where the spin expired.
    Spun,
    /// Reads that asked the page cache.
    Cached,
    /// Requests that went the kernel's own way whatever their policy said: Dwell was off, they were
    /// held back, or their device had turned itself off.
    Withheld,
}

impl Family {
    /// All families.
    pub const ALL: [Family; 5] =
        [Family::Inline, Family::Blocked, Family::Spun, Family::Cached, Family::Withheld];

    /// Where a request on a queue belongs.
    pub(crate) const fn queued(mode: Mode) -> Family {
        match mode {
            Mode::Block => Family::Blocked,
            Mode::Spin | Mode::Hybrid { .. } => Family::Spun,
        }
    }

    /// The word used in statistics and tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Family::Inline => "inline",
            Family::Blocked => "blocked",
            Family::Spun => "spun",
            Family::Cached => "cached",
            Family::Withheld => "withheld",
        }
    }

    /// The family of the requests that a row counts.
    pub const fn of(route: Route, mode: Mode, reason: Reason) -> Family {
        match (route, reason) {
            (_, Reason::Off | Reason::HeldBack | Reason::Regressed) => Family::Withheld,
            (Route::Inline, Reason::Cached) => Family::Cached,
            (Route::Inline, _) => Family::Inline,
            _ => Family::queued(mode),
        }
    }
}

/// Latencies of the requests that were timed. All that were decided are timed, with three
/// exceptions. One in 64 is timed if the device's class sends all inline, one in 8 if the page
/// cache is expected to have the data, and up to one in 16 if calls were measured to be best.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct Latency {
    /// Of synchronous calls that had to ask the device.
    pub inline: Histogram,
    /// Of requests blocked on a queue.
    pub blocked: Histogram,
    /// Of requests spun for, after a timed sleep or without.
    pub spun: Histogram,
    /// Of reads that asked the page cache.
    pub cached: Histogram,
    /// Of requests that went the kernel's own way whatever their policy said.
    pub withheld: Histogram,
}

impl Latency {
    /// The histogram of one family.
    pub fn of(&self, family: Family) -> &Histogram {
        match family {
            Family::Inline => &self.inline,
            Family::Blocked => &self.blocked,
            Family::Spun => &self.spun,
            Family::Cached => &self.cached,
            Family::Withheld => &self.withheld,
        }
    }

    fn of_mut(&mut self, family: Family) -> &mut Histogram {
        match family {
            Family::Inline => &mut self.inline,
            Family::Blocked => &mut self.blocked,
            Family::Spun => &mut self.spun,
            Family::Cached => &mut self.cached,
            Family::Withheld => &mut self.withheld,
        }
    }
}

/// Requests of one route and one wait mode, for one reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Row {
    /// How they were issued.
    pub route: Route,
    /// How they were waited for; the sleep of a hybrid is given as 0.
    #[cfg_attr(feature = "serde", serde(with = "mode_word"))]
    pub mode: Mode,
    /// The reason.
    pub reason: Reason,
    /// How many.
    pub requests: u64,
}

impl Row {
    /// So many requests, issued and waited for in these ways for this reason.
    pub const fn new(route: Route, mode: Mode, reason: Reason, requests: u64) -> Row {
        Row { route, mode, reason, requests }
    }

    pub(crate) const fn cell(&self) -> usize {
        cell(self.route, self.mode, self.reason)
    }

    /// The rows of all cells that are not zero.
    pub(crate) fn filled(cells: &[u64; CELLS]) -> Vec<Row> {
        let mut rows = Vec::new();
        for route in ROUTES {
            for mode in MODES {
                for reason in Reason::ALL {
                    let requests = cells[cell(route, mode, reason)];
                    if requests > 0 {
                        rows.push(Row { route, mode, reason, requests });
                    }
                }
            }
        }
        rows
    }
}

/// A mode as the word that tables use.
#[cfg(feature = "serde")]
mod mode_word {
    use serde::{Deserialize, Deserializer, Serializer, de::Error};

    use super::{MODES, Mode};

    pub fn serialize<S: Serializer>(mode: &Mode, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(mode.as_str())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Mode, D::Error> {
        let word = String::deserialize(from)?;
        let known = MODES.into_iter().find(|mode| mode.as_str() == word);
        known.ok_or_else(|| D::Error::unknown_variant(&word, &["block", "spin", "hybrid"]))
    }
}

/// What the requests of one file did, over all threads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
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
    /// How long requests took.
    pub latency: Latency,
}

impl Stats {
    pub(crate) fn sum<'a>(threads: impl Iterator<Item = &'a Counters>) -> Stats {
        let mut requests = [0u64; CELLS];
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
            for family in Family::ALL {
                stats.latency.of_mut(family).merge(&thread.latency[family as usize].look());
            }
        }
        stats.rows = Row::filled(&requests);
        stats
    }

    /// Adds what other requests did.
    pub fn merge(&mut self, other: &Stats) {
        self.combine(other, u64::saturating_add);
        for family in Family::ALL {
            self.latency.of_mut(family).merge(other.latency.of(family));
        }
    }

    /// What was done since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Stats) -> Stats {
        let mut since = self.clone();
        since.combine(earlier, u64::saturating_sub);
        for family in Family::ALL {
            *since.latency.of_mut(family) =
                self.latency.of(family).since(earlier.latency.of(family));
        }
        since
    }

    /// Puts each count together with another's; not the latencies.
    fn combine(&mut self, other: &Stats, with: impl Fn(u64, u64) -> u64) {
        let mut cells = [0u64; CELLS];
        for row in &self.rows {
            cells[row.cell()] = cells[row.cell()].saturating_add(row.requests);
        }
        for row in &other.rows {
            cells[row.cell()] = with(cells[row.cell()], row.requests);
        }
        self.rows = Row::filled(&cells);
        for (own, other) in self.figures_mut().into_iter().zip(other.figures()) {
            *own = with(*own, other);
        }
    }

    /// The plain counts, in the order in which words keep them.
    fn figures(&self) -> [u64; FIGURES] {
        [
            self.bytes_read,
            self.bytes_written,
            self.syncs,
            self.errors,
            self.spun_ns,
            self.offered_ns,
            self.slept_ns,
            self.parked_ns,
            self.inline_sampled,
            self.inline_sampled_ns,
        ]
    }

    fn figures_mut(&mut self) -> [&mut u64; FIGURES] {
        [
            &mut self.bytes_read,
            &mut self.bytes_written,
            &mut self.syncs,
            &mut self.errors,
            &mut self.spun_ns,
            &mut self.offered_ns,
            &mut self.slept_ns,
            &mut self.parked_ns,
            &mut self.inline_sampled,
            &mut self.inline_sampled_ns,
        ]
    }

    fn sum_of(&self, counts: impl Fn(&Row) -> bool) -> u64 {
        let counted = self.rows.iter().filter(|row| counts(row));
        counted.fold(0, |sum, row| sum.saturating_add(row.requests))
    }

    /// All requests.
    pub fn requests(&self) -> u64 {
        self.sum_of(|_| true)
    }

    /// Requests that went one way, for whatever reason.
    pub fn count(&self, route: Route, mode: &str) -> u64 {
        self.sum_of(|row| row.route == route && row.mode.as_str() == mode)
    }

    /// Requests decided for one reason.
    pub fn because(&self, reason: Reason) -> u64 {
        self.sum_of(|row| row.reason == reason)
    }

    /// Requests that were spun for, after a timed sleep or without.
    pub fn spins(&self) -> u64 {
        self.sum_of(|row| row.route != Route::Inline && row.mode != Mode::Block)
    }

    /// Latencies of all requests together: a family of which only some were timed counts as if
    /// the others had been like them.
    pub fn latencies(&self) -> Histogram {
        let mut all = Histogram::default();
        for family in Family::ALL {
            let timed = self.latency.of(family);
            let requests = self.sum_of(|row| Family::of(row.route, row.mode, row.reason) == family);
            let weight = requests as f64 / timed.count().max(1) as f64;
            all.merge_weighted(timed, weight.max(1.0));
        }
        all
    }

    /// Requests on a queue whose thread spun until the completion came: each saved the
    /// switches that blocking would have cost.
    pub fn switches_avoided(&self) -> u64 {
        self.sum_of(|row| {
            row.route != Route::Inline
                && row.mode == Mode::Spin
                && row.reason != Reason::SpinExpired
        })
    }
}

#[cfg(test)]
mod tests;
