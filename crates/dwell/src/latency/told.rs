// SPDX-License-Identifier: MIT OR Apache-2.0
//! A histogram as it is written.

use dwell_policy::Ns;
use serde::{Deserialize, Serialize};

use super::{Histogram, lowest_of};

/// How a histogram is written: what people read, and the buckets that it is made from again.
#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Told {
    count: u64,
    p50_ns: Ns,
    p90_ns: Ns,
    p99_ns: Ns,
    p99_9_ns: Ns,
    max_ns: Ns,
    sum_ns: Ns,
    /// Pairs of a bucket's lowest latency and its count.
    buckets: Vec<(Ns, u64)>,
}

impl From<Histogram> for Told {
    fn from(of: Histogram) -> Told {
        let counts = of.counts.iter().enumerate();
        let filled = counts.filter(|(_, count)| **count > 0);
        Told {
            count: of.count(),
            p50_ns: of.percentile(0.5),
            p90_ns: of.percentile(0.9),
            p99_ns: of.percentile(0.99),
            p99_9_ns: of.percentile(0.999),
            max_ns: of.max_ns,
            sum_ns: of.sum_ns,
            buckets: filled.map(|(bucket, count)| (lowest_of(bucket), *count)).collect(),
        }
    }
}

impl From<Told> for Histogram {
    fn from(told: Told) -> Histogram {
        let mut histogram = Histogram::default();
        for (lowest_ns, count) in told.buckets {
            histogram.note_many(lowest_ns, count);
        }
        if histogram.counts.is_empty() {
            return histogram;
        }
        Histogram { sum_ns: told.sum_ns, max_ns: told.max_ns, ..histogram }
    }
}
