// SPDX-License-Identifier: MIT OR Apache-2.0
//! What becomes of pages and frames when a request is over.
#![allow(unsafe_code)]

use dwell::clock;
use dwell::queue::Action;
use dwell::source::Source;
use dwell_policy::{Kind as Asked, Route};

use super::{Flight, REQUEST_PAGES, ThreadQueue};
use crate::frames::Kind;
use crate::memory::PAGE_BYTES;
use crate::pages::{AHEAD, DIRTY, HINTED, SPILLED, State};
use crate::shared::Shared;
use crate::stats::add;

impl ThreadQueue {
    /// Takes note of all requests that are done: their pages are beside the region then, or absent
    /// again where the source refused.
    pub fn land(&mut self, sh: &Shared) {
        if self.in_flight == 0 {
            return;
        }
        for at in 0..self.requests.len() {
            if self.requests[at].busy
                && self.requests[at].done
                && let Some(outcome) = self.settle(sh, at)
                && self.awaiting == Some(at)
            {
                (self.awaiting, self.awaited) = (None, Some(outcome));
            }
        }
    }

    /// Begins to wait for a flight.
    pub fn awaits(&mut self, flight: usize) {
        (self.awaiting, self.awaited) = (Some(flight), None);
    }

    /// What came of the flight that is waited for, once it is over.
    pub fn landed_awaited(&mut self, sh: &Shared) -> Option<Result<(), i32>> {
        if self.awaiting.is_some_and(|at| self.requests[at].done) {
            self.land(sh);
        }
        self.awaited
    }

    /// Ends a flight that is done, or sends what is left of it.
    fn settle(&mut self, sh: &Shared, at: usize) -> Option<Result<(), i32>> {
        let flight = self.requests[at];
        let mut result = flight.result;
        let whole = sh.bytes_of(flight.page, flight.count);
        let align = sh.file.source().alignment().max(1) as usize;
        let inline = sh.file.source().routes().has(Route::Inline);
        // A ring that could not take it now: a call does the same.
        if matches!(-result, libc::EAGAIN | libc::EINTR | libc::ECANCELED) && inline {
            self.requests[at].done = false;
            self.submit(sh, at, Route::Inline);
            result = self.requests[at].result;
        }
        let moved = flight.moved + usize::try_from(result).unwrap_or(0);
        if result > 0 && moved < whole {
            // Short of what there is. Direct I/O goes on at a block.
            self.requests[at].moved = moved / align * align;
            if self.requests[at].moved > flight.moved {
                self.requests[at].done = false;
                self.submit(sh, at, if inline { Route::Inline } else { Route::Interrupt });
                self.flush();
                return if self.requests[at].done { self.settle(sh, at) } else { None };
            }
        }
        let outcome = match result {
            ..0 => Err(-result),
            _ if moved < whole => Err(libc::EIO),
            _ => Ok(()),
        };
        self.requests[at].busy = false;
        self.in_flight -= 1;
        if outcome.is_ok() && flight.timed {
            let kind = if flight.action == Action::Read { Asked::Read } else { Asked::Write };
            let took_ns = clock::now().saturating_sub(flight.submitted);
            self.estimator.record(kind, whole as u64, flight.mode, took_ns);
        }
        match flight.action {
            Action::Read => self.landed_read(sh, &flight, outcome),
            _ => self.landed_write(sh, &flight, outcome),
        }
        Some(outcome)
    }

    fn landed_read(&mut self, sh: &Shared, flight: &Flight, outcome: Result<(), i32>) {
        let whole = sh.bytes_of(flight.page, flight.count);
        let room = flight.count as usize * PAGE_BYTES;
        if outcome.is_ok() && whole < room {
            // SAFETY: the flight's own frames, which are out and have memory.
            let bytes = unsafe { sh.pool.bytes(flight.frame as usize, flight.count as usize) };
            bytes[whole..].fill(0);
        }
        if outcome.is_ok() {
            add(&sh.counters.pages_read, u64::from(flight.count));
        }
        let mut books = sh.lock();
        for step in 0..flight.count {
            let (page, frame) = (flight.page + step, flight.frame + step);
            let word = sh.pages.get(page);
            let ahead = books.frames.is_ahead_out(frame);
            if ahead {
                books.frames.set_ahead_out(frame, false);
            }
            if State::of(word) != State::Reading || sh.pages.frame(page) != frame {
                // Another thread did not wait for it.
                books.frames.push(frame, Kind::FREE);
            } else if outcome.is_err() {
                books.frames.push(frame, Kind::FREE);
                sh.pages.set(page, State::Absent, 0);
                if word & AHEAD == 0 && self.errors.len() < self.errors.capacity() {
                    self.errors.push((page, outcome.err().unwrap_or(libc::EIO)));
                }
            } else if word & AHEAD != 0 {
                sh.pages.set(page, State::Standby, word & (AHEAD | HINTED));
                books.frames.hold(frame, page, Kind::AHEAD);
                if word & HINTED != 0 && self.landed.len() < self.landed.capacity() {
                    self.landed.push(page);
                }
            } else {
                sh.pages.set(page, State::Standby, 0);
                books.frames.hold(frame, page, Kind::STANDBY);
            }
        }
    }

    /// Pages that were written back are as the source has them; those that were not stay as they
    /// are. Of pages that were refused together, each is tried again by itself.
    fn landed_write(&mut self, sh: &Shared, flight: &Flight, outcome: Result<(), i32>) {
        let mut books = sh.lock();
        if outcome.is_err() && flight.count > 1 {
            self.writes_alone = 2 * REQUEST_PAGES;
        }
        for step in 0..flight.count {
            let (page, frame) = (flight.page + step, flight.frame + step);
            match outcome {
                Ok(()) => {
                    add(&sh.counters.written_back, 1);
                    sh.pages.set(page, State::Standby, 0);
                    sh.pages.mark(page, if sh.spill.is_some() { SPILLED } else { 0 }, 0);
                    books.frames.hold(frame, page, Kind::STANDBY);
                }
                Err(errno) => {
                    if flight.count == 1 {
                        sh.write_failed(page, errno);
                    }
                    sh.pages.set(page, State::Standby, DIRTY);
                    books.frames.hold(frame, page, Kind::DIRTY);
                }
            }
        }
    }
}
