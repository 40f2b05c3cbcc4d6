// SPDX-License-Identifier: MIT OR Apache-2.0
//! One word per page of a region: where its data is, and who waits for that to change.
//!
//! Words are changed by whoever holds the region's lock, and read by anyone.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::memory;

/// Where a page's data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum State {
    /// In the source.
    Absent = 0,
    /// On its way into a frame.
    Reading = 1,
    /// In the region: the program sees it.
    Present = 2,
    /// Between region and frame, in either direction.
    Moving = 3,
    /// In a frame beside the region.
    Standby = 4,
    /// In a frame whose data is on its way to the source.
    Writing = 5,
}

impl State {
    pub const fn of(word: u32) -> State {
        match word & STATE {
            1 => State::Reading,
            2 => State::Present,
            3 => State::Moving,
            4 => State::Standby,
            5 => State::Writing,
            _ => State::Absent,
        }
    }
}

const STATE: u32 = 7;
/// Threads sleep on the word.
const WAITERS: u32 = 1 << 3;
/// Read ahead, and not asked for yet.
pub(crate) const AHEAD: u32 = 1 << 4;
/// The spill file holds its latest data.
pub(crate) const SPILLED: u32 = 1 << 5;
/// The frame's data differs from the source's.
pub(crate) const DIRTY: u32 = 1 << 6;
/// A hint asked for it: it comes in as soon as it is there.
pub(crate) const HINTED: u32 = 1 << 7;
/// It could not be read: accesses to it fail until that is tried again.
pub(crate) const POISONED: u32 = 1 << 8;
/// A sync keeps it where it is for the moment.
pub(crate) const SYNCING: u32 = 1 << 9;
/// One pin; the bits from here on count them.
pub(crate) const PIN: u32 = 1 << 12;
const FLAGS: u32 = AHEAD | DIRTY | HINTED;

/// The words of a region, and the frame of each page that has one.
#[derive(Debug)]
pub(crate) struct Pages {
    words: Box<[AtomicU32]>,
    frames: Box<[AtomicU32]>,
}

impl Pages {
    pub fn new(count: usize) -> Pages {
        Pages { words: memory::words(count), frames: memory::words(count) }
    }

    pub fn count(&self) -> u32 {
        self.words.len() as u32
    }

    pub fn word(&self, page: u32) -> &AtomicU32 {
        &self.words[page as usize]
    }

    pub fn get(&self, page: u32) -> u32 {
        self.word(page).load(Ordering::Acquire)
    }

    pub fn state(&self, page: u32) -> State {
        State::of(self.get(page))
    }

    /// The frame of a page that is not absent.
    pub fn frame(&self, page: u32) -> u32 {
        self.frames[page as usize].load(Ordering::Relaxed)
    }

    pub fn set_frame(&self, page: u32, frame: u32) {
        self.frames[page as usize].store(frame, Ordering::Relaxed);
    }

    /// Gives a page a state and flags in place of those it had; pins, and the marks of syncs and of
    /// the spill file, stay, and that of a refused page until it is present. It wakes the waiters.
    /// By the holder of the lock.
    pub fn set(&self, page: u32, state: State, flags: u32) {
        debug_assert!(flags & !FLAGS == 0);
        let word = self.word(page);
        let old = word.load(Ordering::Relaxed);
        let ended = if state == State::Present { FLAGS | POISONED } else { FLAGS };
        let kept = old & !(STATE | WAITERS | ended);
        word.store(kept | state as u32 | flags, Ordering::Release);
        if old & WAITERS != 0 {
            wake(word);
        }
    }

    /// Adds flags or takes them off. By the holder of the lock.
    pub fn mark(&self, page: u32, on: u32, off: u32) {
        let word = self.word(page);
        let old = word.load(Ordering::Relaxed);
        word.store(old & !off | on, Ordering::Release);
    }

    /// Pins a page or takes one pin off. By the holder of the lock.
    pub fn pin(&self, page: u32, on: bool) {
        let word = self.word(page);
        let old = word.load(Ordering::Relaxed);
        word.store(if on { old + PIN } else { old - PIN }, Ordering::Release);
    }

    pub fn pins(&self, page: u32) -> u32 {
        self.get(page) / PIN
    }

    /// Whether a page must not leave the region: it is pinned, or a sync is at it.
    pub fn stays(&self, page: u32) -> bool {
        self.pins(page) > 0 || self.get(page) & SYNCING != 0
    }

    /// Announces that the caller will sleep until the page's word changes, and says what the word
    /// is now. By the holder of the lock.
    pub fn expect_change(&self, page: u32) -> u32 {
        self.word(page).fetch_or(WAITERS, Ordering::AcqRel) | WAITERS
    }

    /// Wakes everyone who waits for any page: they look again.
    pub fn wake_all(&self) {
        for word in &self.words {
            if word.load(Ordering::Relaxed) & WAITERS != 0 {
                word.fetch_and(!WAITERS, Ordering::AcqRel);
                wake(word);
            }
        }
    }
}

fn wake(word: &AtomicU32) {
    crate::futex::wake_all(word);
}
