// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell advise` as a person meets it. Where nothing can be traced, what is left is tested.

use std::path::Path;
use std::process::{Command, Output, Stdio};

use serde_json::Value;

mod common;
mod library;

use common::said;

fn advise(dir: &Path, args: &[&str]) -> Output {
    of(&mut common::dwell(), dir).arg("advise").args(args).output().unwrap()
}

fn of<'c>(command: &'c mut Command, dir: &Path) -> &'c mut Command {
    command
        .env("DWELL_PROFILES", dir.join("profiles"))
        .env("DWELL_HOST_PAGE", dir.join("page"))
        .env("DWELL_PRELOAD", library::library())
        .stdin(Stdio::null())
}

/// Whether a trace works here; says why not.
fn can_trace(dir: &Path) -> bool {
    let output = advise(dir, &["--all", "--seconds", "1", "--json"]);
    if !output.status.success() {
        println!("SKIP: {}", said(&output).lines().last().unwrap_or_default());
    }
    output.status.success()
}

#[test]
fn exactly_one_of_command_process_and_machine_is_wanted() {
    let dir = tempfile::tempdir().unwrap();
    for args in
        [&[][..], &["--pid", "1", "--all"], &["--all", "--", "true"], &["--all", "--confirm"]]
    {
        let output = advise(dir.path(), args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", said(&output));
    }
}

#[test]
fn a_process_that_is_not_there_and_a_command_that_is_none_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let output = advise(dir.path(), &["--pid", "999999999"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(said(&output), "dwell: process 999999999 does not exist; look it up with pgrep\n");
    let output = advise(dir.path(), &["--", "no-such-program"]);
    assert_eq!(output.status.code(), Some(127));
    assert_eq!(said(&output), "dwell: no-such-program: command not found\n");
}

#[test]
fn a_commands_output_and_exit_status_are_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let output = advise(dir.path(), &["--", "sh", "-c", "echo printed; exit 3"]);
    assert_eq!(output.status.code(), Some(3), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "printed\n");
    assert!(said(&output).contains("waits for storage"), "{}", said(&output));
}

#[test]
fn results_are_kept_as_json_and_as_a_page() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("new/report");
    let output = advise(dir.path(), &["--out", out.to_str().unwrap(), "--", "true"]);
    assert!(output.status.success(), "{}", said(&output));
    let json: Value =
        serde_json::from_str(&std::fs::read_to_string(out.join("result.json")).unwrap()).unwrap();
    assert_eq!((&json["schema"], &json["whom"]), (&1.into(), &"true".into()));
    let page = std::fs::read_to_string(out.join("report.html")).unwrap();
    assert!(page.contains("Where the storage time goes") && !page.contains("http"), "{page}");
}

#[test]
fn a_comparison_that_fails_leaves_the_trace() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("report");
    let fails = ["--confirm", "--rounds", "6", "--out", out.to_str().unwrap(), "--", "false"];
    let output = advise(dir.path(), &fails);
    let said = said(&output);
    assert!(!output.status.success() && said.contains("the gain was not measured"), "{said}");
    assert!(said.contains("waits for storage"), "{said}");
    let page = out.join("report.html");
    assert!(said.contains(&format!("report: {}", page.display())), "{said}");
    let json = std::fs::read_to_string(out.join("result.json")).unwrap();
    assert!(serde_json::from_str::<Value>(&json).is_ok() && page.exists());
}

#[test]
fn reads_of_a_file_are_traced_to_its_device() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    if !can_trace(dir.path()) {
        return;
    }
    let data = dir.path().join("data");
    std::fs::write(&data, vec![1; 4 << 20]).unwrap();
    std::fs::File::open(&data).unwrap().sync_all().unwrap();
    let out = dir.path().join("report");
    let read = format!("if={}", data.display());
    let args = [
        "--out",
        out.to_str().unwrap(),
        "--",
        "dd",
        &read,
        "of=/dev/null",
        "bs=64k",
        "iflag=direct",
    ];
    let output = advise(dir.path(), &args);
    if !output.status.success() {
        println!("SKIP: no direct I/O on {}", dir.path().display());
        return;
    }
    let json: Value =
        serde_json::from_str(&std::fs::read_to_string(out.join("result.json")).unwrap()).unwrap();
    let devices = json["seen"]["devices"].as_array().unwrap().iter();
    let reads = devices.filter(|request| request["operation"] == "read");
    let bytes: u64 = reads.filter_map(|request| request["bytes"].as_u64()).sum();
    assert!(bytes >= 4 << 20, "{json:#}");
    // If the hypervisor takes the CPU at the submission, a read is over before its thread sleeps.
    let slept = |total: &Value| total["operation"] == "read" && total["issued"] == "call";
    assert!(json["totals"].as_array().unwrap().iter().any(slept), "{json:#}");
}

#[test]
fn without_rights_to_trace_the_library_looks_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let nobody =
        ["--reuid", "65534", "--clear-groups", "--inh-caps=-all", env!("CARGO_BIN_EXE_dwell")];
    let mut command = Command::new("setpriv");
    let command =
        of(&mut command, dir.path()).args(nobody).args(["advise", "--", "echo", "printed"]);
    let command = command.env("HOME", "/nonexistent").env_remove("XDG_CONFIG_HOME");
    // The directory of the one who tests may be theirs alone.
    let output = command.env("TMPDIR", "/tmp").output().unwrap();
    if output.status.code() == Some(127) || said(&output).contains("setpriv") {
        println!("SKIP: this user cannot become another: {}", said(&output));
        return;
    }
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "printed\n");
    assert!(
        said(&output).contains("this process lacks CAP_BPF and CAP_PERFMON"),
        "{}",
        said(&output)
    );
    assert!(said(&output).contains("Seen instead are calls"), "{}", said(&output));
}

#[test]
fn a_place_that_keeps_nothing_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let stats = dir.path().join("none/stats.json");
    let mut command = Command::new(env!("CARGO_BIN_EXE_dwell"));
    let command = of(&mut command, dir.path()).args(["run", "--stats"]).arg(&stats);
    let output = command.args(["--", "true"]).output().unwrap();
    assert_eq!(output.status.code(), Some(125), "{}", said(&output));
    assert!(said(&output).contains(": there is no directory "), "{}", said(&output));
}

#[test]
fn a_recording_is_judged_and_what_is_none_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let recording = dir.path().join("fio.json");
    std::fs::write(
        &recording,
        r#"{"jobs": [{"job options": {"ioengine": "psync"}, "ctx": 9, "read": {"total_ios": 9,
            "io_bytes": 36864, "runtime": 1, "clat_ns": {"mean": 900000000.0}}}]}"#,
    )
    .unwrap();
    let output = advise(dir.path(), &["--from", recording.to_str().unwrap()]);
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("Nothing to gain on the device"), "{text}");
    let output = advise(dir.path(), &["--from", "/etc/passwd"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("dwell: /etc/passwd: neither fio's JSON"), "{}", said(&output));
}
