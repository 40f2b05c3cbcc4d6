// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated cache counts what Cachegrind counts of the same program: two tools that share nothing.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dwell_sim::{Cache, Found};
use dwell_trace::record::{Recording, TOOL, record};
use dwell_trace::{AccessKind, Event, Reader};

const LINE_SHIFT: u32 = 6;
const WAYS: u64 = 16;

/// Data references and their misses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    reads: u64,
    read_misses: u64,
    writes: u64,
    write_misses: u64,
}

fn tool_dir() -> Option<PathBuf> {
    let exe = std::env::current_exe().unwrap();
    exe.ancestors().map(|dir| dir.join("valgrind")).find(|dir| dir.join(TOOL).exists())
}

/// What Cachegrind says of its first level for data, which is given the shape of ours.
fn cachegrind(dir: &Path, bytes: u64, command: &[&str]) -> Option<Counts> {
    let out = dir.join("cachegrind.out");
    let mut valgrind = Command::new("valgrind");
    valgrind
        .args(["--tool=cachegrind", "--quiet", "--cache-sim=yes"])
        .arg(format!("--D1={bytes},{WAYS},{}", 1 << LINE_SHIFT))
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
    let (names, counts) = (line("events:"), line("summary:"));
    let of = |name: &str| -> u64 {
        let at = names.iter().position(|known| known == name).unwrap();
        counts[at].parse().unwrap()
    };
    Some(Counts {
        reads: of("Dr"),
        read_misses: of("D1mr"),
        writes: of("Dw"),
        write_misses: of("D1mw"),
    })
}

/// The same of a recorded trace over the simulator's cache, by virtual addresses as there.
fn simulated(trace: &Path, bytes: u64) -> Counts {
    let mut cache = Cache::sized(bytes, WAYS, 1 << LINE_SHIFT);
    let sets = (bytes / WAYS) >> LINE_SHIFT;
    let set_bits = sets.trailing_zeros();
    // Numbers of lines are short here: what stands above the set's bits is numbered anew.
    let mut tags: HashMap<u64, u32> = HashMap::new();
    let mut counts = Counts::default();
    let mut trace = Reader::open(trace).unwrap();
    while let Some(event) = trace.next_event().unwrap() {
        let Event::Block(run) = event else { continue };
        for (site, address) in run.accesses() {
            if address == 0 {
                continue;
            }
            let last = address + u64::from(site.size.max(1)) - 1;
            let mut missed = false;
            for line in address >> LINE_SHIFT..=last >> LINE_SHIFT {
                let next = tags.len() as u32;
                let tag = *tags.entry(line >> set_bits).or_insert(next);
                let line = tag << set_bits | line as u32 & (sets as u32 - 1);
                missed |= cache.access(line) == Found::Missed;
            }
            // What is read and then written counts as read.
            let (of, misses) = match site.kind {
                AccessKind::Store => (&mut counts.writes, &mut counts.write_misses),
                AccessKind::Load | AccessKind::Modify => {
                    (&mut counts.reads, &mut counts.read_misses)
                }
            };
            *of += 1;
            *misses += u64::from(missed);
        }
    }
    counts
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
    for bytes in [32 << 10, 256 << 10] {
        let Some(theirs) = cachegrind(dir.path(), bytes, &command) else {
            println!("SKIP: cachegrind or gzip is not installed");
            return;
        };
        if !trace.exists() {
            record(&plan, &mut |_| true).unwrap();
        }
        let ours = simulated(&trace, bytes);
        println!("{bytes} bytes: {ours:?}, cachegrind {theirs:?}");
        // The environments of both differ by a variable, and so do some addresses of the stack.
        for (ours, theirs) in [
            (ours.reads, theirs.reads),
            (ours.writes, theirs.writes),
            (ours.read_misses, theirs.read_misses),
            (ours.write_misses, theirs.write_misses),
        ] {
            let off = ours.abs_diff(theirs) as f64 / theirs.max(1) as f64;
            assert!(off < 0.01, "{ours} is {:.2} % off {theirs}", off * 100.0);
        }
    }
}
