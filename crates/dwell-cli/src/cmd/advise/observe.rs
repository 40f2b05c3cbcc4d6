// SPDX-License-Identifier: MIT OR Apache-2.0
//! Without rights to trace: the command in a shadow of `dwell run`, which changes nothing.

use std::ffi::OsString;
use std::process::{Command, ExitStatus};
use std::time::Instant;

use anyhow::{Context as _, Result};
use dwell_advise::{Error, Seen};
use dwell_bench::advised;

use crate::places;

/// Runs the command in a shadow; `why` is why it is not traced.
pub fn follow(command: &[OsString], why: &Error) -> Result<(Seen, ExitStatus)> {
    let stats = std::env::temp_dir().join(format!("dwell-advise-{}.json", std::process::id()));
    let begin = Instant::now();
    let status = Command::new(places::front()?)
        .args(["run", "--shadow", "--quiet", "--stats"])
        .arg(&stats)
        .arg("--")
        .args(command)
        .status()
        .context("starting the command")?;
    let seen = advised::seen_by_calls(&stats, begin.elapsed().as_secs_f64(), &why.to_string());
    let _ = std::fs::remove_file(&stats);
    Ok((seen?, status))
}
