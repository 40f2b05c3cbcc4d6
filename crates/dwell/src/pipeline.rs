// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many requests in flight from one thread.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::Duration;

use dwell_policy::{Call, Decision, Estimator, Mode, Ns, Reason, Route, Wait, WaitMachine};

use crate::any::AnySource;
use crate::buffer::Aligned;
use crate::clock;
use crate::error::{Error, Result};
use crate::file::{File, MAX_TRANSFER_BYTES};
use crate::queue::{Action, Completion, Io, Queue, Ticket};
use crate::source::Source;
use crate::wait::wait;

/// Memory that a request in flight owns.
///
/// # Safety
/// The memory that `memory` returns stays at its address, valid and unaliased, when the value is
/// moved, until it is dropped.
pub unsafe trait Owned: Send + 'static {
    /// Start and length in bytes.
    fn memory(&mut self) -> (*mut u8, usize);
}

// SAFETY: the heap memory of a Vec does not move with it.
unsafe impl Owned for Vec<u8> {
    fn memory(&mut self) -> (*mut u8, usize) {
        (self.as_mut_ptr(), self.len())
    }
}

// SAFETY: an Aligned is a pointer to memory of its own.
unsafe impl Owned for Aligned {
    fn memory(&mut self) -> (*mut u8, usize) {
        (self.as_mut_ptr(), self.len())
    }
}

/// A finished request.
#[derive(Debug)]
pub struct Finished<B> {
    /// Which one.
    pub ticket: Ticket,
    /// Bytes transferred, or what went wrong, with path and offset.
    pub result: Result<usize>,
    /// Its buffer, back again; none for syncs.
    pub buffer: Option<B>,
}

struct Flight<B> {
    ticket: Ticket,
    io: Io,
    buffer: Option<B>,
    submitted: Ns,
    decision: Decision,
}

/// Up to a fixed number of requests in flight on one file, from the thread that made it. Requests
/// own their buffers and give them back with their results.
///
/// ```
/// # fn main() -> Result<(), dwell::Error> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data");
/// # std::fs::write(&path, vec![7u8; 65536]).unwrap();
/// let file = dwell::File::open(&path)?;
/// let mut pipeline = file.pipeline(4)?;
/// for at in 0..4 {
///     pipeline.read_at(vec![0u8; 4096], at * 4096).map_err(|(error, _)| error)?;
/// }
/// while let Some(done) = pipeline.next() {
///     assert_eq!(done.result?, 4096);
///     assert_eq!(done.buffer.unwrap()[0], 7);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Pipeline<'f, B: Owned = Aligned, S: Source = AnySource>
where
    S::Queue: Send,
{
    file: &'f File<S>,
    queue: Option<S::Queue>,
    flights: Vec<Option<Flight<B>>>,
    free: Vec<u32>,
    finished: VecDeque<Finished<B>>,
    estimator: Estimator,
    sequence: u64,
    /// Rings belong to the thread that made them.
    _this_thread: PhantomData<*const ()>,
}

/// How long a dropped pipeline waits for its requests before it leaves their memory to the kernel.
const DROP_PATIENCE: Duration = Duration::from_millis(200);

impl<S: Source> File<S>
where
    S::Queue: Send,
{
    /// A pipeline for up to `depth` requests in flight.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn pipeline<B: Owned>(&self, depth: u32) -> Result<Pipeline<'_, B, S>> {
        let depth = depth.clamp(1, 4096);
        let queued = self.source.routes().without(Route::Inline);
        let queue = if queued == dwell_policy::Routes::NONE {
            // No ring here: each request is served inline as it is submitted.
            None
        } else {
            let made = self.source.queue(depth);
            Some(made.map_err(|error| Error::io("set up a queue for", self.path(), None, error))?)
        };
        Ok(Pipeline {
            file: self,
            queue,
            flights: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            finished: VecDeque::with_capacity(depth as usize),
            estimator: Estimator::new(),
            sequence: 0,
            _this_thread: PhantomData,
        })
    }
}

impl<B: Owned, S: Source> Pipeline<'_, B, S>
where
    S::Queue: Send,
{
    /// Requests in flight, finished ones not handed out yet included.
    pub fn len(&self) -> usize {
        self.in_flight() + self.finished.len()
    }

    /// Whether nothing is in flight and nothing waits to be handed out.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether another request fits.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    fn in_flight(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// Submits a read that fills `buffer` from `offset`.
    ///
    /// # Errors
    /// With the buffer given back: the pipeline is full, or direct I/O cannot take the buffer.
    pub fn read_at(&mut self, buffer: B, offset: u64) -> std::result::Result<Ticket, (Error, B)> {
        self.transfer(Action::Read, buffer, offset)
    }

    /// Submits a write of `buffer` at `offset`.
    ///
    /// # Errors
    /// With the buffer given back: the pipeline is full, or direct I/O cannot take the buffer.
    pub fn write_at(&mut self, buffer: B, offset: u64) -> std::result::Result<Ticket, (Error, B)> {
        self.transfer(Action::Write, buffer, offset)
    }

    /// Submits a sync of the writes that *completed* before.
    ///
    /// # Errors
    /// The pipeline is full.
    pub fn sync(&mut self, data_only: bool) -> Result<Ticket> {
        let io = Io::sync(self.file.source.target(), data_only);
        self.submit(io, None).map_err(|(error, _)| error)
    }

    /// Sends what was submitted; waiting does so too.
    pub fn flush(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.flush();
        }
    }

    /// Asks to end a request early; it still finishes, and gives its buffer back.
    pub fn cancel(&mut self, ticket: Ticket) {
        if let Some(queue) = &mut self.queue {
            queue.cancel(ticket);
        }
    }

    /// A finished request, if there is one now.
    pub fn try_next(&mut self) -> Option<Finished<B>> {
        if self.finished.is_empty() {
            self.look();
        }
        self.finished.pop_front()
    }

    /// The next finished request, waiting for it as the policy decided; `None` when nothing is in
    /// flight.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Finished<B>> {
        if self.finished.is_empty() && self.in_flight() > 0 {
            self.wait_for_one(None);
        }
        self.finished.pop_front()
    }

    fn transfer(
        &mut self,
        action: Action,
        mut buffer: B,
        offset: u64,
    ) -> std::result::Result<Ticket, (Error, B)> {
        let (memory, bytes) = buffer.memory();
        let file = self.file;
        if bytes > MAX_TRANSFER_BYTES {
            let what = format!("{bytes} bytes in one request; at most {MAX_TRANSFER_BYTES}");
            return Err((Error::invalid(file.path(), what), buffer));
        }
        if !file.aligned(memory, bytes, offset) {
            let what = format!(
                "direct I/O of {bytes} bytes at byte {offset}: memory, length and offset must be \
                 multiples of {}; use buffer::Aligned",
                file.source.alignment()
            );
            return Err((Error::invalid(file.path(), what), buffer));
        }
        // SAFETY: the flight owns the buffer until its completion is out, also when dropped.
        let io = unsafe { Io::plain(action, file.source.target(), memory, bytes as u32, offset) };
        self.submit(io, Some(buffer))
            .map_err(|(error, buffer)| (error, buffer.expect("it was passed in")))
    }

    fn submit(
        &mut self,
        io: Io,
        buffer: Option<B>,
    ) -> std::result::Result<Ticket, (Error, Option<B>)> {
        let Some(slot) = self.free.pop() else {
            let what =
                format!("{} requests are in flight, as many as asked for", self.flights.len());
            return Err((Error::invalid(self.file.path(), what), buffer));
        };
        let kind = io.action().kind();
        let size_bytes = u64::from(io.bytes());
        let wait = Wait {
            estimate: self.estimator.of(kind, size_bytes),
            sequence: self.sequence,
            ..self.file.wait_of(kind, size_bytes, Call::Queued)
        };
        self.sequence += 1;
        let decision = self.file.choose(&wait);
        let submitted = clock::now();
        let Some(queue) = &mut self.queue else {
            self.free.push(slot);
            return Ok(self.serve(io, buffer, &decision));
        };
        // SAFETY: the flight owns the memory; its own `io` is served only after the completion of
        // this one, when the queue refused it.
        let submitted_io = unsafe { io.again() };
        let ticket = match queue.submit(submitted_io, decision.route) {
            Ok(ticket) => ticket,
            Err(_) => {
                self.free.push(slot);
                let what = "the queue takes no more requests; take finished ones first";
                return Err((Error::invalid(self.file.path(), what), buffer));
            }
        };
        self.file.in_flight.enter(io.bytes());
        let flight = Flight { ticket, io, buffer, submitted, decision };
        self.flights[slot as usize] = Some(flight);
        Ok(ticket)
    }

    /// Serves a request where there is no queue.
    fn serve(&mut self, io: Io, buffer: Option<B>, decision: &Decision) -> Ticket {
        let result = self.file.source.call(&io);
        let counters = self.file.counters.get_or_default();
        counters.decided(Route::Inline, decision.mode, decision.why);
        counters.moved(io.action().kind(), result);
        let ticket = Ticket(self.sequence);
        self.finished.push_back(Finished {
            ticket,
            result: self.file.outcome(&io, result),
            buffer,
        });
        ticket
    }

    fn look(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        let mut looked = Reaper {
            file: self.file,
            flights: &mut self.flights,
            free: &mut self.free,
            finished: &mut self.finished,
            estimator: &mut self.estimator,
        };
        queue.flush();
        let now = clock::now();
        queue.poll(&mut |completion| looked.take(completion, now));
    }

    /// Waits for the request due first, taking whatever completes meanwhile.
    fn wait_for_one(&mut self, until: Option<Ns>) {
        let Some(queue) = &mut self.queue else { return };
        let now = clock::now();
        let outstanding =
            self.flights.iter().flatten().map(|flight| (flight.submitted, &flight.decision));
        let Some((due_first, decision)) = Decision::first_due(outstanding) else { return };
        // A thread spins for all its requests at once, so it needs one permit, at the wait.
        let mut decision = *decision;
        let governor = self.file.governor.as_ref();
        let guard = match governor.map_or(Ok(None), |governor| governor.admit(&decision, now)) {
            Ok(guard) => guard,
            Err(()) => {
                decision.mode = Mode::Block;
                None
            }
        };
        let machine = WaitMachine::new(&decision, due_first, now);
        let machine = match until {
            Some(at) => machine.until(at),
            None => machine,
        };
        queue.flush();
        let mut reaper = Reaper {
            file: self.file,
            flights: &mut self.flights,
            free: &mut self.free,
            finished: &mut self.finished,
            estimator: &mut self.estimator,
        };
        let outcome = wait(queue, machine, &mut |completion| {
            reaper.take(completion, clock::now());
            true
        });
        self.file.counters.get_or_default().passed(&outcome);
        if let Some(governor) = governor {
            governor.spun(guard, outcome.spun_ns);
        }
    }
}

/// Turns completions into finished requests.
struct Reaper<'p, B: Owned, S: Source>
where
    S::Queue: Send,
{
    file: &'p File<S>,
    flights: &'p mut [Option<Flight<B>>],
    free: &'p mut Vec<u32>,
    finished: &'p mut VecDeque<Finished<B>>,
    estimator: &'p mut Estimator,
}

impl<B: Owned, S: Source> Reaper<'_, B, S>
where
    S::Queue: Send,
{
    fn take(&mut self, completion: Completion, now: Ns) {
        let is_it = |flight: &Option<Flight<B>>| {
            flight.as_ref().is_some_and(|flight| flight.ticket == completion.ticket)
        };
        let Some(slot) = self.flights.iter().position(is_it) else { return };
        let Some(flight) = self.flights[slot].take() else { return };
        self.free.push(slot as u32);
        let Flight { io, buffer, submitted, decision, .. } = flight;
        let kind = io.action().kind();
        let mut result = completion.result;
        if decision.route != Route::Inline && self.file.can_retry_inline(&decision, result) {
            result = self.file.source.call(&io);
        }
        if result == io.bytes() as i32 {
            self.estimator.record(kind, u64::from(io.bytes()), decision.mode, now - submitted);
        }
        let counters = self.file.counters.get_or_default();
        let spun_for_ns = now.saturating_sub(submitted);
        let expired = decision.mode == Mode::Spin && spun_for_ns > decision.spin_limit_ns;
        let why = if expired { Reason::SpinExpired } else { decision.why };
        counters.decided(decision.route, decision.mode, why);
        counters.moved(kind, result);
        self.file.in_flight.leave(io.bytes());
        if let Some(governor) = &self.file.governor {
            governor.worked(&self.file.known, io.bytes());
        }
        let result = self.file.outcome(&io, result);
        self.finished.push_back(Finished { ticket: completion.ticket, result, buffer });
    }
}

impl<B: Owned, S: Source> Drop for Pipeline<'_, B, S>
where
    S::Queue: Send,
{
    fn drop(&mut self) {
        let tickets: Vec<Ticket> = self.flights.iter().flatten().map(|f| f.ticket).collect();
        for ticket in tickets {
            self.cancel(ticket);
        }
        let until = clock::now() + DROP_PATIENCE.as_nanos() as Ns;
        while self.in_flight() > 0 && clock::now() < until {
            self.wait_for_one(Some(until));
        }
        for flight in self.flights.iter_mut().filter_map(Option::take) {
            // The device may still write there: the memory is given up, never reused.
            self.file.in_flight.leave(flight.io.bytes());
            std::mem::forget(flight.buffer);
        }
    }
}
