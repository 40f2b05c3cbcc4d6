// SPDX-License-Identifier: MIT OR Apache-2.0
//! P3: what recording a program costs, in time and in bytes.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::lab::skip_all;
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::fixture::Directory;
use dwell_bench::stats::{Paired, Summary};

/// P3.
pub(super) fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    progress("writing a text", 0.0);
    let Some(dwell) = lab.dwell.clone() else {
        return skip_all(result, "there is no command to record with").map(|()| None);
    };
    let directory = Directory::new(&lab.directory)?;
    let bytes = ((1 << 20) as f64 * lab.effort.min(1.0)) as u64;
    let (mut times, mut sizes, mut rates) = (Vec::new(), Vec::new(), Vec::new());
    let rounds = lab.times(5);
    for round in 0..rounds {
        progress("recording xz", round as f64 / rounds as f64);
        match once(&dwell, directory.path(), bytes.max(10_000)) {
            Ok(once) => {
                times.push((once.recorded, once.alone));
                sizes.push(once.bytes / once.events);
                rates.push(once.events / once.recorded / 1e6);
            }
            Err(why) => return skip_all(result, &format!("{why:#}")).map(|()| None),
        }
    }
    if let Some(ratio) = Paired::of(times) {
        result.measured("time while recorded ÷ alone", ratio)?;
    }
    let cases = [
        ("bytes of the trace per instruction or access", &sizes),
        ("instructions and accesses recorded per second", &rates),
    ];
    for (case, values) in cases {
        if let Some(summary) = Summary::of(values.iter().copied()) {
            result.measured(case, Measured::from(summary))?;
        }
    }
    Ok(None)
}

struct Once {
    alone: f64,
    recorded: f64,
    bytes: f64,
    events: f64,
}

/// xz over a text, alone and recorded.
fn once(dwell: &Path, directory: &Path, bytes: u64) -> Result<Once> {
    // Into a file, so that nothing stands before what is told.
    let xz = ["xz", "-T1", "-6", "-k", "-f"];
    let text = directory.join("text");
    let timed = |command: &mut Command| -> Result<(f64, Vec<u8>)> {
        command.stdin(Stdio::null()).stderr(Stdio::null());
        let began = Instant::now();
        let ended = command.output().context("cannot run it")?;
        ensure!(ended.status.success(), "{:?}: {}", command.get_program(), ended.status);
        Ok((began.elapsed().as_secs_f64(), ended.stdout))
    };
    if !text.is_file() {
        let kernels = dwell.with_file_name("dwell-kernels");
        let mut command = Command::new(&kernels);
        command.args(["text", "--bytes", &bytes.to_string(), "--out"]).arg(&text);
        timed(&mut command).with_context(|| kernels.display().to_string())?;
    }
    let (alone, _) = timed(Command::new(xz[0]).args(&xz[1..]).arg(&text)).context("xz")?;
    let trace = directory.join("xz.dwt");
    let mut command = Command::new(dwell);
    command
        .args(["lab", "trace", "record", "--force", "--json", "-o"])
        .arg(&trace)
        .arg("--")
        .args(xz)
        .arg(&text);
    let (recorded, told) = timed(&mut command)?;
    let told: Value = serde_json::from_slice(&told).context("what was recorded")?;
    let number = |name: &str| told["traces"][0][name].as_f64().context("a count is missing");
    let events = number("instructions")? + number("accesses")?;
    Ok(Once { alone, recorded, bytes: number("bytes")?, events })
}
