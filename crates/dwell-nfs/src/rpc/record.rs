// SPDX-License-Identifier: MIT OR Apache-2.0
//! Record marking (RFC 5531 §11): messages in a stream of bytes, in fragments or whole.

use bytes::{Buf as _, Bytes, BytesMut};

use crate::memory::Memory;

/// Length of the mark before each fragment, in bytes.
pub const MARK_BYTES: usize = 4;
const LAST: u32 = 1 << 31;
/// More fragments than this in one record are an attack, not a message.
const MAX_FRAGMENTS: u32 = 1024;
/// Room that a look at the stream offers at least, in bytes.
const ROOM_BYTES: usize = 64 << 10;

/// The mark of a record of one fragment.
pub const fn mark(length: u32) -> [u8; MARK_BYTES] {
    (LAST | length).to_be_bytes()
}

/// Why a stream cannot be read on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unreadable {
    /// A record longer than any reply that is waited for.
    #[error("a record of {length} bytes or more: no reply may be longer than {most}")]
    TooLong {
        /// What its fragments say so far.
        length: u64,
        /// The bound.
        most: u32,
    },
    /// A record that does not come to its end.
    #[error("a record in more than {MAX_FRAGMENTS} fragments")]
    Splinters,
}

/// Chunks that records are received into have room for so many of the longest.
const RECORDS_OF_A_CHUNK: usize = 16;
/// Least and largest chunk, in bytes.
const CHUNK_BYTES: (usize, usize) = (256 << 10, 4 << 20);

/// Puts records together again. Bytes are read into [`Records::room`]; a record of one fragment is
/// then handed out where it lies, without a copy.
#[derive(Debug)]
pub struct Records {
    /// What was read and not handed out.
    there: BytesMut,
    /// Memory behind it.
    room: BytesMut,
    memory: Memory,
    /// Earlier fragments of the record that is being put together.
    begun: BytesMut,
    /// How long the fragment is that is being read, in bytes, and whether it is the last one. Its
    /// mark was taken off.
    fragment: Option<(usize, bool)>,
    fragments: u32,
    most: u32,
}

impl Records {
    /// For records of at most `most` bytes.
    pub fn new(most: u32) -> Self {
        let mut records = Records {
            there: BytesMut::new(),
            room: BytesMut::new(),
            memory: Memory::new(CHUNK_BYTES.0),
            begun: BytesMut::new(),
            fragment: None,
            fragments: 0,
            most: 0,
        };
        records.allow(most);
        records
    }

    /// The longest record, in bytes.
    pub const fn most(&self) -> u32 {
        self.most
    }

    /// Allows longer records.
    pub fn allow(&mut self, most: u32) {
        if most > self.most {
            self.most = most;
            let chunk = most as usize * RECORDS_OF_A_CHUNK;
            self.memory.allow(chunk.clamp(CHUNK_BYTES.0, CHUNK_BYTES.1));
        }
    }

    /// Forgets everything: the next byte begins a stream.
    pub fn clear(&mut self) {
        self.there = BytesMut::new();
        self.begun.clear();
        (self.fragment, self.fragments) = (None, 0);
    }

    /// Bytes that are there and belong to no record that was handed out.
    pub fn buffered(&self) -> usize {
        self.begun.len() + self.there.len()
    }

    /// Where to read the next bytes to.
    pub fn room(&mut self) -> &mut [u8] {
        let missing = self
            .fragment
            .map_or(0, |(length, _)| length.saturating_sub(self.there.len()) + MARK_BYTES);
        let wanted = missing.max(ROOM_BYTES);
        if self.room.len() < wanted {
            let there = std::mem::take(&mut self.there);
            let old = std::mem::take(&mut self.room);
            self.memory.give_back(old);
            self.room = self.memory.chunk(there.len() + wanted);
            self.there = self.room.split_to(there.len());
            self.there.copy_from_slice(&there);
        }
        &mut self.room
    }

    /// So many bytes were read.
    pub fn filled(&mut self, bytes: usize) {
        let read = self.room.split_to(bytes.min(self.room.len()));
        // They lie behind those that are there: nothing is copied.
        self.there.unsplit(read);
    }

    /// The next complete record.
    ///
    /// # Errors
    /// A stream that cannot be read on.
    pub fn take_next(&mut self) -> Result<Option<Bytes>, Unreadable> {
        loop {
            let Some((length, last)) = self.fragment else {
                let Some(mark) = self.there.first_chunk() else { return Ok(None) };
                let mark = u32::from_be_bytes(*mark);
                let length = (mark & !LAST) as usize;
                let whole = (self.begun.len() + length) as u64;
                if whole > u64::from(self.most) {
                    return Err(Unreadable::TooLong { length: whole, most: self.most });
                }
                self.fragments += 1;
                if self.fragments > MAX_FRAGMENTS {
                    return Err(Unreadable::Splinters);
                }
                self.there.advance(MARK_BYTES);
                self.fragment = Some((length, mark & LAST != 0));
                continue;
            };
            if self.there.len() < length {
                return Ok(None);
            }
            let fragment = self.there.split_to(length);
            self.fragment = None;
            if !last {
                self.begun.extend_from_slice(&fragment);
                continue;
            }
            let is_whole = std::mem::take(&mut self.fragments) == 1;
            if is_whole {
                return Ok(Some(fragment.freeze()));
            }
            self.begun.extend_from_slice(&fragment);
            return Ok(Some(self.begun.split().freeze()));
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn feed(records: &mut Records, bytes: &[u8]) -> Result<Vec<Vec<u8>>, Unreadable> {
        let mut found = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let room = records.room();
            let taken = room.len().min(rest.len());
            room[..taken].copy_from_slice(&rest[..taken]);
            records.filled(taken);
            rest = &rest[taken..];
            while let Some(record) = records.take_next()? {
                found.push(record.to_vec());
            }
        }
        Ok(found)
    }

    fn fragment(bytes: &[u8], last: bool) -> Vec<u8> {
        let mark = bytes.len() as u32 | if last { LAST } else { 0 };
        [&mark.to_be_bytes()[..], bytes].concat()
    }

    #[test]
    fn fragments_make_one_record_however_the_stream_is_cut() {
        let stream = [
            fragment(b"ab", false),
            fragment(b"", false),
            fragment(b"cde", true),
            fragment(b"", true),
            fragment(b"xyz", true),
        ]
        .concat();
        for cut in 0..=stream.len() {
            let mut records = Records::new(16);
            let mut found = feed(&mut records, &stream[..cut]).unwrap();
            found.extend(feed(&mut records, &stream[cut..]).unwrap());
            assert_eq!(found, [&b"abcde"[..], b"", b"xyz"], "cut at {cut}");
            assert_eq!(records.buffered(), 0);
        }
    }

    #[test]
    fn a_record_beyond_the_bound_or_without_end_is_refused() {
        let long = feed(&mut Records::new(16), &0x8000_0011u32.to_be_bytes());
        assert_eq!(long.unwrap_err(), Unreadable::TooLong { length: 17, most: 16 });
        let sum = [fragment(&[0; 10], false), fragment(&[0; 7], true)].concat();
        assert!(feed(&mut Records::new(16), &sum).is_err());
        let splinters = fragment(b"", false).repeat(2000);
        assert_eq!(feed(&mut Records::new(16), &splinters), Err(Unreadable::Splinters));
        assert!(feed(&mut Records::new(16), &[0x7f, 0xff, 0xff, 0xff]).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_pieces_give_the_same_records(
            bytes in proptest::collection::vec(any::<u8>(), 0..300),
            pieces in 1usize..40,
        ) {
            let whole = feed(&mut Records::new(64), &bytes);
            let mut records = Records::new(64);
            let mut found = Vec::new();
            let mut failed = None;
            for piece in bytes.chunks(pieces) {
                match feed(&mut records, piece) {
                    Ok(more) => found.extend(more),
                    Err(error) => { failed = Some(error); break }
                }
            }
            match whole {
                Ok(all) => prop_assert_eq!((found, failed), (all, None)),
                Err(error) => prop_assert_eq!(failed, Some(error)),
            }
        }
    }
}
