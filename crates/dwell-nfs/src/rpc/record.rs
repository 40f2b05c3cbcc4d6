// SPDX-License-Identifier: MIT OR Apache-2.0
//! Record marking (RFC 5531 §11): messages in a stream of bytes, in fragments or whole.

use std::ops::Range;

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

/// Puts records together again. Bytes are read into [`Records::room`]; a record of one fragment is
/// then read where it lies.
#[derive(Debug)]
pub struct Records {
    buffer: Vec<u8>,
    /// Where the record begins that is being put together; its marks are already cut out.
    start: usize,
    /// How much of it is there without marks, in bytes.
    whole: usize,
    /// How much of its fragment is still to come, in bytes, and whether that is the last one.
    fragment: Option<(usize, bool)>,
    fragments: u32,
    end: usize,
    most: u32,
}

impl Records {
    /// For records of at most `most` bytes.
    pub fn new(most: u32) -> Self {
        let (start, whole, end) = (0, 0, 0);
        Records { buffer: Vec::new(), start, whole, fragment: None, fragments: 0, end, most }
    }

    /// The longest record, in bytes.
    pub const fn most(&self) -> u32 {
        self.most
    }

    /// Allows longer records.
    pub fn allow(&mut self, most: u32) {
        self.most = self.most.max(most);
    }

    /// Forgets everything: the next byte begins a stream.
    pub fn clear(&mut self) {
        (self.start, self.whole, self.end) = (0, 0, 0);
        (self.fragment, self.fragments) = (None, 0);
    }

    /// Bytes that are there and belong to no record that was handed out.
    pub const fn buffered(&self) -> usize {
        self.end - self.start
    }

    /// Where to read the next bytes to.
    pub fn room(&mut self) -> &mut [u8] {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
        let missing = self.fragment.map_or(0, |(left, _)| {
            left.saturating_sub(self.end - self.start - self.whole) + MARK_BYTES
        });
        let wanted = missing.max(ROOM_BYTES);
        if self.buffer.len() - self.end < wanted {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.buffer.len() - self.end < wanted {
                self.buffer.resize((self.end + wanted).next_multiple_of(ROOM_BYTES) * 2, 0);
            }
        }
        &mut self.buffer[self.end..]
    }

    /// So many bytes were read.
    pub fn filled(&mut self, bytes: usize) {
        self.end = (self.end + bytes).min(self.buffer.len());
    }

    /// The next complete record: where it lies in [`Records::bytes`] until more is read.
    ///
    /// # Errors
    /// A stream that cannot be read on.
    pub fn take_next(&mut self) -> Result<Option<Range<usize>>, Unreadable> {
        loop {
            let at = self.start + self.whole;
            let Some((left, last)) = self.fragment else {
                let Some(mark) = self.buffer[at..self.end].first_chunk() else { return Ok(None) };
                let mark = u32::from_be_bytes(*mark);
                let length = (mark & !LAST) as usize;
                let whole = (self.whole + length) as u64;
                if whole > u64::from(self.most) {
                    return Err(Unreadable::TooLong { length: whole, most: self.most });
                }
                self.fragments += 1;
                if self.fragments > MAX_FRAGMENTS {
                    return Err(Unreadable::Splinters);
                }
                if self.whole == 0 {
                    self.start += MARK_BYTES;
                } else {
                    self.buffer.copy_within(at + MARK_BYTES..self.end, at);
                    self.end -= MARK_BYTES;
                }
                self.fragment = Some((length, mark & LAST != 0));
                continue;
            };
            let there = left.min(self.end - at);
            if there < left {
                return Ok(None);
            }
            self.whole += left;
            self.fragment = None;
            if last {
                let record = self.start..self.start + self.whole;
                (self.start, self.whole, self.fragments) = (record.end, 0, 0);
                return Ok(Some(record));
            }
        }
    }

    /// A record that [`Records::take_next`] found.
    pub fn bytes(&self, record: Range<usize>) -> &[u8] {
        &self.buffer[record]
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
                found.push(records.bytes(record).to_vec());
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
