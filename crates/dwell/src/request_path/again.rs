// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests like the last one: a thread that repeats itself on a quick device need not ask again.

use dwell_policy::{Kind, Mode, Reason, Route};

use crate::admission::Again;
use crate::file::File;
use crate::learner::Asked;
use crate::source::Source;
use crate::stats::Counters;

impl<S: Source> File<S>
where
    S::Queue: Send,
{
    /// Notes a request that went by the call. Nothing is noted where the page cache is to be asked
    /// first, nor where each request is to be told of: to the backlog, or to the monitor for the
    /// kernel thread that works for it.
    pub(super) fn note_again(&self, kind: Kind, bytes: u64, asked: Asked, mode: Mode) {
        let Some(caller) = self.callers.get() else { return };
        let goes_elsewhere =
            self.source.caches() || self.in_flight.counts() || self.known.worker_ns > 0;
        let again = self.admission.as_ref().filter(|_| !goes_elsewhere).map(|admission| Again {
            kind,
            bytes,
            load: admission.load_word(),
            asked,
            mode,
        });
        caller.again.set(again);
    }

    /// Whether a request goes the way of the last one, and counts it if so.
    #[inline(always)]
    pub(super) fn goes_again(&self, counters: &Counters, kind: Kind, bytes: u64) -> bool {
        let Some(again) = self.callers.get().and_then(|caller| caller.again.get()) else {
            return false;
        };
        let (Some(admission), Some(learner)) = (&self.admission, &self.learner) else {
            return false;
        };
        let before = counters.before(Route::Inline, again.mode, Reason::Measured);
        let goes = (again.kind, again.bytes) == (kind, bytes)
            && again.load == admission.load_word()
            && learner.is_now(again.asked)
            && !learner.times(again.asked, before);
        if goes {
            counters.decided(Route::Inline, again.mode, Reason::Measured);
        }
        goes
    }
}
