// SPDX-License-Identifier: MIT OR Apache-2.0
//! The committed log of what was run.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;

/// One row of the log.
#[derive(Clone, Debug)]
pub struct Row {
    /// The surface.
    pub surface: String,
    /// First and last seed.
    pub seeds: (u64, u64),
    /// Operations carried out.
    pub operations: u64,
    /// Kills: of actors, of servers.
    pub kills: (u64, u64),
    /// Servers that ended by themselves.
    pub deaths: u64,
    /// Seeds that differed.
    pub differences: Vec<u64>,
}

fn said(command: &mut Command) -> String {
    let output = command.output().map(|output| output.stdout).unwrap_or_default();
    String::from_utf8_lossy(&output).trim().to_owned()
}

/// Appends rows to the log; a file that is not there is begun.
///
/// # Errors
/// What the file system refuses.
pub fn append(file: &Path, rows: &[Row]) -> io::Result<()> {
    let is_new = !file.exists();
    let mut out = fs::File::options().create(true).append(true).open(file)?;
    if is_new {
        writeln!(out, "# Seeds that were run\n")?;
        writeln!(
            out,
            "`dwell-exerciser --log tests/exerciser/LOG.md` appends a row for each surface.\n"
        )?;
        writeln!(
            out,
            "| date | commit | surface | seeds | operations | kills of actors, servers | seeds that differed |"
        )?;
        writeln!(out, "|---|---|---|---|---|---|---|")?;
    }
    let date = said(Command::new("date").args(["-u", "+%Y-%m-%d"]));
    let commit = said(Command::new("git").args(["rev-parse", "--short", "HEAD"]));
    for row in rows {
        let differing: Vec<String> = row.differences.iter().map(u64::to_string).collect();
        let differing = if differing.is_empty() { "none".into() } else { differing.join(", ") };
        let (first, last) = row.seeds;
        let (actors, servers) = row.kills;
        let deaths = match row.deaths {
            0 => String::new(),
            deaths => format!(" ({deaths} more ended by themselves)"),
        };
        writeln!(
            out,
            "| {date} | {commit} | {} | {first}–{last} | {} | {actors}, {servers}{deaths} | {differing} |",
            row.surface, row.operations
        )?;
    }
    Ok(())
}
