// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the workload writes, and what may be found of it after a power cut.

/// Bytes of a block, the unit of writing.
pub const BLOCK: usize = 4096;
/// Bytes of a record, the unit that a disk writes whole.
const RECORD: usize = 512;

/// Fills a block with records that name the block and the version.
pub fn block(number: usize, version: u64) -> Vec<u8> {
    (0..BLOCK / RECORD).flat_map(|part| record(number, part, version)).collect()
}

fn record(number: usize, part: usize, version: u64) -> Vec<u8> {
    let mut record = Vec::with_capacity(RECORD);
    record.extend(version.to_le_bytes());
    record.extend((number as u64).to_le_bytes());
    record.extend((part as u64).to_le_bytes());
    let mut word = version ^ (number as u64) << 32 ^ (part as u64) << 56;
    while record.len() < RECORD - 8 {
        word = word.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23) ^ version;
        record.extend(word.to_le_bytes());
    }
    let sum = crc32fast::hash(&record);
    record.extend(u64::from(sum).to_le_bytes());
    record
}

/// The versions of a block's records; 0 for one that was never written. A torn or foreign record is
/// an error.
fn versions(number: usize, bytes: &[u8]) -> Result<Vec<u64>, String> {
    bytes
        .chunks(RECORD)
        .enumerate()
        .map(|(part, found)| {
            let (version, _) = found.split_first_chunk::<8>().expect("a whole record");
            let version = u64::from_le_bytes(*version);
            if found.iter().all(|byte| *byte == 0) {
                Ok(0)
            } else if *found == *record(number, part, version) {
                Ok(version)
            } else {
                Err(format!("record {part} of block {number} is torn"))
            }
        })
        .collect()
}

/// What was written to one file, and up to which step a sync said that it is on the disk.
#[derive(Default)]
pub struct History {
    /// The block of each version, oldest first. Versions start at 1.
    written: Vec<usize>,
}

impl History {
    /// The next version, which is about to be written to a block.
    pub fn write(&mut self, number: usize) -> u64 {
        self.written.push(number);
        self.written.len() as u64
    }

    /// The newest version. A sync that returns now vouches for all up to it.
    pub fn newest(&self) -> u64 {
        self.written.len() as u64
    }

    /// Compares what a file holds after a power cut with what a sync vouched for: `acknowledged` is
    /// the newest version that was written before such a sync began.
    ///
    /// # Errors
    /// A text that names the block and the versions, the one that should be there at least and the
    /// one that is.
    pub fn check(&self, file: &[u8], acknowledged: u64) -> Result<(), String> {
        let blocks = self.written.iter().max().map_or(0, |number| number + 1);
        for number in 0..blocks {
            let mine = |version: &u64| self.written[*version as usize - 1] == number;
            let least = (1..=acknowledged).rev().find(mine).unwrap_or(0);
            let at = number * BLOCK;
            let Some(found) = file.get(at..at + BLOCK) else {
                if least == 0 {
                    continue;
                }
                let bytes = file.len();
                return Err(format!(
                    "block {number} is behind the end ({bytes} bytes), {least} was synced"
                ));
            };
            for version in versions(number, found)? {
                let known = version == 0 || (version <= self.newest() && mine(&version));
                if version < least || !known {
                    return Err(format!("block {number} has {version}, {least} was synced"));
                }
            }
        }
        Ok(())
    }
}

/// Numbers that look random and depend on the seed alone.
pub struct Random(pub u64);

impl Random {
    /// A number below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (word ^ word >> 31) % limit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synced_version_must_be_there_and_a_later_one_may_be() {
        let mut history = History::default();
        let (old, new) = (history.write(0), history.write(0));
        let unsynced = history.write(0);
        for version in [new, unsynced] {
            history.check(&block(0, version), new).unwrap();
        }
        assert!(history.check(&block(0, old), new).unwrap_err().contains("2 was synced"));
        assert!(history.check(&[], new).unwrap_err().contains("behind the end"));
        history.check(&[], 0).unwrap();
        let half = [&block(0, new)[..2048], &block(0, unsynced)[2048..]].concat();
        history.check(&half, new).unwrap();
    }

    #[test]
    fn torn_records_and_those_of_other_blocks_are_found() {
        let mut history = History::default();
        let version = history.write(0);
        let mut bytes = block(0, version);
        bytes[700] ^= 1;
        assert!(history.check(&bytes, 0).unwrap_err().contains("torn"));
        assert!(history.check(&block(1, version), 0).is_err());
        assert!(history.check(&block(0, 9), 0).is_err());
    }
}
