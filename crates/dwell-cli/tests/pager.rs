// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell bench pager`: every contender is measured and counted, and bad input gets one clear line.

mod common;

use std::process::Output;

use dwell_bench::pager::{limits, regions};
use dwell_bench::result::Run;

use common::said;

fn dwell(words: &[&str]) -> Output {
    common::dwell().args(["bench", "pager", "--hasty-probe"]).args(words).output().unwrap()
}

#[test]
fn every_contender_is_measured_on_what_is_named() {
    if let Err(why) = regions() {
        return println!("SKIP: {why}");
    }
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let file = directory.path().join("data");
    let content: Vec<u8> =
        (0..8u32 << 20).map(|at| (at.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    std::fs::write(&file, content).unwrap();
    let report = directory.path().join("report");
    let mut words = vec![file.to_str().unwrap(), "--out", report.to_str().unwrap(), "--json"];
    words.extend([
        "--rounds",
        "2",
        "--max-time",
        "300ms",
        "--work",
        "random,strided",
        "--contenders",
    ]);
    words.push("mmap,region,region-hints");
    let output = dwell(&words);
    assert!(output.status.success(), "{}", said(&output));
    let run = Run::load(&report.join("result.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Run>(&output.stdout).unwrap(), run);
    let ways = if limits().is_ok() { 3 } else { 2 };
    assert_eq!(run.rows.len(), 2 * ways, "{:?}", run.left_out);
    for row in &run.rows {
        assert_eq!(row.rounds.len(), 2);
        assert!(row.rounds.iter().all(|round| round.paging["major_faults"] > 0), "{}", row.policy);
    }
    words[3] = "--baseline";
    words.insert(4, "region");
    let output = dwell(&words);
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success() && table.contains("paging, medians of a round"), "{table}");
    assert!(table.contains("base: region"), "{table}");
}

#[test]
fn bad_input_gives_one_clear_line() {
    let missing = dwell(&["/nonexistent"]);
    assert!(said(&missing).contains("/nonexistent"), "{}", said(&missing));
    let strange = dwell(&["--contenders", "mmap-often"]);
    assert!(said(&strange).contains("no such way to memory"), "{}", said(&strange));
    let both = dwell(&["/dev/null", "--on", "zram"]);
    assert!(said(&both).contains("cannot be used with"), "{}", said(&both));
}
