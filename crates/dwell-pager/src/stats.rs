// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a region counts.

use std::sync::atomic::{AtomicU64, Ordering};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// What a region's faults did so far. Pages of the region are
        /// [`PAGE_BYTES`](crate::PAGE_BYTES) each.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Statistics {
            $($(#[$doc])* pub $name: u64,)*
            /// Pages in memory at this moment.
            pub resident: u64,
            /// Largest number of pages in memory at once.
            pub peak: u64,
        }

        /// The counters behind [`Statistics`].
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $(pub $name: AtomicU64,)*
        }

        impl Counters {
            pub fn read(&self) -> Statistics {
                Statistics {
                    $($name: self.$name.load(Ordering::Relaxed),)*
                    resident: 0,
                    peak: 0,
                }
            }
        }

        impl Statistics {
            /// What was counted since `earlier`; what is in memory is as it is now.
            #[must_use]
            pub fn since(&self, earlier: &Statistics) -> Statistics {
                Statistics {
                    $($name: self.$name.saturating_sub(earlier.$name),)*
                    ..*self
                }
            }
        }
    };
}

counters! {
    /// Faults on absent pages.
    faults,
    /// Faults whose page had to be read from the source first.
    reads_awaited,
    /// Faults whose page was on its way already: read ahead, or asked for by another thread.
    joined,
    /// Faults whose page was still, or already, in memory beside the region: moved out lately, or
    /// read ahead and there.
    rescued,
    /// Faults of threads that were not registered.
    unregistered,
    /// Requests to the source for reading.
    requests,
    /// Pages read from the source.
    pages_read,
    /// Pages read ahead of their first use.
    prefetched,
    /// Of these, pages that a fault asked for, or that came in together with one that was asked
    /// for.
    prefetched_used,
    /// Of these, pages that left memory without having been asked for.
    prefetched_wasted,
    /// Hints taken from the ring.
    hints,
    /// Hints whose page was there: only its cache line was fetched.
    hints_warmed,
    /// Pages moved out of the region.
    evicted,
    /// Of these, pages that were asked for again before their memory was used for another.
    second_chances,
    /// Pages written to the source (or to the spill file).
    written_back,
    /// Writes that the source refused; their pages stay in memory.
    write_errors,
    /// Reads that the source refused; the program got SIGBUS.
    read_errors,
    /// Pages that went beyond the budget because nothing could leave memory.
    over_budget,
    /// Waits that spun.
    waits_spun,
    /// Waits that blocked.
    waits_parked,
    /// Waits that blocked because a thread of higher priority could run next.
    sacrificed,
    /// Time from fault to return, in nanoseconds.
    fault_ns,
    /// Time spent waiting: spun, slept and parked, in nanoseconds.
    waited_ns,
    /// Waiting time that was spent busy with nothing to do, in nanoseconds.
    spun_ns,
    /// Time in which a wait was used for other work, in nanoseconds.
    stolen_ns,
}

pub(crate) fn add(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}
