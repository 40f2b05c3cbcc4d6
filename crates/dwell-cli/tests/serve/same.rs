// SPDX-License-Identifier: MIT OR Apache-2.0
//! The same steps through a served mount and on the file system beneath have the same outcome,
//! errors included.

use std::path::Path;

use crate::fixture::{Dice, Served, is_root};
use crate::step::{Actor, SLOTS, Step, tree};

fn play(served: &Served, steps: impl Iterator<Item = Step>, story: &str) {
    let (mut through, mut plain) = (Actor::below(&served.mount), Actor::below(&served.plain));
    let mut log = Vec::new();
    for step in steps {
        let (came, expected) = (through.take(&step), plain.take(&step));
        let whole = format!("{step:?}");
        let data = whole.find('[').map_or(whole.len(), |at| (at + 20).min(whole.len()));
        log.push(format!("{} -> {expected}", &whole[..data]));
        let before = || log[log.len().saturating_sub(100)..].join("\n");
        assert_eq!(came, expected, "{story}, after\n{}", before());
    }
    let (found, expected) = (tree(&served.mount), tree(&served.plain));
    assert_eq!(found, expected, "{story}, after\n{}", log.join("\n"));
    // And beneath the mount it is what the mount shows.
    drop(through);
    assert_eq!(tree(&served.backing), expected, "{story}: the backing directory");
}

#[test]
fn steps_at_random_come_out_as_without_the_server() {
    at_random(0..12, 400);
}

#[test]
#[ignore = "minutes; make test-long runs it"]
fn many_more_steps_at_random() {
    at_random(1000..1060, 4000);
}

fn at_random(seeds: std::ops::Range<u64>, steps: usize) {
    let Some(served) = Served::start() else { return };
    for seed in seeds {
        for root in [&served.mount, &served.plain] {
            for entry in std::fs::read_dir(root).unwrap() {
                let path = entry.unwrap().path();
                let gone = match path.symlink_metadata().unwrap().is_dir() {
                    true => std::fs::remove_dir_all(&path),
                    false => std::fs::remove_file(&path),
                };
                gone.unwrap();
            }
        }
        let mut dice = Dice::of(seed);
        // A write to a file that was open before it got set-user-id clears the bit, also by root:
        // another test's.
        let passes = served.passes();
        let any = |dice: &mut Dice| match Step::any(dice) {
            Step::Chmod(name, mode) if passes => Step::Chmod(name, mode & 0o1777),
            Step::ChmodOpen(slot, mode) if passes => Step::ChmodOpen(slot, mode & 0o1777),
            step => step,
        };
        let steps = (0..steps).map(|_| any(&mut dice)).filter(|step| is_root() || allowed(step));
        play(&served, steps, &format!("seed {seed}"));
    }
}

/// Without root, what depends on the user's groups is left out.
fn allowed(step: &Step) -> bool {
    !matches!(step, Step::Chown(..))
}

/// Names that every story starts from.
fn start() -> Vec<Step> {
    let n = |name: &str| name.to_owned();
    vec![
        Step::MkDir(n("d"), 0o755),
        Step::MkDir(n("d/e"), 0o700),
        Step::Open(0, n("a"), libc::O_CREAT | libc::O_RDWR, 0o644),
        Step::WriteAt(0, 0, (0..10_000_u32).map(|at| at as u8).collect()),
        Step::SymLink(n("a"), n("l")),
        Step::Link(n("a"), n("b")),
        Step::Pipe(n("p"), 0o600),
    ]
}

#[test]
fn every_operation_succeeds_and_fails_as_without_the_server() {
    let Some(served) = Served::start() else { return };
    let n = |name: &str| name.to_owned();
    let long = "x".repeat(255);
    let too_long = "x".repeat(256);
    let names =
        ["a", "b", "d", "d/e", "l", "p", "none", "a/x", "d/none/x", &long, &too_long, "new"];
    let mut steps = start();
    for name in names {
        let name = n(name);
        for flags in [
            libc::O_RDONLY,
            libc::O_RDWR,
            libc::O_WRONLY | libc::O_TRUNC,
            libc::O_RDWR | libc::O_CREAT,
            libc::O_RDWR | libc::O_CREAT | libc::O_EXCL,
            libc::O_RDONLY | libc::O_DIRECTORY,
            libc::O_RDONLY | libc::O_NOFOLLOW,
            libc::O_RDWR | libc::O_APPEND,
            libc::O_RDWR | libc::O_DIRECT,
        ] {
            steps.push(Step::Open(1, name.clone(), flags, 0o640));
            steps.push(Step::Write(1, b"hello".to_vec()));
            steps.push(Step::ReadAt(1, 0, 20_000));
            steps.push(Step::StatOpen(1));
        }
        steps.extend([
            Step::Stat(name.clone(), true),
            Step::Stat(name.clone(), false),
            Step::ReadLink(name.clone()),
            Step::List(name.clone()),
            Step::Truncate(name.clone(), 5000),
            Step::Chmod(name.clone(), 0o4751),
            Step::Stat(name.clone(), true),
            Step::Chown(name.clone(), 1, 2),
            Step::Stat(name.clone(), false),
            Step::Chown(name.clone(), 0, 0),
            Step::Times(name.clone(), -7, 1 << 33),
            Step::Times(name.clone(), i64::MIN, i64::MAX),
        ]);
        for attribute in ["user.x", "trusted.x", "security.x", "system.x", "nonsense", ""] {
            for flags in [2, 0, 1, 0] {
                steps.push(Step::SetXattr(name.clone(), n(attribute), vec![7; 30], flags));
            }
            steps.push(Step::GetXattr(name.clone(), n(attribute)));
            steps.push(Step::ListXattr(name.clone()));
            steps.push(Step::RemoveXattr(name.clone(), n(attribute)));
            steps.push(Step::RemoveXattr(name.clone(), n(attribute)));
        }
        for other in names {
            for flags in [1, 0, 2, 3] {
                steps.push(Step::Rename(name.clone(), n(other), flags));
                steps.push(Step::Rename(n(other), name.clone(), 1));
            }
            steps.push(Step::Link(name.clone(), n(other)));
            steps.push(Step::Unlink(n(other)));
            steps.push(Step::RmDir(n(other)));
            steps.extend(start());
        }
        steps.extend([Step::MkDir(name.clone(), 0o3777), Step::SymLink(n("a"), name.clone())]);
    }
    let steps = steps.into_iter().filter(|step| is_root() || allowed(step));
    play(&served, steps, "every operation");
}

#[test]
fn open_files_do_all_that_open_files_can() {
    let Some(served) = Served::start() else { return };
    let n = |name: &str| name.to_owned();
    let mut steps = start();
    steps.push(Step::Open(1, n("a"), libc::O_RDONLY, 0));
    steps.push(Step::Open(2, n("a"), libc::O_WRONLY | libc::O_APPEND, 0));
    steps.push(Step::Open(3, n("d"), libc::O_RDONLY, 0));
    // Slot 4 stays empty; slot 5's file has no name any more.
    steps.push(Step::Open(5, n("gone"), libc::O_CREAT | libc::O_RDWR, 0o600));
    steps.push(Step::Unlink(n("gone")));
    for slot in 0..SLOTS {
        steps.extend([
            Step::WriteAt(slot, 3, vec![1; 5000]),
            Step::Write(slot, vec![2; 100]),
            Step::Seek(slot, 10, libc::SEEK_SET),
            Step::Read(slot, 300),
            Step::Seek(slot, 0, libc::SEEK_CUR),
            Step::Seek(slot, -5, libc::SEEK_END),
            Step::Read(slot, 300),
            Step::SetLength(slot, 100_000),
            Step::StatOpen(slot),
            Step::Seek(slot, 0, libc::SEEK_HOLE),
            Step::Seek(slot, 50_000, libc::SEEK_DATA),
            Step::Seek(slot, 1 << 40, libc::SEEK_DATA),
            Step::Allocate(slot, 0, 0, 200_000),
            Step::Allocate(slot, 1, 0, 300_000),
            Step::StatOpen(slot),
            Step::Allocate(slot, 3, 4096, 8192),
            Step::Allocate(slot, 2, 4096, 8192),
            Step::Allocate(slot, 16, 0, 8192),
            Step::Allocate(slot, 8, 0, 4096),
            Step::Allocate(slot, 32, 0, 4096),
            Step::Allocate(slot, 0, 0, 0),
            Step::Seek(slot, 0, libc::SEEK_HOLE),
            Step::ReadAt(slot, 0, 20_000),
            Step::Map(slot, 4000, vec![9; 9000]),
            Step::ReadAt(slot, 0, 20_000),
            Step::WriteAt(slot, 4090, vec![3; 20]),
            Step::Map(slot, 8000, vec![4; 10]),
            Step::SetLength(slot, 5001),
            Step::ReadAt(slot, 4000, 20_000),
            Step::ChmodOpen(slot, 0o400),
            Step::WriteAt(slot, 0, vec![8; 10]),
            Step::StatOpen(slot),
            Step::Sync(slot),
        ]);
        for to in 0..SLOTS {
            steps.push(Step::Copy(slot, to, 100, 6000, 3000));
            steps.push(Step::Copy(slot, to, 100, 1000, 0));
            steps.push(Step::ReadAt(to, 0, 20_000));
        }
    }
    play(&served, steps.into_iter(), "open files");
}

#[test]
fn attributes_of_the_file_system_and_the_root_are_those_beneath() {
    let Some(served) = Served::start() else { return };
    let of = |path: &Path| {
        let fs = rustix::fs::statvfs(path).unwrap();
        (fs.f_bsize, fs.f_frsize, fs.f_blocks, fs.f_files, fs.f_namemax)
    };
    assert_eq!(of(&served.mount), of(&served.backing));
    let number = |path: &Path| rustix::fs::stat(path).unwrap().st_ino;
    std::fs::write(served.mount.join("file"), "").unwrap();
    assert_eq!(number(&served.mount), number(&served.backing));
    assert_eq!(number(&served.mount.join("file")), number(&served.backing.join("file")));
}
