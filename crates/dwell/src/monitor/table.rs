// SPDX-License-Identifier: MIT OR Apache-2.0
//! The layout of the host page: a header and a slot per process; all atomic words.
//!
//! A process that may open the page may write anything into it, at any time. Nothing read here is
//! used as an index, a length or a divisor without a bound. A slot changes hands by one
//! compare-and-swap, and its process alone writes the words in it, each for itself: a process that
//! dies between two instructions leaves no half-done step.

use super::limit::scatter;
use super::sync::{AtomicU64, SLOTS, WORDS};
use std::sync::atomic::Ordering::*;

/// "dwellpg" and the version of this layout.
pub const MAGIC: u64 = u64::from_le_bytes(*b"dwellpg\x02");

const HEADER_WORDS: usize = 16;
const SLOT_WORDS: usize = 16;
const _: () = assert!(HEADER_WORDS + SLOTS * SLOT_WORDS <= WORDS);

/// Which process: its pid (22 bits, as the kernel bounds it), when it started (32 bits of clock
/// ticks since boot) and in which pid namespace (10 bits of a hash). 0 is nobody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity(pub u64);

impl Identity {
    /// The identity of a process.
    pub fn new(pid: u32, start_ticks: u64, pid_namespace: u64) -> Identity {
        let namespace = scatter(pid_namespace) >> 54;
        Identity(u64::from(pid) << 42 | (start_ticks & 0xffff_ffff) << 10 | namespace)
    }

    /// The pid, in its own namespace.
    pub fn pid(self) -> u32 {
        (self.0 >> 42) as u32
    }

    /// Hash of the pid namespace.
    pub fn namespace(self) -> u64 {
        self.0 & 0x3ff
    }
}

/// The words of a slot after the identity, which is word 0.
#[derive(Clone, Copy)]
pub enum Field {
    /// CLOCK_MONOTONIC of the last sign of life, in nanoseconds.
    HeartbeatNs = 1,
    /// Milliseconds until the next sign of life is due (low half) after that.
    PeriodMs = 2,
    /// Spinning (high half) and kernel workers (low half) in the last window, in millionths of
    /// one CPU.
    Rate = 6,
    /// Spinners wanted.
    Wanted = 7,
    /// Spinners that it may have.
    Allowed = 8,
    /// Hash of the control group whose CPU quota binds; 0 for none.
    Group = 9,
    /// The CPUs that it may run on, a bit for each, their numbers modulo 256: four words.
    Cpus = 12,
}

/// Packs two halves of a word.
pub fn halves(high: u32, low: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// The slots of a page.
pub fn slots() -> impl Iterator<Item = u8> {
    (0..SLOTS).map(|slot| slot as u8)
}

/// The page.
#[derive(Clone, Copy)]
pub struct Table<'a>(&'a [AtomicU64; WORDS]);

impl<'a> Table<'a> {
    /// A page of exactly [`WORDS`] words.
    pub fn new(words: &'a [AtomicU64]) -> Option<Table<'a>> {
        words.try_into().ok().map(Table)
    }

    /// Writes the magic into a page that is all zero; `false` for a page of another kind.
    pub fn admit(self) -> bool {
        match self.0[0].compare_exchange(0, MAGIC, AcqRel, Acquire) {
            Ok(_) => true,
            Err(found) => found == MAGIC,
        }
    }

    fn slot_word(self, slot: u8, word: usize) -> &'a AtomicU64 {
        &self.0[HEADER_WORDS + usize::from(slot) * SLOT_WORDS + word]
    }

    /// The process that has a slot; `None` where it is free.
    pub fn identity(self, slot: u8) -> Option<Identity> {
        let word = self.slot_word(slot, 0).load(Acquire);
        (word != 0).then_some(Identity(word))
    }

    /// Takes a slot, or frees it, if its identity still is what was seen.
    pub fn change_identity(self, slot: u8, seen: Option<Identity>, to: Option<Identity>) -> bool {
        let word = |identity: Option<Identity>| identity.map_or(0, |i| i.0);
        let slot = self.slot_word(slot, 0);
        slot.compare_exchange(word(seen), word(to), AcqRel, Relaxed).is_ok()
    }

    /// A field of a slot.
    pub fn get(self, slot: u8, field: Field) -> u64 {
        self.slot_word(slot, field as usize).load(Acquire)
    }

    /// Both halves of a field of a slot.
    pub fn get_halves(self, slot: u8, field: Field) -> (u32, u32) {
        let word = self.get(slot, field);
        ((word >> 32) as u32, word as u32)
    }

    /// Writes a field of a slot: only its own process does, or whoever is about to take it.
    pub fn set(self, slot: u8, field: Field, value: u64) {
        self.slot_word(slot, field as usize).store(value, Release);
    }

    /// The CPUs of a slot.
    pub fn cpus(self, slot: u8) -> [u64; 4] {
        std::array::from_fn(|i| self.slot_word(slot, Field::Cpus as usize + i).load(Acquire))
    }

    /// Writes the CPUs of a slot.
    pub fn set_cpus(self, slot: u8, cpus: [u64; 4]) {
        for (i, word) in cpus.into_iter().enumerate() {
            self.slot_word(slot, Field::Cpus as usize + i).store(word, Release);
        }
    }

    /// How many times its own period a slot has been silent at `now_ns`; a sign of life from the
    /// future (an earlier boot) counts as silence.
    pub fn silent_periods(self, slot: u8, now_ns: u64) -> u64 {
        let heartbeat_ns = self.get(slot, Field::HeartbeatNs);
        let period_ns =
            u64::from(self.get_halves(slot, Field::PeriodMs).1.clamp(10, 10_000)) * 1_000_000;
        // Another process may have written it after we read the clock.
        if heartbeat_ns > now_ns.saturating_add(period_ns) {
            return u64::MAX;
        }
        now_ns.saturating_sub(heartbeat_ns) / period_ns
    }
}
