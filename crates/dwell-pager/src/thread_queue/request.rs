// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a thread queue sends its requests, on which route, and how each is waited for.

use dwell::clock;
use dwell::queue::{Action, Io, Queue, Ticket};
use dwell::source::Source;
use dwell_policy::{Call, Decision, Kind as Asked, Ns, Reason, Route, Routes, Wait, policy};

use super::{Flight, ThreadQueue};
use crate::frames::Run;
use crate::memory::PAGE_BYTES;
use crate::pages::SPILLED;
use crate::shared::{Part, Shared};
use crate::stages::Stages;
use crate::stats::add;

impl ThreadQueue {
    /// Notes that the fault has passed a stage, where that is wanted.
    pub fn passed(&mut self, sh: &Shared, stage: fn(&mut Stages, Ns)) {
        if sh.stages {
            stage(&mut self.stages, clock::now());
        }
    }

    /// How a request is to be waited for.
    pub fn decide(&mut self, sh: &Shared, kind: Asked, bytes: usize) -> Decision {
        let mut wait: Wait<'_> = sh.file.wait_of(kind, bytes as u64, Call::Blocking);
        wait.estimate = self.estimator.of(kind, bytes as u64);
        wait.nice = self.nice;
        wait.next_nice = sh.board.next(self.slot);
        wait.sequence = self.sequence;
        if !self.has_queue() {
            wait.routes = Routes::INLINE;
        }
        self.sequence += 1;
        let decision = match sh.file.withheld() {
            Some(why) => policy::block(&wait, why),
            None => sh.policy.choose(&wait),
        };
        if decision.reason == Reason::Sacrificed {
            add(&sh.counters.sacrificed, 1);
        }
        decision
    }

    /// Sends a request for a run of pages and frames on this route; the flight, done already where
    /// it was served by a call. `None` where nothing more can be in flight.
    pub fn send(
        &mut self,
        sh: &Shared,
        action: Action,
        page: u32,
        run: Run,
        decision: &Decision,
    ) -> Option<usize> {
        let at = self.free_flight()?;
        self.requests[at] = Flight {
            ticket: Ticket(u64::MAX),
            action,
            page,
            frame: run.first,
            count: run.count,
            moved: 0,
            result: 0,
            submitted: clock::now(),
            mode: decision.mode,
            timed: false,
            busy: true,
            done: false,
        };
        self.in_flight += 1;
        if action == Action::Read {
            add(&sh.counters.requests, 1);
        }
        self.submit(sh, at, decision.route);
        Some(at)
    }

    /// Sends the rest of a flight.
    pub(super) fn submit(&mut self, sh: &Shared, at: usize, route: Route) {
        let flight = self.requests[at];
        let bytes = sh.bytes_of(flight.page, flight.count) - flight.moved;
        let part = Part { skip: flight.moved, bytes };
        let spilled = match (&sh.spill, flight.action) {
            (Some(spill), Action::Read) => {
                Some(spill).filter(|_| sh.pages.get(flight.page) & SPILLED != 0)
            }
            (Some(spill), _) => Some(spill),
            (None, _) => None,
        };
        if let Some(spill) = spilled {
            // The spill file has no end within the region: what was never written is never read.
            let bytes = flight.count as usize * PAGE_BYTES - flight.moved;
            let part = Part { skip: flight.moved, bytes };
            let io = sh.io(spill, flight.action, flight.page, flight.frame, part);
            let result = self.call(spill, &io, false);
            return self.answer(at, result);
        }
        let source = sh.file.source();
        let io = sh.io(source, flight.action, flight.page, flight.frame, part);
        let route = if route == Route::Inline && !source.routes().has(Route::Inline) {
            Route::Interrupt
        } else {
            route
        };
        let refused = match &mut self.queue {
            Some(queue) if route != Route::Inline => match queue.submit(io, route) {
                Ok(ticket) => {
                    self.requests[at].ticket = ticket;
                    return;
                }
                Err((_, io)) => io,
            },
            _ => io,
        };
        let result = match source.routes().has(Route::Inline) {
            true => self.call(source, &refused, sh.deaf),
            false => -libc::EAGAIN,
        };
        self.answer(at, result);
    }

    /// The device is called in this thread, which may take as long as a wait. Signals are let in
    /// where they would end the call.
    fn call(&self, source: &impl Source, io: &Io, deaf: bool) -> i32 {
        let _let_in = (!deaf).then(|| self.mask.let_in());
        source.call(io)
    }

    fn answer(&mut self, at: usize, result: i32) {
        self.requests[at].result = result;
        self.requests[at].done = true;
    }
}
