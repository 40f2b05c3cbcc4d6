// SPDX-License-Identifier: MIT OR Apache-2.0
//! The walk of one request: page cache, decision, submission, wait, estimate.
#![allow(unsafe_code)]

use dwell_policy::{
    Call, Decision, Estimate, Kind, Load, Mode, Ns, Reason, Route, Routes, Wait, WaitMachine,
};

use crate::clock;
use crate::error::{Error, Result};
use crate::file::{Caller, File};
use crate::governed::{Governor, admit};
use crate::monitor::SpinGuard;
use crate::queue::{Io, Queue};
use crate::source::Source;
use crate::stats::{Counters, Family};
use crate::wait::wait;

/// One inline request in this many is timed.
const SAMPLE_ONE_IN: u64 = 64;

/// After a miss of the page cache, this many reads ask it before they wait.
const CACHE_HEAT: u8 = 32;

impl<S: Source> File<S>
where
    S::Queue: Send,
{
    /// What a request of this file would put before its policy now, by a thread without history.
    #[inline]
    pub fn wait_of(&self, kind: Kind, size_bytes: u64, call: Call) -> Wait<'_> {
        let routes = self.source.routes();
        Wait {
            kind,
            size_bytes,
            backlog: self.in_flight.ahead(),
            call,
            routes: if kind == Kind::Sync { routes.without(Route::Polled) } else { routes },
            profile: self.known.profile.as_ref(),
            estimate: Estimate::default(),
            load: self.governor.as_ref().map_or_else(Load::default, Governor::load),
            nice: 0,
            sequence: 0,
        }
    }

    pub(crate) fn request(&self, io: &Io) -> Result<usize> {
        self.reachable(io.offset())?;
        let Some(counters) = self.counters() else {
            return self.outcome(io, self.call_if_inline(io));
        };
        let result = match self.always {
            Some((mode, why)) => self.inline(counters, io, mode, why),
            None => match self.callers.get_or_default().try_borrow_mut() {
                Ok(mut caller) => self.decide(counters, &mut caller, io),
                // A signal handler interrupted a request of its own thread.
                Err(_) => self.unqueued(counters, io),
            },
        };
        counters.moved(io.action().kind(), result);
        self.outcome(io, result)
    }

    pub(crate) fn outcome(&self, io: &Io, result: i32) -> Result<usize> {
        if result >= 0 {
            return Ok(result as usize);
        }
        let offset = (io.action().kind() != Kind::Sync).then_some(io.offset());
        let source = std::io::Error::from_raw_os_error(-result);
        Err(Error::io(io.action().as_str(), self.path(), offset, source))
    }

    /// Serves inline what a ring refused and a synchronous call can do: polling that the device
    /// does not have after all, or a request that it could not take now. Gives any other result
    /// back as it is.
    pub(crate) fn retried_inline(&self, io: &Io, decision: &Decision, result: i32) -> i32 {
        let refused =
            matches!(-result, libc::EOPNOTSUPP | libc::EINVAL) && decision.route == Route::Polled;
        let again = refused || matches!(-result, libc::EAGAIN | libc::EINTR);
        if decision.route == Route::Inline || !again || !self.source.routes().has(Route::Inline) {
            return result;
        }
        let served = self.source.call(io);
        // A request that is wrong on every route says nothing of polling.
        if refused && served != result {
            self.source.refused(Route::Polled);
        }
        served
    }

    /// The inline route without a decision: sampled timing only.
    #[inline]
    fn inline(&self, counters: &Counters, io: &Io, mode: Mode, why: Reason) -> i32 {
        let before = counters.decided(Route::Inline, mode, why);
        if !before.is_multiple_of(SAMPLE_ONE_IN) {
            return self.source.call(io);
        }
        let started = clock::now();
        let result = self.source.call(io);
        counters.sampled(Family::Inline, clock::now() - started);
        result
    }

    #[cold]
    fn call_if_inline(&self, io: &Io) -> i32 {
        match self.source.routes().has(Route::Inline) {
            true => self.source.call(io),
            false => -libc::EBUSY,
        }
    }

    /// Where no queue can be had.
    #[cold]
    fn unqueued(&self, counters: &Counters, io: &Io) -> i32 {
        if !self.source.routes().has(Route::Inline) {
            return -libc::EBUSY;
        }
        self.inline(counters, io, Mode::Block, Reason::NoQueue)
    }

    /// The walk of one request: page cache, decision, submission, wait, estimate.
    fn decide(&self, counters: &Counters, caller: &mut Caller<S::Queue>, io: &Io) -> i32 {
        let kind = io.action().kind();
        if kind == Kind::Read
            && self.source.caches()
            && let Some(result) = self.ask_cache(counters, caller, io)
        {
            return result;
        }
        let size_bytes = u64::from(io.bytes());
        let mut wait = Wait {
            estimate: caller.estimator.of(kind, size_bytes),
            sequence: caller.sequence,
            ..self.wait_of(kind, size_bytes, Call::Blocking)
        };
        if wait.routes.has(Route::Inline) && self.source.grows(io) {
            wait.routes = Routes::INLINE;
        }
        caller.sequence += 1;
        let mut decision = self.policy.choose(&wait);
        let started = clock::now();
        let guard = admit(self.governor.as_ref(), &wait, &mut decision, started);
        self.in_flight.enter(io.bytes());
        let (result, latency_ns) = if decision.route == Route::Inline {
            let result = self.source.call(io);
            let latency_ns = clock::now() - started;
            counters.decided(Route::Inline, decision.mode, decision.why);
            counters.took(Family::Inline, latency_ns);
            (result, latency_ns)
        } else {
            self.queued(counters, caller, io, &decision, started, guard)
        };
        self.in_flight.leave(io.bytes());
        if let Some(governor) = &self.governor {
            governor.worked(&self.known, io.bytes());
        }
        if result == io.bytes() as i32 {
            caller.estimator.record(kind, u64::from(io.bytes()), decision.mode, latency_ns);
        }
        result
    }

    /// A request on the thread's queue, waited for. The time is the wait's, in nanoseconds.
    fn queued(
        &self,
        counters: &Counters,
        caller: &mut Caller<S::Queue>,
        io: &Io,
        decision: &Decision,
        submitted: Ns,
        guard: Option<SpinGuard<'_>>,
    ) -> (i32, u64) {
        if caller.queue.is_none() {
            caller.queue = self.source.call_queue().ok();
        }
        let Some(queue) = &mut caller.queue else { return (self.unqueued(counters, io), 0) };
        // SAFETY: the memory is borrowed by the caller of this call, which waits for the completion
        // below before it serves `io` another way.
        let submitted_io = unsafe { io.again() };
        let Ok(ticket) = queue.submit(submitted_io, decision.route) else {
            return (self.unqueued(counters, io), 0);
        };
        queue.flush();
        let mut result = 0;
        let machine = WaitMachine::new(decision, submitted, submitted);
        let outcome = wait(queue, machine, &mut |completion| {
            let ours = completion.ticket == ticket;
            if ours {
                result = completion.result;
            }
            ours
        });
        counters.waited(decision, &outcome);
        if let Some(governor) = &self.governor {
            governor.spun(guard, outcome.spun_ns);
        }
        let latency_ns = outcome.ended - submitted;
        counters.took(Family::queued(decision.mode), latency_ns);
        (self.retried_inline(io, decision, result), latency_ns)
    }

    /// Whether a read came up short because the file ends there.
    fn ends(&self, io: &Io, result: i32) -> bool {
        self.source.bytes().is_ok_and(|bytes| io.offset() + result as u64 >= bytes)
    }

    /// Asks the page cache before waiting (SmartCon Fig. 6), but only a file with recent misses:
    /// for others the question costs more than it saves. `None` when the device has to be asked.
    fn ask_cache(
        &self,
        counters: &Counters,
        caller: &mut Caller<S::Queue>,
        io: &Io,
    ) -> Option<i32> {
        if caller.cache_heat == 0 {
            let before = counters.decided(Route::Inline, Mode::Block, Reason::Cached);
            if !before.is_multiple_of(SAMPLE_ONE_IN / 8) {
                return Some(self.source.call(io));
            }
            let started = clock::now();
            let result = self.source.call(io);
            let took_ns = clock::now() - started;
            counters.sampled(Family::Cached, took_ns);
            let device_ns = self.known.profile.map_or(0, |p| p.latency_of(u64::from(io.bytes())));
            if took_ns > (device_ns / 2).max(2_000) {
                caller.cache_heat = CACHE_HEAT;
            }
            return Some(result);
        }
        match self.source.cached(io) {
            // Part of it was there: the call completes the rest, as a read of a file must.
            Some(result) if result > 0 && result < io.bytes() as i32 && !self.ends(io, result) => {
                caller.cache_heat = CACHE_HEAT;
                None
            }
            Some(result) => {
                caller.cache_heat -= 1;
                counters.decided(Route::Inline, Mode::Spin, Reason::Cached);
                Some(result)
            }
            None => {
                caller.cache_heat = CACHE_HEAT;
                None
            }
        }
    }
}
