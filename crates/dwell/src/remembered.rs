// SPDX-License-Identifier: MIT OR Apache-2.0
//! What processes found out about devices, kept for others of their user until the machine
//! restarts.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use dwell_policy::BUCKETS;
use dwell_policy::switchback::SAVED_WORDS;

use crate::monitor::host::{Sharing, shared_words};
use crate::shared_atomics::SharedAtomics;

/// "dwlearn" and the version of this layout.
const MAGIC: u64 = u64::from_le_bytes(*b"dwlearn\0") | (Remembered::VERSION as u64) << 56;
/// Devices that are remembered; of more, later ones are not.
const PLACES: usize = 32;
const HEADER_WORDS: usize = 8;
/// A device's words: which it is, whose turn it is to try something there, and what was found.
const AT_TURN: usize = 1;
const AT_CELLS: usize = 8;
/// Lone requests and those of pipelines, directions, load states and size buckets.
pub(crate) const CELLS: usize = 2 * 2 * 2 * BUCKETS;
const PLACE_WORDS: usize = AT_CELLS + CELLS * SAVED_WORDS;
const WORDS: usize = HEADER_WORDS + PLACES * PLACE_WORDS;

/// A file of words that processes share. Whatever is in it is taken for a hint, never for a fact.
pub(crate) struct Remembered(SharedAtomics);

/// The words of one device.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    all: Arc<Remembered>,
    at: usize,
}

impl Remembered {
    /// The version of the layout. It is in the file's name, so that what another version left
    /// behind is in nobody's way.
    pub const VERSION: u8 = 6;

    /// Opens or makes the file.
    pub fn open(path: &Path, sharing: Sharing) -> Result<Remembered, String> {
        let words = shared_words(path, sharing, WORDS)?;
        match words[0].compare_exchange(0, MAGIC, Relaxed, Relaxed) {
            Ok(_) | Err(MAGIC) => Ok(Remembered(words)),
            Err(_) => Err("is of another version of Dwell; remove it".to_owned()),
        }
    }

    /// Where a device is remembered; `None` where there is no room.
    pub fn place(self: &Arc<Self>, device: &str) -> Option<Place> {
        let name = named(device);
        for place in 0..PLACES {
            let at = HEADER_WORDS + place * PLACE_WORDS;
            match self.0[at].compare_exchange(0, name, Relaxed, Relaxed) {
                Ok(_) => return Some(Place { all: self.clone(), at }),
                Err(found) if found == name => return Some(Place { all: self.clone(), at }),
                Err(_) => {}
            }
        }
        None
    }
}

impl fmt::Debug for Remembered {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Remembered")
    }
}

/// A device's name in one word (FNV-1a); never 0.
fn named(device: &str) -> u64 {
    let hash = device.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    hash.max(1)
}

impl Place {
    /// Whose turn it is to try something.
    pub fn turn(&self) -> &AtomicU64 {
        &self.all.0[self.at + AT_TURN]
    }

    fn cell(&self, cell: usize) -> &[AtomicU64] {
        &self.all.0[self.at + AT_CELLS + cell * SAVED_WORDS..][..SAVED_WORDS]
    }

    /// What was saved of a cell.
    pub fn recall(&self, cell: usize) -> [u64; SAVED_WORDS] {
        let words = self.cell(cell);
        std::array::from_fn(|at: usize| words[at].load(Relaxed))
    }

    /// Saves a cell. A reader meanwhile may find some words of two searches.
    pub fn remember(&self, cell: usize, saved: [u64; SAVED_WORDS]) {
        for (word, new) in self.cell(cell).iter().zip(saved) {
            word.store(new, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_finds_what_another_saved_under_the_same_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("learned");
        let open = || Arc::new(Remembered::open(&path, Sharing::SameUser).unwrap());
        let (one, other) = (open(), open());
        let saved = std::array::from_fn(|at| at as u64);
        one.place("7:0 direct").unwrap().remember(CELLS - 1, saved);
        assert_eq!(other.place("7:0 direct").unwrap().recall(CELLS - 1), saved);
        assert_eq!(other.place("7:1 direct").unwrap().recall(CELLS - 1), [0; SAVED_WORDS]);
    }

    #[test]
    fn there_is_room_for_so_many_devices_and_no_more() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("learned");
        let all = Arc::new(Remembered::open(&path, Sharing::SameUser).unwrap());
        let found = |at: usize| all.place(&format!("device {at}")).is_some();
        assert!((0..PLACES).all(found) && !found(PLACES) && found(0));
    }

    #[test]
    fn a_file_of_another_kind_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("learned");
        drop(Remembered::open(&path, Sharing::SameUser).unwrap());
        let bytes = vec![7; std::fs::metadata(&path).unwrap().len() as usize];
        std::fs::write(&path, bytes).unwrap();
        assert!(Remembered::open(&path, Sharing::SameUser).unwrap_err().contains("version"));
    }
}
