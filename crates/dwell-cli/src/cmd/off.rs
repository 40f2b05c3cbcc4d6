// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell off` and `dwell on`: one switch for all processes.

use anyhow::{Result, bail};
use dwell::clock;
use dwell::off::Off;
use serde::Serialize;

use crate::places;
use crate::show::{self, one_line};

/// Switch Dwell off: for all processes as root, else for your own
///
/// The kernel then serves every request as usual. Running processes notice within 0.1 s, or 1 s if
/// they are idle; new processes start switched off. dwell on switches it on again.
#[derive(clap::Args)]
pub struct OffArgs {
    /// The reason, for everybody who finds Dwell off
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    because: Option<String>,
    /// Print JSON: {off}
    #[arg(long)]
    json: bool,
}

/// Switch Dwell on again after dwell off
#[derive(clap::Args)]
pub struct OnArgs {
    /// Print JSON: {off}
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Told<'a> {
    off: Option<&'a Off>,
}

/// Switches Dwell off.
pub fn off(args: &OffArgs) -> Result<()> {
    let who = places::who();
    let note = match &args.because {
        Some(why) => format!("{who}: {}", one_line(why)),
        None => who,
    };
    let off = places::off_switch().turn_off(&note)?;
    Ok(show::out(&match args.json {
        true => show::json(&Told { off: Some(&off) })?,
        false => format!("{}\n", words(&off)),
    })?)
}

/// Switches it on again.
pub fn on(args: &OnArgs) -> Result<()> {
    match places::off_switch().turn_on()? {
        Some(off) => bail!("still {}; only root can change that", words(&off)),
        None if args.json => Ok(show::out(&show::json(&Told { off: None })?)?),
        None => Ok(show::out("Dwell is on\n")?),
    }
}

/// The user who switched Dwell off, since when, and for which users.
pub fn words(off: &Off) -> String {
    let (whom, whose) = match off.machine {
        true => ("on this machine".to_owned(), "root".to_owned()),
        false => (format!("for user {}", off.user), format!("user {}", off.user)),
    };
    let note = match off.note.is_empty() {
        true => String::new(),
        false => format!(" ({})", one_line(&off.note)),
    };
    let (since, path) =
        (clock::utc(u64::try_from(off.since_unix_s).unwrap_or(0)), off.path.display().to_string());
    format!("off {whom} since {since}, by {whose}{note}: {}", one_line(&path))
}

/// Refuses what would measure the kernel's own way in place of Dwell's.
pub fn refuse(what: &str) -> Result<()> {
    match places::off_switch().off() {
        Some(off) => bail!("{what} needs Dwell on, and it is {}; dwell on", words(&off)),
        None => Ok(()),
    }
}
