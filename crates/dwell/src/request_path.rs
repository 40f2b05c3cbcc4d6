// SPDX-License-Identifier: MIT OR Apache-2.0
//! The path of one request: page cache, decision, submission, wait, estimate.
#![allow(unsafe_code)]

mod again;
mod apart;
mod cached;

use std::cell::RefCell;

use dwell_policy::{
    Backlog, Call, Decision, Estimate, Kind, Load, Mode, Ns, Reason, Route, Routes, Wait,
    WaitMachine, policy,
};

use crate::admission::{Admission, Again, admit};
use crate::clock;
use crate::error::{Error, Result};
use crate::file::{File, Heat, Turn};
use crate::learner::{Asked, Hearing, Taken};
use crate::monitor::SpinGuard;
use crate::off;
use crate::parameters::Entered;
use crate::queue::{Io, Queue, QueueHint};
use crate::share::Steering;
use crate::source::Source;
use crate::stats::{Counters, Family};
use crate::wait::wait;

/// What became of a request that was decided.
struct Served {
    result: i32,
    /// How it was waited for in the end.
    mode: Mode,
    latency_ns: Ns,
    /// Whether it went the way that was decided.
    as_decided: bool,
}

impl Served {
    /// By a call in a queue's place.
    fn by_call(result: i32, latency_ns: Ns) -> Self {
        Served { result, mode: Mode::Block, latency_ns, as_decided: false }
    }
}

/// What became of a request that was considered.
enum Considered {
    Served(i32),
    /// Its call is all that is left to do: it is counted, not timed, and entered.
    Call(Entered),
}

/// One inline request in this many is timed.
const SAMPLE_ONE_IN: u64 = 64;

impl<S: Source> File<S>
where
    S::Queue: Send,
{
    /// What a request of this file would put before its policy now, by a thread without history.
    #[inline]
    pub fn wait_of(&self, kind: Kind, size_bytes: u64, call: Call) -> Wait<'_> {
        let routes = match call {
            Call::Blocking => self.source.routes_alone(kind),
            Call::Async => self.source.routes(),
        };
        let mut load = self.admission.as_ref().map_or_else(Load::default, Admission::load);
        if self.shadow {
            // It uses none of the spinner limit, and so would have no lease.
            load.may_spin = load.limit_permits;
        }
        Wait {
            kind,
            size_bytes,
            backlog: if self.policy.looks_at_backlog() {
                self.in_flight.ahead()
            } else {
                Backlog::default()
            },
            call,
            routes: if kind == Kind::Sync { routes.without(Route::Polled) } else { routes },
            profile: self.parameters.profile.as_ref(),
            estimate: Estimate::default(),
            awake: true,
            load,
            nice: 0,
            next_nice: None,
            sequence: 0,
            learned: None,
        }
    }

    #[inline]
    pub(crate) fn requested(&self, io: &Io) -> Result<usize> {
        self.reachable(io.offset())?;
        self.outcome(io, self.serve(io, None))
    }

    /// Serves a request as it stands: nothing is aligned or cut short. Bytes transferred, or a
    /// negative error number.
    pub fn request(&self, io: &Io) -> i32 {
        self.serve(io, None)
    }

    /// As [`File::request`], for a source that serves many files: `heat` tells of the one that this
    /// request reads.
    #[doc(hidden)]
    pub fn request_amid(&self, io: &Io, heat: &Heat) -> i32 {
        self.serve(io, Some(heat))
    }

    /// After a system call many CPUs mispredict each return: the caller of a very fast device's
    /// request is to be the first to return. So the usual call is made here, and not where it is
    /// decided.
    #[inline(always)]
    fn serve(&self, io: &Io, heat: Option<&Heat>) -> i32 {
        let Some(counters) = self.counters() else { return self.call_if_inline(io) };
        let (kind, bytes) = (io.action().kind(), u64::from(io.bytes()));
        let result = match self.always {
            Some((mode, why)) => self.inline(counters, io, mode, why),
            None => match self.goes_again(counters, kind, bytes) {
                Some(settled) => {
                    let result = self.source.call(io);
                    settled.done(result);
                    return result;
                }
                None => match self.consider(counters, io, heat) {
                    Considered::Served(result) => result,
                    Considered::Call(entered) => {
                        let result = self.source.call(io);
                        self.in_flight.leave(entered);
                        result
                    }
                },
            },
        };
        counters.moved(kind, result);
        result
    }

    #[inline(never)]
    fn consider(&self, counters: &Counters, io: &Io, heat: Option<&Heat>) -> Considered {
        let caller = self.caller();
        let heat = heat.unwrap_or(&caller.heat);
        if self.is_trusted(io.action().kind(), heat) {
            return match self.settle_hit(counters) {
                true => Considered::Call(Entered::UNCOUNTED),
                false => {
                    Considered::Served(self.timed_hit(counters, heat, || self.source.call(io)))
                }
            };
        }
        match caller.turn.try_borrow_mut() {
            Ok(mut turn) => self.decide(counters, (&mut turn, &caller.hearing), heat, io),
            // A signal handler interrupted a request of its own thread.
            Err(_) => Considered::Served(self.unqueued(counters, io)),
        }
    }

    /// What would be decided for a request now.
    pub fn would_decide(&self, io: &Io) -> Decision {
        if let Some((mode, why)) = self.always {
            return Decision::new(Route::Inline, mode, 0, why);
        }
        match self.caller().turn.try_borrow() {
            Ok(turn) => {
                let mut wait = self.put(io, &turn);
                self.ask(&mut wait, 1);
                self.choose(&wait, self.withheld())
            }
            Err(_) => Decision::new(Route::Inline, Mode::Block, 0, Reason::NoQueue),
        }
    }

    /// Counts what would have been decided for a call that took so long. What took no longer than a
    /// hit of the page cache was one, and would not have been waited for.
    fn recorded(
        &self,
        counters: &Counters,
        would: &Decision,
        kind: Kind,
        heat: &Heat,
        result: i32,
        latency_ns: Ns,
    ) {
        if kind == Kind::Read && self.source.caches() && latency_ns <= self.hit_ns(result) {
            heat.hit();
            counters.decided(Route::Inline, Mode::Spin, Reason::Cached);
            counters.took(Family::Cached, latency_ns);
        } else {
            if kind == Kind::Read {
                heat.missed();
            }
            counters.decided(would.route, would.mode, would.reason);
            counters.took(Family::Inline, latency_ns);
        }
    }

    #[inline]
    pub(crate) fn outcome(&self, io: &Io, result: i32) -> Result<usize> {
        if result >= 0 { Ok(result as usize) } else { Err(self.failed(io, result)) }
    }

    #[cold]
    fn failed(&self, io: &Io, result: i32) -> Error {
        let offset = (io.action().kind() != Kind::Sync).then_some(io.offset());
        let source = std::io::Error::from_raw_os_error(-result);
        Error::io(io.action().as_str(), self.path(), offset, source)
    }

    /// Serves inline what a ring refused and a synchronous call can do: polling that the device
    /// does not have after all, or a request that it could not take now. The result of the call and
    /// its time, in nanoseconds; `None` for any other result of the ring.
    pub(crate) fn retried_inline(&self, io: &Io, route: Route, result: i32) -> Option<(i32, Ns)> {
        let refused = matches!(-result, libc::EOPNOTSUPP | libc::EINVAL) && route == Route::Polled;
        let again = refused || matches!(-result, libc::EAGAIN | libc::EINTR);
        if route == Route::Inline || !again || !self.source.routes().has(Route::Inline) {
            return None;
        }
        let began = clock::now();
        let served = self.source.call(io);
        // A request that is wrong on every route says nothing of polling.
        if refused && served != result {
            self.source.refused(Route::Polled);
        }
        Some((served, clock::now() - began))
    }

    /// The inline route without a decision: sampled timing only.
    #[inline(always)]
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

    /// What a request puts before its policy now.
    fn put(&self, io: &Io, turn: &Turn<S::Queue>) -> Wait<'_> {
        let hint = turn.queue.as_ref().map_or(QueueHint::DEVICE, |queue| queue.hint(io));
        let kind = match io.action().kind() {
            // It is a message and its answer, as a write is.
            Kind::Sync if hint.syncs_at_once => Kind::Write,
            kind => kind,
        };
        let size_bytes = u64::from(io.bytes());
        let mut wait = Wait {
            estimate: turn.estimator.of(kind, size_bytes),
            sequence: turn.sequence,
            awake: hint.awake,
            ..self.wait_of(kind, size_bytes, Call::Blocking)
        };
        if kind == Kind::Sync && self.source.has_busy_server() {
            // The server syncs without another trip to it.
            wait.routes = Routes::INTERRUPT;
        }
        if wait.routes.has(Route::Inline) && self.source.grows(io) {
            wait.routes = Routes::INLINE;
        }
        wait
    }

    /// Why requests go the kernel's own way now, whatever their policy says.
    #[inline]
    pub fn withheld(&self) -> Option<Reason> {
        let is_off = match &self.admission {
            Some(admission) => admission.is_off(),
            None => off::was_off(),
        };
        match &self.steering {
            _ if is_off => Some(Reason::Off),
            Steering::All => None,
            Steering::Nothing => Some(Reason::HeldBack),
            Steering::Spans(spans) => spans.withheld(clock::now()),
        }
    }

    /// Compares steered requests with those held back, where there are both.
    #[inline]
    fn compare(&self, kind: Kind, size_bytes: u64, began: Ns, latency_ns: Ns) {
        if let Steering::Spans(spans) = &self.steering
            && !self.shadow
        {
            spans.hear(kind, size_bytes, began, latency_ns);
        }
    }

    /// The decision for a request: that of its policy, or to block for the reason `withheld`.
    #[inline]
    pub(crate) fn choose(&self, wait: &Wait<'_>, withheld: Option<Reason>) -> Decision {
        match withheld {
            Some(why) => policy::block(wait, why),
            None => self.policy.choose(wait),
        }
    }

    /// Puts what was found out about requests like this one before its policy.
    #[inline]
    pub(crate) fn ask(&self, wait: &mut Wait<'_>, depth: u32) -> Option<Asked> {
        let learner = self.learner.as_ref().filter(|_| !self.shadow)?;
        let asked = learner.ask(wait, depth)?;
        wait.learned = asked.learned();
        Some(asked)
    }

    /// The path of one request: page cache, decision, submission, wait, estimate.
    fn decide(
        &self,
        counters: &Counters,
        (turn, hearing): (&mut Turn<S::Queue>, &RefCell<Hearing>),
        heat: &Heat,
        io: &Io,
    ) -> Considered {
        let kind = io.action().kind();
        let withheld = self.withheld();
        if kind == Kind::Read
            && withheld.is_none()
            && !self.shadow
            && self.source.caches()
            && let Some(result) = self.ask_cache(counters, heat, io)
        {
            return Considered::Served(result);
        }
        let load = self.load_word();
        let mut wait = self.put(io, turn);
        turn.sequence += 1;
        let asked = match withheld {
            None => self.ask(&mut wait, 1).zip(self.learner.as_deref()),
            // Nothing is tried, nor heard of.
            Some(_) => None,
        };
        let would = self.choose(&wait, withheld);
        let mut stands_for = 1;
        if let Some((asked, learner)) = asked
            && self.needs_its_call_only(asked, &would)
        {
            let Decision { mode, reason, .. } = would;
            if let Some(load) = load {
                let bytes = u64::from(io.bytes());
                self.note_again(Again { kind, bytes, load, asked, mode, reason });
            }
            match learner.times(asked, counters.before(would.route, mode, reason)) {
                Some(calls) => stands_for = calls,
                None => {
                    counters.decided(would.route, mode, reason);
                    if let Some(admission) = &self.admission {
                        admission.called(reason);
                    }
                    return Considered::Call(self.in_flight.enter(io.bytes()));
                }
            }
        }
        let mut decision = if self.shadow { policy::block(&wait, would.reason) } else { would };
        let started = clock::now();
        if self.admission.is_none() {
            off::look_at_times(started);
        }
        // A thread's first request on a ring also sets that up.
        let metered = (decision.route == Route::Inline || turn.queue.is_some())
            && asked.is_some_and(|(asked, learner)| learner.meters(asked, started));
        let cpu_before = metered.then(clock::thread_cpu);
        let admission = self.admission.as_ref().filter(|_| !self.shadow);
        let guard = admit(admission, &wait, &mut decision, started, &mut turn.standing);
        let entered = self.in_flight.enter(io.bytes());
        let Served { result, mode, latency_ns, as_decided } = if decision.route == Route::Inline {
            let result = self.source.call(io);
            let latency_ns = clock::now() - started;
            if self.shadow {
                self.recorded(counters, &would, kind, heat, result, latency_ns);
            } else {
                counters.decided(Route::Inline, decision.mode, decision.reason);
                let Decision { route, mode, reason, .. } = decision;
                counters.took(Family::of(route, mode, reason), latency_ns);
            }
            Served { result, mode: decision.mode, latency_ns, as_decided: true }
        } else {
            let counted = if self.shadow { would } else { decision };
            self.queued(counters, turn, io, (&decision, &counted), started, guard)
        };
        self.in_flight.leave(entered);
        if let Some(admission) = admission {
            let (standing, bytes) = (&mut turn.standing, io.bytes());
            admission.worked_for(standing, &self.parameters, bytes, stands_for);
        }
        if result == io.bytes() as i32 {
            turn.estimator.record(kind, u64::from(io.bytes()), mode, latency_ns);
            self.compare(kind, u64::from(io.bytes()), started, latency_ns);
            if let Some((asked, learner)) = asked {
                // A call in the queue's place says nothing of the queue.
                let arm = as_decided.then(|| asked.arm(&decision));
                let by_server = decision.route != Route::Inline && self.source.has_busy_server();
                let server_ns = if by_server { latency_ns } else { 0 };
                let own_ns = |before| clock::thread_cpu().saturating_sub(before);
                let cpu_ns = cpu_before.map(|before| own_ns(before) + server_ns);
                let (began, took_ns) = (started, latency_ns);
                let taken = Taken { arm, requests: 1, stands_for, began, took_ns, cpu_ns };
                if let Ok(mut hearing) = hearing.try_borrow_mut() {
                    learner.hear(&mut hearing, asked, taken);
                }
            }
        }
        Considered::Served(result)
    }

    /// By a function of its own: a queue on its way takes kilobytes of stack, and later requests
    /// may come on a signal handler's.
    #[cold]
    #[inline(never)]
    fn make_queue(&self, queue: &mut Option<S::Queue>) {
        *queue = self.source.call_queue().ok();
    }

    /// A request on the thread's queue, waited for; by a call where the queue does not take it.
    fn queued(
        &self,
        counters: &Counters,
        turn: &mut Turn<S::Queue>,
        io: &Io,
        (decision, counted): (&Decision, &Decision),
        mut submitted: Ns,
        guard: Option<SpinGuard<'_>>,
    ) -> Served {
        if turn.queue.is_none() {
            self.make_queue(&mut turn.queue);
            // Making it took its time, which says nothing of the device.
            submitted = clock::now();
        }
        let unqueued = || {
            let began = clock::now();
            let result = self.unqueued(counters, io);
            Served::by_call(result, clock::now() - began)
        };
        let Some(queue) = &mut turn.queue else { return unqueued() };
        // SAFETY: the memory is borrowed by the caller of this call, which waits for the completion
        // below before it serves `io` another way.
        let submitted_io = unsafe { io.again() };
        let Ok(ticket) = queue.submit(submitted_io, decision.route) else { return unqueued() };
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
        if let Some(admission) = &self.admission {
            admission.spun(guard, outcome.spun_ns);
        }
        if let Some((result, latency_ns)) = self.retried_inline(io, decision.route, result) {
            counters.passed(&outcome);
            counters.decided(Route::Inline, Mode::Block, Reason::NoQueue);
            counters.took(Family::Inline, latency_ns);
            return Served::by_call(result, latency_ns);
        }
        counters.waited(counted, &outcome);
        let latency_ns = outcome.ended - submitted;
        counters.took(Family::of(decision.route, decision.mode, decision.reason), latency_ns);
        Served { result, mode: decision.mode, latency_ns, as_decided: true }
    }
}
