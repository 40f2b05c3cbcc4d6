// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ways to the file of a stage, and how long a request takes by each.
#![allow(unsafe_code)]

use std::fs::File as Plain;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dwell::buffer::Aligned;
use dwell::queue::{Action, Io, Queue};
use dwell::source::Source;
use dwell::{File, Options, Route, clock};
use dwell_channel::client::{self, ChannelBuffer, ChannelQueue, Served, Shape};

use super::stage::{DATA, Stage};
use dwell_bench::stats::SplitMix;

/// Requests between two readings of the clock.
const CHUNK: u32 = 256;

/// Where requests of the asynchronous interface have their bytes.
pub enum Memory {
    /// In the channel.
    Channel(ChannelBuffer),
    /// In the program.
    Own(Aligned),
}

impl Memory {
    fn start(&mut self) -> *mut u8 {
        match self {
            Memory::Channel(buffer) => buffer.as_mut_ptr(),
            Memory::Own(buffer) => buffer.as_mut_ptr(),
        }
    }
}

/// A way to the file.
pub enum Contender {
    /// System calls, one after the other.
    Kernel(Plain),
    /// Blocking calls of the library, one after the other.
    Blocking(Box<File>),
    /// The asynchronous interface, as many in flight as there are buffers.
    Many {
        /// The file.
        served: Served,
        /// Its channel.
        queue: Box<ChannelQueue>,
        /// One for each request in flight.
        buffers: Vec<Memory>,
    },
}

/// The requests that a contender makes.
#[derive(Clone, Copy)]
pub struct Job {
    /// Read or write.
    pub action: Action,
    /// Length of each request, in bytes.
    pub request_bytes: u32,
    /// Length of the file, in bytes.
    pub file_bytes: u64,
}

impl Job {
    fn next(&self, dice: &mut SplitMix) -> u64 {
        let places = (self.file_bytes / u64::from(self.request_bytes)) as usize;
        dice.below(places) as u64 * u64::from(self.request_bytes)
    }
}

/// Nanoseconds of a request.
#[derive(Clone, Copy)]
pub struct Sample {
    /// On the clock.
    pub ns: f64,
    /// Of all CPUs.
    pub cpu_ns: f64,
}

impl Contender {
    /// By system calls, through the mount or past it.
    pub fn kernel(stage: &Stage, served: bool, direct: bool) -> Result<Contender> {
        let directory = if served { stage.mount() } else { stage.backing() };
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let mut options = Plain::options();
        let file = options.read(true).write(true).custom_flags(flags).open(directory.join(DATA))?;
        Ok(Contender::Kernel(file))
    }

    /// By blocking calls through a channel.
    pub fn channel(stage: &Stage, direct: bool) -> Result<Contender> {
        client::register();
        let policy = Arc::new(dwell::policy::Spin);
        let options = dwell::Options::new().write(true).direct(direct).policy(policy);
        Ok(Contender::Blocking(Box::new(options.open(stage.mount().join(DATA))?)))
    }

    /// Many in flight through a channel. `in_channel`: buffers live there; else requests are
    /// copied.
    pub fn queue(stage: &Stage, depth: u32, bytes: u32, in_channel: bool) -> Result<Contender> {
        let served = Served::open(&stage.mount().join(DATA), &Options::new().write(true))?;
        let arena_bytes = if in_channel { depth * bytes.max(64) } else { 0 };
        let queue = served.asynchronous(Shape { depth, slot_bytes: 4096, arena_bytes })?;
        let mut buffers = Vec::new();
        for _ in 0..depth {
            buffers.push(match in_channel {
                true => Memory::Channel(queue.buffer(bytes).context("no room in the channel")?),
                false => Memory::Own(Aligned::new(bytes as usize)),
            });
        }
        Ok(Contender::Many { served, queue: Box::new(queue), buffers })
    }

    /// Requests for so long.
    pub fn round(&mut self, job: Job, span: Duration) -> Result<Sample> {
        let mut dice = SplitMix(7);
        self.chunk(job, &mut dice)?;
        let (began, cpu, mut requests) = (Instant::now(), clock::process_cpu(), 0);
        while began.elapsed() < span {
            self.chunk(job, &mut dice)?;
            requests += CHUNK;
        }
        let each = |ns: f64| ns / f64::from(requests.max(1));
        let ns = each(began.elapsed().as_nanos() as f64);
        Ok(Sample { ns, cpu_ns: each((clock::process_cpu() - cpu) as f64) })
    }

    /// One request by a blocking call.
    pub fn one(&mut self, job: Job, dice: &mut SplitMix) -> Result<()> {
        let Contender::Blocking(file) = self else { return self.chunk(job, dice) };
        let mut buffer = [0; 4096];
        let memory = &mut buffer[..job.request_bytes as usize];
        let done = match job.action {
            Action::Read => file.read_at(memory, job.next(dice))?,
            _ => file.write_at(memory, job.next(dice))?,
        };
        ensure!(done == memory.len(), "{done} bytes of {}", memory.len());
        Ok(())
    }

    fn chunk(&mut self, job: Job, dice: &mut SplitMix) -> Result<()> {
        match self {
            Contender::Kernel(file) => one_by_one(
                job,
                dice,
                |buffer, at| Ok(file.read_at(buffer, at)?),
                |buffer, at| Ok(file.write_at(buffer, at)?),
            )?,
            Contender::Blocking(file) => one_by_one(
                job,
                dice,
                |buffer, at| Ok(file.read_at(buffer, at)?),
                |buffer, at| Ok(file.write_at(buffer, at)?),
            )?,
            Contender::Many { served, queue, buffers } => {
                let (depth, whole) = (buffers.len() as u32, job.request_bytes as i32);
                let (mut sent, mut done, mut wrong) = (0, 0, 0);
                let mut free: Vec<u32> = (0..depth).collect();
                // Tickets number their places in their low bits; which buffer is there is kept
                // here.
                let mut at_place = vec![0; 4096];
                while done < CHUNK {
                    while sent < CHUNK
                        && let Some(buffer) = free.pop()
                    {
                        let memory = buffers[buffer as usize].start();
                        let (target, at) = (served.target(), job.next(dice));
                        // SAFETY: the buffer is this request's until its completion is out, and
                        // outlives it.
                        let io =
                            unsafe { Io::plain(job.action, target, memory, job.request_bytes, at) };
                        let ticket = queue.submit(io, Route::Interrupt);
                        let ticket = ticket.map_err(|_| anyhow::anyhow!("no room in the queue"))?;
                        at_place[ticket.0 as usize & 4095] = buffer;
                        sent += 1;
                    }
                    queue.flush();
                    queue.poll(&mut |completion| {
                        done += 1;
                        wrong += u32::from(completion.result != whole);
                        free.push(at_place[completion.ticket.0 as usize & 4095]);
                    });
                }
                ensure!(wrong == 0, "{wrong} requests failed");
            }
        }
        Ok(())
    }
}

/// Requests of a chunk by calls, each of which returns with the request done.
fn one_by_one(
    job: Job,
    dice: &mut SplitMix,
    read: impl Fn(&mut [u8], u64) -> Result<usize>,
    write: impl Fn(&[u8], u64) -> Result<usize>,
) -> Result<()> {
    let mut buffer = Aligned::new(job.request_bytes as usize);
    let whole = buffer.len();
    for _ in 0..CHUNK {
        let at = job.next(dice);
        let done = match job.action {
            Action::Read => read(&mut buffer, at)?,
            _ => write(&buffer, at)?,
        };
        ensure!(done == whole, "{done} bytes of {whole}");
    }
    Ok(())
}
