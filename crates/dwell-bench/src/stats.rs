// SPDX-License-Identifier: MIT OR Apache-2.0
//! Summaries of samples and ratios of interleaved rounds.

use serde::{Deserialize, Serialize};

/// How many times the rounds are drawn again for a bootstrap interval.
const RESAMPLES: usize = 4_000;
/// Fixed, so that the same rounds always give the same interval.
const SEED: u64 = 0x6477_656c_6c21;

/// Five-number summary of samples of one quantity, in that quantity's unit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of samples.
    pub count: usize,
    /// Smallest sample.
    pub min: f64,
    /// First quartile, interpolated between neighbours.
    pub lower_quartile: f64,
    /// Median.
    pub median: f64,
    /// Third quartile.
    pub upper_quartile: f64,
    /// Largest sample.
    pub max: f64,
}

impl Summary {
    /// Summarises the finite ones among `samples`; `None` when there is none.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        let mut sorted: Vec<f64> = samples.into_iter().filter(|s| s.is_finite()).collect();
        sorted.sort_by(f64::total_cmp);
        let (&min, &max) = (sorted.first()?, sorted.last()?);
        Some(Summary {
            count: sorted.len(),
            min,
            lower_quartile: quantile(&sorted, 0.25),
            median: quantile(&sorted, 0.5),
            upper_quartile: quantile(&sorted, 0.75),
            max,
        })
    }
}

/// The `fraction` quantile of non-empty sorted samples, linear between neighbours.
fn quantile(sorted: &[f64], fraction: f64) -> f64 {
    let place = fraction * (sorted.len() - 1) as f64;
    let (below, above) = (sorted[place.floor() as usize], sorted[place.ceil() as usize]);
    below + (above - below) * place.fract()
}

/// Ratio of two things measured in the same interleaved rounds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Paired {
    /// Geometric median of the per-round ratios: the middle one, or the geometric mean of the two
    /// middle ones.
    pub median: f64,
    /// Lower end of the 95 % interval of the median.
    pub low: f64,
    /// Upper end.
    pub high: f64,
    /// Rounds that took part. Below six the interval is no more than the range of the rounds, and
    /// with one round it is that round.
    pub rounds: usize,
}

impl Paired {
    /// Ratio `ours / baseline` of each round, given as (ours, baseline) of one round each.
    ///
    /// Machines drift, so a round's ratio is steadier than the ratio of two medians. Ratios live
    /// on a logarithmic scale (2× and ½× are equally far from 1×), so the middle is taken there.
    /// The interval is a percentile bootstrap over rounds with a fixed seed. Rounds in which
    /// either side is not positive are left out; `None` when no round remains.
    pub fn of(rounds: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let mut logs: Vec<f64> = rounds
            .into_iter()
            .map(|(ours, baseline)| (ours / baseline).ln())
            .filter(|log| log.is_finite())
            .collect();
        let Middle { value, low, high } = Middle::of_sorted(&mut logs)?;
        Some(Paired { median: value.exp(), low: low.exp(), high: high.exp(), rounds: logs.len() })
    }
}

/// A median with the interval that is believed to hold it, in the unit of the samples.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Middle {
    /// The median.
    pub value: f64,
    /// Lower end of its 95 % interval.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl Middle {
    /// The middle of the finite ones among `samples`, by a percentile bootstrap with a fixed seed;
    /// `None` when there is none.
    pub fn of(samples: impl IntoIterator<Item = f64>) -> Option<Self> {
        Self::of_sorted(&mut samples.into_iter().filter(|s| s.is_finite()).collect::<Vec<_>>())
    }

    fn of_sorted(samples: &mut [f64]) -> Option<Self> {
        if samples.is_empty() {
            return None;
        }
        samples.sort_by(f64::total_cmp);
        Self::of_blocks(&samples.chunks(1).collect::<Vec<_>>())
    }

    /// Of samples in blocks, which are drawn as a whole: neighbours in time resemble each other.
    /// `None` without a sample.
    pub(crate) fn of_blocks(blocks: &[&[f64]]) -> Option<Self> {
        let mut samples = blocks.concat();
        if samples.is_empty() {
            return None;
        }
        samples.sort_by(f64::total_cmp);
        let mut random = SplitMix(SEED);
        let mut drawn = Vec::with_capacity(samples.len());
        let mut medians: Vec<f64> = (0..RESAMPLES)
            .map(|_| {
                drawn.clear();
                for _ in blocks {
                    drawn.extend_from_slice(blocks[random.below(blocks.len())]);
                }
                drawn.sort_by(f64::total_cmp);
                quantile(&drawn, 0.5)
            })
            .collect();
        medians.sort_by(f64::total_cmp);
        Some(Middle {
            value: quantile(&samples, 0.5),
            low: quantile(&medians, 0.025),
            high: quantile(&medians, 0.975),
        })
    }
}

/// How likely two things that are equally good differ in so many rounds for one and so many for the
/// other, or more unevenly: the two-sided sign test. 1 without rounds.
pub fn sign_test(one: usize, other: usize) -> f64 {
    let rounds = one + other;
    let half_to_the = 0.5f64.powi(rounds as i32);
    let (mut ways, mut tail) = (1.0, 0.0);
    for rare in 0..=one.min(other) {
        tail += ways * half_to_the;
        ways *= (rounds - rare) as f64 / (rare + 1) as f64;
    }
    (2.0 * tail).min(1.0)
}

/// SplitMix64: small, seedable and good enough to draw rounds and to fill devices.
#[derive(Clone, Debug)]
pub struct SplitMix(pub u64);

impl SplitMix {
    /// The next 64 bits.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`, which must not be 0.
    pub fn below(&mut self, limit: usize) -> usize {
        ((u128::from(self.next_u64()) * limit as u128) >> 64) as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_of_known_samples() {
        let summary = Summary::of([4.0, 1.0, f64::NAN, 2.0, 3.0]).unwrap();
        assert_eq!(summary.count, 4);
        assert_eq!((summary.min, summary.median, summary.max), (1.0, 2.5, 4.0));
        assert_eq!((summary.lower_quartile, summary.upper_quartile), (1.75, 3.25));
        assert_eq!(Summary::of([]), None);
        assert_eq!(Summary::of([7.0]).unwrap().median, 7.0);
    }

    #[test]
    fn paired_ratio_ignores_drift_that_both_sides_share() {
        let drift = [1.0, 3.0, 0.5, 10.0, 2.0, 7.0, 1.5];
        let paired = Paired::of(drift.map(|d| (2.0 * d, d))).unwrap();
        for end in [paired.median, paired.low, paired.high] {
            assert!((end - 2.0).abs() < 1e-12);
        }
        assert_eq!(paired.rounds, 7);
    }

    #[test]
    fn paired_median_is_geometric() {
        let paired = Paired::of([(1.0, 1.0), (4.0, 1.0)]).unwrap();
        assert!((paired.median - 2.0).abs() < 1e-12);
    }

    #[test]
    fn paired_interval_is_the_same_every_time_and_holds_the_median() {
        let rounds = || (0..9).map(|i| (1.0 + f64::from(i % 4) / 10.0, 1.0));
        let (one, two) = (Paired::of(rounds()).unwrap(), Paired::of(rounds()).unwrap());
        assert_eq!(one, two);
        assert!(one.low <= one.median && one.median <= one.high);
        assert!(one.low >= 1.0 && one.high <= 1.3 + 1e-12);
    }

    #[test]
    fn paired_leaves_out_rounds_without_a_ratio() {
        assert_eq!(Paired::of([(1.0, 0.0), (0.0, 1.0), (f64::NAN, 1.0)]), None);
        assert_eq!(Paired::of([(0.0, 0.0), (3.0, 1.0)]).unwrap().rounds, 1);
    }

    #[test]
    fn the_middle_of_differences_may_be_negative() {
        let middle = Middle::of([-3.0, f64::NAN, -1.0, -2.0]).unwrap();
        assert_eq!((middle.value, middle.low, middle.high), (-2.0, -3.0, -1.0));
        assert_eq!(Middle::of([f64::NAN]), None);
    }

    #[test]
    fn signs_need_six_rounds_to_tell() {
        assert_eq!(sign_test(0, 0), 1.0);
        assert_eq!(sign_test(5, 0), 2.0 / 32.0);
        assert_eq!(sign_test(0, 6), 2.0 / 64.0);
        assert_eq!(sign_test(9, 1), 22.0 / 1024.0);
        assert_eq!(sign_test(4, 4), 1.0);
        assert!(sign_test(1000, 0) < 1e-12 && sign_test(500, 500) <= 1.0);
    }

    #[test]
    fn random_numbers_stay_below_their_limit() {
        let mut random = SplitMix(1);
        let mut seen = [false; 5];
        (0..200).for_each(|_| seen[random.below(5)] = true);
        assert_eq!(seen, [true; 5]);
    }
}
