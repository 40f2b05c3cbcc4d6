// SPDX-License-Identifier: MIT OR Apache-2.0
//! The record beside a copy in progress: of which source it is, and which data of it is durable,
//! with checksums. By it a later copy knows what it may go on from.

use blake3::Hash;

use crate::tree::Facts;

/// Length of a record's first line, in bytes.
pub(crate) const HEAD_BYTES: u64 = 97;
/// Length of each later line, in bytes.
pub(crate) const LINE_BYTES: u64 = 108;
/// Names that are longer leave no room for what is added to them.
const LONGEST_NAME: usize = 200;

/// The names of a copy in progress and of its record.
pub(crate) fn names(name: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let short;
    let name = match name.len() <= LONGEST_NAME {
        true => name,
        false => {
            short = blake3::hash(name).to_hex();
            short.as_bytes()
        }
    };
    ([b".", name, b".dwell-part"].concat(), [b".", name, b".dwell-resume"].concat())
}

/// The first line: a source that still has it has not changed. All of it is told by the source's
/// own system, so that no two clocks are compared.
pub(crate) fn head(source: &Facts) -> String {
    let Facts { bytes, modified, changed, file, .. } = source;
    let head = format!(
        "dwell copy 2 of {bytes:016x} {:08x}.{:08x} {:08x}.{:08x} {file:016x}",
        modified.seconds, modified.nanoseconds, changed.seconds, changed.nanoseconds,
    );
    format!("{head:<width$}\n", width = HEAD_BYTES as usize - 1)
}

/// A part of the data that is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub start: u64,
    pub bytes: u64,
    /// Its checksum is that of the CRC-32 of each piece of so many bytes.
    pub chunk: u64,
    pub sum: Hash,
}

impl Extent {
    /// An extent by the CRC-32 of each of its chunks.
    pub fn new(start: u64, bytes: u64, chunk: u64, sums: impl IntoIterator<Item = u32>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for sum in sums {
            hasher.update(&sum.to_le_bytes());
        }
        Extent { start, bytes, chunk, sum: hasher.finalize() }
    }

    /// Where it ends.
    pub fn end(&self) -> u64 {
        self.start + self.bytes
    }

    /// Its line.
    pub fn line(&self) -> String {
        let Extent { start, bytes, chunk, sum } = self;
        format!("{start:016x} {bytes:016x} {chunk:08x} {}\n", sum.to_hex())
    }

    fn read(line: &[u8], after: u64) -> Option<Extent> {
        let line = std::str::from_utf8(line.strip_suffix(b"\n")?).ok()?;
        let mut words = line.split(' ');
        let mut number = || u64::from_str_radix(words.next()?, 16).ok();
        let (start, bytes, chunk) = (number()?, number()?, number()?);
        let sum = Hash::from_hex(words.next()?).ok()?;
        let is_sound =
            start == after && bytes > 0 && chunk > 0 && bytes.checked_add(start).is_some();
        is_sound.then_some(Extent { start, bytes, chunk, sum })
    }
}

/// What a record says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// Nothing that can be used.
    None,
    /// It is of a source that was another then.
    OfAnother,
    /// These parts were durable, from the beginning on.
    Durable(Vec<Extent>),
}

impl Record {
    /// Reads a record of this source; what was not written to its end is left out.
    pub fn read(record: &[u8], source: &Facts) -> Record {
        let Some((first, lines)) = record.split_at_checked(HEAD_BYTES as usize) else {
            return Record::None;
        };
        if !first.starts_with(b"dwell copy 2 of ") {
            return Record::None;
        }
        if first != head(source).as_bytes() {
            return Record::OfAnother;
        }
        let mut extents: Vec<Extent> = Vec::new();
        for line in lines.chunks(LINE_BYTES as usize) {
            let after = extents.last().map_or(0, Extent::end);
            let Some(extent) = Extent::read(line, after) else { break };
            extents.push(extent);
        }
        Record::Durable(extents)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nfs3::{Kind, Time};

    fn facts() -> Facts {
        let time = Time { seconds: u32::MAX, nanoseconds: 999_999_999 };
        Facts {
            kind: Kind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            bytes: u64::MAX,
            used_bytes: 0,
            links: 1,
            file_system: 0,
            file: u64::MAX,
            device: (0, 0),
            modified: time,
            accessed: time,
            changed: time,
            times_fit: true,
        }
    }

    #[test]
    fn a_record_is_read_as_far_as_it_is_whole() {
        let one = Extent::new(0, 100, 60, [1, 2]);
        let two = Extent::new(100, 7, 60, [1]);
        let text = format!("{}{}{}", head(&facts()), one.line(), two.line());
        assert_eq!(head(&facts()).len() as u64, HEAD_BYTES);
        assert_eq!(one.line().len() as u64, LINE_BYTES);
        let read = |bytes: usize| Record::read(&text.as_bytes()[..bytes], &facts());
        for bytes in 0..=text.len() {
            let (head, line) = (HEAD_BYTES as usize, LINE_BYTES as usize);
            let expected = match bytes {
                bytes if bytes < head => Record::None,
                bytes if bytes < head + line => Record::Durable(vec![]),
                bytes if bytes < head + 2 * line => Record::Durable(vec![one]),
                _ => Record::Durable(vec![one, two]),
            };
            assert_eq!(read(bytes), expected, "{bytes}");
        }
        // Extents that do not follow each other, and noise.
        let text = format!("{}{}", head(&facts()), two.line());
        assert_eq!(Record::read(text.as_bytes(), &facts()), Record::Durable(vec![]));
        assert_eq!(Record::read(&[0xff; 500], &facts()), Record::None);
    }

    #[test]
    fn a_source_that_differs_in_anything_that_a_write_changes_is_another() {
        let later = Time { seconds: 1, nanoseconds: 1 };
        for other in [
            Facts { bytes: 5, ..facts() },
            Facts { modified: later, ..facts() },
            Facts { changed: later, ..facts() },
            Facts { file: 5, ..facts() },
        ] {
            assert_eq!(Record::read(head(&facts()).as_bytes(), &other), Record::OfAnother);
        }
        let read = Facts { accessed: later, ..facts() };
        assert_eq!(Record::read(head(&facts()).as_bytes(), &read), Record::Durable(vec![]));
    }

    #[test]
    fn a_part_and_its_record_have_names_of_their_own_that_fit() {
        let (part, record) = names(&[b'n'; 255]);
        assert!(part.len() < 255 && record.len() < 255 && part != record);
        assert_ne!(names(&[b'n'; 254]).0, part);
        assert_eq!(names(b"x").0, b".x.dwell-part");
    }
}
