// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a resumed copy goes on from, and what it does not: both ways, to a server and from one.

mod common;
#[allow(dead_code)]
#[path = "common/fake.rs"]
mod fake;
#[path = "common/model.rs"]
mod model;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use common::{Quiet, copy_up_to};
use dwell::executor::Executor;
use dwell_nfs::copy::{self, Options, Threads};
use fake::Fake;
use model::Model;

const EXTENT: usize = 16 << 10;
const BYTES: usize = 9 * EXTENT + 5;
const OPTIONS: Options = Options {
    recursive: false,
    resume: true,
    onto: false,
    verify: false,
    times: false,
    extent_bytes: EXTENT as u64,
    threads: Threads::Fixed(1),
};

/// A source and where it is copied to, of which one is here and one on a server.
struct Sides {
    to_server: bool,
    dir: tempfile::TempDir,
    model: Model,
    server: Fake,
}

impl Sides {
    fn new(to_server: bool, data: &[u8]) -> Sides {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let model = Model::default();
        let server = model.serve();
        let sides = Sides { to_server, dir, model, server };
        match to_server {
            true => fs::write(sides.here("source"), data).unwrap(),
            false => drop(sides.model.put("source", data)),
        }
        sides
    }

    fn both() -> impl Iterator<Item = (Sides, Vec<u8>)> {
        let data = common::noise(BYTES);
        [true, false].into_iter().map(move |to_server| (Sides::new(to_server, &data), data.clone()))
    }

    fn here(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn addresses(&self) -> (String, String) {
        let there = |name: &str| self.server.url(&format!("/e/{name}"), "&size=4096&window=4");
        let here = |name| self.here(name).to_str().unwrap().to_owned();
        match self.to_server {
            true => (here("source"), there("target")),
            false => (there("source"), here("target")),
        }
    }

    /// Copies and stops as if killed.
    fn stop_at(&self, byte: usize) {
        let (from, to) = self.addresses();
        assert!(copy_up_to(byte as u64, &from, &to, OPTIONS));
        assert!(self.target("target").is_none() && self.target(".target.dwell-part").is_some());
    }

    /// Copies: how much was there already, and what was said.
    fn copy(&self, options: Options) -> (u64, Vec<String>) {
        let (from, to) = self.addresses();
        let executor = Executor::new().unwrap();
        let tasks = executor.handle();
        let quiet = Quiet::default();
        let (done, failures) =
            executor.block_on(copy::between(&tasks, &from, &to, options, &quiet)).unwrap();
        assert_eq!(failures, 0, "{:?}", quiet.errors());
        for left in [".target.dwell-part", ".target.dwell-resume"] {
            assert!(self.target(left).is_none(), "{left} is left");
        }
        (done.bytes_there, quiet.notes())
    }

    /// The content of a file on the side copied to.
    fn target(&self, name: &str) -> Option<Vec<u8>> {
        match self.to_server {
            true => self.model.at(name).map(|entry| entry.durable),
            false => fs::read(self.here(name)).ok(),
        }
    }

    fn change_target(&self, name: &str, change: impl FnOnce(&mut Vec<u8>)) {
        change_one(!self.to_server, &self.here(name), &self.model, name, change, |_, _| ());
    }

    /// Changes the source and gives it the time of its last write that it had before.
    fn change_source(&self, change: impl FnOnce(&mut Vec<u8>)) {
        let modified = |path: &Path, time: SystemTime| {
            fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        };
        let path = self.here("source");
        change_one(self.to_server, &path, &self.model, "source", change, modified);
    }
}

fn change_one(
    is_here: bool,
    path: &Path,
    model: &Model,
    name: &str,
    change: impl FnOnce(&mut Vec<u8>),
    modified: impl FnOnce(&Path, SystemTime),
) {
    if is_here {
        let before = fs::metadata(path).unwrap().modified().unwrap();
        let mut data = fs::read(path).unwrap();
        change(&mut data);
        fs::write(path, data).unwrap();
        return modified(path, before);
    }
    let mut state = model.state();
    let id = state.entries[&1].names[name.as_bytes()];
    let entry = state.entries.get_mut(&id).unwrap();
    change(&mut entry.data);
    entry.durable.clone_from(&entry.data);
    entry.changed += 1_000_000;
}

#[test]
fn a_copy_goes_on_from_what_was_durable_whatever_the_clocks_say() {
    for (sides, data) in Sides::both() {
        // The source is of a time that has not come yet where the copy is.
        if sides.to_server {
            let source = fs::File::options().write(true).open(sides.here("source")).unwrap();
            source.set_modified(SystemTime::now() + Duration::from_secs(1 << 20)).unwrap();
        }
        sides.stop_at(5 * EXTENT + 100);
        let (there, notes) = sides.copy(OPTIONS);
        assert_eq!((there, &notes[..]), (5 * EXTENT as u64, &[][..]));
        assert!(sides.target("target").unwrap() == data);
    }
}

#[test]
fn a_copy_that_is_stopped_again_and_again_comes_to_its_end() {
    for (sides, data) in Sides::both() {
        let mut seen = 0;
        for stop in [EXTENT + 1, 3 * EXTENT - 1, 3 * EXTENT + 9, 7 * EXTENT] {
            sides.stop_at(stop);
            let record = sides.target(".target.dwell-resume").unwrap();
            assert!(record.len() >= seen);
            seen = record.len();
        }
        let (there, notes) = sides.copy(Options { verify: true, ..OPTIONS });
        assert!(there >= 6 * EXTENT as u64 && notes.is_empty(), "{there} {notes:?}");
        assert!(sides.target("target").unwrap() == data);
    }
}

#[test]
fn a_source_that_has_changed_is_copied_from_its_beginning() {
    let changes: [fn(&mut Vec<u8>); 3] = [
        // The same length and, as it says, written at the same time.
        |data| data[10] ^= 1,
        |data| data.truncate(8 * EXTENT),
        |data| data.extend_from_slice(b"more"),
    ];
    for change in changes {
        for (sides, mut data) in Sides::both() {
            sides.stop_at(5 * EXTENT + 100);
            sides.change_source(change);
            change(&mut data);
            let (there, notes) = sides.copy(OPTIONS);
            assert_eq!(there, 0);
            assert_eq!(notes.len(), 1, "{notes:?}");
            let said = "source has changed since the copy began; it is copied from its beginning";
            assert!(notes[0].contains(said) && !notes[0].contains('\n'), "{notes:?}");
            assert!(sides.target("target").unwrap() == data);
        }
    }
}

#[test]
fn a_part_that_is_not_what_was_written_is_written_again() {
    for byte in [0, EXTENT, 3 * EXTENT + 77, 5 * EXTENT - 1] {
        for (sides, data) in Sides::both() {
            sides.stop_at(5 * EXTENT + 100);
            sides.change_target(".target.dwell-part", |part| part[byte] ^= 1);
            let (there, notes) = sides.copy(OPTIONS);
            assert_eq!(there, (byte / EXTENT * EXTENT) as u64);
            assert!(notes.len() == 1 && notes[0].contains("not what was written"), "{notes:?}");
            assert!(sides.target("target").unwrap() == data);
        }
    }
    // Shorter than the record says.
    for (sides, data) in Sides::both() {
        sides.stop_at(5 * EXTENT + 100);
        sides.change_target(".target.dwell-part", |part| part.truncate(2 * EXTENT + 1));
        assert_eq!(sides.copy(OPTIONS).0, 2 * EXTENT as u64);
        assert!(sides.target("target").unwrap() == data);
    }
}

#[test]
fn a_part_without_a_record_is_not_believed() {
    let records: [fn(&mut Vec<u8>); 3] = [
        |record| record.clear(),
        |record| record[3] ^= 1,
        // Half a line of it is whole.
        |record| record.truncate(120),
    ];
    for record in records {
        for (sides, data) in Sides::both() {
            sides.stop_at(5 * EXTENT + 100);
            // Other data: of the same length, but of another source.
            sides.change_target(".target.dwell-part", |part| part.fill(0xee));
            sides.change_target(".target.dwell-resume", record);
            assert_eq!(sides.copy(OPTIONS).0, 0);
            assert!(sides.target("target").unwrap() == data);
        }
    }
}

#[test]
fn without_resume_nothing_that_is_left_is_used() {
    for (sides, data) in Sides::both() {
        sides.stop_at(5 * EXTENT + 100);
        sides.change_target(".target.dwell-part", |part| part.extend_from_slice(&[9; BYTES]));
        let (there, notes) = sides.copy(Options { resume: false, ..OPTIONS });
        assert_eq!((there, &notes[..]), (0, &[][..]));
        assert!(sides.target("target").unwrap() == data);
    }
}

#[test]
fn a_part_that_another_program_replaces_is_not_taken_for_the_file() {
    for (sides, _) in Sides::both() {
        let (from, to) = sides.addresses();
        let replace = || match sides.to_server {
            true => {
                sides
                    .model
                    .state()
                    .entries
                    .get_mut(&1)
                    .unwrap()
                    .names
                    .remove(&b".target.dwell-part"[..]);
                sides.model.put(".target.dwell-part", &[1; BYTES]);
            }
            false => {
                fs::rename(sides.here(".target.dwell-part"), sides.here("moved")).unwrap();
                fs::write(sides.here(".target.dwell-part"), [1; BYTES]).unwrap();
            }
        };
        let watcher = common::AtByte::new(3 * EXTENT as u64, replace);
        let executor = Executor::new().unwrap();
        let tasks = executor.handle();
        let copied = copy::between(&tasks, &from, &to, OPTIONS, &watcher);
        let (_, failures) = executor.block_on(copied).unwrap();
        assert_eq!(failures, 1);
        let errors = watcher.errors();
        assert!(errors[0].contains("another program has changed or replaced it"), "{errors:?}");
        assert!(sides.target("target").is_none());
        assert!(sides.target(".target.dwell-part").unwrap() == [1; BYTES], "it is not ours");
    }
}
