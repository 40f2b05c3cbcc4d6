// SPDX-License-Identifier: MIT OR Apache-2.0
//! The thread of one arm through a sweep: the scheduler judges a thread by its past.

#![allow(unsafe_code)]

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

use dwell_policy::{Kind, Ns};

use super::switch::{allowed_cpus, pin};
use super::turn::SETTLED;
use dwell::buffer::Aligned;
use dwell::clock;
use dwell::error::{Error, Result};
use dwell::file::File;

/// Requests to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Size of each, in bytes.
    pub size_bytes: u64,
    /// For so long, in nanoseconds.
    pub span_ns: Ns,
    /// So many at least.
    pub least: usize,
    /// On this CPU; `None` where the thread may choose.
    pub cpu: Option<usize>,
}

/// Everything that one batch of requests took.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// Which part of its arm's turn it was.
    pub part: usize,
    /// Latency of each request, in nanoseconds.
    pub latencies_ns: Vec<Ns>,
    /// Voluntary context switches.
    pub switches: u64,
    /// CPU time of the thread, in nanoseconds.
    pub cpu_ns: Ns,
}

/// How many circumstances a turn has at most: settled, after a spin on its CPU, and on another.
pub const CIRCUMSTANCES: usize = 3;

impl Batch {
    /// Whether its arm had settled by itself.
    pub fn is_settled(&self) -> bool {
        self.circumstance() == 0
    }

    /// In which circumstances it was measured, counted from 0 in the order of the turn.
    pub fn circumstance(&self) -> usize {
        (self.part + 1).saturating_sub(SETTLED[0].places.len())
    }

    /// Median latency, in nanoseconds.
    pub fn median(&self) -> Ns {
        let mut sorted = self.latencies_ns.clone();
        sorted.sort_unstable();
        sorted[sorted.len() / 2]
    }

    /// Mean latency, in nanoseconds.
    pub fn mean(&self) -> Ns {
        self.latencies_ns.iter().sum::<Ns>() / self.latencies_ns.len().max(1) as Ns
    }
}

/// The thread, and how to speak to it.
pub struct Lane {
    asks: Sender<Ask>,
    replies: Receiver<Result<Batch>>,
    path: PathBuf,
}

impl Lane {
    /// Starts a thread that makes requests to the first `bytes` of `file`.
    pub fn start<'scope>(
        scope: &'scope thread::Scope<'scope, '_>,
        file: &'scope File,
        kind: Kind,
        bytes: u64,
        seed: u64,
    ) -> Self {
        let (asks, asked) = channel::<Ask>();
        let (reply, replies) = channel();
        scope.spawn(move || {
            let mut random = Random(seed);
            let mut buffer = Aligned::new(0);
            let (all, mut place) = (allowed_cpus(), None);
            for ask in asked {
                if buffer.len() as u64 != ask.size_bytes {
                    buffer = Aligned::new(ask.size_bytes as usize);
                    random.fill(&mut buffer);
                }
                if place != ask.cpu {
                    place = ask.cpu;
                    pin(place.as_ref().map_or(&all[..], std::slice::from_ref));
                }
                let done = batch(file, kind, bytes, &mut random, &mut buffer, ask);
                if reply.send(done).is_err() {
                    break;
                }
            }
        });
        Lane { asks, replies, path: file.path().to_owned() }
    }

    /// Has the thread make requests.
    ///
    /// # Errors
    /// What reading or writing refuses; a thread that has ended.
    pub fn batch(&self, ask: Ask) -> Result<Batch> {
        let gone = || Error::invalid(&self.path, "a measuring thread has ended; probe again");
        self.asks.send(ask).map_err(|_| gone())?;
        self.replies.recv().map_err(|_| gone())?
    }
}

/// Requests at random places of the first `bytes`.
fn batch(
    file: &File,
    kind: Kind,
    bytes: u64,
    random: &mut Random,
    buffer: &mut [u8],
    ask: Ask,
) -> Result<Batch> {
    let Ask { size_bytes, span_ns, least, .. } = ask;
    let places = (bytes / size_bytes).max(1);
    let mut batch = Batch::default();
    let (switches, cpu_ns, started) = (voluntary_switches(), clock::thread_cpu(), clock::now());
    let mut now = started;
    while now - started < span_ns || batch.latencies_ns.len() < least {
        let offset = random.next() % places * size_bytes;
        match kind {
            Kind::Read => file.read_exact_at(buffer, offset)?,
            Kind::Write | Kind::Sync => file.write_all_at(buffer, offset)?,
        }
        let then = std::mem::replace(&mut now, clock::now());
        batch.latencies_ns.push(now - then);
    }
    batch.switches = voluntary_switches() - switches;
    batch.cpu_ns = clock::thread_cpu() - cpu_ns;
    Ok(batch)
}

/// Voluntary context switches of the calling thread so far.
pub fn voluntary_switches() -> u64 {
    // SAFETY: a zeroed rusage is a valid buffer.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: a live buffer; RUSAGE_THREAD exists since Linux 2.6.26.
    unsafe { libc::getrusage(libc::RUSAGE_THREAD, &mut usage) };
    usage.ru_nvcsw as u64
}

/// Numbers that look random and are the same in every run (xorshift).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Data that no layer below can compress or leave out.
    pub(super) fn fill(&mut self, buffer: &mut [u8]) {
        for word in buffer.chunks_mut(8) {
            word.copy_from_slice(&self.next().to_ne_bytes()[..word.len()]);
        }
    }
}
