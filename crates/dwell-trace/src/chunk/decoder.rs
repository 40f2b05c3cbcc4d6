// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes of one chunk into events. Nothing in them is believed.

use super::{
    ESCAPE, EVENTS_HEADER_BYTES, NOT_PERFORMED, STREAMS, SYSCALL, SiteState, Successors, THREAD,
};
use crate::dictionary::Dictionary;
use crate::format::{MAX_CHUNK_BYTES, take_varint, u32_at, u64_at, unzigzag};

/// What a chunk holds next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decoded {
    /// A run of the block with that id; its addresses are in [`ChunkDecoder::addresses`].
    Block(u32),
    /// That thread runs from here on.
    Thread(u32),
    /// A call of the kernel.
    Syscall(u64),
    /// The chunk is over.
    End,
}

/// Where in its stream the decoder is.
#[derive(Default)]
struct Stream {
    bytes: Vec<u8>,
    at: usize,
}

/// Decodes one chunk after another.
pub(crate) struct ChunkDecoder {
    successors: Successors,
    sites: Vec<SiteState>,
    flow: Stream,
    masks: Stream,
    lengths: Stream,
    deltas: Stream,
    run: u64,
    left: u64,
    addresses: Vec<u64>,
}

impl ChunkDecoder {
    pub(crate) fn new() -> Self {
        ChunkDecoder {
            successors: Successors::new(),
            sites: Vec::new(),
            flow: Stream::default(),
            masks: Stream::default(),
            lengths: Stream::default(),
            deltas: Stream::default(),
            run: 0,
            left: 0,
            addresses: vec![0; crate::dictionary::MAX_IN_BLOCK],
        }
    }

    /// Begins a chunk and answers the thread that runs first in it.
    pub(crate) fn begin(&mut self, payload: &[u8], dict: &Dictionary) -> Result<u32, &'static str> {
        if payload.len() < EVENTS_HEADER_BYTES {
            return Err("an event chunk without its header");
        }
        let mut at = EVENTS_HEADER_BYTES;
        let streams: [&mut Stream; STREAMS] =
            [&mut self.flow, &mut self.masks, &mut self.lengths, &mut self.deltas];
        for (number, stream) in streams.into_iter().enumerate() {
            let raw = u32_at(payload, 16 + number * 8) as usize;
            let packed = u32_at(payload, 20 + number * 8) as usize;
            let packed = payload.get(at..at + packed).ok_or("a stream longer than its chunk")?;
            at += packed.len();
            // Eight bytes more, so that the last address can be read like every other.
            unpack(packed, raw, 8, &mut stream.bytes)?;
            stream.at = 0;
        }
        self.successors.clear();
        self.sites.clear();
        self.sites.resize(dict.sites().len(), SiteState::default());
        self.left = u64_at(payload, 0);
        self.run = self.number()?;
        Ok(u32_at(payload, 8))
    }

    /// Makes the next call of [`ChunkDecoder::next`] say that nothing is left.
    pub(crate) fn stop(&mut self) {
        self.left = 0;
    }

    /// Where the accesses of the last block went.
    #[inline(always)]
    pub(crate) fn addresses(&self) -> &[u64] {
        &self.addresses
    }

    /// The next event.
    #[inline]
    pub(crate) fn next(&mut self, dict: &Dictionary) -> Result<Decoded, &'static str> {
        if self.left == 0 {
            return Ok(Decoded::End);
        }
        self.left -= 1;
        let id = if self.run > 0 {
            self.run -= 1;
            self.successors.expected()
        } else {
            let id = u32::try_from(self.number()?).map_err(|_| "a block with too large an id")?;
            if id == ESCAPE {
                return self.special();
            }
            self.run = self.number()?;
            self.successors.correct(id);
            id
        };
        self.successors.came(id);
        let block = match dict.blocks().get(id as usize) {
            Some(block) if id != ESCAPE => block,
            _ => return Err("a block that the dictionary does not have"),
        };
        let count = usize::from(block.site_count);
        let first = block.first_site as usize;
        let sites = self.sites.get_mut(first..first + count).ok_or("an unknown access")?;
        let addresses = &mut self.addresses[..count];
        for (addresses, sites) in addresses.chunks_mut(8).zip(sites.chunks_mut(8)) {
            let mask = *self.masks.bytes.get(self.masks.at).ok_or("too few masks")?;
            self.masks.at += 1;
            if mask == 0 {
                for (address, site) in addresses.iter_mut().zip(sites) {
                    site.last = site.expected();
                    *address = site.last;
                }
                continue;
            }
            for (bit, (address, site)) in addresses.iter_mut().zip(sites).enumerate() {
                if mask >> bit & 1 == 0 {
                    site.last = site.expected();
                    *address = site.last;
                    continue;
                }
                let length = *self.lengths.bytes.get(self.lengths.at).ok_or("too few lengths")?;
                self.lengths.at += 1;
                if length > 8 {
                    if length != NOT_PERFORMED {
                        return Err("an address of more than eight bytes");
                    }
                    *address = 0;
                    continue;
                }
                let at = self.deltas.at;
                let bytes = self.deltas.bytes.get(at..at + 8).ok_or("too few address bytes")?;
                let bytes = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
                // In two steps, because 64 is too far for one shift.
                let delta = bytes & !(!0 << (4 * length) << (4 * length));
                self.deltas.at += usize::from(length);
                site.came(site.last.wrapping_add(unzigzag(delta) as u64));
                *address = site.last;
            }
        }
        Ok(Decoded::Block(id))
    }

    #[cold]
    fn special(&mut self) -> Result<Decoded, &'static str> {
        let (kind, value) = (self.number()?, self.number()?);
        self.run = self.number()?;
        match kind {
            THREAD => u32::try_from(value).map(Decoded::Thread).map_err(|_| "no thread's number"),
            SYSCALL => Ok(Decoded::Syscall(value)),
            _ => Err("an event of a kind that version 1 does not have"),
        }
    }

    #[inline]
    fn number(&mut self) -> Result<u64, &'static str> {
        take_varint(&self.flow.bytes, &mut self.flow.at).ok_or("too few numbers in the flow")
    }
}

/// Unpacks into `out`, `raw` bytes and `slack` zeros after them.
pub(crate) fn unpack(
    packed: &[u8],
    raw: usize,
    slack: usize,
    out: &mut Vec<u8>,
) -> Result<(), &'static str> {
    if raw as u64 > MAX_CHUNK_BYTES {
        return Err("a stream of more than 1 GiB");
    }
    out.clear();
    out.resize(raw + slack, 0);
    let unpacked = zstd::bulk::decompress_to_buffer(packed, &mut out[..raw]);
    match unpacked {
        Ok(bytes) if bytes == raw => Ok(()),
        Ok(_) => Err("a stream shorter than it says"),
        Err(_) => Err("a stream that zstd cannot unpack"),
    }
}
