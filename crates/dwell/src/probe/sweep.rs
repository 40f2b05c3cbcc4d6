// SPDX-License-Identifier: MIT OR Apache-2.0
//! Latency of each way of waiting over request sizes, in interleaved rounds.
#![allow(unsafe_code)]

use std::path::Path;
use std::sync::Arc;

use dwell_policy::{Decision, Mode, Ns, Profile, Reason, Route, Wait, WaitPolicy};

use crate::buffer::Aligned;
use crate::clock;
use crate::error::Result;
use crate::file::File;
use crate::known::Known;
use crate::open::Options;
use crate::profile::{Curve, CurvePoint};
use crate::ring::SpinMethod;

/// Request sizes of SmartCon §4.1, in bytes.
pub const SIZES: [u64; 8] =
    [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10];

/// One way of waiting that a sweep measures.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// Route.
    pub route: Route,
    /// Mode; the sleep of a hybrid is chosen by its policy.
    pub mode: Mode,
    /// Spin method.
    pub method: SpinMethod,
}

impl Way {
    /// A synchronous call.
    pub const INLINE: Way =
        Way { route: Route::Inline, mode: Mode::Block, method: SpinMethod::TaskrunFlag };

    /// Its name in profiles: route and mode.
    pub fn name(&self) -> &'static str {
        match (self.route, self.mode) {
            (Route::Inline, _) => "inline",
            (_, Mode::Hybrid { .. }) => "hybrid",
            (Route::Polled, _) => "polled-spin",
            (Route::Interrupt, Mode::Spin) => "interrupt-spin",
            (Route::Interrupt, Mode::Block) => "interrupt-block",
        }
    }
}

impl Way {
    /// A policy that always takes it.
    pub fn policy(self) -> Arc<dyn WaitPolicy> {
        Arc::new(Fixed(self))
    }
}

/// Always takes one way.
struct Fixed(Way);

impl WaitPolicy for Fixed {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn choose(&self, wait: &Wait<'_>) -> Decision {
        if let Mode::Hybrid { .. } = self.0.mode {
            return dwell_policy::policy::Hybrid.choose(wait);
        }
        let mut decision =
            Decision::new(self.0.route, self.0.mode, wait.predicted_ns(), Reason::Fixed);
        // A measurement of spinning must not turn into one of parking because of a slow device.
        decision.spin_limit_ns = Decision::MAX_SPIN_LIMIT_NS;
        decision
    }
}

/// How long and how often to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Interleaved rounds.
    pub rounds: usize,
    /// Time for one way and size in one round, in nanoseconds.
    pub batch_ns: Ns,
}

/// Everything one way and size took in one round.
#[derive(Clone, Debug, Default)]
struct Batch {
    latencies_ns: Vec<Ns>,
    switches: u64,
    cpu_ns: Ns,
}

/// Voluntary context switches of the calling thread so far.
pub fn voluntary_switches() -> u64 {
    // SAFETY: a zeroed rusage is a valid buffer.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a live buffer; RUSAGE_THREAD exists since Linux 2.6.26.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_nvcsw as u64
}

/// The file or device under test, opened once per way.
pub struct Bench {
    ways: Vec<(Way, File)>,
    bytes: u64,
    random: u64,
}

impl Bench {
    /// Opens `address` once for each way.
    ///
    /// # Errors
    /// What opening refuses.
    pub fn open(address: &Path, ways: &[Way], profile: Profile, direct: bool) -> Result<Bench> {
        let open = |way: &Way| {
            let known = Known {
                profile: Some(profile),
                method: way.method,
                polled: way.route == Route::Polled,
                ..Known::default()
            };
            let options = Options::new().direct(direct).known(known).policy(way.policy());
            Ok((*way, options.open(address)?))
        };
        let ways = ways.iter().map(open).collect::<Result<Vec<_>>>()?;
        let bytes = ways.first().map_or(Ok(0), |(_, file)| file.bytes())?;
        Ok(Bench { ways, bytes, random: 0x2545_f491_4f6c_dd1d })
    }

    /// Length of what is measured, in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn offset(&mut self, size_bytes: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % (self.bytes / size_bytes).max(1) * size_bytes
    }

    fn batch(&mut self, way: usize, buffer: &mut [u8], batch_ns: Ns) -> Result<Batch> {
        let size_bytes = buffer.len() as u64;
        let mut batch = Batch::default();
        let (switches, cpu_ns, started) = (voluntary_switches(), clock::thread_cpu(), clock::now());
        let mut now = started;
        while now - started < batch_ns || batch.latencies_ns.len() < 5 {
            let offset = self.offset(size_bytes);
            self.ways[way].1.read_exact_at(buffer, offset)?;
            let then = std::mem::replace(&mut now, clock::now());
            batch.latencies_ns.push(now - then);
        }
        batch.switches = voluntary_switches() - switches;
        batch.cpu_ns = clock::thread_cpu() - cpu_ns;
        Ok(batch)
    }

    /// One request of each way, unmeasured: rings are made, files are touched.
    ///
    /// # Errors
    /// What reading refuses.
    pub fn warm_up(&mut self) -> Result<()> {
        let mut buffer = Aligned::new(SIZES[0] as usize);
        for way in 0..self.ways.len() {
            self.batch(way, &mut buffer, 2_000_000)?;
        }
        Ok(())
    }

    /// Measures every way at every size that fits, rounds interleaved; `progress` hears the share
    /// that is done, 0–1.
    ///
    /// # Errors
    /// What reading refuses.
    pub fn sweep(
        &mut self,
        sizes: &[u64],
        effort: Effort,
        progress: &mut dyn FnMut(f64),
    ) -> Result<Vec<Curve>> {
        let sizes: Vec<u64> = sizes.iter().copied().filter(|&size| size <= self.bytes).collect();
        let cells = self.ways.len() * sizes.len();
        let mut batches = vec![Vec::with_capacity(effort.rounds); cells];
        let mut done = 0;
        for _ in 0..effort.rounds {
            for (row, &size) in sizes.iter().enumerate() {
                let mut buffer = Aligned::new(size as usize);
                for way in 0..self.ways.len() {
                    let batch = self.batch(way, &mut buffer, effort.batch_ns)?;
                    batches[way * sizes.len() + row].push(batch);
                    done += 1;
                    progress(done as f64 / (cells * effort.rounds) as f64);
                }
            }
        }
        let curve = |(at, (way, _)): (usize, &(Way, File))| Curve {
            mode: way.name().to_owned(),
            points: sizes
                .iter()
                .enumerate()
                .map(|(row, &size)| point(size, &batches[at * sizes.len() + row]))
                .collect(),
        };
        Ok(self.ways.iter().enumerate().map(curve).collect())
    }
}

/// Joins the rounds of one way and size. The median is the median of the rounds' medians, so that
/// one disturbed round does not count.
fn point(size_bytes: u64, rounds: &[Batch]) -> CurvePoint {
    let mut all: Vec<Ns> = rounds.iter().flat_map(|batch| &batch.latencies_ns).copied().collect();
    all.sort_unstable();
    let mut medians: Vec<Ns> = rounds.iter().map(|batch| median(&batch.latencies_ns)).collect();
    medians.sort_unstable();
    let requests = all.len().max(1) as f64;
    CurvePoint {
        size_bytes,
        median_ns: medians[medians.len() / 2],
        p10_ns: all[all.len() / 10],
        p90_ns: all[all.len() * 9 / 10],
        voluntary_switches_per_request: rounds.iter().map(|b| b.switches).sum::<u64>() as f64
            / requests,
        cpu_ns_per_request: rounds.iter().map(|b| b.cpu_ns).sum::<Ns>() as f64 / requests,
    }
}

fn median(values: &[Ns]) -> Ns {
    let mut sorted = values.to_vec();
    sorted.sort_unstable();
    sorted[sorted.len() / 2]
}
