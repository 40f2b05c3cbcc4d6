// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exerciser's short form: the same seeds every time, bounded by operations.
#![allow(missing_docs)]

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use anyhow::Result;
use dwell_exerciser::campaign::{self, Surface as _, dead, everything};
use dwell_exerciser::compare::Counts;
use dwell_exerciser::generate::{sanitized, script};
use dwell_exerciser::nfs::Nfs;
use dwell_exerciser::operation::{Line, Op, Order, Script};
use dwell_exerciser::run::Requests;
use dwell_exerciser::surface::{Programs, Site, is_missing};

/// Cargo builds the programs of this package for its tests; those of others are asked for.
fn programs() -> Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    let made = PROGRAMS.get_or_init(|| {
        let actor = PathBuf::from(env!("CARGO_BIN_EXE_dwell-exerciser-actor"));
        let exerciser = PathBuf::from(env!("CARGO_BIN_EXE_dwell-exerciser"));
        let place = actor.parent().unwrap().to_owned();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--offline", "--quiet", "-p", "dwell-cli", "-p", "dwell-preload"]);
        if place.ends_with("release") {
            build.arg("--release");
        }
        build.current_dir(env!("CARGO_MANIFEST_DIR"));
        let output = build.env("CARGO_TARGET_DIR", place.parent().unwrap()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Programs { dwell: place.join("dwell"), actor, exerciser }
    });
    made.clone()
}

/// What there is, or nothing where it cannot be had.
fn had<T>(name: &str, made: Result<T>) -> Option<T> {
    match made {
        Ok(made) => Some(made),
        Err(error) if is_missing(&error) => {
            println!("SKIP: {name}: {error:#}");
            None
        }
        Err(error) => panic!("{name}: {error:#}"),
    }
}

/// Seeds of so many operations each over a surface; the requests that a policy was asked about, if
/// there is one here.
fn no_difference(name: &str, seeds: RangeInclusive<u64>, lines: usize) -> Option<Requests> {
    let mut surface = had(name, campaign::surface(name, &programs()))?;
    let mut counts = Counts::new();
    let mut requests = Requests::default();
    for seed in seeds {
        let outcome = surface.exercise(seed, lines, &mut counts).unwrap();
        requests += outcome.requests;
        if let Some(difference) = outcome.difference {
            panic!(
                "{name}: seed {seed}: {difference}\n\
                 dwell-exerciser --surface {name} --seed {seed} --ops {lines}"
            );
        }
    }
    assert!(!counts.is_empty());
    Some(requests)
}

#[test]
fn a_seed_makes_the_same_script_every_time() {
    for seed in 0..20 {
        let first = script(seed, 300, everything());
        assert_eq!(first, script(seed, 300, everything()));
        assert_eq!(first, sanitized(&first));
        assert_eq!(first.lines.len(), 300);
    }
    assert_ne!(script(1, 300, everything()), script(2, 300, everything()));
}

#[test]
fn a_kind_that_never_succeeded_is_named() {
    let mut counts = Counts::new();
    counts.insert("fsync".into(), (3, 0));
    counts.insert("fallocate 0x40".into(), (3, 0));
    counts.insert("read".into(), (3, 1));
    assert_eq!(dead(&counts), ["fsync"]);
}

#[test]
fn preloaded_programs_do_what_they_do_untouched_on_tmpfs() {
    // No disk is beneath, so nothing is decided: this tests the hooks alone.
    no_difference("preload-tmpfs-spin", 1..=6, 500);
}

#[test]
fn preloaded_programs_do_what_they_do_untouched_on_ext4_under_every_policy() {
    for policy in dwell_exerciser::surface::POLICIES {
        let name = format!("preload-ext4-{policy}");
        let Some(requests) = no_difference(&name, 1..=3, 500) else { continue };
        assert!(requests.decided > 0, "{name} asks no policy");
        // Others leave all to the kernel where the machine is busy.
        if ["spin", "hybrid"].contains(&policy) {
            assert!(requests.taken > 0, "{name} leaves everything to the kernel");
        }
    }
}

#[test]
fn programs_on_a_served_mount_do_what_they_do_beside_it() {
    no_difference("served-tmpfs", 1..=6, 500);
    no_difference("served-ext4", 1..=3, 500);
}

#[test]
fn programs_with_channels_do_what_they_do_beside_the_mount() {
    let Some(site) = had("channels", Site::new("channels-tmpfs", &programs())) else { return };
    if !site.asks_for_channels() {
        return println!(
            "SKIP: channels: without `dwell run --channels` they make files longer than the kernel \
             knows, and asynchronous requests end at the length that it knows"
        );
    }
    drop(site);
    let requests = no_difference("channels-tmpfs", 1..=6, 500).unwrap();
    assert!(requests.taken > 0, "no request takes a channel");
}

/// A serial script of so many lines, all of the first thread of their process.
fn serial(lines: &[(u8, Op)]) -> Script {
    let line = |(process, op): &(u8, Op)| Line { process: *process, thread: 0, op: op.clone() };
    Script { order: Order::Serial, lines: lines.iter().map(line).collect() }
}

#[test]
fn kills_are_those_that_ended_a_process() {
    let Some(site) = had("served", Site::new("served-tmpfs", &programs())) else { return };
    let fork = |child| (0, Op::Fork { child });
    // The third has nothing to do before it is killed, and nobody kills the second.
    let kill = (0, Op::Kill { child: 3 });
    let script = serial(&[fork(1), fork(2), fork(3), (0, Op::Kill { child: 1 }), kill]);
    let (found, ran) = site.compared(&script).unwrap();
    assert_eq!((found.map(|found| found.what), ran.kills), (None, (2, 0)));
    let (found, ran) = site.compared(&serial(&[(0, Op::Disturb), (0, Op::Disturb)])).unwrap();
    assert_eq!((found.map(|found| found.what), ran.kills), (None, (0, 2)));
}

#[test]
fn a_server_that_ends_by_itself_is_a_difference_and_no_kill() {
    let Some(site) = had("served", Site::new("served-tmpfs", &programs())) else { return };
    let script = serial(&[(0, Op::Disturb)]);
    for _ in 0..2 {
        let server = site.server_id().unwrap();
        // SAFETY: a number.
        unsafe { libc::kill(server as i32, libc::SIGABRT) };
        let ended = || !Path::new(&format!("/proc/{server}/exe")).exists();
        let until = Instant::now() + Duration::from_secs(60);
        while !ended() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        let (found, _) = site.compared(&script).unwrap();
        let found = found.expect("a server that died is a difference").what;
        assert!(found.contains("ended by itself: signal: 6"), "{found}");
        // Another serves from then on.
        let (found, ran) = site.compared(&script).unwrap();
        assert_eq!((found.map(|found| found.what), ran.kills), (None, (0, 1)));
    }
}

#[test]
fn regions_read_what_was_written() {
    no_difference("pager", 1..=10, 300);
    // Pages beside spilled ones once came from holes of the spill file here.
    no_difference("pager", 110..=113, 3000);
}

#[test]
fn a_server_of_nfs_that_ends_by_itself_is_told_apart_from_one_that_was_killed() {
    let Some(mut nfs) = had("nfs", Nfs::new()) else { return };
    let (mut kills, mut deaths) = (0, 0);
    let mut seed = |nfs: &mut Nfs, seed| {
        let outcome = nfs.exercise(seed, 120, &mut Counts::new()).unwrap();
        assert_eq!(outcome.difference, None);
        kills += outcome.kills.1;
        deaths += outcome.deaths;
    };
    let die = |nfs: &Nfs| {
        // SAFETY: a number.
        unsafe { libc::kill(nfs.server_id() as i32, libc::SIGSEGV) };
    };
    die(&nfs);
    seed(&mut nfs, 1);
    let server = nfs.server_id();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(100));
            // SAFETY: a number.
            unsafe { libc::kill(server as i32, libc::SIGSEGV) };
        });
        seed(&mut nfs, 5);
    });
    seed(&mut nfs, 4);
    assert_eq!((kills, deaths), (0, 2));
}

#[test]
fn a_server_of_nfs_has_what_was_written() {
    no_difference("nfs", 1..=5, 120);
}
