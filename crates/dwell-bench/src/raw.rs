// SPDX-License-Identifier: MIT OR Apache-2.0
//! Storage read by hand, as an engineer would who knows the interface: the baseline for "how fast
//! can it be without a runtime". Blocking calls in threads, and rings waited on in five ways.
//!
//! Neither files nor buffers are registered with a ring: no runtime here does that by default, nor
//! does fio.

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::{OnceLock, RwLock};
use std::thread::{self, ScopedJoinHandle, ThreadId};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use dwell::buffer::Aligned;
use dwell::clock;
use io_uring::{IoUring, opcode, types};

use crate::batch::{Batch, Request};
use crate::result::{Direction, RoundResult};
use crate::usage::{Cost, Scope};

/// Names of the hand-written loops: a blocking call, and the rings.
pub const NAMES: [&str; 6] =
    ["pread", "raw-wait", "raw-cq-peek", "raw-get-events", "raw-taskrun-flag", "raw-iopoll"];

/// How a loop is set up, in words; empty for a name that is none.
pub fn settings(name: &str) -> Vec<String> {
    let ring = |flags: &str, waiting: &str| {
        let shared =
            "one submission for all requests that are due; file and buffers not registered";
        vec![flags.into(), waiting.into(), shared.into()]
    };
    match name {
        "pread" => vec!["one thread for each request in flight, each in blocking calls".into()],
        "raw-wait" => ring(
            "SINGLE_ISSUER, DEFER_TASKRUN",
            "submits and sleeps until a completion, in one call",
        ),
        "raw-cq-peek" => ring("no flags", "reads the completion queue in a loop"),
        "raw-get-events" => {
            ring("SINGLE_ISSUER, DEFER_TASKRUN", "enters the kernel for completions in a loop")
        }
        "raw-taskrun-flag" => ring(
            "SINGLE_ISSUER, DEFER_TASKRUN, TASKRUN_FLAG",
            "reads the flag in a loop and enters the kernel once it is set",
        ),
        "raw-iopoll" => ring("SINGLE_ISSUER, IOPOLL", "the kernel polls the device in the call"),
        _ => Vec::new(),
    }
}

/// Blocking calls.
pub struct Blocking(pub(crate) File);

impl Blocking {
    /// One request.
    #[inline]
    pub fn request(&self, direction: Direction, buffer: &mut [u8], offset: u64) -> io::Result<()> {
        match direction {
            Direction::Read => self.0.read_exact_at(buffer, offset),
            Direction::Write => self.0.write_all_at(buffer, offset),
        }
    }

    /// A batch in as many threads as requests are in flight; a single one is the caller itself.
    pub fn serve(
        &self,
        batch: &mut Batch,
        buffers: &mut [Aligned],
        span: Duration,
    ) -> Result<RoundResult> {
        if let [buffer] = buffers {
            let meter = batch.begin(span, Scope::Thread);
            self.until_the_end(batch, buffer)?;
            return Ok(batch.round(meter.stop()));
        }
        // Shut until all threads are there; told whether they are.
        let gate = RwLock::new(false);
        let mut shut = gate.write().expect("nobody panicked yet");
        let started_ns = OnceLock::new();
        let mut parts = batch.deal(buffers.len());
        let thread = |part: &mut Batch, buffer: &mut Aligned| {
            if !gate.read().is_ok_and(|all_there| *all_there) {
                return Ok(Cost::default());
            }
            let started_ns = *started_ns.get_or_init(clock::now);
            let meter = part.begin_until(started_ns, started_ns + span.as_nanos() as u64);
            self.until_the_end(part, buffer)?;
            let cost = meter.stop();
            Ok(Cost { wall_ns: clock::now() - started_ns, ..cost })
        };
        let costs = std::thread::scope(|scope| {
            let thread = &thread;
            let spawn = |(part, buffer)| {
                std::thread::Builder::new().spawn_scoped(scope, move || thread(part, buffer))
            };
            let running: io::Result<Vec<_>> = parts.iter_mut().zip(buffers).map(spawn).collect();
            *shut = running.is_ok();
            drop(shut);
            let join = |thread: ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked")))
            };
            let running = running.context("starting a thread for each request in flight")?;
            running.into_iter().map(join).collect::<Result<Vec<Cost>>>()
        });
        batch.gather(&parts);
        let cost = costs?.into_iter().fold(Cost::default(), Cost::beside);
        Ok(batch.round(cost))
    }

    fn until_the_end(&self, batch: &mut Batch, buffer: &mut Aligned) -> Result<()> {
        let direction = batch.requests().direction;
        while let Some(request) = batch.take() {
            self.request(direction, buffer, request.offset)
                .with_context(|| format!("{direction} at byte {}", request.offset))?;
            batch.done(request, buffer.len())?;
        }
        Ok(())
    }
}

/// How a ring is waited on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Waiting {
    Sleep,
    CqPeek,
    GetEvents,
    TaskrunFlag,
    Iopoll,
}

/// A ring of its own.
pub struct RawRing {
    ring: IoUring,
    owner: ThreadId,
    entries: u32,
    waiting: Waiting,
    name: String,
    file: File,
}

const GETEVENTS: u32 = 1;
/// What a submission may fail with and succeed if tried again.
const PASSING: [ErrorKind; 3] =
    [ErrorKind::Interrupted, ErrorKind::WouldBlock, ErrorKind::ResourceBusy];

impl RawRing {
    /// A ring of this name over a file.
    ///
    /// # Errors
    /// A name that is not of a ring, what the kernel refuses, and a device that cannot be polled
    /// under `raw-iopoll`, which is asked for a first `block_bytes`.
    pub fn new(name: &str, file: File, block_bytes: u64) -> Result<Self> {
        let waiting = match name {
            "raw-wait" => Waiting::Sleep,
            "raw-cq-peek" => Waiting::CqPeek,
            "raw-get-events" => Waiting::GetEvents,
            "raw-taskrun-flag" => Waiting::TaskrunFlag,
            "raw-iopoll" => Waiting::Iopoll,
            _ => bail!("{name} is not a hand-written ring; there are {}", NAMES[1..].join(", ")),
        };
        let entries = 8;
        let ring = set_up(waiting, entries).with_context(|| format!("a ring for {name}"))?;
        let (name, owner) = (name.into(), thread::current().id());
        let mut raw = RawRing { ring, owner, entries, waiting, name, file };
        if waiting == Waiting::Iopoll {
            let mut buffer = Aligned::new(block_bytes as usize);
            raw.request(Direction::Read, &mut buffer, 0).context(
                "raw-iopoll: polled completions are refused here (a device without poll queues, \
                 or buffered I/O): leave raw-iopoll out, or give the driver poll queues",
            )?;
        }
        Ok(raw)
    }

    /// Sees to a ring with room for `depth` requests that belongs to the calling thread, for only
    /// the thread that set it up may use it.
    fn own(&mut self, depth: u32) -> Result<()> {
        let here = thread::current().id();
        if depth > self.entries || here != self.owner {
            let entries = depth.next_power_of_two().max(self.entries);
            self.ring = set_up(self.waiting, entries)
                .with_context(|| format!("a ring of {entries} entries for {}", self.name))?;
            (self.entries, self.owner) = (entries, here);
        }
        Ok(())
    }

    /// One request.
    pub fn request(&mut self, direction: Direction, buffer: &mut [u8], offset: u64) -> Result<()> {
        self.own(1)?;
        // The kernel is lent memory that can be given up, should it not give it back.
        let mut lent = vec![Aligned::new(buffer.len())];
        lent[0].copy_from_slice(buffer);
        self.push(direction, &mut lent[0], offset, 0)?;
        self.await_some(&mut lent)?;
        let done = self.ring.completion().next().map_or(0, |event| event.result());
        buffer.copy_from_slice(&lent[0]);
        let (transferred, wanted) = (transferred(done)?, buffer.len());
        ensure!(transferred == wanted, "{transferred} of {wanted} bytes were transferred");
        Ok(())
    }

    /// A batch, with as many requests in flight as there are buffers. All that is due is submitted
    /// at once, and all that is completed is taken before more is submitted.
    pub fn serve(
        &mut self,
        batch: &mut Batch,
        buffers: &mut Vec<Aligned>,
        span: Duration,
    ) -> Result<RoundResult> {
        let depth = buffers.len();
        self.own(depth as u32)?;
        let direction = batch.requests().direction;
        let mut idle: Vec<usize> = (0..depth).rev().collect();
        let mut in_flight: Vec<Option<Request>> = vec![None; depth];
        let mut failed = None;
        let meter = batch.begin(span, Scope::Thread);
        loop {
            while failed.is_none()
                && let Some(&slot) = idle.last()
                && let Some(request) = batch.take()
            {
                match self.push(direction, &mut buffers[slot], request.offset, slot) {
                    Ok(()) => (in_flight[slot], _) = (Some(request), idle.pop()),
                    Err(error) => failed = Some(error),
                }
            }
            if idle.len() == depth {
                break;
            }
            self.await_some(buffers)?;
            for event in self.ring.completion() {
                let slot = event.user_data() as usize;
                idle.push(slot);
                let Some(request) = in_flight[slot].take() else { continue };
                let done = transferred(event.result())
                    .with_context(|| format!("{direction} at byte {}", request.offset));
                // The others are still waited for: they write into the buffers.
                if let Err(error) = done.and_then(|bytes| batch.done(request, bytes)) {
                    failed = failed.or(Some(error));
                }
            }
        }
        let cost = meter.stop();
        failed.map_or(Ok(batch.round(cost)), Err)
    }

    /// Puts a request where the next submission finds it.
    fn push(
        &mut self,
        direction: Direction,
        buffer: &mut Aligned,
        offset: u64,
        slot: usize,
    ) -> Result<()> {
        let (fd, bytes) = (types::Fd(self.file.as_raw_fd()), buffer.len() as u32);
        let entry = match direction {
            Direction::Read => {
                opcode::Read::new(fd, buffer.as_mut_ptr(), bytes).offset(offset).build()
            }
            Direction::Write => {
                opcode::Write::new(fd, buffer.as_ptr(), bytes).offset(offset).build()
            }
        };
        let entry = entry.user_data(slot as u64);
        // SAFETY: whoever pushes keeps the buffer until its completion, or gives it up for good
        // where the ring fails.
        unsafe { self.ring.submission().push(&entry) }.context("the ring is full")
    }

    /// Submits what was pushed and waits until something is completed. If the ring fails, the
    /// memory it was lent is given up.
    fn await_some(&mut self, lent: &mut Vec<Aligned>) -> Result<()> {
        self.submit_and_await().map_err(|error| {
            std::mem::forget(std::mem::take(lent));
            anyhow!(error).context(format!("the ring of {}", self.name))
        })
    }

    fn submit_and_await(&mut self) -> io::Result<()> {
        let passing = |result: io::Result<usize>| match result {
            Err(error) if !PASSING.contains(&error.kind()) => Err(error),
            _ => Ok(()),
        };
        if matches!(self.waiting, Waiting::Sleep | Waiting::Iopoll) {
            while self.ring.completion().is_empty() {
                passing(self.ring.submit_and_wait(1))?;
            }
            return Ok(());
        }
        while !self.ring.submission().is_empty() {
            passing(self.ring.submit())?;
        }
        while self.ring.completion().is_empty() {
            let enter = match self.waiting {
                Waiting::TaskrunFlag => self.ring.submission().taskrun(),
                waiting => waiting == Waiting::GetEvents,
            };
            if enter {
                // SAFETY: no argument is passed.
                passing(unsafe { self.ring.submitter().enter::<()>(0, 0, GETEVENTS, None) })?;
            }
            std::hint::spin_loop();
        }
        Ok(())
    }
}

fn transferred(result: i32) -> Result<usize> {
    usize::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result).into())
}

fn set_up(waiting: Waiting, entries: u32) -> io::Result<IoUring> {
    let mut builder = IoUring::builder();
    match waiting {
        Waiting::CqPeek => {}
        Waiting::Sleep | Waiting::GetEvents => {
            builder.setup_single_issuer().setup_defer_taskrun();
        }
        Waiting::TaskrunFlag => {
            builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag();
        }
        Waiting::Iopoll => {
            builder.setup_single_issuer().setup_iopoll();
        }
    }
    builder.build(entries)
}
