// SPDX-License-Identifier: MIT OR Apache-2.0
//! The requests of one batch: where the next one goes, whether there is time for it, and how long
//! those took that are done. All contenders, the peers in their own programs too, take their
//! requests from here, so that all do the same.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Result, ensure};
use dwell::buffer::Aligned;
use dwell::clock;

use crate::latency::Latencies;
use crate::result::{Direction, Pattern, Requests, RoundResult};
use crate::samples::MOST;
use crate::stats::SplitMix;
use crate::usage::{Cost, Meter, Scope};

/// Fewest requests of a batch, however short its span.
pub const LEAST: u64 = 3;

/// Requests of one kind, for a span of time.
#[derive(Clone, Debug)]
pub struct Batch {
    requests: Requests,
    size_bytes: usize,
    places: u64,
    place: u64,
    stride: u64,
    random: SplitMix,
    now_ns: u64,
    until_ns: u64,
    taken: u64,
    latencies: Latencies,
    began_ns: u64,
    samples: Option<Vec<Sample>>,
    stop: Option<Arc<AtomicBool>>,
}

/// When a request began, in nanoseconds since its batch did, and how long it took.
pub type Sample = (u64, u64);

/// A request that is to be made, or is being made.
#[derive(Clone, Copy, Debug)]
pub struct Request {
    /// Where on the subject, in bytes.
    pub offset: u64,
    /// When it was taken, by [`clock::now`]. It is read once per request: the end of one is the
    /// beginning of the one taken for it.
    pub started_ns: u64,
}

impl Batch {
    /// Requests of `size_bytes` on a subject of `subject_bytes`; `seed` decides where they go.
    pub fn new(requests: Requests, size_bytes: u64, subject_bytes: u64, seed: u64) -> Self {
        let places = (subject_bytes / size_bytes).max(1);
        Batch {
            requests,
            size_bytes: size_bytes as usize,
            places,
            place: seed % places,
            stride: 1,
            random: SplitMix(seed),
            now_ns: 0,
            until_ns: 0,
            taken: 0,
            latencies: Latencies::new(),
            began_ns: 0,
            samples: None,
            stop: None,
        }
    }

    /// Also keeps the latency of each request, up to a million, for [`Batch::samples`].
    pub fn keep_samples(&mut self) {
        // Touched once, so that the measured loop meets no page fault here.
        let mut samples = vec![(1, 1); MOST];
        samples.clear();
        self.samples = Some(samples);
    }

    /// Ends batches early once this is set, however few requests were made.
    pub fn stop_at(&mut self, stop: Arc<AtomicBool>) {
        self.stop = Some(stop);
    }

    /// Whether it was told to end.
    #[inline]
    pub fn stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Order, direction and queue depth.
    pub fn requests(&self) -> Requests {
        self.requests
    }

    /// Whether the requests are writes.
    pub fn writes(&self) -> bool {
        self.requests.direction == Direction::Write
    }

    /// Queue depth, in requests.
    pub fn depth(&self) -> usize {
        self.requests.depth as usize
    }

    /// Request size, in bytes.
    pub fn size_bytes(&self) -> usize {
        self.size_bytes
    }

    /// One buffer for each request in flight.
    pub fn buffers(&self) -> Vec<Aligned> {
        let make = |i: usize| {
            let mut buffer = Aligned::new(self.size_bytes);
            fill(&mut buffer, i as u64);
            buffer
        };
        (0..self.depth()).map(make).collect()
    }

    /// Forgets what was done and starts the clock; what it costs is counted from here on.
    pub fn begin(&mut self, span: Duration, scope: Scope) -> Meter {
        self.clear();
        let meter = Meter::start(scope);
        self.now_ns = meter.started_ns();
        self.began_ns = self.now_ns;
        self.until_ns = self.now_ns + span.as_nanos() as u64;
        meter
    }

    /// The same for one of several threads, whose batches begin and end together by [`clock::now`].
    pub fn begin_until(&mut self, began_ns: u64, until_ns: u64) -> Meter {
        let meter = self.begin(Duration::ZERO, Scope::Thread);
        (self.began_ns, self.until_ns) = (began_ns, until_ns);
        meter
    }

    fn clear(&mut self) {
        self.latencies.clear();
        if let Some(samples) = &mut self.samples {
            samples.clear();
        }
        self.taken = 0;
    }

    /// Where a request goes; not one of the batch.
    pub fn offset(&mut self) -> u64 {
        let place = match self.requests.pattern {
            Pattern::Seq => {
                self.place = (self.place + self.stride) % self.places;
                self.place
            }
            Pattern::Rand => self.random.next_u64() % self.places,
        };
        place * self.size_bytes as u64
    }

    /// A seed for somebody else's requests.
    pub fn seed(&mut self) -> u64 {
        self.random.next_u64()
    }

    /// The next request; `None` when the time is over.
    #[inline]
    pub fn take(&mut self) -> Option<Request> {
        if (self.now_ns >= self.until_ns && self.taken >= LEAST) || self.stopped() {
            return None;
        }
        self.taken += 1;
        Some(Request { offset: self.offset(), started_ns: self.now_ns })
    }

    /// A request is done and transferred `bytes`.
    ///
    /// # Errors
    /// Fewer bytes than were asked for.
    #[inline]
    pub fn done(&mut self, request: Request, bytes: usize) -> Result<()> {
        self.now_ns = clock::now();
        let (wanted, offset) = (self.size_bytes, request.offset);
        ensure!(bytes == wanted, "{bytes} of {wanted} bytes were transferred at byte {offset}");
        let ns = self.now_ns - request.started_ns;
        self.latencies.record(ns);
        if let Some(samples) = &mut self.samples
            && samples.len() < MOST
        {
            samples.push((request.started_ns - self.began_ns, ns));
        }
        Ok(())
    }

    /// One batch for each of `threads` threads: together they do what this one would. Sequential
    /// requests are dealt out in turn.
    pub fn deal(&mut self, threads: usize) -> Vec<Batch> {
        let threads = threads.max(1) as u64;
        let deal = |i| {
            let before = self.place + 1 + i + self.places - threads % self.places;
            Batch {
                place: before % self.places,
                stride: threads,
                random: SplitMix(self.seed()),
                latencies: Latencies::new(),
                ..self.clone()
            }
        };
        (0..threads).map(deal).collect()
    }

    /// What threads did with their parts, and no more.
    pub fn gather(&mut self, parts: &[Batch]) {
        self.clear();
        parts.iter().for_each(|part| self.merge(part));
    }

    fn merge(&mut self, part: &Batch) {
        self.latencies.merge(&part.latencies);
        self.taken += part.taken;
        self.place = part.place;
        if let (Some(samples), Some(more)) = (&mut self.samples, &part.samples) {
            samples.extend(more.iter().take(MOST - samples.len()));
        }
    }

    /// What was done at this cost.
    pub fn round(&self, cost: Cost) -> RoundResult {
        let latency = self.latencies.summary();
        RoundResult {
            bytes: latency.count * self.size_bytes as u64,
            requests: latency.count,
            p50_ns: latency.p50_ns,
            p99_ns: latency.p99_ns,
            p999_ns: latency.p999_ns,
            mean_ns: latency.mean_ns,
            ..cost.round()
        }
    }

    /// Each request of the batch, where that is kept.
    pub fn samples(&self) -> Option<&[Sample]> {
        self.samples.as_deref()
    }
}

/// Fills a buffer for writes with bytes that do not compress to nothing.
pub fn fill(buffer: &mut [u8], seed: u64) {
    let mut random = SplitMix(seed ^ buffer.len() as u64);
    buffer
        .chunks_exact_mut(8)
        .for_each(|word| word.copy_from_slice(&random.next_u64().to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sequential(depth: u32) -> Batch {
        let requests = Requests { pattern: Pattern::Seq, direction: Direction::Read, depth };
        Batch::new(requests, 4096, 10 * 4096 + 100, 0)
    }

    #[test]
    fn threads_together_walk_the_whole_subject() {
        for threads in [1, 2, 3, 7, 10, 16] {
            let mut whole = sequential(threads as u32);
            let mut places: Vec<u64> = Vec::new();
            let mut parts = whole.deal(threads);
            for _ in 0..20 {
                places.extend(parts.iter_mut().map(|part| part.offset() / 4096));
            }
            let expected: Vec<u64> =
                (1..=places.len() as u64).map(|i| (whole.place + i) % 10).collect();
            assert_eq!(places, expected, "{threads} threads");
        }
    }

    #[test]
    fn a_batch_without_time_still_makes_the_fewest_requests() {
        let mut batch = sequential(1);
        batch.keep_samples();
        let memory = batch.samples().map(<[_]>::as_ptr);
        batch.begin(Duration::ZERO, Scope::Thread);
        while let Some(request) = batch.take() {
            batch.done(request, 4096).unwrap();
        }
        let round = batch.round(Cost::default());
        assert_eq!((round.requests, round.bytes), (LEAST, LEAST * 4096));
        assert_eq!(batch.samples().map(|samples| samples.len() as u64), Some(LEAST));
        assert_eq!(batch.samples().map(<[_]>::as_ptr), memory, "it was not there before");
        batch.begin(Duration::ZERO, Scope::Thread);
        let request = batch.take().unwrap();
        let error = batch.done(request, 512).unwrap_err().to_string();
        assert!(error.contains("512 of 4096 bytes"), "{error}");
    }
}
