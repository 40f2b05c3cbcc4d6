// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulator's caches beside Cachegrind's: the same program, instruction by instruction.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dwell_sim::flat::{Counts, Shape, counts};
use dwell_trace::record::{Recording, TOOL, record};

fn tool_dir() -> Option<PathBuf> {
    let exe = std::env::current_exe().unwrap();
    exe.ancestors().map(|dir| dir.join("valgrind")).find(|dir| dir.join(TOOL).exists())
}

/// What Cachegrind says of its caches for data, which are given the shape of ours.
fn cachegrind(dir: &Path, l1: Shape, ll: Shape, command: &[&str]) -> Option<Counts> {
    let out = dir.join("cachegrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=cachegrind", "--quiet", "--cache-sim=yes"])
        .arg(format!("--D1={},{},64", l1.bytes, l1.ways))
        .arg(format!("--LL={},{},64", ll.bytes, ll.ways))
        .arg(format!("--cachegrind-out-file={}", out.display()))
        .args(command)
        .stdout(Stdio::null());
    if !valgrind.status().is_ok_and(|status| status.success()) {
        return None;
    }
    let text = std::fs::read_to_string(out).unwrap();
    let line = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    let (names, values) = (line("events:"), line("summary:"));
    let of = |name: &str| -> u64 {
        let at = names.iter().position(|known| known == name).unwrap();
        values[at].parse().unwrap()
    };
    Some(Counts {
        instructions: of("Ir"),
        reads: of("Dr"),
        writes: of("Dw"),
        l1_read_misses: of("D1mr"),
        l1_write_misses: of("D1mw"),
        ll_read_misses: of("DLmr"),
        ll_write_misses: of("DLmw"),
    })
}

#[test]
fn a_real_program_misses_as_often_as_cachegrind_says() {
    let Some(tool_dir) = tool_dir() else {
        println!("SKIP: the Valgrind tool is not built (make trace-tool)");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let input = dir.path().join("input");
    std::io::copy(
        &mut std::io::Read::take(File::open(std::env::current_exe().unwrap()).unwrap(), 200_000),
        &mut File::create(&input).unwrap(),
    )
    .unwrap();
    let command = ["gzip", "-k", "-f", input.to_str().unwrap()];
    let trace = dir.path().join("gzip.dwt");
    let plan = Recording {
        command: command.iter().map(Into::into).collect(),
        out: trace.clone(),
        skip: 0,
        limit: None,
        children: false,
        tool_dir,
    };
    let ll = Shape { bytes: 8 << 20, ways: 16 };
    for bytes in [32 << 10, 256 << 10] {
        let l1 = Shape { bytes, ways: 16 };
        let Some(theirs) = cachegrind(dir.path(), l1, ll, &command) else {
            println!("SKIP: cachegrind or gzip is not installed");
            return;
        };
        if !trace.exists() {
            record(&plan, &mut |_| true).unwrap();
        }
        let ours = counts(&trace, l1, ll).unwrap();
        println!("{bytes} bytes: {ours:?}, cachegrind {theirs:?}");
        // The environments of both differ by a variable, and so do some addresses of the stack.
        for (ours, theirs) in [
            (ours.instructions, theirs.instructions),
            (ours.reads, theirs.reads),
            (ours.writes, theirs.writes),
            (ours.l1_read_misses, theirs.l1_read_misses),
            (ours.l1_write_misses, theirs.l1_write_misses),
            (ours.ll_read_misses, theirs.ll_read_misses),
            (ours.ll_write_misses, theirs.ll_write_misses),
        ] {
            let off = ours.abs_diff(theirs) as f64 / theirs.max(1) as f64;
            assert!(off < 0.01, "{ours} is {:.2} % off {theirs}", off * 100.0);
        }
    }
}
