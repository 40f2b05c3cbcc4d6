// SPDX-License-Identifier: MIT OR Apache-2.0
//! File sets as they should be: which files there are, where, and how long each is. No I/O.

use std::path::PathBuf;

use super::size::BLOCK_BYTES;
use super::spec::{FileSet, Spec};
use crate::stats::SplitMix;

/// One file of a set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Where it is, beneath the workload's directory.
    pub path: PathBuf,
    /// Its length when it is written whole, in bytes.
    pub whole_bytes: u64,
    /// Its length at the start of every round, in bytes; `None` when it is not there then.
    pub start_bytes: Option<u64>,
    /// Its length now.
    pub bytes: Option<u64>,
}

/// The files of a set that one thread has to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Share {
    entries: Vec<Entry>,
    /// Places in `entries` of the files that are there, and of the others; in an order that is the
    /// same whenever the same was done.
    there: Vec<usize>,
    missing: Vec<usize>,
}

impl Share {
    /// The share of the `instance`th of all threads on a set.
    pub fn of(spec: &Spec, set: &FileSet, instance: u64) -> Self {
        let threads = spec.threads_on(&set.name).max(1);
        let numbers = (instance..set.count).step_by(threads as usize);
        let mut entries: Vec<Entry> = numbers
            .map(|number| Entry {
                path: path_of(set, number),
                whole_bytes: whole_bytes(spec, set, number),
                start_bytes: None,
                bytes: None,
            })
            .collect();
        let least = usize::from(set.preallocated > 0.0);
        let most = if set.preallocated < 1.0 { entries.len().max(2) - 1 } else { entries.len() };
        let wanted = (entries.len() as f64 * set.preallocated).round() as usize;
        let mut random = SplitMix(instance);
        let mut order: Vec<usize> = (0..entries.len()).collect();
        for place in (1..order.len()).rev() {
            order.swap(place, random.below(place + 1));
        }
        for &place in &order[..wanted.clamp(least, most.max(least))] {
            entries[place].start_bytes = Some(entries[place].whole_bytes);
        }
        let mut share = Share { entries, there: Vec::new(), missing: Vec::new() };
        share.reset();
        share
    }

    /// All files of the share.
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// Takes every file for as it is at the start of a round.
    pub fn reset(&mut self) {
        for entry in &mut self.entries {
            entry.bytes = entry.start_bytes;
        }
        let places = 0..self.entries.len();
        (self.there, self.missing) = places.partition(|&at| self.entries[at].bytes.is_some());
    }

    /// How many files are there.
    pub fn there(&self) -> usize {
        self.there.len()
    }

    /// How many are not.
    pub fn missing(&self) -> usize {
        self.missing.len()
    }

    /// Any file that is there.
    pub fn any(&self, random: &mut SplitMix) -> Option<usize> {
        (!self.there.is_empty()).then(|| self.there[random.below(self.there.len())])
    }

    /// Any file that is not there; from now on it is, and empty.
    pub fn create(&mut self, random: &mut SplitMix) -> Option<usize> {
        if self.missing.is_empty() {
            return None;
        }
        let file = self.missing.swap_remove(random.below(self.missing.len()));
        self.there.push(file);
        self.entries[file].bytes = Some(0);
        Some(file)
    }

    /// From now on a file that is there is not.
    pub fn delete(&mut self, file: usize) {
        if let Some(place) = self.there.iter().position(|&other| other == file) {
            self.there.swap_remove(place);
            self.missing.push(file);
            self.entries[file].bytes = None;
        }
    }

    /// Length of a file, in bytes; 0 when it is not there.
    pub fn bytes(&self, file: usize) -> u64 {
        self.entries[file].bytes.unwrap_or(0)
    }

    /// From now on a file reaches to `end` at least.
    pub fn reach(&mut self, file: usize, end: u64) {
        let bytes = &mut self.entries[file].bytes;
        *bytes = Some(bytes.unwrap_or(0).max(end));
    }
}

/// What direct I/O can write of so many bytes: whole blocks.
pub(super) fn rounded(spec: &Spec, bytes: u64) -> u64 {
    if spec.direct { bytes.next_multiple_of(BLOCK_BYTES) } else { bytes }
}

/// A file's own length: the same whoever asks, and however many threads share the set.
fn whole_bytes(spec: &Spec, set: &FileSet, number: u64) -> u64 {
    let mut random = SplitMix(number ^ 0x5e75_0f0f_11e5);
    random.next_u64();
    rounded(spec, set.size_bytes.draw(&mut random))
}

/// Where a file is: directories nest until none has more entries than the set allows.
fn path_of(set: &FileSet, number: u64) -> PathBuf {
    let (width, mut levels) = (set.directory_width, Vec::new());
    let (mut directories, mut at) = (set.count.div_ceil(width), number / width);
    while directories > 1 {
        levels.push(format!("d{}", at % width));
        at /= width;
        directories = directories.div_ceil(width);
    }
    let mut path = PathBuf::from(&set.name);
    path.extend(levels.iter().rev());
    path.join(format!("f{number}"))
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use super::*;
    use crate::workload::shipped;

    #[test]
    fn shares_are_the_whole_set_and_no_file_is_in_two() {
        let spec = shipped("fileserver").unwrap().variants().unwrap().remove(0).spec.scaled(0.1);
        let set = &spec.files[0];
        let threads = spec.threads_on(&set.name);
        let mut seen = BTreeSet::new();
        let (mut there, mut all) = (0, 0);
        for instance in 0..threads {
            let share = Share::of(&spec, set, instance);
            for entry in share.entries() {
                assert!(seen.insert(entry.path.clone()), "{}", entry.path.display());
            }
            there += share.there();
            all += share.there() + share.missing();
        }
        assert_eq!((all as u64, seen.len() as u64), (set.count, set.count));
        assert_eq!(there as f64, all as f64 * set.preallocated);
        let mut entries: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for path in &seen {
            for step in path.ancestors().filter(|step| step.components().count() > 1) {
                entries.entry(step.parent().unwrap()).or_default().insert(step);
            }
        }
        let widest = entries.values().map(BTreeSet::len).max();
        assert_eq!(widest, Some(set.directory_width as usize));
    }

    #[test]
    fn lengths_have_the_mean_of_the_set_rounded_up_to_blocks() {
        let spec = shipped("varmail").unwrap().variants().unwrap().remove(0).spec;
        let sum: u64 = (0..20_000).map(|n| whole_bytes(&spec, &spec.files[0], n)).sum();
        let mean = sum as f64 / 20_000.0 - BLOCK_BYTES as f64 / 2.0;
        assert!((mean / 16_384.0 - 1.0).abs() < 0.03, "{mean}");
    }

    #[test]
    fn files_come_and_go_and_a_reset_brings_the_start_back() {
        let spec = shipped("varmail").unwrap().variants().unwrap().remove(0).spec;
        let mut share = Share::of(&spec, &spec.files[0], 3);
        let start = share.clone();
        let mut random = SplitMix(1);
        let made = share.create(&mut random).unwrap();
        assert_eq!((share.bytes(made), share.missing()), (0, start.missing() - 1));
        share.reach(made, 8192);
        share.reach(made, 4096);
        assert_eq!(share.bytes(made), 8192);
        while let Some(file) = share.any(&mut random) {
            share.delete(file);
        }
        assert_eq!(share.there(), 0);
        share.reset();
        assert_eq!(share, start);
    }
}
