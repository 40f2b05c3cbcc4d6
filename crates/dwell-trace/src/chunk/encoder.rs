// SPDX-License-Identifier: MIT OR Apache-2.0
//! Events into the bytes of one chunk.

use super::{
    ESCAPE, EVENTS_HEADER_BYTES, NOT_PERFORMED, STREAMS, SYSCALL, SiteState, Successors, THREAD,
};
use crate::dictionary::Block;
use crate::format::{ChunkHeader, ChunkKind, put_varint, zigzag};

/// zstd's default: higher levels take several times as long for a few percent.
const ZSTD_LEVEL: i32 = 3;

/// A growing stream that is written by position, so that a byte costs no growth check.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    used: usize,
}

impl Stream {
    #[inline(always)]
    fn room(&mut self, more: usize) {
        if self.used + more > self.bytes.len() {
            self.bytes.resize((self.used + more) * 2, 0);
        }
    }

    fn filled(&self) -> &[u8] {
        &self.bytes[..self.used]
    }
}

/// Encodes events until somebody takes the chunk.
pub(crate) struct ChunkEncoder {
    successors: Successors,
    sites: Vec<SiteState>,
    flow: Vec<u8>,
    masks: Stream,
    lengths: Stream,
    deltas: Stream,
    run: u64,
    events: u64,
    instructions: u64,
    accesses: u64,
    first_thread: u32,
    thread: u32,
}

impl ChunkEncoder {
    pub(crate) fn new() -> Self {
        ChunkEncoder {
            successors: Successors::new(),
            sites: Vec::new(),
            flow: Vec::new(),
            masks: Stream::default(),
            lengths: Stream::default(),
            deltas: Stream::default(),
            run: 0,
            events: 0,
            instructions: 0,
            accesses: 0,
            first_thread: 0,
            thread: 0,
        }
    }

    /// Events and accesses since the chunk began.
    pub(crate) fn items(&self) -> u64 {
        self.events + self.accesses
    }

    /// Makes room for the sites of a dictionary that has grown.
    pub(crate) fn know_sites(&mut self, count: usize) {
        self.sites.resize(count, SiteState::default());
    }

    /// A run of block `id`; `address` answers where its accesses went, in order.
    #[inline(always)]
    pub(crate) fn block(&mut self, id: u32, block: &Block, address: impl Fn(usize) -> u64) {
        self.events += 1;
        self.instructions += u64::from(block.instruction_count);
        if self.successors.expected() == id {
            self.run += 1;
        } else {
            self.successors.correct(id);
            put_varint(&mut self.flow, self.run);
            put_varint(&mut self.flow, id.into());
            self.run = 0;
        }
        self.successors.came(id);
        let count = usize::from(block.site_count);
        if count == 0 {
            return;
        }
        self.accesses += count as u64;
        let first = block.first_site as usize;
        let sites = &mut self.sites[first..first + count];
        self.masks.room(count.div_ceil(8));
        self.lengths.room(count);
        self.deltas.room(count * 8);
        for (group, sites) in sites.chunks_mut(8).enumerate() {
            let mut mask = 0u8;
            for (bit, site) in sites.iter_mut().enumerate() {
                let address = address(group * 8 + bit);
                if address == site.expected() {
                    site.last = address;
                    continue;
                }
                mask |= 1 << bit;
                let length = &mut self.lengths.bytes[self.lengths.used];
                self.lengths.used += 1;
                if address == 0 {
                    *length = NOT_PERFORMED;
                    continue;
                }
                let delta = zigzag(address.wrapping_sub(site.last) as i64);
                site.came(address);
                *length = (71 - delta.leading_zeros() as u8) / 8;
                let at = self.deltas.used;
                self.deltas.used += usize::from(*length);
                self.deltas.bytes[at..at + 8].copy_from_slice(&delta.to_le_bytes());
            }
            self.masks.bytes[self.masks.used] = mask;
            self.masks.used += 1;
        }
    }

    fn special(&mut self, kind: u64, value: u64) {
        self.events += 1;
        for number in [self.run, ESCAPE.into(), kind, value] {
            put_varint(&mut self.flow, number);
        }
        self.run = 0;
    }

    /// Another thread runs from here on.
    pub(crate) fn thread(&mut self, thread: u32) {
        if self.thread == thread {
            return;
        }
        self.thread = thread;
        if self.events == 0 {
            self.first_thread = thread;
        } else {
            self.special(THREAD, thread.into());
        }
    }

    /// The running thread calls the kernel.
    pub(crate) fn syscall(&mut self, number: u64) {
        self.special(SYSCALL, number);
    }

    /// The chunk as header and payload; the encoder begins a new one.
    pub(crate) fn finish(&mut self) -> std::io::Result<(ChunkHeader, Vec<u8>)> {
        put_varint(&mut self.flow, self.run);
        let streams: [&[u8]; STREAMS] =
            [&self.flow, self.masks.filled(), self.lengths.filled(), self.deltas.filled()];
        let mut payload = vec![0; EVENTS_HEADER_BYTES];
        payload[..8].copy_from_slice(&self.events.to_le_bytes());
        payload[8..12].copy_from_slice(&self.first_thread.to_le_bytes());
        let mut packer = zstd::bulk::Compressor::new(ZSTD_LEVEL)?;
        for (number, stream) in streams.into_iter().enumerate() {
            let packed = packer.compress(stream)?;
            let at = 16 + number * 8;
            payload[at..at + 4].copy_from_slice(&(stream.len() as u32).to_le_bytes());
            payload[at + 4..at + 8].copy_from_slice(&(packed.len() as u32).to_le_bytes());
            payload.extend_from_slice(&packed);
        }
        let header = ChunkHeader {
            kind: ChunkKind::Events,
            payload_bytes: payload.len() as u64,
            instructions: self.instructions,
            accesses: self.accesses,
            payload_crc: crc32fast::hash(&payload),
        };
        self.successors.clear();
        self.sites.fill(SiteState::default());
        self.flow.clear();
        (self.masks.used, self.lengths.used, self.deltas.used) = (0, 0, 0);
        (self.run, self.events, self.instructions, self.accesses) = (0, 0, 0, 0);
        self.first_thread = self.thread;
        Ok((header, payload))
    }
}
