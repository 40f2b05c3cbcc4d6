// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell compare` as a user meets it, with a stand-in for `dwell run`: what is printed and kept,
//! and how it ends.

mod common;

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use dwell_bench::compare::Comparison;

use common::said;

/// A comparison in a directory; `POLICY` tells the wrapped commands that they are.
fn dwell(directory: &Path) -> Command {
    let stand_in = "export POLICY=$1; echo '{}' >\"$2\"; shift 2; exec \"$@\"";
    let mut command = common::dwell();
    command.arg("compare").current_dir(directory);
    for word in ["sh", "-c", stand_in, "sh", "{policy}", "{stats}"] {
        command.args(["--wrapper-word", word]);
    }
    command
}

fn run(directory: &Path, args: &[&str]) -> Output {
    dwell(directory).args(args).output().unwrap()
}

#[test]
fn a_comparison_is_printed_and_kept_in_all_forms() {
    let directory = tempfile::tempdir().unwrap();
    let args = ["--policies", "block,spin", "--rounds=2", "--out", "deep/out"];
    let output = run(directory.path(), &[&args[..], &["--", "echo", "text"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    let table = String::from_utf8_lossy(&output.stdout);
    for part in ["untouched", "block", "spin", "inconclusive", "results: the same"] {
        assert!(table.contains(part), "{part}\n{table}");
    }
    assert!(said(&output).contains("report: "), "{}", said(&output));
    let out = directory.path().join("deep/out");
    let mut names: Vec<_> = fs::read_dir(&out).unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["report.html", "result.csv", "result.json"]);
    let result = Comparison::load(&out.join("result.json")).unwrap();
    assert_eq!(result.program, ["echo", "text"]);
    assert!(result.command.iter().any(|word| word == "compare"));
    assert_eq!(result.variants[1].words.last().unwrap(), "text");
}

#[test]
fn json_takes_the_place_of_the_table() {
    let directory = tempfile::tempdir().unwrap();
    let args = ["--policies=block", "--rounds=1", "--warmup=0", "--json", "--", "true"];
    let output = run(directory.path(), &args);
    let json: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(json["variants"][1]["name"], "block");
}

#[test]
fn setup_and_check_are_shell_commands() {
    let directory = tempfile::tempdir().unwrap();
    let args =
        ["--policies=spin", "--rounds=1", "--setup", "echo a | tr a b >f", "--check", "cat f"];
    let output =
        run(directory.path(), &[&args[..], &["--", "sh", "-c", "date +%N; echo c >>f"]].concat());
    assert!(output.status.success(), "{}", said(&output));
    assert!(String::from_utf8_lossy(&output.stdout).contains("results: the same"));
    assert_eq!(fs::read_to_string(directory.path().join("f")).unwrap(), "b\nc\n");
}

#[test]
fn a_wrong_command_line_is_said_in_one_line_before_anything_runs() {
    let directory = tempfile::tempdir().unwrap();
    for (args, says) in [
        (&["--", "no-such-program"][..], "no-such-program: there is no such program"),
        (&["--", "/etc/passwd"][..], "/etc/passwd: there is no such program"),
        (&["--out", "/proc/nothing", "--", "true"][..], "/proc/nothing"),
        (
            &["--policies=block", "--setup", "exit 3", "--", "true"][..],
            "the setup failed: exit status 3",
        ),
    ] {
        let output = run(directory.path(), args);
        assert_eq!(output.status.code(), Some(1));
        let errors = said(&output);
        let last = errors.lines().last().unwrap_or_default();
        assert!(last.starts_with("dwell: ") && last.contains(says), "{errors}");
        assert!(output.stdout.is_empty());
    }
    for wrong in [
        &[][..],
        &["--"],
        &["--rounds=0", "--", "true"],
        &["true"],
        &["--policies=fast", "--", "true"],
        &["--policies=block,block", "--", "true"],
    ] {
        assert_eq!(run(directory.path(), wrong).status.code(), Some(2), "{wrong:?}");
    }
}

#[test]
fn a_failing_command_ends_it_with_its_last_words() {
    let directory = tempfile::tempdir().unwrap();
    let script = "echo out; [ \"$POLICY\" ] && { echo ouch >&2; exit 5; }; :";
    let args = ["--policies=block", "--rounds=1", "--", "sh", "-c", script];
    let output = run(directory.path(), &args);
    assert_eq!(output.status.code(), Some(1));
    let errors = said(&output);
    assert!(errors.contains("block, warming up: exit status 5: ouch"), "{errors}");
    let kept = directory.path().join("dwell-compare/runs/block-0.stdout");
    assert_eq!(fs::read_to_string(kept).unwrap(), "out\n");

    let output = run(directory.path(), &[&["--ignore-failure"], &args[..]].concat());
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&output).contains("note: block: 1 of 1 runs failed"), "{}", said(&output));
}

#[test]
fn after_a_signal_complete_rounds_are_kept_and_the_command_is_gone() {
    for (signal, name, status) in [(libc::SIGINT, "SIGINT", 130), (libc::SIGTERM, "SIGTERM", 143)] {
        let directory = tempfile::tempdir().unwrap();
        let ids = directory.path().join("ids");
        // The third round hangs.
        let script = "echo $$ >>ids; [ $(wc -l <ids) -gt 4 ] && exec sleep 600; :";
        let mut child = dwell(directory.path())
            .args(["--policies=block", "--warmup=0", "--rounds=50", "--", "sh", "-c", script])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = || fs::read_to_string(&ids).unwrap_or_default().lines().count();
        while lines() < 5 {
            assert_eq!(child.try_wait().unwrap(), None);
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // SAFETY: kill takes two numbers; the process is a child that was not waited for.
        assert_eq!(unsafe { libc::kill(child.id() as i32, signal) }, 0);
        let said: Vec<String> =
            BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap).collect();
        let mut stdout = String::new();
        child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(status), "{said:?}");
        let last = said.last().unwrap();
        for part in ["dwell: interrupted by", name, "2 complete rounds, kept in dwell-compare"] {
            assert!(last.contains(part), "{said:?}");
        }
        assert!(stdout.contains("ended early: interrupted"), "{stdout}");
        let kept = Comparison::load(&directory.path().join("dwell-compare/result.json")).unwrap();
        assert!(kept.variants.iter().all(|variant| variant.rounds.len() == 2));
        let text = fs::read_to_string(&ids).unwrap();
        let id = text.lines().last().unwrap();
        assert!(!Path::new(&format!("/proc/{id}")).exists(), "{id} runs on");
    }
}

#[test]
fn without_a_complete_round_a_signal_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let mut child = dwell(directory.path())
        .args(["--policies=block", "--", "sh", "-c", "echo >started; exec sleep 600"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    while !directory.path().join("started").exists() {
        assert_eq!(child.try_wait().unwrap(), None);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    // SAFETY: kill takes two numbers; the process is a child that was not waited for.
    assert_eq!(unsafe { libc::kill(child.id() as i32, libc::SIGINT) }, 0);
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(130));
    assert!(output.stdout.is_empty() && said(&output).contains("nothing was kept"));
    assert_eq!(fs::read_dir(directory.path().join("dwell-compare")).unwrap().count(), 0);
}
