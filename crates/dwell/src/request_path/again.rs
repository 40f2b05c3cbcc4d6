// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests like earlier ones: a thread that repeats itself on a quick device need not ask again.

use dwell_policy::{Kind, Reason, Route};

use crate::admission::{Admission, Again};
use crate::file::File;
use crate::source::Source;
use crate::stats::Counters;

impl<S: Source> File<S>
where
    S::Queue: Send,
{
    /// Notes a request that goes by the call, decided while the load was published as `load`.
    /// Nothing is noted where the page cache is to be asked first, nor where each request is to be
    /// told of: to the backlog, or to the monitor for the kernel thread that works for it.
    pub(super) fn note_again(&self, again: Again) {
        if self.source.caches() || self.parameters.worker_ns > 0 {
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

    /// Whether a request goes the way of the one that was noted, and counts it if so.
    #[inline]
    pub(super) fn goes_again(&self, counters: &Counters, kind: Kind, bytes: u64) -> bool {
        let noted =
            self.callers.get().and_then(|caller| caller.again.try_borrow().ok()?.of(kind, bytes));
        let (Some(again), Some(learner)) = (noted, &self.learner) else { return false };
        let before = counters.before(Route::Inline, again.mode, Reason::Measured);
        let goes = self.admission.as_ref().is_some_and(|known| known.note_under(again.load))
            && learner.is_now(again.asked)
            && !learner.times(again.asked, before)
            && !self.in_flight.counts();
        if goes {
            counters.decided(Route::Inline, again.mode, Reason::Measured);
        }
        goes
    }
}
