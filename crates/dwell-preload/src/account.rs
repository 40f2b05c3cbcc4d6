// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that were left to the kernel, counted without threads getting in each other's way.

use std::sync::atomic::{AtomicU64, Ordering};

use dwell_host::stats_page::Passed;

use crate::inside;

const SHARDS: usize = 64;

#[repr(align(64))]
struct Shard {
    calls: AtomicU64,
    bytes: AtomicU64,
}

static COUNTS: [Shard; SHARDS] =
    [const { Shard { calls: AtomicU64::new(0), bytes: AtomicU64::new(0) } }; SHARDS];

/// Counts one call by what it returned.
#[inline]
pub fn note(result: isize) {
    let shard = &COUNTS[inside::thread_number() as usize % SHARDS];
    shard.calls.fetch_add(1, Ordering::Relaxed);
    if result > 0 {
        shard.bytes.fetch_add(result as u64, Ordering::Relaxed);
    }
}

/// What was counted so far.
pub fn passed() -> Passed {
    let sum = |of: fn(&Shard) -> &AtomicU64| {
        COUNTS.iter().map(|shard| of(shard).load(Ordering::Relaxed)).sum()
    };
    Passed { calls: sum(|shard| &shard.calls), bytes: sum(|shard| &shard.bytes) }
}

/// A forked child has passed nothing yet.
pub fn begin_in_child() {
    for shard in &COUNTS {
        shard.calls.store(0, Ordering::Relaxed);
        shard.bytes.store(0, Ordering::Relaxed);
    }
}
