// SPDX-License-Identifier: MIT OR Apache-2.0
//! Latencies of one measurement, in a histogram of fixed size.

use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

/// Longest latency told apart; anything above counts as this.
pub const MAX_LATENCY_NS: u64 = 100_000_000_000;

/// Latencies in nanoseconds, three significant digits, up to [`MAX_LATENCY_NS`].
///
/// Recording neither allocates nor fails, so it belongs in a measured loop.
#[derive(Clone, Debug)]
pub struct Latencies(Histogram<u64>);

impl Latencies {
    /// An empty histogram.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1, MAX_LATENCY_NS, 3);
        Latencies(histogram.expect("constant bounds are valid"))
    }

    /// Records one request that took `ns` nanoseconds.
    pub fn record(&mut self, ns: u64) {
        self.0.saturating_record(ns);
    }

    /// Adds all of `other`'s requests.
    pub fn merge(&mut self, other: &Latencies) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// Forgets everything recorded.
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Number of requests recorded.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The summary that is kept; all zero when nothing was recorded.
    pub fn summary(&self) -> LatencySummary {
        if self.0.is_empty() {
            return LatencySummary::default();
        }
        LatencySummary {
            count: self.0.len(),
            min_ns: self.0.min(),
            mean_ns: self.0.mean().round() as u64,
            p50_ns: self.0.value_at_quantile(0.5),
            p99_ns: self.0.value_at_quantile(0.99),
            p999_ns: self.0.value_at_quantile(0.999),
            max_ns: self.0.max(),
        }
    }
}

impl Default for Latencies {
    fn default() -> Self {
        Self::new()
    }
}

/// The summary of a measurement's latencies, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LatencySummary {
    /// Requests.
    pub count: u64,
    /// Shortest.
    pub min_ns: u64,
    /// Mean.
    pub mean_ns: u64,
    /// Median.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Longest.
    pub max_ns: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_within_three_digits() {
        let mut latencies = Latencies::new();
        (1..=1000).for_each(|us| latencies.record(us * 1000));
        let summary = latencies.summary();
        assert_eq!(summary.count, 1000);
        for (got, want) in [
            (summary.mean_ns, 500_500.0),
            (summary.p50_ns, 500_000.0),
            (summary.p99_ns, 990_000.0),
            (summary.p999_ns, 999_000.0),
            (summary.max_ns, 1_000_000.0),
        ] {
            assert!((got as f64 / want - 1.0).abs() < 0.001, "{got} against {want}");
        }
    }

    #[test]
    fn merging_is_recording_both() {
        let (mut one, mut two, mut both) = (Latencies::new(), Latencies::new(), Latencies::new());
        for ns in 0..500 {
            one.record(ns);
            two.record(ns * 977);
            both.record(ns);
            both.record(ns * 977);
        }
        one.merge(&two);
        assert_eq!(one.summary(), both.summary());
        one.clear();
        assert_eq!(one.summary(), LatencySummary::default());
    }

    #[test]
    fn absurd_latencies_saturate() {
        let mut latencies = Latencies::new();
        latencies.record(u64::MAX);
        assert!(latencies.summary().max_ns >= MAX_LATENCY_NS);
        assert_eq!(latencies.count(), 1);
    }
}
