// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the inline route costs on top of the system call: a source that does nothing, read through
//! a `File` on a very fast device. The decision is cached and one request in 64 is timed.
//!
//! `cargo run --release -p dwell --example inline_cost`

use std::hint::black_box;
use std::io;
use std::sync::Arc;

use dwell::parameters::DeviceParameters;
use dwell::queue::{Completion, Full, Io, Queue, Ticket, Wake};
use dwell::source::Source;
use dwell::{DeviceClass, File, Route, clock, policy::SmartCon};
use dwell_policy::{Backlog, Profile, Routes};

/// Serves every request at once, by doing nothing.
struct Nothing;

impl Source for Nothing {
    type Queue = Never;
    fn queue(&self, _: u32) -> io::Result<Never> {
        Ok(Never)
    }
    fn routes(&self) -> Routes {
        Routes::INLINE
    }
    fn call(&self, io: &Io) -> i32 {
        io.bytes() as i32
    }
    fn target(&self) -> i32 {
        0
    }
    fn bytes(&self) -> io::Result<u64> {
        Ok(1 << 30)
    }
}

struct Never;

// SAFETY: it takes no request.
unsafe impl Queue for Never {
    type Op = Io;
    fn submit(&mut self, io: Io, _: Route) -> Result<Ticket, (Full, Io)> {
        Err((Full, io))
    }
    fn flush(&mut self) {}
    fn poll(&mut self, _: &mut dyn FnMut(Completion)) -> usize {
        0
    }
    fn arm(&mut self, _: u32) -> Wake<'_> {
        Wake::Never
    }
    fn cancel(&mut self, _: Ticket) {}
    fn backlog(&self) -> Backlog {
        Backlog::default()
    }
}

fn main() {
    const BATCH: u64 = 10_000;
    let profile = Profile { class: DeviceClass::VeryFast, ..Profile::default() };
    let parameters = DeviceParameters { profile: Some(profile), ..DeviceParameters::default() };
    let file =
        File::over(Nothing, "nothing", "nothing", parameters, Arc::new(SmartCon::default()), None);
    let mut buffer = [0u8; 4096];
    let mut batches: Vec<u64> = (0..201)
        .map(|_| {
            let started = clock::now();
            for at in 0..BATCH {
                let done = file.read_at(black_box(&mut buffer), black_box(at * 4096));
                assert!(done.is_ok());
            }
            clock::now() - started
        })
        .collect();
    batches.sort_unstable();
    let per_request = |at: usize| batches[at] as f64 / BATCH as f64;
    println!(
        "inline route, decision and sampled timing: {:.1} ns a request (median of {} batches; fastest {:.1})",
        per_request(batches.len() / 2),
        batches.len(),
        per_request(0),
    );
}
