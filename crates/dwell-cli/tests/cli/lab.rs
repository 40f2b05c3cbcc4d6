// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell lab`: simulations, the model and traces.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::{dwell, failure, json, refused, success, text};

const BATCH: &str = r#"
    name = "two"
    set = { llc_bytes = "64K", dram_percent = 60 }
    process = [
        { name = "sweep", loop = { order = "sweep", bytes = 200000, visits = 5000, stride_bytes = 128 } },
        { name = "draw", loop = { order = "draw", bytes = 200000, visits = 5000 } },
    ]
"#;

#[test]
fn a_batch_is_simulated_under_all_policies_and_its_reports_are_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (dir, file) = (dir.path(), |name: &str| dir.path().join(name).to_str().unwrap().to_owned());
    fs::write(file("batch.toml"), BATCH).unwrap();
    let (batch, out) = (file("batch.toml"), file("out"));
    let shown = success(dir, &["lab", "sim", "its", &batch, "--seeds", "2", "--out", &out]);
    for policy in ["async", "sync", "sync_runahead", "sync_prefetch", "its"] {
        assert!(shown.lines().any(|line| line.trim_start().starts_with(policy)), "{shown}");
    }
    let kept = |name: &str| fs::read_to_string(dir.join("out").join(name)).unwrap();
    let study: Value = serde_json::from_str(&kept("result.json")).unwrap();
    assert_eq!(study["batches"][0]["reports"].as_array().unwrap().len(), 10);
    assert_eq!(kept("result.csv").lines().count(), 11);
    assert!(kept("report.html").contains("Figure 4a"));
    let told = json(dir, &["lab", "sim", "its", &batch, "--seeds", "2", "--json"]);
    assert_eq!(told["batches"], study["batches"]);
    // Each run is kept. The same command goes on with what is missing, and ends as it did.
    let runs = fs::read_dir(dir.join("out/runs")).unwrap().next().unwrap().unwrap().path();
    assert_eq!(fs::read_dir(&runs).unwrap().count(), 10);
    fs::remove_file(runs.join("its-2.json")).unwrap();
    fs::write(runs.join("sync-1.json"), "cut off").unwrap();
    success(dir, &["lab", "sim", "its", &batch, "--seeds", "2", "--out", &out]);
    let again: Value = serde_json::from_str(&kept("result.json")).unwrap();
    assert_eq!(again["batches"], study["batches"]);
    assert_eq!(fs::read_dir(&runs).unwrap().count(), 10);
    let few = success(
        dir,
        &[
            "lab",
            "sim",
            "its",
            &batch,
            "--seeds",
            "1",
            "--policies",
            "sync,its",
            "--set",
            "switch_ns=1",
        ],
    );
    assert!(!few.contains("async"), "{few}");
}

#[test]
fn a_simulation_that_cannot_be_says_what_would_be_right() {
    let dir = tempfile::tempdir().unwrap();
    let batch = dir.path().join("batch.toml").to_str().unwrap().to_owned();
    fs::write(&batch, BATCH).unwrap();
    let said = refused(dir.path(), &["lab", "sim", "its", &batch, "--set", "dram_ns=fast"]);
    assert!(said.contains("dram_ns=fast: must be"), "{said}");
    fs::write(&batch, BATCH.replace("sweep\", bytes", "swoop\", bytes")).unwrap();
    assert!(failure(dir.path(), &["lab", "sim", "its", &batch]).contains("not a batch"));
    let listed = success(dir.path(), &["lab", "sim", "its", "--params"]);
    assert!(listed.contains("switch_ns") && listed.contains("open"), "{listed}");
}

#[test]
fn the_model_answers_for_the_paper_and_for_any_device() {
    let dir = tempfile::tempdir().unwrap();
    let shown = success(dir.path(), &["lab", "sim", "model", "--device", "z-nand=3us"]);
    for said in ["1.206", "1.189", "DRAM 1067 MHz", "z-nand", "MRAM"] {
        assert!(shown.contains(said), "{said}: {shown}");
    }
    let own = dir.path().join("own.toml");
    fs::write(&own, success(dir.path(), &["lab", "sim", "model", "--print"])).unwrap();
    let own = own.to_str().unwrap();
    let set = ["lab", "sim", "model", "--calibration", own, "--set", "clock_ghz=3.7", "--json"];
    let json: Value = serde_json::from_str(&success(dir.path(), &set)).unwrap();
    assert_eq!(json["calibration"]["clock_ghz"], 3.7);
    assert!(json["devices"][0]["under_memory"]["percent"]["ratio"].as_f64().unwrap() > 1.0);
    let told = refused(dir.path(), &["lab", "sim", "model", "--set", "clock=1"]);
    assert!(told.contains("clock_ghz"), "{told}");
    assert!(refused(dir.path(), &["lab", "sim", "model", "--device", "x=soon"]).contains("3us"));
}

#[test]
fn a_trace_is_cut_looked_at_converted_and_refused_where_it_is_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let lines: String = (0..500)
        .map(|i| {
            format!(
                "I  {:x},4\n L {:x},8\n S {:x},4\n",
                0x1000 + 4 * (i % 50),
                0x8000 + 64 * i,
                0x9000
            )
        })
        .collect();
    fs::write(file("text"), lines).unwrap();
    let (text, trace, part) = (file("text"), file("a.dwt"), file("b.dwt"));
    success(dir.path(), &["lab", "trace", "import", &text, "-o", &trace]);
    let svg = file("a.svg");
    let shown = success(dir.path(), &["lab", "trace", "info", &trace, "--svg", &svg]);
    assert!(shown.contains("data pages") && shown.contains("reuse distances"), "{shown}");
    assert!(fs::read_to_string(svg).unwrap().contains("working set"));
    let info = success(dir.path(), &["lab", "trace", "info", &trace, "--json"]);
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!((&info["instructions"], &info["loads"]), (&500.into(), &500.into()));
    success(
        dir.path(),
        &["lab", "trace", "cut", &trace, "--skip", "100", "--limit", "200", "-o", &part],
    );
    let brief = success(dir.path(), &["lab", "trace", "info", &part, "--brief", "--json"]);
    let brief: Value = serde_json::from_str(&brief).unwrap();
    assert!((200..260).contains(&brief["instructions"].as_u64().unwrap()), "{brief}");
    assert!(
        failure(dir.path(), &["lab", "trace", "cut", &part, "-o", &part]).contains("onto itself")
    );
    let champsim = file("champsim");
    success(dir.path(), &["lab", "trace", "export", &trace, "-o", &champsim]);
    assert_eq!(fs::metadata(&champsim).unwrap().len(), 500 * 64);
    // Of nothing, nothing is written, and what is there stays.
    let none = file("none");
    let told =
        failure(dir.path(), &["lab", "trace", "export", &trace, "--thread", "99", "-o", &none]);
    assert!(told.contains("thread 99") && told.contains("a.dwt"), "{told}");
    failure(dir.path(), &["lab", "trace", "export", &trace, "--thread", "99", "-o", &champsim]);
    assert_eq!(fs::metadata(champsim).unwrap().len(), 500 * 64);
    let told = failure(dir.path(), &["lab", "trace", "cut", &trace, "--skip", "500", "-o", &none]);
    assert!(told.contains("500 instructions") && told.contains("a.dwt"), "{told}");
    assert!(!Path::new(&none).exists());
    let mut bytes = fs::read(&trace).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&trace, bytes).unwrap();
    let told = failure(dir.path(), &["lab", "trace", "info", &trace]);
    assert!(told.contains("damaged at byte") || told.contains("not a Dwell trace"), "{told}");
    assert!(failure(dir.path(), &["lab", "trace", "info", &text]).contains("byte 0"));
    let listed = success(dir.path(), &["lab", "trace", "workloads", "--list"]);
    assert!(listed.contains("graph500") && listed.contains("stands for"), "{listed}");
}

#[test]
fn a_trace_that_ends_early_is_simulated_only_where_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let lines: String = (0..400_000)
        .map(|i| {
            format!("I  {:x},4\n L {:x},8\n", 0x1000 + 4 * (i % 50), 0x8000 + 4096 * (i * 7 % 97))
        })
        .collect();
    fs::write(file("text"), lines).unwrap();
    success(dir.path(), &["lab", "trace", "import", &file("text"), "-o", &file("a.dwt")]);
    let bytes = fs::read(file("a.dwt")).unwrap();
    fs::write(file("a.dwt"), &bytes[..bytes.len() - 100]).unwrap();
    let batch = file("batch.toml");
    let process = "[[process]]\nname = \"p\"\ntrace = \"a.dwt\"\n";
    fs::write(&batch, format!("name = \"b\"\n{process}")).unwrap();
    let sim = ["lab", "sim", "its", &batch, "--seeds", "1", "--policies", "its"];
    let told = failure(dir.path(), &sim);
    assert!(told.contains("a.dwt") && told.contains("--partial"), "{told}");
    let shown = success(dir.path(), &[&sim[..], &["--partial"]].concat());
    assert!(shown.contains("its"), "{shown}");
}

#[test]
fn a_recording_is_not_told_on_the_programs_standard_output() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("t.dwt").to_str().unwrap().to_owned();
    let words =
        ["lab", "trace", "record", "-o", &out, "--limit", "1000000", "--", "echo", "its own"];
    let output = dwell(dir.path(), &words);
    let said = text(&output.stderr);
    if !output.status.success() && said.contains("make trace-tool") {
        return println!("SKIP: {said}");
    }
    assert!(output.status.success(), "{said}");
    assert_eq!(text(&output.stdout), "its own\n");
    assert!(said.contains("t.dwt") && said.contains("instructions"), "{said}");
    let output = dwell(dir.path(), &["lab", "trace", "record", "--bogus", "echo"]);
    assert_eq!(output.status.code(), Some(2), "{}", text(&output.stderr));
}

#[test]
fn waits_are_simulated_under_every_policy_for_a_machine_that_is_not_here() {
    let dir = tempfile::tempdir().unwrap();
    let set = ["--set", "cores=32", "--set", "device.latency=3us", "--set", "duration_ms=50"];
    let shown = success(dir.path(), &[&["lab", "sim", "wait", "--size", "4k"][..], &set].concat());
    for policy in ["block", "spin", "hybrid", "smartcon", "predictive"] {
        assert!(shown.lines().any(|line| line.trim_start().starts_with(policy)), "{shown}");
    }
    let file = dir.path().join("mine.toml");
    fs::write(&file, success(dir.path(), &[&["lab", "sim", "wait", "--print"][..], &set].concat()))
        .unwrap();
    let file = file.to_str().unwrap();
    let json =
        success(dir.path(), &["lab", "sim", "wait", file, "--policies", "block,spin", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["scenario"]["cores"], 32);
    let speed = |at: usize| json["reports"][at][0]["requests"].as_u64().unwrap();
    assert!(speed(1) > 2 * speed(0), "{json}");
    for (args, says) in
        [(&["--set", "cores=none"][..], "whole number"), (&["--policies", "hope"], "smartcon")]
    {
        let told = refused(dir.path(), &[&["lab", "sim", "wait"], args].concat());
        assert!(told.contains(says), "{told}");
    }
    for (args, says) in
        [(&["/no/such.toml"][..], "/no/such.toml"), (&["--probed", "/dev/null"], "/dev/null")]
    {
        let told = failure(dir.path(), &[&["lab", "sim", "wait"], args].concat());
        assert!(told.contains(says), "{told}");
    }
}

#[test]
fn a_figure_that_records_more_than_once_is_measured() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("figures");
    let figure = ["lab", "figure", "P3", "-o", out.to_str().unwrap(), "--max-time", "60s"];
    let output = dwell(dir.path(), &figure);
    let said = [text(&output.stderr), text(&output.stdout)].concat();
    if said.contains("make trace-tool") {
        return println!("SKIP: {said}");
    }
    assert!(output.status.success(), "{said}");
    let kept = fs::read(out.join("P3.json")).unwrap();
    let kept: Value = serde_json::from_slice(&kept).unwrap();
    let rows = kept["rows"].as_array().unwrap();
    if let Some(why) = rows[0]["note"].as_str().filter(|why| why.contains("dwell-kernels")) {
        return println!("SKIP: {why}");
    }
    assert!(rows.len() == 3 && rows.iter().all(|row| !row["measured"].is_null()), "{kept:#}");
}
