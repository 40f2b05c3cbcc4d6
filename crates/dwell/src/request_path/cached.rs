// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads whose data the page cache has, or is expected to have.

use dwell_policy::{Kind, Mode, Ns, Reason, Route};

use crate::clock;
use crate::file::{File, Heat};
use crate::queue::Io;
use crate::source::Source;
use crate::stats::{Counters, Family, Settled};

/// Of so many reads that are expected to be hits one is timed.
const TIME_ONE_HIT_IN: u64 = 8;

impl<S: Source> File<S>
where
    S::Queue: Send,
{
    /// Whether a request goes by the caller's call because its data is expected in the page cache.
    /// It is counted, and its caller says what came of it. One that is to be timed is not settled.
    #[inline]
    pub fn trusts(&self, kind: Kind, heat: &Heat) -> Option<Settled<'_>> {
        if self.always.is_some() || !self.is_trusted(kind, heat) {
            return None;
        }
        let counters = self.counters.get()?;
        self.settle_hit(counters).then(|| Settled::new(counters, kind))
    }

    /// Serves by `call` a read that is expected to be a hit, and times it; `None` where
    /// [`File::request_amid`] has to be asked, if only because this thread has not done so yet.
    ///
    /// Allocates nothing and holds nothing while `call` runs, so that a signal handler may come
    /// between and even leave for good.
    #[inline]
    pub fn read_trusted(&self, heat: &Heat, call: impl FnOnce() -> i32) -> Option<i32> {
        if self.always.is_some() || !self.is_trusted(Kind::Read, heat) {
            return None;
        }
        let counters = self.counters.get()?;
        let result = self.timed_hit(counters, heat, call);
        counters.moved(Kind::Read, result);
        Some(result)
    }

    /// Whether a read is expected to find its data in the page cache: it missed none lately.
    #[inline]
    pub(super) fn is_trusted(&self, kind: Kind, heat: &Heat) -> bool {
        kind == Kind::Read && heat.is_cold() && self.source.caches()
    }

    /// Counts a read that is expected to be a hit, unless it is one of the few to be timed.
    #[inline]
    pub(super) fn settle_hit(&self, counters: &Counters) -> bool {
        let before = counters.before(Route::Inline, Mode::Block, Reason::Cached);
        let settles = !before.is_multiple_of(TIME_ONE_HIT_IN);
        if settles {
            counters.decided(Route::Inline, Mode::Block, Reason::Cached);
        }
        settles
    }

    /// A read that is expected to be a hit, timed: a slow one ends the trust.
    pub(super) fn timed_hit(
        &self,
        counters: &Counters,
        heat: &Heat,
        call: impl FnOnce() -> i32,
    ) -> i32 {
        counters.decided(Route::Inline, Mode::Block, Reason::Cached);
        let started = clock::now();
        let result = call();
        let took_ns = clock::now() - started;
        counters.sampled(Family::Cached, took_ns);
        if took_ns > self.hit_ns(result) {
            heat.missed();
        }
        result
    }

    pub(super) fn hit_ns(&self, result: i32) -> Ns {
        self.parameters.hit_ns(u64::try_from(result).unwrap_or(0))
    }

    /// Asks the page cache before waiting (SmartCon Fig. 6), but only for a file with recent
    /// misses: for others the question costs more than it saves. `None` when the device has to be
    /// asked.
    pub(super) fn ask_cache(&self, counters: &Counters, heat: &Heat, io: &Io) -> Option<i32> {
        match self.source.cached(io) {
            // Part of it was there: the call completes the rest, as a read of a file must.
            Some(result)
                if result > 0 && result < io.bytes() as i32 && !self.source.ends(io, result) =>
            {
                heat.missed();
                None
            }
            Some(result) => {
                heat.hit();
                counters.decided(Route::Inline, Mode::Spin, Reason::Cached);
                Some(result)
            }
            None => {
                heat.missed();
                None
            }
        }
    }
}
