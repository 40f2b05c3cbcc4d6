// SPDX-License-Identifier: MIT OR Apache-2.0
//! What two cores can do at all: a cache line there and back, and a copy of what the other one
//! wrote.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use dwell::buffer::Aligned;
use dwell::mapping::Mapping;
use dwell::{arch, clock, mapping};

use dwell_bench::stats::SplitMix;

/// A word on cache lines of its own.
#[repr(align(128))]
struct Line(AtomicU32);

/// Two threads that take turns; the second does `answer` in each of its own.
struct Turns {
    ours: Line,
    theirs: Line,
    over: AtomicBool,
}

impl Turns {
    /// What `ours` measured in each turn, in nanoseconds, on average, for so long.
    fn play(span: Duration, answer: impl Fn() + Sync, mut ours: impl FnMut() -> u64) -> f64 {
        let turns = Turns {
            ours: Line(AtomicU32::new(0)),
            theirs: Line(AtomicU32::new(0)),
            over: AtomicBool::new(false),
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut turn = 0;
                while !turns.over.load(Ordering::Relaxed) {
                    if turns.ours.0.load(Ordering::Acquire) == turn {
                        arch::relax();
                        continue;
                    }
                    turn += 1;
                    answer();
                    turns.theirs.0.store(turn, Ordering::Release);
                }
            });
            let (until, mut turn, mut sum_ns) = (Instant::now() + span, 0u32, 0);
            while turn == 0 || Instant::now() < until {
                for _ in 0..100 {
                    turn += 1;
                    turns.ours.0.store(turn, Ordering::Release);
                    while turns.theirs.0.load(Ordering::Acquire) != turn {
                        arch::relax();
                    }
                    sum_ns += ours();
                }
            }
            turns.over.store(true, Ordering::Relaxed);
            sum_ns as f64 / f64::from(turn)
        })
    }
}

/// A cache line to another core and back.
pub fn round_trip_ns(span: Duration) -> f64 {
    let began = Instant::now();
    let mut turns = 0u64;
    Turns::play(
        span,
        || {},
        || {
            turns += 1;
            0
        },
    );
    began.elapsed().as_nanos() as f64 / turns as f64
}

/// Memory that is used by turns.
struct Room(*mut u8);

// SAFETY: of two threads each uses it in its own turn, and sees the other's end.
unsafe impl Sync for Room {}

impl Room {
    fn start(&self) -> *mut u8 {
        self.0
    }
}

/// A copy of 4 KiB that another core wrote last.
pub fn foreign_copy_ns(span: Duration) -> f64 {
    let (mut shared, mut own) = (Aligned::new(4096), Aligned::new(4096));
    let source = Aligned::new(4096);
    let room = &Room(shared.as_mut_ptr());
    // SAFETY: both are 4096 bytes; the turns keep the threads apart.
    let answer = move || unsafe { mapping::copy(source.as_ptr(), room.start(), 4096) };
    Turns::play(span, answer, || {
        let began = clock::now();
        // SAFETY: as above.
        unsafe { mapping::copy(room.start(), own.as_mut_ptr(), 4096) };
        clock::now() - began
    })
}

/// What two threads need that do nothing else: one copies 4 KiB from a random place of a mapped
/// file to memory of both, the other one copies it out.
pub fn relay_ns(span: Duration, file: &Mapping) -> f64 {
    let (mut shared, mut own) = (Aligned::new(4096), Aligned::new(4096));
    let room = &Room(shared.as_mut_ptr());
    let pages = (file.bytes() / 4096).max(1);
    let turn = AtomicU32::new(0);
    let answer = move || {
        let seed = u64::from(turn.fetch_add(1, Ordering::Relaxed));
        let offset = SplitMix(seed).next_u64() % pages * 4096;
        // SAFETY: a page within the file; the turns keep the threads apart.
        unsafe { mapping::copy(file.start().add(offset as usize), room.start(), 4096) };
    };
    let (began, mut turns) = (Instant::now(), 0u64);
    Turns::play(span, answer, || {
        turns += 1;
        // SAFETY: as above.
        unsafe { mapping::copy(room.start(), own.as_mut_ptr(), 4096) };
        0
    });
    began.elapsed().as_nanos() as f64 / turns as f64
}
