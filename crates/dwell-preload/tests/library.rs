// SPDX-License-Identifier: MIT OR Apache-2.0
//! The library as a file, and what it leaves alone.

mod common;

use std::fs;
use std::process::Command;

use common::{Fast, Under, library, program, skip, untouched};

/// Versions of C libraries, as `GLIBC_2.28` in a listing.
fn versions(listing: &str) -> Vec<(u32, u32)> {
    let named = listing.split("GLIBC_").skip(1);
    let numbers = named.filter_map(|rest| {
        let mut parts = rest.split(|c: char| !c.is_ascii_digit()).map(str::parse);
        Some((parts.next()?.ok()?, parts.next()?.ok()?))
    });
    numbers.collect()
}

#[test]
fn it_asks_for_nothing_newer_than_debian_10_has() {
    let listed = Command::new("objdump").arg("-p").arg(library()).output();
    let Ok(listed) = listed else { return skip("no objdump") };
    let versions = versions(&String::from_utf8_lossy(&listed.stdout));
    assert!(versions.len() > 3, "{versions:?}");
    let newest = versions.into_iter().max().unwrap();
    assert!(newest <= (2, 28), "GLIBC_{}.{}", newest.0, newest.1);
}

#[test]
fn without_an_order_or_with_a_damaged_one_it_does_nothing() {
    for order in [None, Some("{"), Some("{}"), Some("")] {
        let mut command = Command::new("cat");
        command.arg("/proc/self/maps").env("LD_PRELOAD", library());
        if let Some(order) = order {
            command.env("DWELL_RUN", order);
        }
        let ended = untouched(&mut command);
        assert!(ended.status.success() && ended.stderr.is_empty(), "{order:?}: {}", ended.stderr);
        assert!(ended.stdout.contains("libdwell_preload.so"));
    }
}

#[test]
fn an_excluded_file_passes() {
    let (fast, sequence) = match (Fast::new(), program("sequence.c")) {
        (Ok(fast), Ok(sequence)) => (fast, sequence),
        (Err(why), _) | (_, Err(why)) => return skip(why),
    };
    let file = fast.path().join("file");
    fs::write(&file, vec![1; 1 << 20]).unwrap();
    let mut command = Command::new(&sequence);
    command.arg(&file).args(["1", "500", "1"]);
    let mut run =
        |settings: &str| Under::policy("spin").saying(settings).run(&mut command).decided();
    assert!(run("") > 50);
    let (path, program) = (file.display(), sequence.display());
    for settings in [
        format!("[exclude]\npaths = [\"{path}\"]\n"),
        format!("[exclude]\nprograms = [\"{program}\"]\n"),
        "[[device]]\nmatch = \"loop*\"\nexclude = true\n".to_owned(),
    ] {
        assert_eq!(run(&settings), 0, "{settings}");
    }
}

/// The bytes that reads and writes of a sequence moved, as it tells them.
fn moved(told: &str) -> u64 {
    let of_line = |line: &str| {
        let (what, rest) = line.split_once(' ').unwrap_or((line, ""));
        let words: Vec<&str> = rest.split(' ').collect();
        let numbers = match what {
            "child" => &words[..2],
            "pipe" => &words[..1],
            "read" if words.len() == 1 => &words[..1],
            _ if what.contains("read") || what.contains("write") => {
                &words[3.min(words.len())..][..1]
            }
            _ => &[],
        };
        numbers
            .iter()
            .map(|number| number.parse::<i64>().map_or(0, |n| n.max(0) as u64))
            .sum::<u64>()
    };
    told.lines().map(of_line).sum()
}

#[test]
fn the_closing_words_say_what_was_decided_and_what_was_seen() {
    let (fast, sequence) = match (Fast::new(), program("sequence.c")) {
        (Ok(fast), Ok(sequence)) => (fast, sequence),
        (Err(why), _) | (_, Err(why)) => return skip(why),
    };
    let file = fast.path().join("file");
    fs::write(&file, vec![1; 1 << 20]).unwrap();
    let mut command = Command::new(&sequence);
    command.arg(&file).args(["2", "800", "1"]);
    let ended = Under::policy("spin").run(&mut command);
    for part in ["dwell: requests", "interrupt spin", "switches avoided", "p99.9", "coverage"] {
        assert!(ended.stderr.contains(part), "{}", ended.stderr);
    }
    let silent = Under::policy("spin").silently().run(&mut command);
    assert_eq!((silent.stderr.as_str(), silent.decided() > 0), ("", true));
    let run = ended.run.unwrap();
    // Decided or passed, every byte that the program moved by a call of its own, and none twice.
    let stats = run.stats();
    let known = stats.bytes_read + stats.bytes_written + run.passed.bytes;
    assert_eq!(known, moved(&ended.stdout), "{}", ended.stderr);
    // What the kernel counts beside those, pages of programs and what streams of the C library read
    // among them, can be any number.
    let io = &run.io;
    let all = (io.rchar + io.wchar).max(io.read_bytes + io.write_bytes).max(known);
    assert_eq!(run.coverage(), Some(known as f64 / all as f64));
    assert_eq!(run.devices[0].policy, "spin");
    assert!(run.devices[0].name.starts_with("loop"));
}

#[test]
fn overheads_are_shown() {
    let overheads = match program("overheads.c") {
        Ok(overheads) => overheads,
        Err(why) => return skip(why),
    };
    let memory = tempfile::tempdir_in("/dev/shm").ok();
    let memory = memory.as_ref().map(|dir| dir.path().join("memory"));
    let fast = Fast::new().ok();
    let fast = fast.as_ref().map(|fast| fast.path().join("fast"));
    let disk = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let mut command = Command::new(overheads);
    command.args(memory).args(fast).arg(disk.path().join("disk"));
    let without = untouched(&mut command);
    let with = Under::policy("smartcon").run(&mut command);
    assert!(without.status.success() && with.status.success(), "{}", with.stderr);
    for (without, with) in without.stdout.lines().zip(with.stdout.lines()) {
        println!("untouched {without}\nunder it  {with}");
    }
}
