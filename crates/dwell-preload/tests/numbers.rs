// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors of programs and of the library beneath them: numbers that are used again, children,
//! threads that end, limits.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use common::{Ended, Fast, Under, program, skip, untouched};
use dwell_channel::daemon::{Daemon, Options};
use dwell_channel::fs::{Channels, Options as Serving, Server, take_over};
use dwell_channel::grants::{DrainGuard, Errno, GrantReply, Grants, Inode, OpenFile, Token, Why};
use tempfile::TempDir;

fn numbers() -> Result<PathBuf, String> {
    static PROGRAM: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    PROGRAM.get_or_init(|| program("numbers.c")).clone()
}

fn numbered_blocks(path: &Path) {
    let mut data = vec![0u8; 1 << 20];
    for (number, block) in data.chunks_mut(4096).enumerate() {
        block[..8].copy_from_slice(&(number as u64).to_le_bytes());
    }
    fs::write(path, data).unwrap();
}

/// What `mode` came to under the library on a file of a fast device, after its output was compared;
/// `None` where it cannot run.
fn compared(mode: &str) -> Option<Ended> {
    match Fast::new() {
        Ok(fast) => compared_on(&fast.path().join("file"), mode),
        Err(why) => {
            skip(why);
            None
        }
    }
}

fn compared_on(file: &Path, mode: &str) -> Option<Ended> {
    let numbers = match numbers() {
        Ok(numbers) => numbers,
        Err(why) => {
            skip(why);
            return None;
        }
    };
    numbered_blocks(file);
    let command = || {
        let mut command = Command::new(&numbers);
        command.arg(mode).arg(file);
        command
    };
    let without = untouched(&mut command());
    assert!(without.status.success(), "{}", without.stdout);
    let with = Under::policy("spin").with_channels().run(&mut command());
    assert_eq!(with.stdout, without.stdout, "{}", with.stderr);
    assert_eq!(with.status, without.status, "{}", with.stderr);
    Some(with)
}

#[test]
fn a_thread_that_ends_leaves_no_descriptor_behind() {
    if let Some(ended) = compared("threads") {
        assert!(ended.stdout.contains("as many"), "{}", ended.stdout);
        assert!(ended.on_rings() > 6000, "{}", ended.on_rings());
    }
}

#[test]
fn many_threads_take_few_of_the_programs_descriptors() {
    if let Some(ended) = compared("many_threads") {
        assert_eq!(ended.stdout, "few descriptors\nmost are mine\n");
        // Those without a ring are served all the same.
        assert!(ended.on_rings() > 100 && ended.decided() > 1000, "{}", ended.on_rings());
    }
}

#[test]
fn a_forked_child_has_no_ring_socket_or_shared_mapping_of_its_parent() {
    if let Some(ended) = compared("children") {
        assert!(ended.on_rings() > 1000, "{}", ended.on_rings());
    }
}

#[test]
fn a_fork_after_one_that_was_not_seen_does_not_wait_for_ever() {
    if let Some(ended) = compared("unseen_forks") {
        assert!(ended.on_rings() > 200, "{}", ended.on_rings());
    }
}

#[test]
fn a_bare_close_range_leaves_the_librarys_descriptors_its_own() {
    if let Some(ended) = compared("bare_closes") {
        assert!(ended.on_rings() > 500, "{}", ended.on_rings());
    }
}

#[test]
fn an_eventfd_in_the_place_of_a_ring_is_not_closed_for_the_ring() {
    if let Some(ended) = compared("taken_unseen") {
        assert!(ended.on_rings() > 20, "{}", ended.on_rings());
    }
}

#[test]
fn a_new_descriptor_has_the_lowest_free_number_whatever_the_librarys_threads_open() {
    if let Some(ended) = compared("lowest") {
        assert_eq!(ended.stdout, "0 were higher\n");
        assert!(ended.on_rings() > 20, "{}", ended.on_rings());
    }
}

#[test]
fn a_descriptor_that_appends_unseen_stands_where_its_write_ended() {
    if let Some(ended) = compared("appends_unseen") {
        assert!(ended.stdout.contains("stands 0 before the end"), "{}", ended.stdout);
        assert!(ended.on_rings() > 10, "{}", ended.on_rings());
    }
}

#[test]
fn under_a_small_limit_a_program_has_all_the_descriptors_that_it_has_untouched() {
    let (fast, numbers) = match (Fast::new(), numbers()) {
        (Ok(fast), Ok(numbers)) => (fast, numbers),
        (Err(why), _) | (_, Err(why)) => return skip(why),
    };
    let file = fast.path().join("file");
    numbered_blocks(&file);
    for limit in [6, 7, 8, 10, 16, 24, 32, 64] {
        let command = || {
            let mut command = Command::new("sh");
            let script = format!("ulimit -n {limit}; exec \"$0\" limited \"$1\"");
            command.args(["-c", &script]).arg(&numbers).arg(&file);
            command
        };
        let without = untouched(&mut command());
        let with = Under::policy("spin").run(&mut command());
        assert_eq!(with.stdout, without.stdout, "{limit}: {}", with.stderr);
        assert_eq!(with.status, without.status, "{limit}: {}", with.stderr);
        assert_eq!(with.decided(), 0, "{limit}");
        let says = format!("may have {limit} descriptors (RLIMIT_NOFILE), fewer than 256; it runs");
        assert!(with.stderr.contains(&says), "{limit}: {}", with.stderr);
    }
}

type Place = (TempDir, TempDir, Server);

/// A directory in memory, served at a mount.
fn served(grants: Arc<dyn Grants>) -> Result<Place, String> {
    let at = |place: &str| tempfile::tempdir_in(place).unwrap();
    let (backing, mount) = (at("/dev/shm"), at("/var/tmp"));
    let serving = Serving {
        backing: backing.path().to_owned(),
        mount: mount.path().to_owned(),
        private: false,
        threads: 4,
        passthrough: true,
    };
    let server = take_over(&serving)
        .and_then(|_| Server::start(&serving, grants, Channels::default))
        .map_err(|error| error.to_string())?;
    Ok((backing, mount, server))
}

#[test]
fn a_forked_child_has_no_channel_of_its_parent() {
    let daemon = Arc::new(Daemon::start(Options::default()).unwrap());
    let (_backing, mount, _server) = match served(daemon.clone()) {
        Ok(served) => served,
        Err(why) => return skip(why),
    };
    if compared_on(&mount.path().join("file"), "children").is_some() {
        let tally = daemon.tally();
        assert!(tally.commands > 1000 && tally.missing < tally.commands / 10, "{tally:?}");
    }
}

#[test]
fn a_number_that_a_program_takes_from_a_channel_is_no_channel_any_more() {
    let daemon = Arc::new(Daemon::start(Options::default()).unwrap());
    let (_backing, mount, _server) = match served(daemon.clone()) {
        Ok(served) => served,
        Err(why) => return skip(why),
    };
    if compared_on(&mount.path().join("file"), "bare_closes").is_some() {
        let tally = daemon.tally();
        assert!(tally.commands > 500, "{tally:?}");
    }
}

/// A daemon that hears of the close of a descriptor only once a file is there.
struct Late {
    daemon: Daemon,
    until: PathBuf,
}

impl Grants for Late {
    fn place(&self) -> &[u8] {
        self.daemon.place()
    }

    fn grant(&self, token: &Token, open: &Arc<OpenFile>) -> Result<GrantReply, Errno> {
        self.daemon.grant(token, open)
    }

    fn suspect(&self, open: &Arc<OpenFile>) {
        let limit = Instant::now() + Duration::from_secs(60);
        while !self.until.exists() && Instant::now() < limit {
            std::thread::sleep(Duration::from_millis(2));
        }
        self.daemon.suspect(open);
    }

    fn release(&self, open: &Arc<OpenFile>) {
        self.daemon.release(open);
    }

    fn drain(&self, inode: &Arc<Inode>, why: Why) -> DrainGuard {
        self.daemon.drain(inode, why)
    }

    fn revoke_all(&self) {
        self.daemon.revoke_all();
    }
}

#[test]
fn a_number_that_is_used_again_reaches_the_file_that_it_names_now() {
    let numbers = match numbers() {
        Ok(numbers) => numbers,
        Err(why) => return skip(why),
    };
    let flag = tempfile::tempdir_in("/dev/shm").unwrap();
    let until = flag.path().join("done");
    let daemon = Daemon::start(Options::default()).unwrap();
    let late = Arc::new(Late { daemon, until: until.clone() });
    let (backing, mount, _server) = match served(late.clone()) {
        Ok(served) => served,
        Err(why) => return skip(why),
    };
    for how in ["close", "close_range", "syscall", "fclose", "dup2", "dup3", "syscall-dup"] {
        let _ = fs::remove_file(&until);
        let files = ["first", "second"].map(|name| mount.path().join(name));
        for name in ["first", "second"] {
            fs::write(backing.path().join(name), [b'-'; 8192]).unwrap();
        }
        let commands = late.daemon.tally().commands;
        let mut command = Command::new(&numbers);
        command.arg("again").args(&files).arg(&until).arg(how);
        let with = Under::policy("spin").with_channels().run(&mut command);
        assert!(with.status.success(), "{how}: {}{}", with.stdout, with.stderr);
        assert_eq!(with.stdout, "ab\n", "{how}: what was written went into another file");
        let commands = late.daemon.tally().commands - commands;
        assert!(commands > 50, "{how}: {commands} requests took channels");
    }
}
