// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests like earlier ones: a thread that repeats itself need not ask again.

use dwell_policy::{Decision, Kind, Reason, Route};

use crate::admission::{Admission, Again};
use crate::clock;
use crate::file::File;
use crate::learner::{Asked, Heard, Learner};
use crate::share::Steering;
use crate::source::Source;
use crate::stats::{Counters, Settled};

/// Whether a decision for this reason is one that the learner hears of.
#[inline]
pub(super) fn is_learned(reason: Reason) -> bool {
    matches!(reason, Reason::Measured | Reason::Explored | Reason::SpinnerLimit)
}

impl<S: Source> File<S>
where
    S::Queue: Send,
{
    /// Whether a request needs no more than its call: that costs least, or is on trial, or the spin
    /// that costs least finds no spinner left.
    #[inline]
    pub(super) fn needs_its_call_only(&self, asked: Asked, decision: &Decision) -> bool {
        asked.learned().is_some()
            && decision.route == Route::Inline
            && is_learned(decision.reason)
            && matches!(self.steering, Steering::All)
    }

    /// Notes a request that goes by the call, decided while the load was published as `load`.
    /// Nothing is noted where the page cache is to be asked first.
    pub(super) fn note_again(&self, again: Again) {
        if self.source.caches() {
            return;
        }
        // A signal handler may come between and make requests of its own.
        if let Some(caller) = self.callers.get()
            && let Ok(mut noted) = caller.again.try_borrow_mut()
        {
            noted.note(again);
        }
    }

    /// The load as it is published now; `None` without a monitor.
    #[inline]
    pub(super) fn load_word(&self) -> Option<u64> {
        self.admission.as_ref().map(Admission::load_word)
    }

    /// Settles a request that goes the way of one that was noted.
    #[inline]
    pub(super) fn goes_again<'a>(
        &'a self,
        counters: &'a Counters,
        kind: Kind,
        bytes: u64,
    ) -> Option<Settled<'a>> {
        let again = self.callers.get()?.again.try_borrow().ok()?.of(kind, bytes)?;
        let learner = self.learner.as_deref()?;
        let goes = self.admission.as_ref().is_some_and(|known| known.note_under(again.load))
            && learner.is_now(again.asked)
            && !self.in_flight.counts();
        goes.then(|| self.settle((counters, learner), again))?
    }

    /// Settles a request that goes by the call: it is counted, and heard of where it is to be
    /// timed. `None` where the thread's CPU time for it is to be measured.
    #[inline]
    pub(super) fn settle<'a>(
        &'a self,
        (counters, learner): (&'a Counters, &'a Learner),
        again: Again,
    ) -> Option<Settled<'a>> {
        let Again { kind, bytes, asked, mode, reason, .. } = again;
        let before = counters.before(Route::Inline, mode, reason);
        let mut settled = Settled::new(counters, kind);
        let stands_for = learner.times(asked, before);
        if let Some(stands_for) = stands_for {
            let began = clock::now();
            if learner.is_to_meter(asked, began) {
                return None;
            }
            let hearing = &self.callers.get()?.hearing;
            settled.heard = Some(Heard { learner, hearing, asked, bytes, stands_for, began });
        }
        counters.decided(Route::Inline, mode, reason);
        if let Some(admission) = &self.admission {
            admission.called(reason);
            if let Some(stands_for) = stands_for {
                admission.worked(&self.parameters, bytes, stands_for);
            }
        }
        Some(settled)
    }
}
