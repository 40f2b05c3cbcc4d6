// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports over many seeds as one line per policy, each measure with its spread and what ITS saves
//! of it.

use serde::{Deserialize, Serialize};

use crate::{PolicyKind, Report};

/// A measure over seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Mean.
    pub mean: f64,
    /// Standard deviation of the samples; 0 for one.
    pub deviation: f64,
    /// Smallest.
    pub least: f64,
    /// Largest.
    pub most: f64,
    /// How many seeds.
    pub seeds: usize,
}

impl Spread {
    /// Of these values; all zero where there are none.
    pub fn of(values: &[f64]) -> Spread {
        if values.is_empty() {
            return Spread::default();
        }
        let count = values.len() as f64;
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        Spread {
            mean,
            deviation: if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 },
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            seeds: values.len(),
        }
    }

    /// The 95 % interval of the mean by Student's t; the mean alone where there is one value.
    pub fn interval(&self) -> (f64, f64) {
        let half = match self.seeds {
            0 | 1 => 0.0,
            seeds => T_95[(seeds - 2).min(T_95.len() - 1)] * self.deviation / (seeds as f64).sqrt(),
        };
        (self.mean - half, self.mean + half)
    }
}

/// Two-sided 95 % quantiles of Student's t for 1, 2, … degrees of freedom; the last serves more.
const T_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160,
    2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056,
    2.052, 2.048, 2.045, 2.042,
];

/// What the paper draws.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Measure {
    /// Idle time in nanoseconds, context switches included (Figure 4a).
    IdleNs,
    /// Idle time without context switches, in nanoseconds.
    WaitsNs,
    /// Major faults (Figure 4b).
    MajorFaults,
    /// Misses of the last-level cache (Figure 4c).
    LlcMisses,
    /// Mean finish time of the higher priorities in nanoseconds (Figure 5a).
    TopFinishNs,
    /// Mean finish time of the lower priorities in nanoseconds (Figure 5b).
    BottomFinishNs,
}

impl Measure {
    /// All of them, in the order of the paper's figures.
    pub const ALL: [Measure; 6] = [
        Measure::IdleNs,
        Measure::WaitsNs,
        Measure::MajorFaults,
        Measure::LlcMisses,
        Measure::TopFinishNs,
        Measure::BottomFinishNs,
    ];

    /// Its value in one report.
    pub fn of(self, report: &Report) -> f64 {
        match self {
            Measure::IdleNs => report.idle.total_ns() as f64,
            Measure::WaitsNs => report.idle.waits_ns() as f64,
            Measure::MajorFaults => report.faults.major() as f64,
            Measure::LlcMisses => report.accesses.dram as f64,
            Measure::TopFinishNs => report.top_half_finish_ns(),
            Measure::BottomFinishNs => report.bottom_half_finish_ns(),
        }
    }
}

/// One measure under one policy.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The policy.
    pub policy: PolicyKind,
    /// What was measured.
    pub measure: Measure,
    /// Its values over the seeds.
    pub value: Spread,
    /// What ITS saves of it, as a fraction, seed by seed; absent where ITS did not run or there is
    /// nothing to save.
    pub its_saves: Option<Spread>,
}

/// All measures under all policies that ran, in the order of the reports.
pub fn summarise(reports: &[Report]) -> Vec<Summary> {
    let mut policies: Vec<PolicyKind> = Vec::new();
    for report in reports {
        if !policies.contains(&report.policy) {
            policies.push(report.policy);
        }
    }
    let its_of = |seed, measure: Measure| {
        let its = reports.iter().find(|r| r.policy == PolicyKind::Its && r.seed == seed);
        its.map(|report| measure.of(report))
    };
    let mut lines = Vec::new();
    for policy in policies {
        for measure in Measure::ALL {
            let mine: Vec<_> = reports.iter().filter(|report| report.policy == policy).collect();
            let values: Vec<_> = mine.iter().map(|report| measure.of(report)).collect();
            let savings: Vec<_> = mine
                .iter()
                .zip(&values)
                .filter(|(_, value)| **value > 0.0)
                .filter_map(|(report, value)| Some(1.0 - its_of(report.seed, measure)? / value))
                .collect();
            let its_saves =
                (policy != PolicyKind::Its && !savings.is_empty()).then(|| Spread::of(&savings));
            lines.push(Summary { policy, measure, value: Spread::of(&values), its_saves });
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_has_mean_deviation_and_ends() {
        let spread = Spread::of(&[1.0, 2.0, 3.0]);
        assert_eq!(
            (spread.mean, spread.deviation, spread.least, spread.most),
            (2.0, 1.0, 1.0, 3.0)
        );
        let (low, high) = spread.interval();
        // 4.303 x 1 / sqrt(3).
        assert!((low + 0.484).abs() < 1e-3 && (high - 4.484).abs() < 1e-3, "{low} {high}");
        assert_eq!(Spread::of(&[5.0]).deviation, 0.0);
        assert_eq!(Spread::of(&[5.0]).interval(), (5.0, 5.0));
        assert_eq!(Spread::of(&[]).seeds, 0);
    }
}
