// SPDX-License-Identifier: MIT OR Apache-2.0
//! Without rights to trace: the command in a shadow of `dwell run`, which changes nothing.

use std::ffi::OsString;
use std::process::{Command, ExitStatus};
use std::time::Instant;

use anyhow::{Context as _, Result};
use dwell_advise::Seen;
use dwell_bench::advised;

use crate::places;

/// Runs the command in a shadow; `why` is why it is not traced.
pub fn follow(command: &[OsString], why: &str) -> Result<(Seen, ExitStatus)> {
    let directory = tempfile::tempdir().context("cannot keep what is seen; set TMPDIR")?;
    let stats = directory.path().join("stats.json");
    let begin = Instant::now();
    let status = Command::new(places::own_program()?)
        .args(["run", "--shadow", "--quiet", "--stats"])
        .arg(&stats)
        .arg("--")
        .args(command)
        .status()
        .context("starting the command")?;
    let seen = advised::seen_by_calls(&stats, begin.elapsed().as_secs_f64(), why)?;
    Ok((seen, status))
}
