// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell bench io` as somebody meets it on a machine of their own: the verdict first, then what
//! the machine was like, and nothing started that was not asked for.

mod common;

use std::path::Path;
use std::process::Output;

use serde_json::Value;

use common::{dwell_in, text};

const EMULATED: &str = "emu:latency=20us,size=2MiB";
const SHORT: [&str; 6] = ["--sizes", "4k", "--rounds", "6", "--batch-ms", "5"];

fn bench(dir: &Path, args: &[&str]) -> Output {
    dwell_in(dir)
        .args(["bench", "io", "--hasty-probe", "--out", "report"])
        .args(args)
        .current_dir(dir)
        .output()
        .unwrap()
}

fn result(dir: &Path) -> Value {
    let json = std::fs::read_to_string(dir.join("report/result.json")).unwrap();
    serde_json::from_str(&json).unwrap()
}

/// Lines that were wrapped, as one.
fn unwrapped(text: &str) -> String {
    text.replace('\n', " ")
}

#[test]
fn the_verdict_is_the_first_line_and_the_state_met_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let output =
        bench(dir.path(), &[&[EMULATED, "--policies", "block,adaptive"], &SHORT[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let shown = text(&output.stdout);
    assert!(shown.starts_with("On this emulated device, for random 4 KiB reads, "), "{shown}");
    assert!(shown.contains("\nThe machine as it was met: "), "{shown}");
    let columns = shown.lines().map(|line| line.chars().count()).max();
    assert!(columns <= Some(100), "{columns:?}\n{shown}");
    let run = result(dir.path());
    let verdict = run["verdict"].as_str().unwrap();
    assert!(unwrapped(shown).starts_with(verdict), "{verdict}\n{shown}");
    assert!(run["conditions"].is_object());
    let page = std::fs::read_to_string(dir.path().join("report/report.html")).unwrap();
    assert!(page.contains("On this emulated device, for random 4 KiB reads"));
}

#[test]
fn no_stressor_is_started_that_was_not_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let args =
        [EMULATED, "--policies", "block", "--sizes", "4k", "--rounds", "1", "--batch-ms", "5"];
    assert!(bench(dir.path(), &args).status.success());
    for row in result(dir.path())["rows"].as_array().unwrap() {
        assert_eq!(row["load"], "idle");
        assert_eq!(row["rounds"][0]["stressor_ns"], 0);
    }
}

#[test]
fn without_the_default_policy_nothing_is_claimed() {
    let dir = tempfile::tempdir().unwrap();
    let args =
        [&[EMULATED, "--policies", "spin,hybrid", "--baseline", "spin"], &SHORT[..]].concat();
    let output = bench(dir.path(), &args);
    let shown = text(&output.stdout);
    assert!(shown.starts_with("This run says nothing about dwell: adaptive"), "{shown}");
}

#[test]
fn a_command_that_would_measure_something_else_is_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    for (args, says) in [
        (&["--policies", "block,block"][..], "--policies: block is named twice"),
        (&["--sizes", "4k,4096"], "--sizes: 4 KiB is named twice"),
        (&["--load", "cpu,cpu"], "--load: cpu is named twice"),
        (&["--depth", "1,1"], "--depth: 1 is named twice"),
        (&["--baseline", "pread"], "--baseline pread: it is not among"),
        (&["--stressors", "2"], "--stressors: none is started without --load cpu"),
        (&["--bystanders", "2"], "--bystanders: none is started without --load bystander"),
        (&["--policies", "blcok"], "blcok: no such policy"),
        (&["/nonexistent/device"], "/nonexistent/device"),
    ] {
        let output = bench(dir.path(), args);
        let said = text(&output.stderr);
        // Only what is not there could be.
        let status = if says.starts_with('/') { 1 } else { 2 };
        assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
        let first = said.lines().next().unwrap();
        assert!(first.starts_with("dwell: ") && first.contains(says), "{args:?}: {said}");
        assert!(output.stdout.is_empty());
    }
    let output = bench(dir.path(), &["--load", "cpu", "--stressors", "0"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}
