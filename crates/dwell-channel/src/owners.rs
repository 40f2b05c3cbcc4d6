// SPDX-License-Identifier: MIT OR Apache-2.0
//! To whom it counts what a user takes: a user who was given subordinate numbers (subuid(5)) could
//! otherwise have a share for each of them.

use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::{array, fs};

use dwell::clock;

/// Between two looks at the files, in nanoseconds.
const LOOK_NS: u64 = 1_000_000_000;

/// The users that own ranges of users' numbers (subordinate ids). The default owns none: each user
/// counts alone.
#[derive(Debug, Default)]
pub struct Owners {
    ranges: RwLock<Vec<Subordinates>>,
    files: Option<Files>,
}

/// What they are read from, again when it changes.
#[derive(Debug)]
struct Files {
    /// `subuid` and `passwd`.
    paths: [PathBuf; 2],
    looked_at_ns: AtomicU64,
    seen: Mutex<[Mark; 2]>,
}

/// What changes with a file: its device, inode, length and time of change; `None` where there is
/// none.
type Mark = Option<(u64, u64, u64, i64, i64)>;

fn mark(path: &Path) -> Mark {
    let facts = fs::metadata(path).ok()?;
    Some((facts.dev(), facts.ino(), facts.len(), facts.ctime(), facts.ctime_nsec()))
}

fn text(path: &Path) -> io::Result<String> {
    fs::read_to_string(path).or_else(|error| match error.kind() {
        ErrorKind::NotFound => Ok(String::new()),
        _ => Err(error),
    })
}

/// Some numbers of one owner.
#[derive(Clone, Copy, Debug)]
struct Subordinates {
    first: u32,
    count: u32,
    owner: u32,
}

impl Owners {
    /// Those that this machine's `/etc/subuid` names.
    pub fn of_this_machine() -> Owners {
        Owners::in_files("/etc/subuid".into(), "/etc/passwd".into())
    }

    /// Those that such files name, now and whenever they change.
    pub fn in_files(subuid: PathBuf, passwd: PathBuf) -> Owners {
        let (looked_at_ns, seen) = (AtomicU64::new(clock::now()), Mutex::default());
        let files = Files { paths: [subuid, passwd], looked_at_ns, seen };
        let ranges = RwLock::new(files.changed().unwrap_or_default());
        Owners { ranges, files: Some(files) }
    }

    /// From the text of `subuid` and, for owners that are named there, of `passwd`. Lines that make
    /// no sense own nothing.
    pub fn parse(subuid: &str, passwd: &str) -> Owners {
        Owners { ranges: RwLock::new(parse(subuid, passwd)), files: None }
    }

    /// The user that accounts for what this user takes: the owner of its number, or itself.
    pub fn of(&self, uid: u32) -> u32 {
        self.look();
        let owns =
            |range: &&Subordinates| uid.checked_sub(range.first).is_some_and(|at| at < range.count);
        let ranges = self.ranges.read().unwrap_or_else(PoisonError::into_inner);
        ranges.iter().find(owns).map_or(uid, |range| range.owner)
    }

    /// Looks whether the files have changed, if that was not done lately.
    fn look(&self) {
        let Some(files) = &self.files else { return };
        let (at, now) = (files.looked_at_ns.load(Ordering::Relaxed), clock::now());
        let order = Ordering::Relaxed;
        if now.saturating_sub(at) < LOOK_NS
            || files.looked_at_ns.compare_exchange(at, now, order, order).is_err()
        {
            return;
        }
        if let Some(ranges) = files.changed() {
            *self.ranges.write().unwrap_or_else(PoisonError::into_inner) = ranges;
        }
    }
}

impl Files {
    /// What they hold, if that has changed and can be read.
    fn changed(&self) -> Option<Vec<Subordinates>> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        // Before they are read: what changes meanwhile is seen the next time.
        let now = array::from_fn(|at| mark(&self.paths[at]));
        if *seen == now {
            return None;
        }
        let [subuid, passwd] = &self.paths;
        let ranges = parse(&text(subuid).ok()?, &text(passwd).ok()?);
        *seen = now;
        Some(ranges)
    }
}

fn parse(subuid: &str, passwd: &str) -> Vec<Subordinates> {
    let number = |user: &str| {
        let named = || {
            let mut lines = passwd.lines().map(|line| line.split(':'));
            lines.find_map(|mut line| (line.next() == Some(user)).then(|| line.nth(1))?)
        };
        user.parse().ok().or_else(|| named()?.parse().ok())
    };
    let owned = |line: &str| {
        let mut fields = line.trim().split(':');
        let owner = number(fields.next()?)?;
        let (first, count) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(Subordinates { first, count, owner })
    };
    subuid.lines().filter_map(owned).collect()
}

#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn subordinate_numbers_count_to_their_owner_and_others_to_themselves() {
        let passwd = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000::/home/ann:/bin/sh\n";
        let subuid = "ann:100000:65536\n1001:165536:10\nnobody-here:1:1000\nann:no:number\n\n";
        let owners = Owners::parse(subuid, passwd);
        let expected = [(0, 0), (5, 5), (1000, 1000), (100_000, 1000), (165_535, 1000)];
        for (uid, owner) in expected.into_iter().chain([(165_536, 1001), (165_546, 165_546)]) {
            assert_eq!(owners.of(uid), owner, "{uid}");
        }
        assert_eq!(Owners::default().of(100_000), 100_000);
        assert_eq!(Owners::parse("1:4294967295:9", "").of(u32::MAX), 1);
    }
    #[test]
    fn users_that_are_added_later_count_to_their_owner() {
        let dir = tempfile::tempdir().unwrap();
        let [subuid, passwd, new] = ["subuid", "passwd", "new"].map(|name| dir.path().join(name));
        fs::write(&subuid, "1001:165536:10\n").unwrap();
        let owners = Owners::in_files(subuid.clone(), passwd.clone());
        assert_eq!((owners.of(165_536), owners.of(100_000)), (1001, 100_000));
        fs::write(&passwd, "ann:x:1000:1000::/home/ann:/bin/sh\n").unwrap();
        // As useradd(8) does.
        fs::write(&new, "1001:165536:10\nann:100000:65536\n").unwrap();
        fs::rename(&new, &subuid).unwrap();
        let until = Instant::now() + Duration::from_secs(20);
        while owners.of(100_000) != 1000 {
            assert!(Instant::now() < until, "a user who was added has a share for each number");
            thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(owners.of(165_536), 1001);
    }
}
