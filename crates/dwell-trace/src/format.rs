// SPDX-License-Identifier: MIT OR Apache-2.0
//! The bytes around the data: file header, chunk headers, trailer, variable-length integers.

use serde::{Deserialize, Serialize};

/// First bytes of every trace.
pub const MAGIC: [u8; 8] = *b"DWELLTRC";
/// Last bytes of every trace that was closed.
pub const END_MAGIC: [u8; 8] = *b"DWELLEND";
/// The version written, and the only one read.
pub const VERSION: u16 = 1;
/// Bytes of the file header.
pub const FILE_HEADER_BYTES: usize = 16;
/// Bytes of a chunk header.
pub const CHUNK_HEADER_BYTES: usize = 48;
/// Bytes of the trailer.
pub const TRAILER_BYTES: usize = 16;
/// No chunk may claim more, packed or unpacked: a damaged length must not take the memory.
pub const MAX_CHUNK_BYTES: u64 = 1 << 30;

const CHUNK_MAGIC: [u8; 4] = *b"DWCH";

/// What a chunk holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkKind {
    /// What was recorded and how, as JSON.
    About,
    /// Definitions of blocks.
    Dictionary,
    /// Events.
    Events,
    /// The places of all other chunks; the last one.
    Index,
}

impl ChunkKind {
    fn letter(self) -> u8 {
        match self {
            ChunkKind::About => b'A',
            ChunkKind::Dictionary => b'D',
            ChunkKind::Events => b'E',
            ChunkKind::Index => b'I',
        }
    }

    /// The kind of that letter.
    pub fn of(letter: u8) -> Option<Self> {
        [Self::About, Self::Dictionary, Self::Events, Self::Index]
            .into_iter()
            .find(|kind| kind.letter() == letter)
    }
}

/// What stands before each chunk's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChunkHeader {
    /// What it holds.
    pub kind: ChunkKind,
    /// Bytes that follow.
    pub payload_bytes: u64,
    /// Instructions executed in it.
    pub instructions: u64,
    /// Accesses to data in it.
    pub accesses: u64,
    /// CRC-32 of the payload.
    pub payload_crc: u32,
}

impl ChunkHeader {
    /// As it stands in the file.
    pub fn to_bytes(self) -> [u8; CHUNK_HEADER_BYTES] {
        let mut bytes = [0; CHUNK_HEADER_BYTES];
        bytes[..4].copy_from_slice(&CHUNK_MAGIC);
        bytes[4] = self.kind.letter();
        bytes[8..16].copy_from_slice(&self.payload_bytes.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.instructions.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.accesses.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.payload_crc.to_le_bytes());
        let crc = crc32fast::hash(&bytes[..44]);
        bytes[44..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Read back, or what is wrong with it.
    pub fn from_bytes(bytes: &[u8; CHUNK_HEADER_BYTES]) -> Result<Self, &'static str> {
        if bytes[..4] != CHUNK_MAGIC {
            return Err("no chunk begins here");
        }
        if u32_at(bytes, 44) != crc32fast::hash(&bytes[..44]) {
            return Err("the checksum of the chunk's header does not fit");
        }
        let kind =
            ChunkKind::of(bytes[4]).ok_or("a chunk of a kind that version 1 does not have")?;
        let payload_bytes = u64_at(bytes, 8);
        if payload_bytes > MAX_CHUNK_BYTES {
            return Err("a chunk of more than 1 GiB");
        }
        Ok(ChunkHeader {
            kind,
            payload_bytes,
            instructions: u64_at(bytes, 16),
            accesses: u64_at(bytes, 24),
            payload_crc: u32_at(bytes, 32),
        })
    }
}

/// The first bytes of a file.
pub fn file_header() -> [u8; FILE_HEADER_BYTES] {
    let mut bytes = [0; FILE_HEADER_BYTES];
    bytes[..8].copy_from_slice(&MAGIC);
    bytes[8..10].copy_from_slice(&VERSION.to_le_bytes());
    let crc = crc32fast::hash(&bytes[..12]);
    bytes[12..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The last bytes of a file whose index chunk begins at `index_offset`.
pub fn trailer(index_offset: u64) -> [u8; TRAILER_BYTES] {
    let mut bytes = [0; TRAILER_BYTES];
    bytes[..8].copy_from_slice(&index_offset.to_le_bytes());
    bytes[8..].copy_from_slice(&END_MAGIC);
    bytes
}

/// What was recorded, and how.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct About {
    /// Instruction set, as in `x86_64`.
    pub architecture: String,
    /// What made the trace.
    pub producer: String,
    /// The traced program and its arguments.
    pub command: Vec<String>,
    /// Process id while it was traced.
    pub pid: u32,
    /// Process id of its parent.
    pub parent_pid: u32,
    /// Instructions executed before the first recorded one.
    pub skipped_instructions: u64,
    /// Pages that the process had before that one, as ranges of first page and count, in rising
    /// order. Empty where nothing was left out, or nobody looked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub populated: Vec<(u64, u64)>,
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

/// Appends `value` in groups of seven bits, low first, the top bit set on all but the last.
pub(crate) fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Reads what [`put_varint`] wrote; `None` past the end or where it is longer than 64 bits.
#[inline]
pub(crate) fn take_varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return (shift < 63 || byte < 2).then_some(value);
        }
    }
    None
}

/// Small magnitudes of either sign as small numbers.
#[inline]
pub(crate) fn zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}

/// The inverse of [`zigzag`].
#[inline]
pub(crate) fn unzigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_length_come_back() {
        for shift in 0..64 {
            for value in [1u64 << shift, (1 << shift) - 1, u64::MAX >> shift] {
                let mut bytes = Vec::new();
                put_varint(&mut bytes, value);
                assert_eq!(take_varint(&bytes, &mut 0), Some(value));
                assert_eq!(take_varint(&bytes[..bytes.len() - 1], &mut 0), None);
                assert_eq!(zigzag(unzigzag(value)), value);
            }
        }
        assert_eq!(take_varint(&[0xff; 11], &mut 0), None);
    }

    #[test]
    fn a_flipped_bit_in_a_chunk_header_is_seen() {
        let header = ChunkHeader {
            kind: ChunkKind::Events,
            payload_bytes: 12,
            instructions: 3,
            accesses: 4,
            payload_crc: 5,
        };
        let bytes = header.to_bytes();
        assert_eq!(ChunkHeader::from_bytes(&bytes), Ok(header));
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert!(ChunkHeader::from_bytes(&flipped).is_err(), "bit {bit}");
        }
    }
}
