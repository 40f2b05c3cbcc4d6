// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many requests in flight from one thread.
#![allow(unsafe_code)]

mod finished;
mod reaper;
mod registering;

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::time::Duration;

use dwell_policy::{Backlog, Decision, Estimator, Mode, Ns, Outcome, Pace, Route, WaitMachine};

use crate::admission::Standing;
use crate::any::AnySource;
use crate::async_submission::{Course, as_taken};
use crate::buffer::{Aligned, Filled, IoBuf, IoBufMut};
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::in_flight::{InFlight, InFlightTable};
use crate::learner::Asked;
use crate::parameters::Entered;
use crate::queue::{Action, Io, Queue, Ticket};
use crate::source::Source;
use crate::wait::{Several, wait_for};

use reaper::{Reaper, tell};

pub use finished::{Finished, GivenUp};

struct Flight<B> {
    ticket: Ticket,
    io: Io,
    buffer: Option<B>,
    submitted: Ns,
    decision: Decision,
    asked: Option<Asked>,
    entered: Entered,
    cancelled: bool,
    filled: Option<Filled<B>>,
}

impl<B> InFlight for Flight<B> {
    fn ticket(&self) -> Ticket {
        self.ticket
    }
    fn due(&self) -> Ns {
        self.submitted + self.decision.expected_ns
    }
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
pub struct Pipeline<'f, B: Send + 'static = Aligned, S: Source = AnySource>
where
    S::Queue: Send,
{
    file: &'f File<S>,
    queue: Option<S::Queue>,
    depth: u32,
    in_flight: InFlightTable<Flight<B>>,
    finished: VecDeque<Finished<B>>,
    /// Decisions of the requests that the present look or wait has finished.
    decided: Vec<Decision>,
    estimator: Estimator,
    pace: Pace,
    standing: Standing,
    course: Course,
    sequence: u64,
    /// Rings belong to the thread that made them.
    _this_thread: PhantomData<*const ()>,
}

/// Result of a request that the kernel never completes: like no error of a device.
const LOST: i32 = -libc::ENOTRECOVERABLE;

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
    pub fn pipeline<B: Send + 'static>(&self, depth: u32) -> Result<Pipeline<'_, B, S>> {
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
            depth,
            in_flight: InFlightTable::new(depth),
            finished: VecDeque::with_capacity(depth as usize),
            decided: Vec::with_capacity(depth as usize),
            estimator: Estimator::new(),
            pace: Pace::default(),
            standing: Standing::default(),
            course: Course::default(),
            sequence: 0,
            _this_thread: PhantomData,
        })
    }
}

impl<B: Send + 'static, S: Source> Pipeline<'_, B, S>
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
        // Where requests are served as they are submitted, finished ones take up the room.
        let taken = if self.queue.is_some() { self.in_flight() } else { self.len() };
        taken < self.depth as usize
    }

    fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Submits a read that fills `buffer` from `offset`.
    ///
    /// # Errors
    /// With the buffer given back: the pipeline is full, or direct I/O cannot take the buffer.
    pub fn read_at(&mut self, mut buffer: B, offset: u64) -> std::result::Result<Ticket, (Error, B)>
    where
        B: IoBufMut,
    {
        if self.file.source.fills().is_none() {
            buffer.zero();
        }
        let memory = buffer.room();
        self.transfer(Action::Read, buffer, memory, offset, Some(B::filled))
    }

    /// Submits a write of `buffer` at `offset`.
    ///
    /// # Errors
    /// With the buffer given back: the pipeline is full, or direct I/O cannot take the buffer.
    pub fn write_at(&mut self, buffer: B, offset: u64) -> std::result::Result<Ticket, (Error, B)>
    where
        B: IoBuf,
    {
        let (memory, bytes) = buffer.data();
        self.transfer(Action::Write, buffer, (memory.cast_mut(), bytes), offset, None)
    }

    /// Submits a sync of the writes that *completed* before.
    ///
    /// # Errors
    /// The pipeline is full.
    pub fn sync(&mut self, data_only: bool) -> Result<Ticket> {
        // SAFETY: the target is the source's own, which outlives the pipeline.
        let io = unsafe { Io::sync(self.file.source.target(), data_only) };
        self.submit(io, None, None).map_err(|(error, _)| error)
    }

    /// As [`Pipeline::sync`], carrying something that the caller wants back with the result.
    ///
    /// # Errors
    /// With what was to be carried given back: the pipeline is full.
    pub fn sync_carrying(
        &mut self,
        data_only: bool,
        carried: B,
    ) -> std::result::Result<Ticket, (Error, B)> {
        // SAFETY: the target is the source's own, which outlives the pipeline.
        let io = unsafe { Io::sync(self.file.source.target(), data_only) };
        self.submit(io, Some(carried), None)
            .map_err(|(error, carried)| (error, carried.expect("it was passed in")))
    }

    /// Sends what was submitted; waiting does so too.
    pub fn flush(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.flush();
        }
    }

    /// Asks to end a request early; it still finishes, and gives its buffer back.
    pub fn cancel(&mut self, ticket: Ticket) {
        if let Some(queue) = &mut self.queue
            && let Some(flight) = self.in_flight.get_mut(ticket)
        {
            flight.cancelled = true;
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
        self.next_until(None)
    }

    /// As [`Pipeline::next`], for `span` at most; `None` also when nothing has finished by then.
    ///
    /// ```
    /// # fn main() -> Result<(), dwell::Error> {
    /// use std::time::Duration;
    ///
    /// let file = dwell::open("emu:latency=300ms,size=64KiB")?;
    /// let mut pipeline = file.pipeline(1)?;
    /// pipeline.read_at(vec![0u8; 4096], 0).map_err(|(error, _)| error)?;
    /// assert!(pipeline.next_within(Duration::from_millis(1)).is_none());
    /// assert_eq!(pipeline.len(), 1); // It is still in flight.
    /// # Ok(())
    /// # }
    /// ```
    pub fn next_within(&mut self, span: Duration) -> Option<Finished<B>> {
        self.next_until(Some(clock::now().saturating_add(clock::ns_of(span))))
    }

    fn next_until(&mut self, until: Option<Ns>) -> Option<Finished<B>> {
        while self.finished.is_empty() && self.in_flight() > 0 {
            self.wait_for_some(until);
            if until.is_some_and(|at| clock::now() >= at) {
                break;
            }
        }
        self.finished.pop_front()
    }

    fn transfer(
        &mut self,
        action: Action,
        buffer: B,
        (memory, bytes): (*mut u8, usize),
        offset: u64,
        filled: Option<Filled<B>>,
    ) -> std::result::Result<Ticket, (Error, B)> {
        let file = self.file;
        if let Err(error) = file.queueable(memory, bytes, offset) {
            return Err((error, buffer));
        }
        // SAFETY: the flight owns the buffer until its completion is out, also when dropped.
        let io = unsafe { Io::plain(action, file.source.target(), memory, bytes as u32, offset) };
        self.submit(io, Some(buffer), filled)
            .map_err(|(error, buffer)| (error, buffer.expect("it was passed in")))
    }

    fn submit(
        &mut self,
        io: Io,
        buffer: Option<B>,
        filled: Option<Filled<B>>,
    ) -> std::result::Result<Ticket, (Error, Option<B>)> {
        if !self.has_room() {
            let what = format!("{} requests are in flight, as many as asked for", self.depth);
            return Err((Error::refused(ErrorKind::Full, self.file.path(), what), buffer));
        }
        let own = self.queue.as_ref().map_or(Backlog::default(), Queue::backlog);
        let (file, depth) = (self.file, self.depth);
        let (decision, asked) = file.decide_queued(&io, own, &self.estimator, self.sequence, depth);
        self.sequence += 1;
        let submitted = clock::now();
        if self.in_flight() == 0 {
            self.course.begin(file.learner(), asked, submitted);
        }
        let Some(queue) = &mut self.queue else {
            return Ok(self.serve(io, (buffer, filled), &decision, submitted));
        };
        let bytes = io.bytes();
        // SAFETY: the flight owns the memory; its own `io` is served only after the completion of
        // this one, when the queue refused it.
        let submitted_io = unsafe { io.again() };
        let ticket = match queue.submit(submitted_io, decision.route) {
            Ok(ticket) => ticket,
            Err(_) => {
                let what = "the queue takes no more requests; take finished ones first";
                return Err((Error::refused(ErrorKind::Full, self.file.path(), what), buffer));
            }
        };
        let decision = as_taken(decision, queue.is_call(ticket));
        self.in_flight.insert(Flight {
            ticket,
            io,
            buffer,
            submitted,
            decision,
            asked,
            entered: file.in_flight.enter(bytes),
            cancelled: false,
            filled,
        });
        Ok(ticket)
    }

    /// Serves a request where there is no queue.
    fn serve(
        &mut self,
        io: Io,
        (mut buffer, filled): (Option<B>, Option<Filled<B>>),
        decision: &Decision,
        began: Ns,
    ) -> Ticket {
        let result = self.file.serve_unqueued(&io, decision, began);
        tell(&mut buffer, filled, &io, result);
        let ticket = Ticket(self.sequence);
        self.finished.push_back(Finished {
            ticket,
            result: self.file.outcome(&io, result),
            buffer,
            given_up: None,
        });
        ticket
    }

    /// Takes what is there. How long ago it came, nobody knows: it says nothing of the latency.
    fn look(&mut self) {
        let Some(queue) = &mut self.queue else { return };
        let mut reaper = Reaper {
            file: self.file,
            in_flight: &mut self.in_flight,
            finished: &mut self.finished,
            decided: &mut self.decided,
            standing: &mut self.standing,
            waited: None,
        };
        let now = clock::now();
        let mut taken = 0;
        queue.poll(&mut |completion| taken += u32::from(reaper.take(completion, now)));
        self.pace.note(now, taken);
        self.course.landed(taken);
        self.count(&Outcome::default());
        self.give_up_lost();
    }

    /// Ends what a lost queue has in flight: with an error, and without the memory.
    fn give_up_lost(&mut self) {
        let Some(queue) = self.queue.as_mut().filter(|queue| queue.is_lost()) else { return };
        queue.give_up();
        for flight in self.in_flight.drain() {
            self.file.in_flight.leave(flight.entered);
            self.file.count_queued(&flight.decision, false);
            if let Some(counters) = self.file.counters() {
                counters.moved(flight.io.action().kind(), LOST);
            }
            self.finished.push_back(Finished {
                ticket: flight.ticket,
                result: self.file.outcome(&flight.io, LOST),
                buffer: None,
                given_up: flight.buffer.map(|buffer| GivenUp::new(buffer)),
            });
        }
    }

    /// Waits as was decided for the request due first, and takes as many completions as are worth
    /// one wait.
    fn wait_for_some(&mut self, until: Option<Ns>) {
        let now = clock::now();
        let Some(first) = self.in_flight.first_due() else { return };
        let (submitted, mut decision, asked) = (first.submitted, first.decision, first.asked);
        // A thread that will block sends its requests with the call that waits for them.
        if decision.mode != Mode::Block {
            self.look();
            if !self.finished.is_empty() {
                return;
            }
        }
        let Some(queue) = &mut self.queue else { return };
        // A thread spins for all its requests at once, so it needs one permit, at the wait.
        let admission = self.file.admission.as_ref();
        let guard = match admission.map_or(Ok(None), |admission| {
            let spares_others = asked.is_some_and(Asked::spares_others);
            admission.admit(&mut decision, now, &mut self.standing, spares_others)
        }) {
            Ok(guard) => guard,
            Err(why) => {
                (decision.mode, decision.reason) = (Mode::Block, why);
                None
            }
        };
        let machine = WaitMachine::new(&decision, submitted, now);
        let machine = match until {
            Some(at) => machine.until(at),
            None => machine,
        };
        let switch_ns = self.file.switch_ns();
        let in_flight = self.in_flight.len() as u32;
        let (min_complete, patience_ns) =
            self.pace.worth_waiting_for(&decision, in_flight, switch_ns);
        let mut reaper = Reaper {
            file: self.file,
            in_flight: &mut self.in_flight,
            finished: &mut self.finished,
            decided: &mut self.decided,
            standing: &mut self.standing,
            waited: Some((&decision, &mut self.estimator)),
        };
        let mut taken = 0;
        let several = Several { min_complete, patience_ns };
        let outcome = wait_for(queue, machine, several, &mut |completion| {
            let ours = reaper.take(completion, clock::now());
            taken += u32::from(ours);
            ours
        });
        self.pace.note(outcome.ended, taken);
        self.course.landed(taken);
        if let (Some(learner), Some(asked)) = (&self.file.learner, asked) {
            self.course.waited(learner, asked, &decision, outcome.ended);
        }
        self.count(&outcome);
        if let Some(admission) = admission {
            admission.spun(guard, outcome.spun_ns);
        }
        self.give_up_lost();
    }

    /// Counts what a look or a wait has finished. The wait ended with the first completions, so
    /// where its spin expired, it expired for all of them.
    fn count(&mut self, outcome: &Outcome) {
        for decision in self.decided.drain(..) {
            self.file.count_queued(&decision, outcome.expired);
        }
        if let Some(counters) = self.file.counters() {
            counters.passed(outcome);
        }
    }
}

impl<B: Send + 'static, S: Source> Drop for Pipeline<'_, B, S>
where
    S::Queue: Send,
{
    fn drop(&mut self) {
        let tickets: Vec<Ticket> = self.in_flight.iter().map(|flight| flight.ticket).collect();
        for ticket in tickets {
            self.cancel(ticket);
        }
        let until = clock::now() + DROP_PATIENCE.as_nanos() as Ns;
        while self.in_flight() > 0 && clock::now() < until {
            self.wait_for_some(Some(until));
        }
        for flight in self.in_flight.drain() {
            // The device may still write there: the memory is given up, never reused.
            self.file.in_flight.leave(flight.entered);
            std::mem::forget(flight.buffer);
        }
    }
}
