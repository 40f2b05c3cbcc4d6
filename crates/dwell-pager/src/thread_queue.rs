// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one thread brings to its faults: a queue, what it has in flight, what it knows of its past.
#![allow(unsafe_code)]

mod landed;
mod request;

use dwell::any::AnyQueue;
use dwell::queue::{Action, Io, Queue, Ticket};
use dwell_policy::{Estimator, Mode, Ns};

use crate::ahead::Prefetcher;
use crate::frames::class_of;
use crate::granule::Locality;
use crate::mask::Mask;
use crate::memory::PAGE_BYTES;
use crate::stack::Stack;
use crate::stages::Stages;
use crate::thread_queues::{GUEST, HANDLER};

/// Pages that are looked at twice when they leave a region that is written to.
pub(crate) const BENCH_PAGES: usize = 16;
/// Most pages of one request.
pub(crate) const REQUEST_PAGES: u32 = 64;

/// Pages that hints asked for and that may wait to come in, for each request.
const LANDED_PAGES: usize = 64;

/// A request over memory of the pager's own.
pub(crate) fn io(action: Action, target: i32, memory: usize, bytes: u32, offset: u64) -> Io {
    // SAFETY: frames' places stay mapped until no thread queue of the region is left. A thread
    // queue is only given up when nothing of it is in flight; a frame is nobody else's while a
    // request is out for it. Other callers wait for the completion before they give their memory
    // up.
    unsafe { Io::plain(action, target, memory as *mut u8, bytes, offset) }
}

/// A request in flight.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flight {
    ticket: Ticket,
    action: Action,
    pub page: u32,
    pub frame: u32,
    pub count: u32,
    /// Bytes moved so far, and the last answer.
    moved: usize,
    result: i32,
    submitted: Ns,
    mode: Mode,
    /// Whether somebody waits for it from the beginning: when others are done is noticed at some
    /// later time.
    pub timed: bool,
    busy: bool,
    pub done: bool,
}

/// One thread's thread queue.
pub(crate) struct ThreadQueue {
    pub number: u16,
    queue: Option<AnyQueue>,
    pub requests: Vec<Flight>,
    pub in_flight: u32,
    pub prefetcher: Prefetcher,
    pub locality: Locality,
    estimator: Estimator,
    sequence: u64,
    pub nice: i8,
    pub slot: Option<usize>,
    /// Signals that the program keeps out of the thread that has the thread queue.
    pub mask: Mask,
    /// Where faults are handled that come as a signal.
    pub stack: Option<Stack>,
    pub bench: Vec<u8>,
    /// Pages that hints asked for and that are there.
    pub landed: Vec<u32>,
    /// When batches of hints were judged last, and how long faults have waited since.
    pub paced: Ns,
    pub waited: Ns,
    /// The flight that a fault waits for, and what came of it.
    awaiting: Option<usize>,
    awaited: Option<Result<(), i32>>,
    /// Pages that somebody waits for and that could not be read, for the handler thread.
    errors: Vec<(u32, i32)>,
    /// A page that is read by itself, because it could not be read together with others.
    pub alone: Option<u32>,
    /// Requests that write single pages back, because some pages could not be written together.
    pub writes_alone: u32,
    /// When the last fault passed its stages.
    pub stages: Stages,
}

impl std::fmt::Debug for ThreadQueue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ThreadQueue").field("number", &self.number).finish_non_exhaustive()
    }
}

impl ThreadQueue {
    /// All that its faults need is made here; `writes` says whether pages of its region may be
    /// written to.
    pub fn new(
        number: u16,
        queue: Option<AnyQueue>,
        depth: u32,
        nice: i8,
        writes: bool,
    ) -> ThreadQueue {
        let none = Flight {
            ticket: Ticket(0),
            action: Action::Read,
            page: 0,
            frame: 0,
            count: 0,
            moved: 0,
            result: 0,
            submitted: 0,
            mode: Mode::Spin,
            timed: false,
            busy: false,
            done: false,
        };
        ThreadQueue {
            number,
            queue,
            requests: vec![none; depth as usize],
            in_flight: 0,
            prefetcher: Prefetcher::new(depth - 1),
            locality: Locality::new(),
            estimator: Estimator::new(),
            sequence: 0,
            nice,
            slot: None,
            mask: Mask::ALL,
            stack: None,
            // Unlike an aligned buffer, it takes no memory before its first use.
            bench: vec![0; if writes { BENCH_PAGES * PAGE_BYTES } else { 0 }],
            landed: Vec::with_capacity(depth as usize * LANDED_PAGES),
            paced: 0,
            waited: 0,
            awaiting: None,
            awaited: None,
            errors: Vec::with_capacity(if number == HANDLER { depth as usize } else { 0 }),
            alone: None,
            writes_alone: 0,
            stages: Stages::default(),
        }
    }

    /// Does something on the thread queue's stack, where it has one.
    pub fn on_stack<R>(&mut self, act: impl FnOnce(&mut ThreadQueue) -> R) -> R {
        let Some(stack) = self.stack.take() else { return act(self) };
        let mut done = None;
        // SAFETY: nobody has the stack but this thread queue, which is one thread's; faults do not
        // unwind.
        unsafe { stack.run(|| done = Some(act(self))) };
        self.stack = Some(stack);
        match done {
            Some(done) => done,
            // What runs to its end is done.
            None => unreachable!(),
        }
    }

    /// The class of the pages that its faults bring in.
    pub fn class(&self) -> u8 {
        class_of(self.nice)
    }

    /// Whether it can have a request in flight while it does something else.
    pub fn has_queue(&self) -> bool {
        self.queue.is_some()
    }

    pub fn queue(&mut self) -> Option<&mut AnyQueue> {
        self.queue.as_mut()
    }

    /// The flight that brings a page.
    pub fn flight_of(&self, page: u32, frame: u32) -> Option<usize> {
        if self.in_flight == 0 {
            return None;
        }
        self.requests.iter().position(|flight| {
            flight.busy
                && flight.action == Action::Read
                && (flight.page..flight.page + flight.count).contains(&page)
                && flight.frame + (page - flight.page) == frame
        })
    }

    fn free_flight(&self) -> Option<usize> {
        self.requests.iter().position(|flight| !flight.busy)
    }

    /// The error of a page that could not be read.
    pub fn take_error(&mut self, page: u32) -> Option<i32> {
        let at = self.errors.iter().position(|(other, _)| *other == page)?;
        Some(self.errors.swap_remove(at).1)
    }

    /// Requests that may still be sent; one place is kept for what a fault waits for. A thread that
    /// borrows a thread queue leaves nothing behind on it.
    pub fn room(&self) -> u32 {
        match self.has_queue() && self.number != GUEST {
            true => (self.requests.len() as u32 - 1).saturating_sub(self.in_flight),
            false => 0,
        }
    }

    /// Sends what was held back.
    pub fn flush(&mut self) {
        if let Some(queue) = &mut self.queue {
            queue.flush();
        }
    }

    /// Looks for completions.
    pub fn look(&mut self) {
        let ThreadQueue { queue: Some(queue), requests, in_flight: 1.., .. } = self else { return };
        queue.poll(&mut |completion| {
            let ours = |flight: &&mut Flight| {
                flight.busy && !flight.done && flight.ticket == completion.ticket
            };
            if let Some(flight) = requests.iter_mut().find(ours) {
                flight.result = completion.result;
                flight.done = true;
            }
        });
    }

    /// Blocks until the queue has something.
    pub fn park(&mut self, until: Option<Ns>) -> dwell_policy::Woken {
        let ThreadQueue { queue: Some(queue), requests, mask, .. } = self else {
            return dwell_policy::Woken::Look;
        };
        let let_in = mask.let_in();
        dwell::park::park(queue, let_in.at_most(until), 1, &mut |completion| {
            let ours = |flight: &&mut Flight| {
                flight.busy && !flight.done && flight.ticket == completion.ticket
            };
            if let Some(flight) = requests.iter_mut().find(ours) {
                flight.result = completion.result;
                flight.done = true;
            }
        })
    }

    /// Whether a write is in flight.
    pub fn is_writing(&self) -> bool {
        self.in_flight > 0
            && self.requests.iter().any(|flight| flight.busy && flight.action != Action::Read)
    }
}
