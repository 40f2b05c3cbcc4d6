// SPDX-License-Identifier: MIT OR Apache-2.0
//! A ring between one producer and one consumer that do not trust each other.
//!
//! Each side keeps its own cursor to itself and only ever publishes it. The other side's cursor is
//! loaded once, checked, and a copy of it used; an entry is copied once, and only the copy is
//! looked at.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// A cursor that the other side reads.
pub trait Cursor {
    /// What the other side published, and all that it wrote before.
    fn observe(&self) -> u32;
    /// Publishes, and all that was written before.
    fn publish(&self, value: u32);
    /// As [`Cursor::publish`], in one order with all other such stores and with loads that follow
    /// it.
    fn publish_and_fence(&self, value: u32);
}

/// A word of an entry.
pub trait Word {
    /// Copies it.
    fn copy(&self) -> u64;
    /// Stores it.
    fn store(&self, value: u64);
}

impl Cursor for AtomicU32 {
    #[inline]
    fn observe(&self) -> u32 {
        self.load(Ordering::Acquire)
    }

    #[inline]
    fn publish(&self, value: u32) {
        self.store(value, Ordering::Release);
    }

    #[inline]
    fn publish_and_fence(&self, value: u32) {
        self.swap(value, Ordering::SeqCst);
    }
}

impl Word for AtomicU64 {
    #[inline]
    fn copy(&self) -> u64 {
        self.load(Ordering::Relaxed)
    }

    #[inline]
    fn store(&self, value: u64) {
        AtomicU64::store(self, value, Ordering::Relaxed);
    }
}

/// Room for a copy of one entry on the cache line of the producer's cursor. A load of the cursor
/// brings the entry with it. The ring's own entry lies on another line, which the other side wrote
/// last and which then need not be fetched.
#[derive(Debug)]
pub struct Beside<'a, C, W> {
    /// The value of the cursor that the copy belongs to.
    pub belongs_to: &'a C,
    /// The copy.
    pub words: &'a [W],
}

/// The other side's cursor stands where it cannot: the channel is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other side's cursor jumped to {cursor}: it may stand from {first} to {last}")]
pub struct Broken {
    /// Where it stands.
    pub cursor: u32,
    /// The first place where it may.
    pub first: u32,
    /// The last one.
    pub last: u32,
}

/// The side that puts entries in.
#[derive(Debug)]
pub struct Producer {
    entries: u32,
    tail: u32,
    /// As far as the consumer is known to have come.
    head: u32,
    /// What the copy beside the cursor belongs to.
    beside: u32,
}

impl Producer {
    /// Of an empty ring with that many entries, a power of two.
    pub fn new(entries: u32) -> Self {
        debug_assert!(entries.is_power_of_two());
        Producer { entries, tail: 0, head: 0, beside: 0 }
    }

    /// How many entries can be put in, at least `wanted` unless there is less room. Looks at the
    /// consumer's cursor only where what is known of it is not enough.
    ///
    /// # Errors
    /// The consumer's cursor went backwards, or past what was published.
    #[inline]
    pub fn room(&mut self, wanted: u32, head: &impl Cursor) -> Result<u32, Broken> {
        let known = self.entries - self.tail.wrapping_sub(self.head);
        if known >= wanted {
            return Ok(known);
        }
        let cursor = head.observe();
        if cursor.wrapping_sub(self.head) > self.tail.wrapping_sub(self.head) {
            return Err(Broken { cursor, first: self.head, last: self.tail });
        }
        self.head = cursor;
        Ok(self.entries - self.tail.wrapping_sub(cursor))
    }

    /// Puts an entry in where [`Producer::room`] said there is room. Nobody sees it before
    /// [`Producer::publish`].
    #[inline]
    pub fn put<const N: usize>(&mut self, slots: &[impl Word], entry: [u64; N]) {
        let at = (self.tail & (self.entries - 1)) as usize * N;
        for (slot, word) in slots[at..at + N].iter().zip(entry) {
            slot.store(word);
        }
        self.tail = self.tail.wrapping_add(1);
    }

    /// Shows all entries to the consumer, in one store that later loads do not overtake.
    #[inline]
    pub fn publish(&mut self, tail: &impl Cursor, belongs_to: &impl Cursor) {
        // The copy of an entry four billion ago is none of the last one's.
        if self.beside == self.tail {
            self.beside = self.tail.wrapping_sub(1);
            belongs_to.publish(self.beside);
        }
        tail.publish_and_fence(self.tail);
    }

    /// The same for one entry, with a copy of it beside the cursor. Only where the consumer has
    /// taken all that was put in before: it may be reading the copy of the last one.
    #[inline]
    pub fn publish_beside<const N: usize>(
        &mut self,
        tail: &impl Cursor,
        beside: Beside<'_, impl Cursor, impl Word>,
        entry: [u64; N],
    ) {
        for (slot, word) in beside.words.iter().zip(entry) {
            slot.store(word);
        }
        self.beside = self.tail;
        beside.belongs_to.publish(self.tail);
        tail.publish_and_fence(self.tail);
    }

    /// Entries put in so far.
    pub fn tail(&self) -> u32 {
        self.tail
    }
}

/// The side that takes entries out.
#[derive(Debug)]
pub struct Consumer {
    entries: u32,
    head: u32,
    /// As far as the producer is known to have come.
    tail: u32,
}

impl Consumer {
    /// Of an empty ring with that many entries, a power of two.
    pub fn new(entries: u32) -> Self {
        debug_assert!(entries.is_power_of_two());
        Consumer { entries, head: 0, tail: 0 }
    }

    /// How many entries can be taken. Looks at the producer's cursor only where none is known of.
    ///
    /// # Errors
    /// The producer's cursor jumped further than the ring is long.
    #[inline]
    pub fn ready(&mut self, tail: &impl Cursor) -> Result<u32, Broken> {
        if self.tail == self.head {
            let cursor = tail.observe();
            if cursor.wrapping_sub(self.head) > self.entries {
                let last = self.head.wrapping_add(self.entries);
                return Err(Broken { cursor, first: self.head, last });
            }
            self.tail = cursor;
        }
        Ok(self.tail.wrapping_sub(self.head))
    }

    /// Copies the next entry out, once; [`Consumer::ready`] said that there is one.
    #[inline]
    pub fn take<const N: usize>(&mut self, slots: &[impl Word]) -> [u64; N] {
        let at = (self.head & (self.entries - 1)) as usize * N;
        self.copy(&slots[at..at + N])
    }

    /// The same from beside the cursor, where the entry is the only one and its copy is there.
    #[inline]
    pub fn take_beside<const N: usize>(
        &mut self,
        beside: Beside<'_, impl Cursor, impl Word>,
    ) -> Option<[u64; N]> {
        let only = self.tail.wrapping_sub(self.head) == 1;
        (only && beside.belongs_to.observe() == self.tail).then(|| self.copy(beside.words))
    }

    #[inline]
    fn copy<const N: usize>(&mut self, from: &[impl Word]) -> [u64; N] {
        debug_assert!(self.tail != self.head);
        let mut entry = [0; N];
        for (word, slot) in entry.iter_mut().zip(from) {
            *word = slot.copy();
        }
        self.head = self.head.wrapping_add(1);
        entry
    }

    /// Gives the places of all entries that were taken back to the producer.
    #[inline]
    pub fn release(&self, head: &impl Cursor) {
        head.publish(self.head);
    }
}
