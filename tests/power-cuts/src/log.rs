// SPDX-License-Identifier: MIT OR Apache-2.0
//! The record that dm-log-writes keeps: a superblock, then entries, each with its data behind it.

use std::fmt;

const SECTOR: usize = 512;
const MAGIC: u64 = 0x006a_7366_7773_6872;
const HEAD_BYTES: usize = 32;
const DISCARD: u64 = 4;
const MARK: u64 = 8;

/// One entry of the record.
#[derive(Clone, PartialEq, Eq)]
pub enum Entry {
    /// Bytes reached the medium. A flush alone has none.
    Write {
        /// Where, in bytes from the start of the medium.
        at: usize,
        /// The bytes.
        data: Vec<u8>,
    },
    /// A range was discarded: it reads as zeros from now on.
    Discard {
        /// Where, in bytes from the start of the medium.
        at: usize,
        /// How long it is.
        bytes: usize,
    },
    /// The workload said this.
    Mark(String),
}

impl fmt::Debug for Entry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Entry::Write { at, data } => write!(f, "write of {} bytes at {at}", data.len()),
            Entry::Discard { at, bytes } => write!(f, "discard of {bytes} bytes at {at}"),
            Entry::Mark(text) => write!(f, "mark {text:?}"),
        }
    }
}

impl Entry {
    /// Carries the entry out on an image of the medium.
    pub fn apply(&self, image: &mut [u8]) {
        match self {
            Entry::Write { at, data } => image[*at..*at + data.len()].copy_from_slice(data),
            Entry::Discard { at, bytes } => image[*at..*at + *bytes].fill(0),
            Entry::Mark(_) => {}
        }
    }
}

/// Reads a whole record.
///
/// # Errors
/// A text that says what is wrong with the record, and where.
pub fn parse(log: &[u8]) -> Result<Vec<Entry>, String> {
    let word = |at: usize| -> Result<u64, String> {
        let bytes = log.get(at..at + 8).ok_or_else(|| format!("the record ends at byte {at}"))?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes")))
    };
    let (magic, version, entries) = (word(0)?, word(8)?, word(16)?);
    let sector = word(24)? as u32 as usize;
    if (magic, version) != (MAGIC, 1) || sector != SECTOR {
        return Err(format!("no record of version 1 with sectors of {SECTOR} bytes"));
    }
    let mut at = SECTOR;
    let mut parsed = Vec::new();
    for _ in 0..entries {
        let place = word(at)? as usize * SECTOR;
        let bytes = word(at + 8)? as usize * SECTOR;
        let (flags, said) = (word(at + 16)?, word(at + 24)? as usize);
        let behind = at + SECTOR;
        at = behind;
        if flags & MARK != 0 {
            let text = log.get(behind - SECTOR + HEAD_BYTES..behind).unwrap_or_default();
            let text = text.get(..said).ok_or_else(|| format!("a mark of {said} bytes"))?;
            parsed.push(Entry::Mark(String::from_utf8_lossy(text).into_owned()));
        } else if flags & DISCARD != 0 {
            parsed.push(Entry::Discard { at: place, bytes });
        } else {
            let data = log.get(behind..behind + bytes);
            let data = data.ok_or_else(|| format!("the record ends within byte {behind}"))?;
            parsed.push(Entry::Write { at: place, data: data.to_vec() });
            at += bytes;
        }
    }
    Ok(parsed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(words: [u64; 4], text: &[u8]) -> Vec<u8> {
        let mut sector: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        sector.extend_from_slice(text);
        sector.resize(SECTOR, 0);
        sector
    }

    #[test]
    fn entries_are_read_as_the_kernel_writes_them() {
        let mut log = head([MAGIC, 1, 4, SECTOR as u64], b"");
        log.extend(head([2, 1, 2, 512], b""));
        log.extend([7; SECTOR]);
        log.extend(head([0, 0, MARK, 5], b"ack 1"));
        log.extend(head([0, 1, DISCARD, 512], b""));
        log.extend(head([0, 0, 1, 0], b""));
        let entries = parse(&log).unwrap();
        assert_eq!(
            entries,
            [
                Entry::Write { at: 1024, data: vec![7; SECTOR] },
                Entry::Mark("ack 1".to_owned()),
                Entry::Discard { at: 0, bytes: SECTOR },
                Entry::Write { at: 0, data: Vec::new() },
            ]
        );
        let mut image = vec![1; 2048];
        entries.iter().for_each(|entry| entry.apply(&mut image));
        assert_eq!((image[0], image[512], image[1024], image[1536]), (0, 1, 7, 1));
    }

    #[test]
    fn a_record_that_ends_early_is_an_error() {
        let mut log = head([MAGIC, 1, 1, SECTOR as u64], b"");
        assert!(parse(&log).is_err());
        log.extend(head([2, 1, 2, 512], b""));
        assert!(parse(&log).unwrap_err().contains("ends within"));
        assert!(parse(&[0; SECTOR]).is_err());
    }
}
