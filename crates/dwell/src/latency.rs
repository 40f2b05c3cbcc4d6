// SPDX-License-Identifier: MIT OR Apache-2.0
//! Latencies as plain words that can be counted without a lock, mapped, added up and compared.

#[cfg(feature = "serde")]
mod told;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dwell_policy::Ns;
#[cfg(feature = "serde")]
use told::Told;

/// Below this, latencies are not told apart: 64 ns.
const LOWEST_SHIFT: u32 = 6;
/// From this on neither: 2³⁷ ns, 137 s.
const HIGHEST_SHIFT: u32 = 37;
/// Each doubling is cut into 2³ equal parts, so a part's middle is off by 1/16 at most.
const PARTS_SHIFT: u32 = 3;

/// Number of buckets.
pub(crate) const BUCKETS: usize =
    ((HIGHEST_SHIFT - LOWEST_SHIFT) as usize) * (1 << PARTS_SHIFT) + 2;

/// The bucket of a latency.
#[inline]
pub(crate) const fn bucket_of(latency_ns: Ns) -> usize {
    if latency_ns < 1 << LOWEST_SHIFT {
        return 0;
    }
    let octave = latency_ns.ilog2();
    if octave >= HIGHEST_SHIFT {
        return BUCKETS - 1;
    }
    let part = (latency_ns >> (octave - PARTS_SHIFT)) as usize & ((1 << PARTS_SHIFT) - 1);
    1 + (((octave - LOWEST_SHIFT) as usize) << PARTS_SHIFT) + part
}

/// The lowest latency of a bucket, in nanoseconds.
pub(crate) const fn lowest_of(bucket: usize) -> Ns {
    if bucket == 0 {
        return 0;
    }
    let at = bucket - 1;
    let octave = LOWEST_SHIFT + (at >> PARTS_SHIFT) as u32;
    let part = (at & ((1 << PARTS_SHIFT) - 1)) as u64;
    (1 << octave) + (part << (octave - PARTS_SHIFT))
}

/// The middle of a bucket, in nanoseconds: what is told of the latencies in it.
pub(crate) const fn middle_of(bucket: usize) -> Ns {
    if bucket + 1 >= BUCKETS {
        return 1 << HIGHEST_SHIFT;
    }
    (lowest_of(bucket) + lowest_of(bucket + 1)) / 2
}

/// The middle of the bucket in which the latency of this rank lies.
fn at_rank(counts: impl Iterator<Item = u64>, rank: u64) -> Option<Ns> {
    let mut seen = 0u64;
    for (bucket, count) in counts.enumerate() {
        seen = seen.saturating_add(count);
        if count > 0 && seen >= rank {
            return Some(middle_of(bucket));
        }
    }
    None
}

/// A histogram that one thread counts in and others read.
#[derive(Debug)]
pub(crate) struct Counted {
    /// Apart, because threads that make requests may have small stacks.
    buckets: Box<[AtomicU64]>,
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

impl Default for Counted {
    fn default() -> Self {
        Counted {
            buckets: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            sum_ns: AtomicU64::new(0),
            max_ns: AtomicU64::new(0),
        }
    }
}

impl Counted {
    /// Only ever called by one thread, so a load and a store suffice.
    #[inline]
    pub fn note(&self, latency_ns: Ns) {
        let bump =
            |word: &AtomicU64, by: u64| word.store(word.load(Relaxed).wrapping_add(by), Relaxed);
        bump(&self.buckets[bucket_of(latency_ns)], 1);
        bump(&self.sum_ns, latency_ns);
        if latency_ns > self.max_ns.load(Relaxed) {
            self.max_ns.store(latency_ns, Relaxed);
        }
    }

    /// What was counted so far.
    pub fn look(&self) -> Histogram {
        let get = |word: &AtomicU64| word.load(Relaxed);
        let words = self.buckets.iter().map(get);
        Histogram::from_words(words, get(&self.sum_ns), get(&self.max_ns))
    }
}

/// How long requests took: counts in buckets that are an eighth of a doubling wide, from 64 ns to
/// 137 s, so that a latency told is within 6.25 % of the true one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(from = "Told", into = "Told"))]
pub struct Histogram {
    /// Empty or [`BUCKETS`] long.
    counts: Vec<u64>,
    sum_ns: Ns,
    max_ns: Ns,
}

impl Histogram {
    /// From words that anybody may have written.
    pub(crate) fn from_words(words: impl Iterator<Item = u64>, sum_ns: Ns, max_ns: Ns) -> Self {
        let counts: Vec<u64> = words.chain(std::iter::repeat(0)).take(BUCKETS).collect();
        match counts.iter().any(|count| *count > 0) {
            true => Histogram { counts, sum_ns, max_ns },
            false => Histogram::default(),
        }
    }

    /// Its buckets as words; none when nothing was counted.
    pub(crate) fn words(&self) -> &[u64] {
        &self.counts
    }

    /// Adds one latency.
    pub fn note(&mut self, latency_ns: Ns) {
        self.note_many(latency_ns, 1);
    }

    fn note_many(&mut self, latency_ns: Ns, times: u64) {
        if times == 0 {
            return;
        }
        self.counts.resize(BUCKETS, 0);
        let count = &mut self.counts[bucket_of(latency_ns)];
        *count = count.saturating_add(times);
        self.sum_ns = self.sum_ns.saturating_add(latency_ns.saturating_mul(times));
        self.max_ns = self.max_ns.max(latency_ns);
    }

    /// Adds all that another holds.
    pub fn merge(&mut self, other: &Histogram) {
        self.merge_weighted(other, 1.0);
    }

    /// Adds all that another holds, each latency as often as `weight` says.
    pub(crate) fn merge_weighted(&mut self, other: &Histogram, weight: f64) {
        if other.counts.is_empty() {
            return;
        }
        let times = |count: u64| if weight == 1.0 { count } else { (count as f64 * weight) as u64 };
        self.counts.resize(BUCKETS, 0);
        for (sum, count) in self.counts.iter_mut().zip(&other.counts) {
            *sum = sum.saturating_add(times(*count));
        }
        self.sum_ns = self.sum_ns.saturating_add(times(other.sum_ns));
        self.max_ns = self.max_ns.max(other.max_ns);
    }

    /// What was added since `earlier`. The longest latency remains that of all time.
    #[must_use]
    pub fn since(&self, earlier: &Histogram) -> Histogram {
        let then = earlier.counts.iter().copied().chain(std::iter::repeat(0));
        let counts = self.counts.iter().zip(then).map(|(now, then)| now.saturating_sub(then));
        Histogram::from_words(counts, self.sum_ns.saturating_sub(earlier.sum_ns), self.max_ns)
    }

    /// How many latencies it holds.
    pub fn count(&self) -> u64 {
        self.counts.iter().fold(0, |sum: u64, count| sum.saturating_add(*count))
    }

    /// Their sum, in nanoseconds.
    pub fn sum_ns(&self) -> Ns {
        self.sum_ns
    }

    /// The longest, in nanoseconds; 0 when there is none.
    pub fn max_ns(&self) -> Ns {
        self.max_ns
    }

    /// Their mean, in nanoseconds; 0 when there is none.
    pub fn mean_ns(&self) -> Ns {
        self.sum_ns.checked_div(self.count()).unwrap_or(0)
    }

    /// The latency that a share of the requests, 0–1, did not exceed, in nanoseconds; 0 when there
    /// is none.
    pub fn percentile(&self, share: f64) -> Ns {
        self.at_rank((share.clamp(0.0, 1.0) * self.count() as f64).ceil() as u64)
    }

    /// The latency in this place when they are in order, counted from 1.
    pub(crate) fn at_rank(&self, rank: u64) -> Ns {
        let told_ns = at_rank(self.counts.iter().copied(), rank);
        told_ns.map_or(self.max_ns, |told_ns| told_ns.min(self.max_ns))
    }

    /// Pairs of a latency in nanoseconds and how many requests took no longer, one for each
    /// doubling that is not empty.
    pub fn cumulated(&self) -> Vec<(Ns, u64)> {
        let mut seen = 0u64;
        let mut pairs: Vec<(Ns, u64)> = Vec::new();
        for (bucket, count) in self.counts.iter().enumerate().take(BUCKETS - 1) {
            seen = seen.saturating_add(*count);
            let ends_ns = lowest_of(bucket + 1);
            if ends_ns.is_power_of_two() {
                pairs.push((ends_ns, seen));
            }
        }
        pairs
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn buckets_follow_one_another_without_a_gap() {
        assert_eq!(bucket_of(0), 0);
        assert_eq!(bucket_of(Ns::MAX), BUCKETS - 1);
        for bucket in 1..BUCKETS - 1 {
            assert_eq!(bucket_of(lowest_of(bucket)), bucket);
            assert_eq!(bucket_of(lowest_of(bucket) - 1), bucket - 1);
        }
    }

    proptest! {
        #[test]
        fn a_latency_is_told_within_seven_percent(latency_ns in 100u64..100_000_000_000) {
            let told_ns = middle_of(bucket_of(latency_ns));
            prop_assert!(told_ns.abs_diff(latency_ns) as f64 <= 0.07 * latency_ns as f64);
        }

        #[test]
        fn percentiles_are_those_of_the_sorted_latencies(
            mut latencies in proptest::collection::vec(100u64..10_000_000, 1..200),
            share in 0.0f64..1.0,
        ) {
            let counted = Counted::default();
            latencies.iter().for_each(|ns| counted.note(*ns));
            latencies.sort_unstable();
            let rank = ((share * latencies.len() as f64).ceil() as usize).max(1);
            let (told_ns, true_ns) = (counted.look().percentile(share), latencies[rank - 1]);
            prop_assert!(told_ns.abs_diff(true_ns) as f64 <= 0.07 * true_ns as f64);
        }

        #[test]
        fn a_written_page_is_read_again(latencies in proptest::collection::vec(any::<u32>(), 0..50)) {
            let mut histogram = Histogram::default();
            latencies.iter().for_each(|ns| histogram.note((*ns).into()));
            let text = serde_json::to_string(&histogram).unwrap();
            prop_assert_eq!(serde_json::from_str::<Histogram>(&text).unwrap(), histogram);
        }
    }

    #[test]
    fn a_difference_and_a_sum_undo_each_other() {
        let (mut first, mut both) = (Histogram::default(), Histogram::default());
        first.note(700);
        both.merge(&first);
        both.note(9_000);
        assert!(both.since(&first).percentile(1.0).abs_diff(9_000) < 630);
        assert_eq!(both.since(&both), Histogram::default());
        assert_eq!((both.count(), both.max_ns(), both.sum_ns()), (2, 9_000, 9_700));
        assert_eq!(both.mean_ns(), 4_850);
        let cumulated = both.cumulated();
        assert!(cumulated.contains(&(512, 0)) && cumulated.contains(&(1024, 1)));
        assert_eq!(cumulated.last().unwrap().1, 2);
    }

    #[test]
    fn nothing_counted_is_nothing_told() {
        let none = Histogram::default();
        assert_eq!((none.percentile(0.99), none.mean_ns(), none.max_ns()), (0, 0, 0));
        assert!(none.cumulated().is_empty());
        assert_eq!(Counted::default().look(), none);
    }
}
