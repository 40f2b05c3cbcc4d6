// SPDX-License-Identifier: MIT OR Apache-2.0
//! The dynamic side of a trace: one chunk of events, encoded and decoded on its own.
//!
//! Both directions keep the same two predictors, which start empty in each chunk: the block that
//! followed the last few blocks the last time, and for each access the address one stride further.
//! What they foretell takes no bytes, or one bit.

mod decoder;
mod encoder;

pub(crate) use decoder::{ChunkDecoder, Decoded, unpack};
pub(crate) use encoder::ChunkEncoder;

/// Streams of one chunk.
pub(crate) const STREAMS: usize = 4;
/// Bytes before the packed streams in an event chunk.
pub(crate) const EVENTS_HEADER_BYTES: usize = 16 + STREAMS * 8;
/// Stands in the flow, as a block id, before an event that is no block.
pub(crate) const ESCAPE: u32 = 0;
/// Kind of event after [`ESCAPE`]: another thread runs from here on.
pub(crate) const THREAD: u64 = 1;
/// Kind of event after [`ESCAPE`]: a system call.
pub(crate) const SYSCALL: u64 = 2;
/// Length code of an access that was not performed, because its condition did not hold.
pub(crate) const NOT_PERFORMED: u8 = 255;

/// Bits of history that choose an entry of the successor table.
const HISTORY_BITS: u32 = 18;

/// Which block comes next, from the last few.
#[derive(Clone)]
pub(crate) struct Successors {
    table: Vec<u32>,
    /// Entries that were set, so that a short chunk need not clear all of them.
    touched: Vec<u32>,
    history: u32,
}

impl Successors {
    pub(crate) fn new() -> Self {
        Successors { table: vec![0; 1 << HISTORY_BITS], touched: Vec::new(), history: 0 }
    }

    pub(crate) fn clear(&mut self) {
        for entry in self.touched.drain(..) {
            self.table[entry as usize] = 0;
        }
        self.history = 0;
    }

    #[inline(always)]
    fn place(&self) -> usize {
        self.history as usize & ((1 << HISTORY_BITS) - 1)
    }

    /// The block that came after this history before, or 0.
    #[inline(always)]
    pub(crate) fn expected(&self) -> u32 {
        self.table[self.place()]
    }

    /// It was another one.
    #[inline(always)]
    pub(crate) fn correct(&mut self, id: u32) {
        let place = self.place();
        if self.table[place] == 0 {
            self.touched.push(place as u32);
        }
        self.table[place] = id;
    }

    /// What really came.
    #[inline(always)]
    pub(crate) fn came(&mut self, id: u32) {
        let mixed = id.wrapping_mul(0x9e37_79b1) >> (32 - HISTORY_BITS);
        self.history = (self.history << 5) ^ mixed;
    }
}

/// Where an access went last, and how far that was from the time before.
#[derive(Clone, Copy, Default)]
pub(crate) struct SiteState {
    pub(crate) last: u64,
    pub(crate) stride: u64,
}

impl SiteState {
    #[inline(always)]
    pub(crate) fn expected(&self) -> u64 {
        self.last.wrapping_add(self.stride)
    }

    #[inline(always)]
    pub(crate) fn came(&mut self, address: u64) {
        self.stride = address.wrapping_sub(self.last);
        self.last = address;
    }
}
