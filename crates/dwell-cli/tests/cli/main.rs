// SPDX-License-Identifier: MIT OR Apache-2.0
//! The command as a person meets it: exit status, one-line errors, tables and JSON.

#[path = "../common/mod.rs"]
mod common;
mod lab;
mod profiles;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

use common::{dwell_in, text};

/// The command with places of its own below `dir`.
fn dwell(dir: &Path, args: &[&str]) -> Output {
    dwell_in(dir).args(args).output().unwrap()
}

/// The one line of a failure.
fn failure(dir: &Path, args: &[&str]) -> String {
    ended(dir, args, 1)
}

/// The line that says what is wrong with a command line; another may name the help.
fn refused(dir: &Path, args: &[&str]) -> String {
    ended(dir, args, 2)
}

fn ended(dir: &Path, args: &[&str], status: i32) -> String {
    let output = dwell(dir, args);
    let said = text(&output.stderr).split("\n\n").next().unwrap().trim_end();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {said}");
    // A probe names its phases before it fails.
    let last = said.lines().last().unwrap();
    assert!(last.starts_with("dwell: "), "{args:?}: {said}");
    assert!(output.stdout.is_empty(), "{args:?}");
    last.to_owned()
}

fn success(dir: &Path, args: &[&str]) -> String {
    let output = dwell(dir, args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout).to_owned()
}

fn json(dir: &Path, args: &[&str]) -> Value {
    serde_json::from_str(&success(dir, args)).unwrap()
}

/// A file of that many bytes, if the file system below has direct I/O.
fn probable(dir: &Path, bytes: usize) -> Option<String> {
    let path = dir.join("data");
    fs::write(&path, vec![7u8; bytes]).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    match OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(&path) {
        Ok(_) => Some(path.to_str().unwrap().to_owned()),
        Err(error) => {
            println!("SKIP: no O_DIRECT in {}: {error}", dir.display());
            None
        }
    }
}

#[test]
fn a_path_that_is_no_storage_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("missing");
    let of = |path: &Path| path.to_str().unwrap().to_owned();
    for command in ["probe", "explain"] {
        for (path, says) in [
            (of(&missing), "no such file"),
            (of(dir.path()), "directory"),
            ("/dev/null".to_owned(), "character device"),
        ] {
            let line = failure(dir.path(), &[command, &path]);
            assert!(line.contains(&path) && line.contains(says), "{line}");
        }
    }
}

#[test]
fn a_small_file_is_refused_with_what_to_name_instead() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = probable(dir.path(), 4096) else { return };
    let line = failure(dir.path(), &["probe", &path]);
    assert!(line.contains("4096 bytes") && line.contains("1 MiB or more"), "{line}");
}

#[test]
fn a_wrong_command_line_is_status_2() {
    let dir = tempfile::tempdir().unwrap();
    for (args, says) in [
        (vec!["explain", "x", "--size", "4x"], "no unit of size"),
        (vec!["explain", "x", "--size", "0"], "at least 1 byte"),
        (vec!["explain", "x", "--backlog", "1.5M"], "smaller unit"),
        (vec!["explain", "x", "--load", "1.2"], "no fraction"),
        (vec!["explain", "x", "--policy", "guess"], "smartcon"),
        (vec!["explain", "x", "--write", "--sync"], "cannot be used with"),
        (vec!["probe"], "PATH"),
        (vec!["probe", "x", "y", "--svg", "z"], "one PATH"),
        (vec!["frobnicate"], "unrecognized"),
    ] {
        let output = dwell(dir.path(), &args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(text(&output.stderr).contains(says), "{args:?}: {}", text(&output.stderr));
    }
}

#[test]
fn an_unprobed_file_passes_through_and_is_told_what_to_run() {
    let dir = tempfile::tempdir().unwrap();
    let Some(path) = probable(dir.path(), 8192) else { return };
    let shown = success(dir.path(), &["explain", &path]);
    for part in ["not probed", "► decides: block", "unprobed:", "modes are tried", "· not asked"]
    {
        assert!(shown.contains(part), "{part}\n{shown}");
    }
    let buffered = success(dir.path(), &["explain", &path, "--buffered"]);
    assert!(buffered.contains("read of 4 KiB, buffered"), "{buffered}");
    let told = json(dir.path(), &["explain", &path, "--json"]);
    assert_eq!(told["decision"]["mode"], "block", "{told}");
    assert_eq!(told["decision"]["reason"], "unprobed", "{told}");
    assert!(told["checks"].as_array().is_some_and(|checks| checks.len() > 1), "{told}");
    let notes = told["notes"].as_array().unwrap();
    assert!(notes.iter().any(|note| note["about"] == "next"), "{told}");
    let literal = success(dir.path(), &["explain", &path, "--policy", "smartcon"]);
    assert!(literal.contains("so its requests pass through"), "{literal}");
    assert!(shown.contains(&format!("dwell probe {path}")), "{shown}");
    assert!(!shown.contains('\x1b'), "colours in a pipe");
}

#[test]
fn doctor_speaks_of_everything_in_words_and_in_json() {
    let dir = tempfile::tempdir().unwrap();
    let output = dwell(dir.path(), &["doctor"]);
    let shown = text(&output.stdout);
    assert!(shown.contains("io-uring") && shown.contains("active"), "{shown}");
    let output = dwell(dir.path(), &["doctor", "--json"]);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    // The list names the requirements that this machine lacks; the exit status says whether it is
    // empty.
    let lacking = told["lacking"].as_array().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(!lacking.is_empty())), "{lacking:?}");
    let capabilities = told["capabilities"].as_array().unwrap();
    assert!(capabilities.iter().any(|capability| capability["name"] == "io-uring"));
    for device in told["devices"].as_array().unwrap() {
        assert_eq!(device["reason"], "unprobed", "{device}");
    }
    assert!(!told["summary"].as_str().unwrap().contains('\n'));
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(env!("CARGO_BIN_EXE_dwell"))
        .arg("doctor")
        .env("DWELL_PROFILES", dir.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn workloads_are_listed_printed_edited_and_played() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let listed = success(dir.path(), &["bench", "workload", "--list"]);
    assert!(listed.contains("varmail") && listed.contains("whole-random"), "{listed}");
    let printed = success(dir.path(), &["bench", "workload", "--print", "rand-read"]);
    let edited = printed.replace("268_435_456", "1_048_576");
    let (mine, report) = (dir.path().join("mine.toml"), dir.path().join("report"));
    // Buffered, so that it is played on any file system.
    fs::write(&mine, edited.replace("[parameters]", "direct = false\n\n[parameters]")).unwrap();
    let [mine, report, on] = [&mine, &report, dir.path()].map(|path| path.to_str().unwrap());
    let place = ["--hasty-probe", "--on", on, "--size", "16m", "--out", report];
    let plan = ["--set", "io_bytes=4096,8192", "--rounds", "2", "--batch-ms", "5", "--json"];
    let run = json(dir.path(), &[&["bench", "workload", mine], &place[..], &plan].concat());
    let rows = run["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2 * 3);
    for row in rows {
        assert_eq!(row["workload"], "rand-read");
        assert!(row["rounds"][1]["operations"]["read"].as_u64() > Some(0), "{row}");
    }
    assert!(Path::new(report).join("report.html").exists());
}

#[test]
fn wrong_workloads_are_refused_in_one_line() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("w.toml");
    fs::write(&file, "name = \"w\"\nabout = 3\n").unwrap();
    let path = file.to_str().unwrap();
    for (args, says) in [
        (&["varmial"][..], "no workload"),
        (&["varmail", "--policies", "blcok"], "blcok"),
        (&["varmail", "--policies", "raw-cq-peek"], "pread"),
        (&["varmail", "--set", "x=1"], "no parameter x"),
    ] {
        let line = refused(dir.path(), &[&["bench", "workload"], args].concat());
        assert!(line.contains(says), "{line}");
    }
    for (name, says) in [(path, "w.toml: about"), ("/nonexistent/w.toml", "/nonexistent/w.toml")] {
        let line = failure(dir.path(), &["bench", "workload", name]);
        assert!(line.contains(says), "{line}");
    }
}

#[test]
fn a_bench_starts_its_loads_as_processes_of_this_program() {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("report");
    let fixed =
        ["--sizes", "4k", "--rounds", "1", "--batch-ms", "300", "--stressors", "1", "--json"];
    let bench = |more: &[&str]| {
        let subject =
            ["bench", "io", "--hasty-probe", "emu:latency=5us,size=2MiB", "--policies", "block"];
        let report = ["--out", report.to_str().unwrap()];
        dwell(dir.path(), &[&subject[..], &fixed, &report, more].concat())
    };
    let output = bench(&["--load", "cpu,io,bystander", "--scheduler", "none"]);
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("has no I/O scheduler"), "{said}");
    let output = bench(&["--load", "cpu,io,arithmetic,bystander"]);
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(said.contains("left out: emu:latency=5us,size=2MiB beside I/O programs"), "{said}");
    let run: Value = serde_json::from_slice(&output.stdout).unwrap();
    let rows = run["rows"].as_array().unwrap();
    let of = |row: &Value, field: &str| row["rounds"][0][field].as_u64().unwrap();
    assert!(rows.iter().map(|row| &row["load"]).eq(["cpu", "arithmetic", "bystander"]));
    assert!(rows.iter().all(|row| of(row, "stressor_ns") > 0), "{rows:?}");
    assert!(of(&rows[2], "bystander_iterations") > 0 && of(&rows[0], "bystander_iterations") == 0);
    assert!(failure(dir.path(), &["crunch", "dance"]).contains("no job"));
}

#[test]
fn colours_are_there_when_they_are_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let plain = success(dir.path(), &["lab", "sim", "model"]);
    assert!(!plain.contains('\x1b'), "{plain}");
    assert_eq!(success(dir.path(), &["lab", "sim", "model", "--color", "never"]), plain);
    let doctor = |args: &[&str]| {
        let output = dwell(dir.path(), args);
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert!(doctor(&["--color=always", "doctor"]).contains('\x1b'));
    assert!(!doctor(&["doctor", "--color=auto"]).contains('\x1b'));
}
