// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests that their caller serves by a call of its own.

use dwell_policy::{Call, Decision, Kind, Mode, Ns, Reason, Route, policy};

use crate::admission::{Admission, Again, Standing, admit};
use crate::clock;
use crate::file::{File, Heat};
use crate::learner::{Asked, Learner};
use crate::queue::Io;
use crate::source::Source;
use crate::stats::{Family, Settled};

use super::SAMPLE_ONE_IN;
use super::again::is_learned;

impl<S: Source> File<S>
where
    S::Queue: Send,
{
    /// Whether a request of so many bytes goes by the caller's call, because all do or because
    /// another like it of this thread did. It is counted, and its caller says what came of it.
    #[inline]
    pub fn repeats(&self, kind: Kind, bytes: usize) -> Option<Settled<'_>> {
        let counters = self.counters.get()?;
        let Some((mode, why)) = self.always else {
            return self.goes_again(counters, kind, bytes as u64);
        };
        let is_timed = counters.before(Route::Inline, mode, why).is_multiple_of(SAMPLE_ONE_IN);
        (!is_timed).then(|| {
            counters.decided(Route::Inline, mode, why);
            Settled::new(counters, kind)
        })
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
        // Of bytes that nobody counted it is not known what was found of so many.
        let uncounted = bytes == 0 && kind != Kind::Sync && self.learner.is_some();
        if self.always.is_some() || uncounted {
            return None;
        }
        let load = self.load_word();
        let mut wait = self.wait_of(kind, bytes as u64, Call::Blocking);
        let withheld = self.withheld().filter(|_| wait.routes.has(Route::Inline));
        let asked = withheld.is_none().then(|| self.ask(&mut wait, 1)).flatten();
        let may_spin = wait.load.may_spin;
        wait.load.may_spin &= self.admission.as_ref().is_none_or(Admission::has_room);
        let why = withheld.or_else(|| self.policy.leaves(&wait))?;
        let mut decision = policy::block(&wait, why);
        let counters = self.counters.get()?;
        let learns = asked.zip(self.learner.as_deref());
        if let Some((asked, learner)) = learns
            && self.needs_its_call_only(asked, &decision)
        {
            let Decision { mode, reason, .. } = decision;
            let load = load.unwrap_or_default();
            let again = Again { kind, bytes: bytes as u64, load, asked, mode, reason };
            // The next may find a spinner.
            if reason != Reason::SpinnerLimit || !may_spin {
                self.note_again(again);
            }
            let settled = self.settle((counters, learner), again)?;
            let result = call();
            settled.done(result);
            return Some(result);
        }
        let started = clock::now();
        let is_heard = |(asked, learner): (Asked, &Learner)| {
            (asked.learned().is_none() || is_learned(why)) && learner.listens(asked, started)
        };
        if learns.is_some_and(is_heard) {
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
            admission.worked(&self.parameters, u64::try_from(result).unwrap_or(0), 1);
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
