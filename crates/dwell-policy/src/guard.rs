// SPDX-License-Identifier: MIT OR Apache-2.0
//! When to give up deciding: requests are compared with a few that go the kernel's own way.

use crate::Ns;

/// What a guard makes of one request that would go through a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// It goes the kernel's own way and is timed, to compare with.
    Control,
    /// It goes as was decided and is timed.
    Sample,
    /// It goes as was decided.
    Plain,
}

/// One request in this many goes the kernel's own way.
pub const CONTROL_ONE_IN: u64 = 64;
/// So many requests in a row share a turn. A lone synchronous call among requests that are spun for
/// meets CPUs that are awake, which it would not if all went that way.
const RUN: u64 = 8;
/// For each control, so many others are timed.
const SAMPLES_PER_CONTROL: u64 = 8;

/// Whose turn a thread's request is, by its running number. Turns are scattered, so that they do
/// not fall into step with a program's own pattern.
#[inline]
pub fn turn(sequence: u64) -> Turn {
    match scatter(sequence / RUN) % CONTROL_ONE_IN {
        0 => Turn::Control,
        at if at <= SAMPLES_PER_CONTROL => Turn::Sample,
        _ => Turn::Plain,
    }
}

/// Spreads consecutive numbers evenly over all of 64 bits.
pub(crate) fn scatter(sequence: u64) -> u64 {
    let mut x = sequence.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Fewest latencies on either side of a comparison: of fewer, the longest may well lie below the
/// true 99th percentile.
pub const FEWEST: u64 = 300;
/// Shortest time over which latencies are collected for one comparison.
pub const WINDOW_NS: Ns = 1_000_000_000;
/// Latencies that are not enough after this long are forgotten.
pub const STALE_NS: Ns = 300_000_000_000;

/// Places to either side of the 99th percentile of `count` latencies in order, between which the
/// true one lies nine times in ten (a normal approximation of the binomial distribution).
pub const fn ranks_about_p99(count: u64) -> (u64, u64) {
    let margin = (count / 10_000 * 266 + count % 10_000 * 266 / 10_000).isqrt() + 1;
    let rank = count - count / 100;
    let above = rank + margin;
    (rank.saturating_sub(margin), if above < count { above } else { count })
}

/// Whether the one way is slower by more than a quarter, and by more than chance explains: even a
/// low guess at its 99th percentile is above a high guess at that of the kernel's own way.
pub const fn is_worse(low_p99_ns: Ns, control_high_p99_ns: Ns) -> bool {
    low_p99_ns > control_high_p99_ns.saturating_add(control_high_p99_ns / 4)
}

/// What a guard has found of one kind and size of request on one device.
#[derive(Clone, Copy, Debug)]
pub struct Watch {
    worse_in_a_row: u8,
    pause_ns: Ns,
    until: Ns,
}

impl Watch {
    /// So many comparisons in a row must turn out badly.
    const IN_A_ROW: u8 = 2;
    /// How long the kernel's own way is kept to at first.
    pub const SHORTEST_PAUSE_NS: Ns = 10_000_000_000;
    /// The longest that it is kept to before the other is tried again.
    pub const LONGEST_PAUSE_NS: Ns = 300_000_000_000;

    /// Nothing found yet.
    pub const fn new() -> Watch {
        Watch { worse_in_a_row: 0, pause_ns: Watch::SHORTEST_PAUSE_NS, until: 0 }
    }

    /// Until when requests go the kernel's own way; in the past where they do not.
    pub const fn until(&self) -> Ns {
        self.until
    }

    /// Hears how a comparison turned out, and says whether requests go the kernel's own way from
    /// now on. Every pause lasts twice as long as the one before; every comparison that turns out
    /// well halves the next again.
    pub fn compared(&mut self, now: Ns, worse: bool) -> bool {
        if !worse {
            self.worse_in_a_row = 0;
            self.pause_ns = (self.pause_ns / 2).max(Self::SHORTEST_PAUSE_NS);
            return false;
        }
        self.worse_in_a_row += 1;
        if self.worse_in_a_row < Self::IN_A_ROW {
            return false;
        }
        self.worse_in_a_row = 0;
        self.until = now.saturating_add(self.pause_ns);
        self.pause_ns = self.pause_ns.saturating_mul(2).min(Self::LONGEST_PAUSE_NS);
        true
    }

    /// Forgets a single bad comparison: what follows is no longer of the same time.
    pub fn interrupted(&mut self) {
        self.worse_in_a_row = 0;
    }
}

impl Default for Watch {
    fn default() -> Self {
        Watch::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn turns_come_as_often_as_they_should() {
        let mut seen = [0u64; 3];
        // Miri takes its time.
        let turns = 1 << if cfg!(miri) { 15 } else { 20 };
        for sequence in 0..turns {
            seen[turn(sequence) as usize] += 1;
        }
        let expected = turns / CONTROL_ONE_IN;
        assert!(seen[0].abs_diff(expected) < expected / 10, "{seen:?}");
        assert!(seen[1].abs_diff(8 * expected) < expected, "{seen:?}");
    }

    #[test]
    fn the_ranks_enclose_the_percentile_and_close_in_on_it() {
        assert_eq!(ranks_about_p99(FEWEST), (294, 300));
        assert_eq!(ranks_about_p99(100_000), (98_948, 99_052));
        assert_eq!(ranks_about_p99(0), (0, 0));
        let (low, high) = ranks_about_p99(u64::MAX);
        assert!(low < high);
    }

    #[test]
    fn a_quarter_slower_is_borne() {
        assert!(!is_worse(12_500, 10_000) && is_worse(12_501, 10_000));
        assert!(!is_worse(u64::MAX, u64::MAX) && !is_worse(0, 0));
    }

    #[test]
    fn pauses_double_up_to_five_minutes_and_shrink_while_all_is_well() {
        let mut watch = Watch::new();
        let mut now = 0;
        let mut fall = |watch: &mut Watch| {
            assert!(!watch.compared(now, true));
            assert!(watch.compared(now, true));
            let pause_ns = watch.until() - now;
            now = watch.until();
            pause_ns / 1_000_000_000
        };
        let pauses: [Ns; 7] = core::array::from_fn(|_| fall(&mut watch));
        assert_eq!(pauses, [10, 20, 40, 80, 160, 300, 300]);
        watch.compared(0, false);
        watch.compared(0, false);
        assert_eq!(fall(&mut watch), 75);
    }

    #[test]
    fn a_single_bad_comparison_is_no_reason() {
        let mut watch = Watch::new();
        for turn in 0..100 {
            assert!(!watch.compared(turn, turn % 2 == 0));
        }
        watch.interrupted();
        assert!(!watch.compared(0, true));
        watch.interrupted();
        assert!(!watch.compared(0, true));
        assert_eq!(watch.until(), 0);
    }
}
