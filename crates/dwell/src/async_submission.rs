// SPDX-License-Identifier: MIT OR Apache-2.0
//! What becomes of a request on a queue that has many in flight: checked, decided, accounted for.

use dwell_policy::{Backlog, Call, Decision, Estimator, Mode, Ns, Reason, Route, Wait, policy};

use crate::admission::{Admission, Standing};
use crate::clock;
use crate::error::{Error, ErrorKind, Result};
use crate::file::{File, MAX_TRANSFER_BYTES};
use crate::learner::{Asked, Hearing, Learner, Taken};
use crate::off;
use crate::parameters::Entered;
use crate::queue::Io;
use crate::source::Source;
use crate::stats::Family;

/// One request in this many looks at the clock, where there is no monitor: whether Dwell is still
/// on.
const LOOK_ONE_IN: u64 = 16;

/// What a completion came to.
pub(crate) struct Landed {
    pub result: i32,
    /// Whether a call served what the queue refused.
    pub called: bool,
}

/// What a pipeline or a file of an executor hears: how fast its requests come out, one after
/// another.
#[derive(Default)]
pub(crate) struct Course {
    hearing: Hearing,
    /// When the last wait ended, or the first request went in; the thread's CPU time then, where it
    /// is measured; and how many came out since.
    since: Ns,
    cpu_ns: Option<Ns>,
    landed: u64,
}

impl Course {
    /// The first request goes in, or a wait ended.
    pub fn begin(&mut self, learner: Option<&Learner>, asked: Option<Asked>, now: Ns) {
        (self.since, self.landed) = (now, 0);
        // Where nothing came out since the last time, what was begun is begun anew.
        let meters = self.cpu_ns.is_some()
            || learner.zip(asked).is_some_and(|(learner, asked)| learner.meters(asked, now));
        self.cpu_ns = meters.then(clock::thread_cpu);
    }

    /// Requests came out.
    pub fn landed(&mut self, requests: u32) {
        self.landed += u64::from(requests);
    }

    /// A wait as `decision` said ended.
    pub fn waited(&mut self, learner: &Learner, asked: Asked, decision: &Decision, now: Ns) {
        if self.landed == 0 {
            return;
        }
        let cpu_ns = self.cpu_ns.take().map(|before| clock::thread_cpu().saturating_sub(before));
        let (began, took_ns) = (self.since, now.saturating_sub(self.since));
        let (arm, requests) = (Some(asked.arm(decision)), self.landed);
        let taken = Taken { arm, requests, stands_for: 1, began, took_ns, cpu_ns };
        learner.hear(&mut self.hearing, asked, taken);
        self.begin(Some(learner), Some(asked), now);
    }
}

/// What a request counts as that was decided so and that its queue took: where a call has served it
/// in the place of a ring, as that.
pub(crate) fn as_taken(decision: Decision, is_call: bool) -> Decision {
    match is_call && decision.route != Route::Inline {
        true => called(decision),
        false => decision,
    }
}

fn called(decision: Decision) -> Decision {
    Decision { route: Route::Inline, mode: Mode::Block, reason: Reason::NoQueue, ..decision }
}

/// What a request counts as that came out of a wait. A thread waits for all its requests at once,
/// as was decided for the one that is due first, and as that was admitted.
pub(crate) fn as_waited(decision: Decision, wait: &Decision) -> Decision {
    let same = std::mem::discriminant(&decision.mode) == std::mem::discriminant(&wait.mode);
    match same || decision.route == Route::Inline {
        true => decision,
        false => Decision { mode: wait.mode, reason: wait.reason, ..decision },
    }
}

impl<S: Source> File<S>
where
    S::Queue: Send,
{
    /// Whether a request over this memory can be queued as it stands.
    pub(crate) fn queueable(&self, memory: *const u8, bytes: usize, offset: u64) -> Result<()> {
        self.reachable(offset)?;
        if bytes > MAX_TRANSFER_BYTES {
            let what = format!("{bytes} bytes in one request; at most {MAX_TRANSFER_BYTES}");
            return Err(Error::refused(ErrorKind::OutOfRange, self.path(), what));
        }
        if !self.aligned(memory, bytes, offset) {
            let what = format!(
                "direct I/O of {bytes} bytes at byte {offset}: memory, length and offset must be \
                 multiples of {}; use memory aligned so (in Rust, buffer::Aligned)",
                self.source.alignment()
            );
            return Err(Error::refused(ErrorKind::Unaligned, self.path(), what));
        }
        Ok(())
    }

    /// Decides for the request of this number by a thread whose queue has `own` in flight, and of
    /// which up to `depth` go together.
    pub(crate) fn decide_queued(
        &self,
        io: &Io,
        own: Backlog,
        estimator: &Estimator,
        sequence: u64,
        depth: u32,
    ) -> (Decision, Option<Asked>) {
        let kind = io.action().kind();
        let size_bytes = u64::from(io.bytes());
        let wait = self.wait_of(kind, size_bytes, Call::Async);
        // A wait ends with the first completion of any of this thread's requests, so none of them
        // is in the way of that.
        let mut wait = Wait {
            backlog: wait.backlog.less(own),
            estimate: estimator.of(kind, size_bytes),
            sequence,
            ..wait
        };
        if self.admission.is_none() && sequence.is_multiple_of(LOOK_ONE_IN) {
            off::look_at_times(clock::now());
        }
        let withheld = self.withheld();
        let asked = if withheld.is_none() { self.ask(&mut wait, depth) } else { None };
        let would = self.choose(&wait, withheld);
        if !self.shadow {
            let is_spent =
                self.admission.as_ref().is_some_and(|admission| admission.is_spent(&would));
            let decision = if is_spent { policy::block(&wait, Reason::SpinCap) } else { would };
            return (decision, asked);
        }
        if let Some(counters) = self.counters() {
            counters.decided(would.route, would.mode, would.reason);
        }
        (policy::block(&wait, would.reason), None)
    }

    /// Serves a request where there is no queue.
    pub(crate) fn serve_unqueued(&self, io: &Io, decision: &Decision, began: Ns) -> i32 {
        let result = self.source.call(io);
        let decision = as_taken(*decision, true);
        if let Some(counters) = self.counters() {
            if !self.shadow {
                counters.decided(Route::Inline, decision.mode, decision.reason);
            }
            counters.took(Family::Inline, clock::now().saturating_sub(began));
            counters.moved(io.action().kind(), result);
        }
        result
    }

    /// Accounts for a completion, and serves by a call what the queue refused, unless nobody wants
    /// it any more. `learned` is its latency where that is known, and who is to learn it.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn landed(
        &self,
        io: &Io,
        decision: &Decision,
        entered: Entered,
        result: i32,
        learned: Option<(&mut Estimator, Ns)>,
        wanted: bool,
        standing: &mut Standing,
    ) -> Landed {
        let (kind, bytes) = (io.action().kind(), u64::from(io.bytes()));
        let counters = self.counters();
        let called = wanted.then(|| self.retried_inline(io, decision.route, result)).flatten();
        let learned = match called {
            Some((_, latency_ns)) => {
                learned.map(|(who, _)| (who, Mode::Block, Family::Inline, latency_ns))
            }
            None => learned.map(|(who, latency_ns)| {
                let family = Family::of(decision.route, decision.mode, decision.reason);
                (who, decision.mode, family, latency_ns)
            }),
        };
        let landed = Landed {
            result: called.map_or(result, |(result, _)| result),
            called: called.is_some(),
        };
        if let Some((estimator, mode, family, latency_ns)) = learned {
            if landed.result == io.bytes() as i32 {
                estimator.record(kind, bytes, mode, latency_ns);
            }
            if let Some(counters) = counters {
                counters.took(family, latency_ns);
            }
        }
        if let Some(counters) = counters {
            counters.moved(kind, landed.result);
        }
        self.in_flight.leave(entered);
        if let Some(admission) = &self.admission {
            admission.worked_for(standing, &self.parameters, io.bytes(), 1);
        }
        landed
    }

    /// Counts a request that the queue refused and a call served.
    pub(crate) fn count_called(&self) {
        if let Some(counters) = self.counters().filter(|_| !self.shadow) {
            counters.decided(Route::Inline, Mode::Block, Reason::NoQueue);
        }
    }

    /// Counts a decision once the wait is over that ended with its completion. Where the spin
    /// expired, it expired for all.
    pub(crate) fn count_queued(&self, decision: &Decision, expired: bool) {
        // A shadow has counted what it would have done.
        let Some(counters) = self.counters().filter(|_| !self.shadow) else { return };
        let expired = expired && decision.mode != Mode::Block;
        let why = if expired { Reason::SpinExpired } else { decision.reason };
        counters.decided(decision.route, decision.mode, why);
    }

    /// What blocking and coming back costs here, in nanoseconds; 0 where nobody measured it.
    pub(crate) fn switch_ns(&self) -> Ns {
        self.parameters.profile.map_or(0, |profile| profile.switch_ns)
    }

    /// Its handles on the system monitor.
    pub(crate) fn admission(&self) -> Option<&Admission> {
        self.admission.as_ref()
    }
}
