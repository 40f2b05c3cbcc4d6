// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a measured interval says about a target, and about the number that a paper printed.
//!
//! Both are judged by the whole interval. An interval that crosses a bound says nothing about it,
//! however its middle lies.

use serde::{Deserialize, Serialize};

/// Version of the rules of this file and of how intervals are sampled. A saved result that names
/// another version is stale.
pub const RULES: u32 = 3;

/// Two ways that differ by no more than this share are equally good.
pub const EQUAL_WITHIN: f64 = 0.02;

/// A value this near to a paper's number agrees with it: the machines differ by decades.
pub const AGREES_WITHIN: f64 = 0.10;

/// Which way a value is better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
}

/// What a figure is held to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// More is better: the value must not be below this.
    AtLeast(f64),
    /// Less is better: the value must not be above this.
    AtMost(f64),
    /// A ratio that must not be worse than 1 by more than [`EQUAL_WITHIN`].
    CostsNothing(Better),
}

impl Target {
    /// Whether one value satisfies the target; exactly on it does.
    pub fn allows(self, value: f64) -> bool {
        match self.better() {
            Better::Higher => value >= self.bound(),
            Better::Lower => value <= self.bound(),
        }
    }

    /// The bound itself.
    pub fn bound(self) -> f64 {
        match self {
            Target::AtLeast(bound) | Target::AtMost(bound) => bound,
            Target::CostsNothing(Better::Higher) => 1.0 - EQUAL_WITHIN,
            Target::CostsNothing(Better::Lower) => 1.0 + EQUAL_WITHIN,
        }
    }

    /// The side that satisfies it.
    pub fn better(self) -> Better {
        match self {
            Target::AtLeast(_) => Better::Higher,
            Target::AtMost(_) => Better::Lower,
            Target::CostsNothing(better) => better,
        }
    }

    /// Judges a measured interval `low..=high`; see [`Verdict`].
    pub fn judge(self, low: f64, high: f64) -> Verdict {
        let equal = |value: f64| (value - 1.0).abs() <= EQUAL_WITHIN;
        match (self.allows(low), self.allows(high)) {
            (true, true)
                if matches!(self, Target::CostsNothing(_)) && equal(low) && equal(high) =>
            {
                Verdict::Equivalent
            }
            (true, true) => Verdict::Met,
            (false, false) => Verdict::Missed,
            _ => Verdict::Inconclusive,
        }
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = match self.better() {
            Better::Higher => "≥",
            Better::Lower => "≤",
        };
        write!(f, "{sign} {}", self.bound())
    }
}

/// What a measured interval says about its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The whole interval satisfies the target.
    Met,
    /// The target was to cost nothing, and the whole interval lies within [`EQUAL_WITHIN`] of 1.
    Equivalent,
    /// The whole interval fails the target.
    Missed,
    /// The interval crosses the target.
    Inconclusive,
}

impl Verdict {
    /// The word used in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verdict::Met => "met",
            Verdict::Equivalent => "equivalent",
            Verdict::Missed => "missed",
            Verdict::Inconclusive => "inconclusive",
        }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// What a measured interval says about the number that a paper printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Agreement {
    /// The whole interval lies within [`AGREES_WITHIN`] of the paper's numbers.
    Agrees,
    /// The whole interval is better than the paper's numbers.
    Exceeds,
    /// The whole interval is worse than the paper's numbers.
    FallsShort,
    /// The paper printed a gain where the whole interval is a loss, or a loss where it is a gain.
    Contradicts,
    /// The interval lies partly within the paper's numbers.
    Inconclusive,
}

impl Agreement {
    /// Compares an interval `low..=high` with the paper's lowest and highest number. Only a `ratio`
    /// can contradict: its sides of 1 are gain and loss.
    pub fn of(low: f64, high: f64, theirs: (f64, f64), better: Better, ratio: bool) -> Self {
        let widest = (theirs.0 / (1.0 + AGREES_WITHIN), theirs.1 * (1.0 + AGREES_WITHIN));
        let opposite = ratio && ((theirs.0 > 1.0 && high < 1.0) || (theirs.1 < 1.0 && low > 1.0));
        match better {
            _ if low >= widest.0 && high <= widest.1 => Agreement::Agrees,
            _ if opposite => Agreement::Contradicts,
            Better::Higher if low > widest.1 => Agreement::Exceeds,
            Better::Higher if high < widest.0 => Agreement::FallsShort,
            Better::Lower if high < widest.0 => Agreement::Exceeds,
            Better::Lower if low > widest.1 => Agreement::FallsShort,
            _ => Agreement::Inconclusive,
        }
    }

    /// The word used in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Agreement::Agrees => "agrees",
            Agreement::Exceeds => "exceeds",
            Agreement::FallsShort => "falls short",
            Agreement::Contradicts => "contradicts",
            Agreement::Inconclusive => "inconclusive",
        }
    }
}

impl std::fmt::Display for Agreement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_is_met_by_the_whole_interval_or_not_at_all() {
        let at_least = Target::AtLeast(1.8);
        assert_eq!(at_least.judge(1.8, 2.0), Verdict::Met);
        assert_eq!(at_least.judge(1.79, 9.0), Verdict::Inconclusive);
        assert_eq!(at_least.judge(1.7, 1.79), Verdict::Missed);
        let at_most = Target::AtMost(1.05);
        assert_eq!(at_most.judge(0.9, 1.05), Verdict::Met);
        assert_eq!(at_most.judge(0.1, 1.06), Verdict::Inconclusive);
        assert_eq!(at_most.judge(1.06, 1.2), Verdict::Missed);
        assert_eq!((at_most.to_string(), at_least.to_string()), ("≤ 1.05".into(), "≥ 1.8".into()));
    }

    #[test]
    fn no_cost_is_equivalence_within_two_percent() {
        let speed = Target::CostsNothing(Better::Higher);
        assert_eq!(speed.judge(0.985, 1.015), Verdict::Equivalent);
        assert_eq!(speed.judge(0.985, 1.3), Verdict::Met);
        assert_eq!(speed.judge(1.1, 1.3), Verdict::Met);
        assert_eq!(speed.judge(0.97, 1.01), Verdict::Inconclusive);
        assert_eq!(speed.judge(0.9, 0.979), Verdict::Missed);
        let cpu = Target::CostsNothing(Better::Lower);
        assert_eq!(cpu.judge(0.99, 1.019), Verdict::Equivalent);
        assert_eq!(cpu.judge(0.5, 0.6), Verdict::Met);
        assert_eq!(cpu.judge(1.0, 1.03), Verdict::Inconclusive);
        assert_eq!(cpu.judge(1.03, 1.05), Verdict::Missed);
        assert_eq!((speed.to_string(), cpu.to_string()), ("≥ 0.98".into(), "≤ 1.02".into()));
    }

    #[test]
    fn an_interval_agrees_with_a_paper_only_as_a_whole() {
        let gain = |low, high| Agreement::of(low, high, (1.2, 1.39), Better::Higher, true);
        assert_eq!(gain(1.15, 1.5), Agreement::Agrees);
        assert_eq!(gain(1.0, 1.3), Agreement::Inconclusive);
        assert_eq!(gain(0.8, 5.0), Agreement::Inconclusive);
        assert_eq!(gain(1.6, 1.7), Agreement::Exceeds);
        assert_eq!(gain(1.0, 1.05), Agreement::FallsShort);
        assert_eq!(gain(0.8, 0.99), Agreement::Contradicts);
    }

    #[test]
    fn less_is_better_where_a_case_says_so() {
        let misses = |low, high| Agreement::of(low, high, (0.7, 0.7), Better::Lower, true);
        assert_eq!(misses(0.65, 0.75), Agreement::Agrees);
        assert_eq!(misses(0.1, 0.2), Agreement::Exceeds);
        assert_eq!(misses(0.8, 0.9), Agreement::FallsShort);
        assert_eq!(misses(1.1, 1.2), Agreement::Contradicts);
    }

    #[test]
    fn a_value_that_is_no_ratio_contradicts_nothing_and_none_is_none() {
        let percent = |low, high| Agreement::of(low, high, (25.0, 45.0), Better::Lower, false);
        assert_eq!(percent(0.1, 0.5), Agreement::Exceeds);
        let none = |low, high| Agreement::of(low, high, (0.0, 0.0), Better::Lower, false);
        assert_eq!(none(0.0, 0.0), Agreement::Agrees);
        assert_eq!(none(0.0, 0.1), Agreement::Inconclusive);
        assert_eq!(none(0.1, 0.2), Agreement::FallsShort);
    }
}
