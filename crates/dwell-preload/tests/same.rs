// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whatever a program does with its files, it finds the same as without the library.

mod common;

use std::fs;
use std::path::Path;
use std::process::Command;

use common::{Ended, Fast, Under, program, skip, untouched};

const LENGTH: usize = 1 << 20;

fn fresh(path: &Path) {
    let data: Vec<u8> = (0..LENGTH).map(|at| ((at / 7) ^ (at >> 9)) as u8).collect();
    fs::write(path, data).unwrap();
}

#[track_caller]
fn same(with: &Ended, without: &Ended) {
    assert_eq!(with.status, without.status, "{}", with.stderr);
    let lines = with.stdout.lines().zip(without.stdout.lines());
    for (number, (with, without)) in lines.enumerate() {
        assert_eq!(with, without, "line {number}");
    }
    assert_eq!(with.stdout.len(), without.stdout.len());
}

/// Runs a sequence on a file in `place` twice, and compares what it told and what it left.
#[track_caller]
fn compare(sequence: &Path, place: &Path, under: &Under, seed: u32, direct: bool) -> Ended {
    let file = place.join("file");
    let command = || {
        let mut command = Command::new(sequence);
        let direct = u32::from(direct).to_string();
        command.arg(&file).args([&seed.to_string(), "3000", &direct]);
        command
    };
    fresh(&file);
    let without = untouched(&mut command());
    let left = fs::read(&file).unwrap();
    assert!(without.status.success() && without.stdout.lines().count() > 3000);
    fresh(&file);
    let with = under.run(&mut command());
    same(&with, &without);
    assert!(fs::read(&file).unwrap() == left, "seed {seed}: the file is another");
    with
}

#[test]
fn a_random_sequence_on_a_fast_device_goes_as_without() {
    let (fast, sequence) = match (Fast::new(), program("sequence.c")) {
        (Ok(fast), Ok(sequence)) => (fast, sequence),
        (Err(why), _) | (_, Err(why)) => return skip(why),
    };
    for (seed, policy) in
        (1..).zip(["spin", "smartcon", "hybrid", "block", "predictive", "adaptive"])
    {
        let under = Under::policy(policy);
        for direct in [true, false] {
            let ended = compare(&sequence, fast.path(), &under, seed, direct);
            assert!(ended.decided() > 500, "{}", ended.stderr);
            if policy == "spin" && direct {
                assert!(ended.on_rings() > 200, "{}", ended.stderr);
            }
        }
    }
}

#[test]
fn without_a_probe_a_policy_decides_unless_it_leaves_all_to_the_kernel() {
    let (fast, sequence) = match (Fast::new(), program("sequence.c")) {
        (Ok(fast), Ok(sequence)) => (fast, sequence),
        (Err(why), _) | (_, Err(why)) => return skip(why),
    };
    for (seed, policy) in (21..).zip(["spin", "hybrid", "predictive", "its", "adaptive"]) {
        let under = Under::policy(policy).without_a_probe();
        let ended = compare(&sequence, fast.path(), &under, seed, true);
        assert!(ended.decided() > 500, "{policy}: {}", ended.stderr);
        if policy == "spin" {
            assert!(ended.on_rings() > 200, "{}", ended.stderr);
        }
    }
    for (seed, policy) in (31..).zip(["smartcon", "block"]) {
        let under = Under::policy(policy).without_a_probe();
        let ended = compare(&sequence, fast.path(), &under, seed, true);
        assert_eq!(ended.decided(), 0, "{policy}: {}", ended.stderr);
    }
}

#[test]
fn observed_it_goes_as_without_and_no_ring_is_used() {
    let (fast, sequence) = match (Fast::new(), program("sequence.c")) {
        (Ok(fast), Ok(sequence)) => (fast, sequence),
        (Err(why), _) | (_, Err(why)) => return skip(why),
    };
    let under = Under::policy("spin").in_shadow();
    let ended = compare(&sequence, fast.path(), &under, 11, true);
    assert!(ended.on_rings() > 200, "decisions are recorded: {}", ended.stderr);
    let stats = ended.run.unwrap().stats();
    assert_eq!((stats.spun_ns, stats.parked_ns), (0, 0));
    assert!(ended.stderr.contains("requests would have been spun for"), "{}", ended.stderr);
    assert!(!ended.stderr.contains("switches avoided"), "{}", ended.stderr);
}

#[test]
fn a_random_sequence_that_its_policy_leaves_to_the_kernel_is_passed_on() {
    let sequence = match program("sequence.c") {
        Ok(sequence) => sequence,
        Err(why) => return skip(why),
    };
    let place = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    for seed in 21..24 {
        let ended = compare(&sequence, place.path(), &Under::policy("smartcon"), seed, seed == 21);
        assert_eq!(ended.decided(), 0);
        assert!(ended.run.unwrap().passed.calls > 1000);
    }
}
