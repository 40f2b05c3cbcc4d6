// SPDX-License-Identifier: MIT OR Apache-2.0
//! The exerciser's short form: the same seeds every time, bounded by operations.
#![allow(missing_docs)]

use std::ops::RangeInclusive;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use dwell_exerciser::campaign::{self, dead, everything};
use dwell_exerciser::compare::Counts;
use dwell_exerciser::generate::{sanitized, script};
use dwell_exerciser::surface::{Programs, is_missing};

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

/// Seeds of so many operations each over a surface.
fn no_difference(name: &str, seeds: RangeInclusive<u64>, lines: usize) {
    let mut surface = match campaign::surface(name, &programs()) {
        Ok(surface) => surface,
        Err(error) if is_missing(&error) => return println!("SKIP: {name}: {error:#}"),
        Err(error) => panic!("{name}: {error:#}"),
    };
    let mut counts = Counts::new();
    for seed in seeds {
        let outcome = surface.exercise(seed, lines, &mut counts).unwrap();
        if let Some(difference) = outcome.difference {
            panic!(
                "{name}: seed {seed}: {difference}\n\
                 dwell-exerciser --surface {name} --seed {seed} --ops {lines}"
            );
        }
    }
    assert!(!counts.is_empty());
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
    no_difference("preload-tmpfs-spin", 1..=6, 500);
}

#[test]
fn preloaded_programs_do_what_they_do_untouched_on_ext4_under_every_policy() {
    for policy in dwell_exerciser::surface::POLICIES {
        no_difference(&format!("preload-ext4-{policy}"), 1..=3, 500);
    }
}

#[test]
fn programs_on_a_served_mount_do_what_they_do_beside_it() {
    no_difference("served-tmpfs", 1..=6, 500);
    no_difference("served-ext4", 1..=3, 500);
}

#[test]
fn programs_with_channels_do_what_they_do_beside_the_mount() {
    let site = match dwell_exerciser::surface::Site::new("channels-tmpfs", &programs()) {
        Ok(site) => site,
        Err(error) if is_missing(&error) => return println!("SKIP: channels: {error:#}"),
        Err(error) => panic!("{error:#}"),
    };
    if !site.asks_for_channels() {
        return println!(
            "SKIP: channels: without `dwell run --channels` they make files longer than the kernel \
             knows, and asynchronous requests end at the length that it knows"
        );
    }
    drop(site);
    no_difference("channels-tmpfs", 1..=6, 500);
}

#[test]
fn regions_read_what_was_written() {
    no_difference("pager", 1..=10, 300);
    // Pages beside spilled ones once came from holes of the spill file here.
    no_difference("pager", 110..=113, 3000);
}

#[test]
fn a_server_of_nfs_has_what_was_written() {
    no_difference("nfs", 1..=5, 120);
}
