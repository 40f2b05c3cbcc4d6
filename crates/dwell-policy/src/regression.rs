// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether requests that are steered take longer than those that go the kernel's own way.

use crate::{BUCKETS, Kind, Ns, bucket};

/// Kinds and sizes of request that are compared with their like.
pub const CLASSES: usize = 2 * BUCKETS;

/// Compares two populations of requests, the steered and those held back, by what they took in
/// spans of time that each had for itself.
///
/// One observation is the mean of one span: requests of one span are not independent of each other.
/// Older spans count less and less.
#[derive(Clone, Debug)]
pub struct Regression {
    classes: [[Population; 2]; CLASSES],
}

/// The spans of one population.
#[derive(Clone, Copy, Debug, Default)]
struct Population {
    spans: f64,
    mean_ns: f64,
    /// Sum of the squared differences from the mean.
    squares: f64,
    requests: f64,
}

impl Population {
    /// From so many spans on, half of what is known is forgotten.
    const MOST_SPANS: f64 = 64.0;

    fn add(&mut self, requests: u64, mean_ns: f64) {
        if self.spans >= Self::MOST_SPANS {
            self.spans /= 2.0;
            self.squares /= 2.0;
            self.requests /= 2.0;
        }
        self.spans += 1.0;
        self.requests += requests as f64;
        let difference = mean_ns - self.mean_ns;
        self.mean_ns += difference / self.spans;
        self.squares += difference * (mean_ns - self.mean_ns);
    }

    /// Variance of the mean.
    fn variance(&self) -> f64 {
        self.squares / (self.spans - 1.0) / self.spans
    }
}

impl Regression {
    /// Requests of a span without which it says nothing.
    pub const LEAST_REQUESTS: u64 = 32;
    /// Spans of each population before anything is said.
    pub const LEAST_SPANS: u32 = 10;
    /// By how much steered requests must take longer, as a share.
    pub const MARGIN: f64 = 0.05;
    /// And by how many standard errors.
    pub const STANDARD_ERRORS: f64 = 5.0;

    /// Nothing compared so far.
    pub const fn new() -> Regression {
        const NONE: Population =
            Population { spans: 0.0, mean_ns: 0.0, squares: 0.0, requests: 0.0 };
        Regression { classes: [[NONE; 2]; CLASSES] }
    }

    /// The class of a request; `None` for a sync, which takes as long as the device likes.
    pub const fn class(kind: Kind, size_bytes: u64) -> Option<usize> {
        match kind {
            Kind::Read => Some(bucket(size_bytes)),
            Kind::Write => Some(BUCKETS + bucket(size_bytes)),
            Kind::Sync => None,
        }
    }

    /// Adds the requests of one class in one span, which were all steered or all held back.
    pub fn add(&mut self, steered: bool, class: usize, requests: u64, latency_ns: Ns) {
        if requests >= Self::LEAST_REQUESTS && class < CLASSES {
            let mean_ns = latency_ns as f64 / requests as f64;
            self.classes[class][usize::from(steered)].add(requests, mean_ns);
        }
    }

    /// By which share steered requests take longer than their like that were held back, if they do
    /// beyond doubt.
    pub fn excess(&self) -> Option<f64> {
        let (mut excess, mut kernels, mut variance) = (0.0, 0.0, 0.0);
        for [held, steered] in &self.classes {
            if held.spans.min(steered.spans) < f64::from(Self::LEAST_SPANS) {
                continue;
            }
            let weight = steered.requests;
            excess += weight * (steered.mean_ns - held.mean_ns);
            kernels += weight * held.mean_ns;
            variance += weight * weight * (steered.variance() + held.variance());
        }
        let doubt = Self::STANDARD_ERRORS * Self::STANDARD_ERRORS * variance;
        (excess > Self::MARGIN * kernels && excess * excess > doubt).then(|| excess / kernels)
    }
}

impl Default for Regression {
    fn default() -> Self {
        Regression::new()
    }
}
