// SPDX-License-Identifier: MIT OR Apache-2.0
//! The program that people start, `dwell`. It is small, because `dwell run` stands before every
//! program of somebody's script; for all else it becomes the program that has all commands.

use std::env;
use std::process::ExitCode;

use anyhow::Result;
use clap::{Args as _, FromArgMatches as _};

use crate::answer::answer;
use crate::places::{self, COMMANDS};
use crate::{cmd, exec};

/// Runs `dwell run`, or becomes the program of all commands.
pub fn front() -> ExitCode {
    answer(match run_alone() {
        Some(args) => cmd::run::run(&args),
        None => become_commands(),
    })
}

/// The arguments of `dwell run`, where these are in order. The other program reports errors in them
/// and prints the help.
fn run_alone() -> Option<cmd::run::Args> {
    let mut words = env::args_os().skip(1);
    words.next().filter(|word| word == "run")?;
    let command = cmd::run::Args::augment_args(clap::Command::new("run").no_binary_name(true));
    cmd::run::Args::from_arg_matches(&command.try_get_matches_from(words).ok()?).ok()
}

/// Comes back only if it cannot.
fn become_commands() -> Result<()> {
    let path = places::installed(COMMANDS)?;
    let words: Vec<_> = env::args_os().collect();
    let error = exec::exec(&path, &words, &[], false);
    Err(anyhow::Error::new(error).context(path.display().to_string()))
}
