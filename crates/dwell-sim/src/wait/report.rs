// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one policy made of a scenario.

use std::collections::BTreeMap;

use dwell_policy::Ns;
use serde::{Deserialize, Serialize};

/// What came of a scenario under one policy.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct WaitReport {
    /// The policy.
    pub policy: String,
    /// Virtual time.
    pub elapsed_ns: Ns,
    /// Requests that ended.
    pub requests: u64,
    /// Mean latency, as the thread sees it.
    pub mean_ns: f64,
    /// Median latency, within 3 %.
    pub p50_ns: Ns,
    /// Latency of 99 in 100, within 3 %.
    pub p99_ns: Ns,
    /// Requests by reason of the decision.
    pub reasons: BTreeMap<String, u64>,
    /// Requests whose thread blocked.
    pub left_cpu: u64,
    /// Spins that passed their deadline.
    pub expired: u64,
    /// Where the time of all CPUs went.
    pub cpu: CpuTime,
    /// Switches between threads.
    pub switches: u64,
}

/// Where the time of all CPUs went; the parts add up to the CPUs' time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CpuTime {
    /// Threads: thinking, submitting, and serving what the caller serves.
    pub work_ns: Ns,
    /// Threads: busy-waiting.
    pub spin_ns: Ns,
    /// Kernel workers.
    pub worker_ns: Ns,
    /// Processes of others.
    pub stressors_ns: Ns,
    /// Switches.
    pub switch_ns: Ns,
    /// Nobody.
    pub idle_ns: Ns,
}

impl CpuTime {
    /// All of it.
    pub const fn total_ns(&self) -> Ns {
        self.work_ns
            + self.spin_ns
            + self.worker_ns
            + self.stressors_ns
            + self.switch_ns
            + self.idle_ns
    }
}

impl WaitReport {
    /// Requests per second.
    pub fn per_second(&self) -> f64 {
        self.requests as f64 / self.elapsed_ns.max(1) as f64 * 1e9
    }

    /// CPU time of the threads per request, in nanoseconds.
    pub fn cpu_ns_per_request(&self) -> f64 {
        (self.cpu.work_ns + self.cpu.spin_ns) as f64 / self.requests.max(1) as f64
    }
}

/// Latencies in buckets of 1/32.
#[derive(Default)]
pub(super) struct Latencies {
    buckets: Vec<u64>,
    sum: u128,
    count: u64,
}

impl Latencies {
    pub fn add(&mut self, ns: Ns) {
        let bucket = match ns {
            0..32 => ns as usize,
            _ => {
                let shift = 58 - ns.leading_zeros();
                32 * shift as usize + (ns >> shift) as usize
            }
        };
        if self.buckets.len() <= bucket {
            self.buckets.resize(bucket + 1, 0);
        }
        self.buckets[bucket] += 1;
        self.sum += u128::from(ns);
        self.count += 1;
    }

    pub fn mean_ns(&self) -> f64 {
        self.sum as f64 / self.count.max(1) as f64
    }

    /// The upper end of the bucket in which this share is reached.
    pub fn at(&self, share: f64) -> Ns {
        let wanted = (self.count as f64 * share).ceil() as u64;
        let mut seen = 0;
        for (bucket, count) in self.buckets.iter().enumerate() {
            seen += count;
            if *count > 0 && seen >= wanted {
                return match bucket {
                    0..64 => bucket as Ns,
                    _ => {
                        let shift = bucket / 32 - 1;
                        ((bucket as Ns % 32 + 33) << shift) - 1
                    }
                };
            }
        }
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_within_a_bucket() {
        let mut latencies = Latencies::default();
        (1..=10_000).for_each(|ns| latencies.add(ns * 7));
        assert!((latencies.mean_ns() - 35_003.5).abs() < 1e-6);
        for (share, exact) in [(0.5, 35_000.0), (0.99, 69_300.0), (1.0, 70_000.0)] {
            let found = latencies.at(share) as f64;
            assert!((exact..exact * 1.04).contains(&found), "{share}: {found}");
        }
        let mut small = Latencies::default();
        [0, 31, 32, 63, 64, 65].into_iter().for_each(|ns| small.add(ns));
        assert_eq!((small.at(0.1), small.at(0.5), small.at(0.6), small.at(1.0)), (0, 32, 63, 65));
        assert_eq!(Latencies::default().at(0.5), 0);
    }
}
