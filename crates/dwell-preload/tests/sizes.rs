// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads and writes of sizes that no program should ask for: the kernel's cap and its checks hold
//! on every route.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use common::{Ended, Fast, Under, program, skip, untouched};
use dwell_channel::daemon::{Daemon, Options};
use dwell_channel::fs::{Channels, Options as Serving, Server, take_over};

/// The table, on a file in `place`.
fn table(sizes: &Path, place: &Path, words: &[&str]) -> Command {
    let file = place.join("file");
    fs::write(&file, "").unwrap();
    let mut command = Command::new(sizes);
    command.arg(&file).args(words);
    command
}

fn lines(ended: &Ended) -> Vec<&str> {
    assert!(ended.status.success(), "{}: {}", ended.status, ended.stderr);
    let lines: Vec<_> = ended.stdout.lines().collect();
    assert!(lines.len() > 2000, "{}", lines.len());
    lines
}

#[test]
fn counts_above_the_limit_and_memory_that_ends_go_as_without() {
    let (fast, sizes) = match (Fast::new(), program("sizes.c")) {
        (Ok(fast), Ok(sizes)) => (fast, sizes),
        (Err(why), _) | (_, Err(why)) => return skip(why),
    };
    for (policy, words) in
        [("spin", &[][..]), ("hybrid", &[]), ("hybrid", &["direct"]), ("spin", &["no-ring"])]
    {
        let command = || table(&sizes, fast.path(), words);
        let without = untouched(&mut command());
        let ended = Under::policy(policy).beneath_filters(1).run(&mut command());
        let pairs = lines(&ended).into_iter().zip(lines(&without));
        pairs.for_each(|(with, without)| assert_eq!(with, without, "{policy} {words:?}"));
        assert_eq!(ended.stdout.len(), without.stdout.len());
        assert!(ended.decided() > 200, "{policy} {words:?}: {}", ended.stderr);
        assert_eq!(ended.on_rings() > 100, words != ["no-ring"], "{}", ended.stderr);
    }
}

#[test]
fn counts_above_the_limit_and_memory_that_ends_go_as_without_by_channel() {
    let sizes = match program("sizes.c") {
        Ok(sizes) => sizes,
        Err(why) => return skip(why),
    };
    let at = || tempfile::tempdir_in("/dev/shm").unwrap();
    let (plain, backing, mount) = (at(), at(), at());
    let serving = || {
        let daemon = Daemon::start(Options::default()).map_err(|e| e.to_string())?;
        let (backing, mount) = (backing.path().to_owned(), mount.path().to_owned());
        let serving = Serving { backing, mount, private: false, threads: 4, passthrough: true };
        take_over(&serving).map_err(|error| error.to_string())?;
        Server::start(&serving, Arc::new(daemon), Channels::default).map_err(|e| e.to_string())
    };
    let _server = match serving() {
        Ok(server) => server,
        Err(why) => return skip(why),
    };
    let [plain, mounted] =
        [plain.path(), mount.path()].map(|place| untouched(&mut table(&sizes, place, &[])));
    let ended = Under::policy("spin").with_channels().run(&mut table(&sizes, mount.path(), &[]));
    // Where the kernel's own requests on a served mount go otherwise than on a file system, both
    // are right.
    let right = lines(&plain).into_iter().zip(lines(&mounted));
    for (with, (plain, mounted)) in lines(&ended).into_iter().zip(right) {
        assert!(with == plain || with == mounted, "{with}\n{plain}\n{mounted}");
    }
    assert_eq!(lines(&ended).len(), lines(&plain).len());
}
