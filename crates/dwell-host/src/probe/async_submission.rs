// SPDX-License-Identifier: MIT OR Apache-2.0
//! What requests cost under each arm when a thread keeps several of them in flight.

use std::path::Path;
use std::thread;

use dwell_policy::{Mode, Ns, Profile, Route};

use super::lane::{Random, voluntary_switches};
use super::sweep::Arm;
use crate::profile::{AsyncCost, AsyncPoint};
use dwell::buffer::Aligned;
use dwell::clock;
use dwell::error::{Error, Result};
use dwell::file::File;
use dwell::open::Options;
use dwell::ring::SpinMethod;

/// Requests in flight.
pub const DEPTH: u32 = 8;
/// Sizes measured, in bytes: up to the largest threshold that is set without being asked for.
pub const SIZES: [u64; 3] = [4 << 10, 16 << 10, 64 << 10];
/// Requests that are measured at least, however long they take.
const LEAST_REQUESTS: u32 = 2 * DEPTH;

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Interleaved rounds.
    pub rounds: usize,
    /// Time before each measurement in which it makes requests that do not count, in nanoseconds.
    pub settle_ns: Ns,
    /// Time for one arm and size in one round, in nanoseconds.
    pub batch_ns: Ns,
    /// Time for all, in nanoseconds; past it, sizes are left out.
    pub limit_ns: Ns,
}

/// The device or file measured, and how to reach it.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// A file, a device or the address of a scheme.
    pub address: &'a Path,
    /// What its policies read.
    pub profile: Profile,
    /// The best arm that spins.
    pub spin: Arm,
    /// Whether to pass over the page cache.
    pub direct: bool,
}

/// Measures blocking and spinning by turns at each size, as long as there is time.
///
/// # Errors
/// What opening or reading refuses.
pub fn measure(target: Target<'_>, effort: Effort) -> Result<Vec<AsyncPoint>> {
    let until = clock::now() + effort.limit_ns;
    let block = Arm { route: Route::Interrupt, mode: Mode::Block, method: SpinMethod::default() };
    let open = |arm: Arm| {
        let parameters = arm.parameters(target.profile);
        Options::new()
            .direct(target.direct)
            .parameters(parameters)
            .policy(arm.policy())
            .open(target.address)
    };
    let files = [open(block)?, open(target.spin)?];
    let mut points = Vec::new();
    let mut seed = 0x9e37_79b9_7f4a_7c15;
    for size_bytes in SIZES {
        let size_started = clock::now();
        let mut rounds = [Vec::new(), Vec::new()];
        for _ in 0..effort.rounds {
            for (file, costs) in files.iter().zip(&mut rounds) {
                seed = Random(seed).next();
                costs.push(round(file, size_bytes, effort, seed)?);
            }
        }
        let [block, spin] = rounds.map(best);
        points.push(AsyncPoint { size_bytes, depth: DEPTH, block, spin });
        // The next size takes at most four times as long, being four times as large.
        let now = clock::now();
        if now + 4 * (now - size_started) > until {
            break;
        }
    }
    Ok(points)
}

/// One arm and size once, on a thread of its own: the scheduler judges a thread by its past.
fn round(file: &File, size_bytes: u64, effort: Effort, seed: u64) -> Result<AsyncCost> {
    let gone = || Error::invalid(file.path(), "a measuring thread has ended; probe again");
    thread::scope(|scope| {
        scope.spawn(|| batch(file, size_bytes, effort, seed)).join().map_err(|_| gone())?
    })
}

fn batch(file: &File, size_bytes: u64, effort: Effort, seed: u64) -> Result<AsyncCost> {
    let mut random = Random(seed | 1);
    let places = (file.bytes()? / size_bytes).max(1);
    let mut pipeline = file.pipeline::<Aligned>(DEPTH)?;
    let mut submit = |pipeline: &mut dwell::pipeline::Pipeline<'_>, buffer| {
        let offset = random.next() % places * size_bytes;
        pipeline.read_at(buffer, offset).map(drop).map_err(|(error, _)| error)
    };
    for _ in 0..DEPTH {
        submit(&mut pipeline, Aligned::new(size_bytes as usize))?;
    }
    let mut serve = |span_ns: Ns, least: u32| -> Result<AsyncCost> {
        let (cpu_ns, switches, started) = (clock::thread_cpu(), voluntary_switches(), clock::now());
        let (mut requests, mut now) = (0, started);
        while now - started < span_ns || requests < least {
            let Some(done) = pipeline.next() else { break };
            done.result?;
            if let Some(buffer) = done.buffer {
                submit(&mut pipeline, buffer)?;
            }
            requests += 1;
            now = clock::now();
        }
        let each = |all: u64| all as f64 / f64::from(requests.max(1));
        Ok(AsyncCost {
            ns_per_request: each(now - started) as Ns,
            cpu_ns_per_request: each(clock::thread_cpu() - cpu_ns),
            voluntary_switches_per_request: each(voluntary_switches() - switches),
        })
    };
    serve(effort.settle_ns, 1)?;
    serve(effort.batch_ns, LEAST_REQUESTS)
}

/// The fastest round: what an arm can do. A queue that others kept from filling shows them, not the
/// arm.
fn best(rounds: Vec<AsyncCost>) -> AsyncCost {
    let fastest = rounds.into_iter().min_by_key(|cost| cost.ns_per_request);
    fastest.expect("a probe has rounds")
}
