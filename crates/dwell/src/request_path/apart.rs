// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that their caller serves by a call of its own.

use dwell_policy::{Call, Decision, Kind, Mode, Ns, Reason, Route, policy};

use crate::admission::{Again, Standing, admit};
use crate::clock;
use crate::file::{File, Heat};
use crate::queue::Io;
use crate::share::Steering;
use crate::source::Source;
use crate::stats::{Family, Settled};

impl<S: Source> File<S>
where
    S::Queue: Send,
{
    /// Whether a request of so many bytes goes by the caller's call because another like it of this
    /// thread did. It is counted, and its caller says what came of it.
    #[inline]
    pub fn repeats(&self, kind: Kind, bytes: usize) -> Option<Settled<'_>> {
        let counters = self.counters.get().filter(|_| self.always.is_none())?;
        self.goes_again(counters, kind, bytes as u64).then(|| Settled::new(counters, kind))
    }

    /// Serves by `call` a request of so many bytes that its policy leaves to the synchronous call
    /// whatever came before it; `None` where [`File::request_amid`] has to be asked, if only
    /// because this thread has not done so yet. What this thread learns from its requests it does
    /// not learn here: some have to go the long way.
    ///
    /// Allocates nothing and holds nothing while `call` runs, so that a signal handler may come
    /// between and even leave for good.
    #[inline]
    pub fn left(&self, kind: Kind, bytes: usize, call: impl FnOnce() -> i32) -> Option<i32> {
        if self.always.is_some() {
            return None;
        }
        let load = self.load_word();
        let mut wait = self.wait_of(kind, bytes as u64, Call::Blocking);
        let withheld = self.withheld().filter(|_| wait.routes.has(Route::Inline));
        let asked = withheld.is_none().then(|| self.ask(&mut wait, 1)).flatten();
        let why = withheld.or_else(|| self.policy.leaves(&wait))?;
        let mut decision = policy::block(&wait, why);
        let counters = self.counters.get()?;
        let learns = asked.zip(self.learner.as_deref());
        let is_timed = learns.is_none_or(|(asked, learner)| {
            let before = counters.before(decision.route, decision.mode, decision.reason);
            why != Reason::Measured || learner.times(asked, before)
        });
        if !is_timed && matches!(self.steering, Steering::All) {
            let result = call();
            counters.decided(decision.route, decision.mode, decision.reason);
            counters.moved(kind, result);
            if let (Some((asked, _)), Some(load), Reason::Measured) = (learns, load, why) {
                let (bytes, mode) = (bytes as u64, decision.mode);
                self.note_again(Again { kind, bytes, load, asked, mode });
            }
            if let Some(admission) = &self.admission {
                admission.worked(&self.parameters, u32::try_from(result).unwrap_or(0));
            }
            return Some(result);
        }
        let started = clock::now();
        if learns.is_some_and(|(asked, learner)| learner.listens(asked, started)) {
            return None;
        }
        admit(self.admission.as_ref(), &wait, &mut decision, started, &mut Standing::default());
        let result = call();
        counters.decided(decision.route, decision.mode, decision.reason);
        let latency_ns = clock::now() - started;
        counters.took(Family::of(decision.route, decision.mode, decision.reason), latency_ns);
        counters.moved(kind, result);
        if usize::try_from(result) == Ok(bytes) {
            self.compare(kind, bytes as u64, started, latency_ns);
        }
        if let Some(admission) = &self.admission {
            admission.worked(&self.parameters, u32::try_from(result).unwrap_or(0));
        }
        Some(result)
    }

    /// Counts a request of which a decision was only recorded, and what came of it when it was
    /// served otherwise.
    pub fn observed(&self, would: &Decision, io: &Io, heat: &Heat, result: i32, latency_ns: Ns) {
        let Some(counters) = self.counters() else { return };
        let kind = io.action().kind();
        self.recorded(counters, would, kind, heat, result, latency_ns);
        counters.moved(kind, result);
        if let Ok(mut turn) = self.caller().turn.try_borrow_mut() {
            turn.sequence += 1;
            turn.estimator.record(kind, u64::from(io.bytes()), Mode::Block, latency_ns);
        }
    }
}
