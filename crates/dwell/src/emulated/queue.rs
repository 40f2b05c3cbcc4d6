// SPDX-License-Identifier: MIT OR Apache-2.0
//! The emulated device as a source, and its queues.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;

use dwell_policy::{Backlog, Ns, Route, Routes};

use super::device::{Fault, NEVER, Timing};
use super::spec::Spec;
use super::wakeup::{self, WakeCost, WakeMethod};
use crate::error::{Error, Result};
use crate::mapping::{self, Mapping};
use crate::park::TOGETHER_NS;
use crate::queue::{Completion, Full, InHandler, Io, Queue, SignalSafe, Ticket, Wake};
use crate::source::Source;
use crate::timerfd::Timer;
use crate::{arch, clock};

/// An open emulated device. Clones are the same device; so are the queues of all threads.
///
/// Data is copied when a request is submitted, and the completion becomes visible at its deadline
/// ([`Timing`]). A sync takes its time and makes nothing durable. With `file=`, the data lies in
/// that file's page cache; nobody may shorten the file while the device is open.
///
/// ```
/// use dwell::emulated::Emulated;
/// use dwell::source::Source;
///
/// let device = Emulated::open(&"emu:optane,size=1MiB".parse()?)?;
/// assert_eq!(device.bytes().unwrap(), 1 << 20);
/// println!("{}; {}", device.spec(), device.wakeup());
/// # Ok::<(), dwell::error::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Emulated {
    device: Arc<Device>,
    method: Option<WakeMethod>,
}

#[derive(Debug)]
struct Device {
    spec: Spec,
    timing: Timing,
    data: Mapping,
}

impl Emulated {
    /// Latency below which requests are served by programmed I/O, on the caller's CPU.
    pub const PROGRAMMED_BELOW_NS: Ns = 1_000;
    /// Largest number of requests in flight on one queue.
    pub const MAX_DEPTH: u32 = 1 << 16;

    /// Opens a device. A file is made, or made longer, if `size` asks for more than is there.
    ///
    /// # Errors
    /// A figure that [`Spec::check`] refuses, or what the system says of the file or the memory.
    pub fn open(spec: &Spec) -> Result<Self> {
        spec.check()?;
        let mut spec = spec.clone();
        let data = match spec.file.clone() {
            None => Mapping::anonymous(spec.size_bytes).map_err(|error| {
                Error::io(
                    "mapping memory for the device",
                    Path::new(&spec.to_string()),
                    None,
                    error,
                )
            })?,
            Some(path) => map_file(&path, &mut spec.size_bytes)?,
        };
        let timing = Timing::new(&spec);
        Ok(Emulated { device: Arc::new(Device { spec, timing, data }), method: None })
    }

    /// What it is like; the capacity is the actual one.
    pub fn spec(&self) -> &Spec {
        &self.device.spec
    }

    /// Its timing, shared by all queues.
    pub fn timing(&self) -> &Timing {
        &self.device.timing
    }

    /// This device with queues that wake by `method` instead of the cheapest one; methods that do
    /// not arm queues change nothing.
    #[must_use]
    pub fn waking_by(mut self, method: WakeMethod) -> Self {
        self.method = Some(method).filter(|method| method.arms_queues());
        self
    }

    /// How its queues wake a blocked thread, and how late: to be printed beside every result. The
    /// first call in a process measures.
    pub fn wakeup(&self) -> &'static WakeCost {
        self.method.and_then(wakeup::cost_of).unwrap_or_else(wakeup::cheapest)
    }
}

fn map_file(path: &Path, size_bytes: &mut u64) -> Result<Mapping> {
    let failed = |action| move |error| Error::io(action, path, None, error);
    let file = File::options()
        .read(true)
        .write(true)
        .create(*size_bytes > 0)
        .truncate(false)
        .open(path)
        .map_err(failed("opening"))?;
    let metadata = file.metadata().map_err(failed("reading the length"))?;
    if !metadata.is_file() {
        return Err(Error::invalid(path, "file: must be a regular file for an emulated device"));
    }
    if *size_bytes == 0 {
        *size_bytes = metadata.len();
    }
    if *size_bytes == 0 {
        return Err(Error::invalid(
            path,
            "size: missing, and the file is empty; write size=256MiB",
        ));
    }
    mapping::reserve(&file, *size_bytes).map_err(failed("reserving space"))?;
    Mapping::of_file(&file, *size_bytes, true).map_err(failed("mapping"))
}

impl Device {
    /// Moves the data and says when the request is over and with what result.
    fn serve(&self, now: Ns, io: &Io) -> (Ns, i32) {
        let number = self.timing.number();
        let kind = io.action().kind();
        let fault = self.timing.fault(number);
        let within = match fault {
            Fault::Error => Err(-libc::EIO),
            Fault::None => self.data.within(io.action(), io.offset(), io.bytes()),
            // A transfer of one byte cannot be short: nothing at all would mean the end.
            Fault::Short => self
                .data
                .within(io.action(), io.offset(), io.bytes())
                .map(|bytes| if bytes > 1 { bytes / 2 } else { bytes }),
        };
        let due = self.timing.admit(now, number, kind, u64::from(within.unwrap_or(0)));
        let result = match within {
            Ok(bytes) => self.data.transfer(io, bytes) as i32,
            Err(error) => error,
        };
        (due, result)
    }
}

impl Source for Emulated {
    type Queue = EmulatedQueue;

    /// # Errors
    /// A depth of 0 or above [`Emulated::MAX_DEPTH`], or no timer left.
    fn queue(&self, depth: u32) -> io::Result<EmulatedQueue> {
        if depth == 0 || depth > Self::MAX_DEPTH {
            let what = format!("queue depth {depth}: must be from 1 to {}", Self::MAX_DEPTH);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        let method = self.method.unwrap_or_else(|| wakeup::cheapest().method);
        let timer = if method == WakeMethod::TimerFd { Some(Timer::new()?) } else { None };
        Ok(EmulatedQueue {
            device: self.device.clone(),
            in_flight: VecDeque::with_capacity(depth as usize),
            depth: depth as usize,
            bytes: 0,
            next: 0,
            timer,
            armed_for: None,
        })
    }

    fn handler_queue(&self, depth: u32) -> io::Result<Option<InHandler<EmulatedQueue>>> {
        self.queue(depth).map(|queue| Some(InHandler::new(queue)))
    }

    fn routes(&self) -> Routes {
        let spec = &self.device.spec;
        let slowest_ns = spec.latency_ns.max(spec.write_latency_ns);
        // A stalled device must not hold a CPU that has no deadline.
        if slowest_ns < Self::PROGRAMMED_BELOW_NS && spec.stall.is_none() {
            Routes::INLINE | Routes::INTERRUPT
        } else {
            Routes::INTERRUPT
        }
    }

    /// Programmed I/O: memory-like devices have no completion to wait for; their loads and stores
    /// hold the CPU until they are done. The loop below is that device, not a wait: a thread in the
    /// middle of a load cannot be switched away, parked or offered other work, and no policy has
    /// a say in it.
    fn call(&self, io: &Io) -> i32 {
        if !self.routes().has(Route::Inline) {
            return -libc::EOPNOTSUPP;
        }
        let (due, result) = self.device.serve(clock::now(), io);
        while clock::now() < due {
            arch::relax();
        }
        result
    }

    fn target(&self) -> i32 {
        0
    }

    fn bytes(&self) -> io::Result<u64> {
        Ok(self.device.data.bytes())
    }
}

#[derive(Debug)]
struct InFlight {
    due: Ns,
    ticket: Ticket,
    result: i32,
    bytes: u32,
}

/// One thread's queue to an emulated device. Completions come in the order of their deadlines.
#[derive(Debug)]
pub struct EmulatedQueue {
    device: Arc<Device>,
    /// By deadline, the next one first. Its room for `depth` entries is allocated once.
    in_flight: VecDeque<InFlight>,
    depth: usize,
    bytes: u64,
    next: u64,
    timer: Option<Timer>,
    armed_for: Option<Ns>,
}

impl EmulatedQueue {
    /// When the next completion is due; [`NEVER`] where none is.
    pub fn next_due(&self) -> Ns {
        self.in_flight.front().map_or(NEVER, |next| next.due)
    }

    /// When so many completions are due, or fewer have waited long min_complete for the others.
    fn due_together(&self, min_complete: u32) -> Ns {
        let last = min_complete.clamp(1, self.in_flight.len().max(1) as u32) as usize - 1;
        let last_due = self.in_flight.get(last).map_or(NEVER, |last| last.due);
        last_due.min(self.next_due().saturating_add(TOGETHER_NS))
    }
}

// SAFETY: a request is served by copying within `submit`; only its completion is kept back.
unsafe impl Queue for EmulatedQueue {
    type Op = Io;

    fn submit(&mut self, io: Io, _: Route) -> std::result::Result<Ticket, (Full, Io)> {
        if self.in_flight.len() >= self.depth {
            return Err((Full, io));
        }
        let (due, result) = self.device.serve(clock::now(), &io);
        let ticket = Ticket(self.next);
        self.next += 1;
        self.bytes += u64::from(io.bytes());
        let at = self.in_flight.partition_point(|other| other.due <= due);
        self.in_flight.insert(at, InFlight { due, ticket, result, bytes: io.bytes() });
        Ok(ticket)
    }

    fn flush(&mut self) {}

    #[inline]
    fn poll(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        if self.in_flight.is_empty() {
            return 0;
        }
        let now = clock::now();
        let mut found = 0;
        while self.next_due() <= now
            && let Some(InFlight { ticket, result, bytes, .. }) = self.in_flight.pop_front()
        {
            self.bytes -= u64::from(bytes);
            found += 1;
            out(Completion { ticket, result });
        }
        found
    }

    fn arm(&mut self, min_complete: u32) -> Wake<'_> {
        let due = self.due_together(min_complete);
        let Some(timer) = &self.timer else { return Wake::At(due) };
        if self.armed_for != Some(due) {
            if !timer.set(due) {
                return Wake::At(due);
            }
            self.armed_for = Some(due);
        }
        Wake::Descriptor(timer.descriptor())
    }

    fn disarm(&mut self) {
        if let (Some(timer), Some(_)) = (&self.timer, self.armed_for.take()) {
            timer.clear();
        }
    }

    /// Ends the request with ECANCELED at once, unless it is already over. What a write has copied
    /// stays.
    fn cancel(&mut self, ticket: Ticket) {
        let Some(at) = self.in_flight.iter().position(|other| other.ticket == ticket) else {
            return;
        };
        if self.in_flight[at].due <= clock::now() {
            return;
        }
        if let Some(mut request) = self.in_flight.remove(at) {
            request.due = 0;
            request.result = -libc::ECANCELED;
            self.in_flight.push_front(request);
        }
    }

    fn backlog(&self) -> Backlog {
        Backlog { bytes: self.bytes, requests: self.in_flight.len() as u32 }
    }
}

// SAFETY: submit, flush, poll, arm and disarm
// - allocate nothing: `in_flight` holds at most `depth` entries and was made with room for them;
// - take no lock: the device's timing is compare-and-exchange loops, the copy is plain;
// - do not panic: there is no index but the one `partition_point` found, and sums of bytes and
//   tickets cannot overflow before the depth or the age of the universe ends them;
// - touch no thread-local: the clock and timerfd_settime are system calls or the vDSO. Libc's
//   errno, which a failed timerfd_settime sets, is not initialised on first use.
unsafe impl SignalSafe for EmulatedQueue {}
