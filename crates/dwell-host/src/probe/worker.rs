// SPDX-License-Identifier: MIT OR Apache-2.0
//! CPU time that kernel workers spend on our requests: our own I/O, not a competitor's.

use std::path::Path;

use dwell_policy::{Mode, Ns, Profile, Route};

use crate::probe::sweep::Arm;
use dwell::buffer::Aligned;
use dwell::clock;
use dwell::error::Result;
use dwell::file::File;
use dwell::monitor;
use dwell::open::Options;
use dwell::parameters::DeviceParameters;
use dwell::ring::SpinMethod;

/// Workers' CPU time: for a 4 KiB request, and per byte beyond.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// For a 4 KiB request, in nanoseconds.
    pub ns_per_request: Ns,
    /// Per byte beyond 4 KiB, in picoseconds.
    pub ps_per_byte: u64,
}

/// Time to measure at each of two sizes: long against the 10 ms steps of the kernel's accounting.
pub const SPAN_NS: Ns = 600_000_000;
const SIZES: [u64; 2] = [4 << 10, 64 << 10];

/// Spins for requests of two sizes, and takes what all CPUs did meanwhile, less what this thread
/// and an idle machine did; each for `span_ns`, of which [`SPAN_NS`] is enough.
pub fn cost(address: &Path, profile: Profile, method: SpinMethod, span_ns: Ns) -> Result<Cost> {
    let arm = Arm { route: Route::Interrupt, mode: Mode::Spin, method };
    let parameters =
        DeviceParameters { profile: Some(profile), method, ..DeviceParameters::default() };
    let file =
        Options::new().direct(true).parameters(parameters).policy(arm.policy()).open(address)?;
    let idle = {
        let (busy, started) = (monitor::busy_ns().unwrap_or(0), clock::now());
        clock::sleep_until(started + span_ns / 2);
        (monitor::busy_ns().unwrap_or(0) - busy) as f64 / (clock::now() - started) as f64
    };
    let [small_ns, large_ns] = [
        per_request(&file, SIZES[0], idle, span_ns)?,
        per_request(&file, SIZES[1], idle, span_ns)?,
    ];
    let rise_ns = (large_ns - small_ns).max(0.0);
    Ok(Cost {
        ns_per_request: small_ns as Ns,
        ps_per_byte: (rise_ns * 1000.0 / (SIZES[1] - SIZES[0]) as f64) as u64,
    })
}

fn per_request(file: &File, size_bytes: u64, idle: f64, span_ns: Ns) -> Result<f64> {
    let mut buffer = Aligned::new(size_bytes as usize);
    let blocks = (file.bytes()? / size_bytes).max(1);
    let (busy, own, started) = (monitor::busy_ns().unwrap_or(0), clock::thread_cpu(), clock::now());
    let mut requests = 0u64;
    while clock::now() - started < span_ns {
        file.read_exact_at(&mut buffer, requests % blocks * size_bytes)?;
        requests += 1;
    }
    let took_ns = (clock::now() - started) as f64;
    let busy_ns = (monitor::busy_ns().unwrap_or(0) - busy) as f64;
    let own_ns = (clock::thread_cpu() - own) as f64;
    Ok((busy_ns - own_ns - idle * took_ns).max(0.0) / requests as f64)
}
