// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell lab`: what papers and simulations need, apart from what users do.

use anyhow::Result;

use super::{figure, sim, trace};

/// Simulate waits, trace programs and measure the figures of the papers
#[derive(clap::Subcommand)]
pub enum Lab {
    #[command(subcommand)]
    Sim(sim::Sim),
    #[command(subcommand)]
    Trace(trace::Trace),
    Figure(figure::Args),
}

/// Commands of the lab that once stood beside the others.
const MOVED: [&str; 3] = ["sim", "trace", "figure"];

/// How a command is spelt now, if `word` is its spelling before it moved here.
pub fn moved(word: &str) -> Option<String> {
    MOVED.contains(&word).then(|| format!("dwell {word}: the command is dwell lab {word}"))
}

/// Runs a command of the lab.
pub fn run(lab: &Lab) -> Result<()> {
    match lab {
        Lab::Sim(sim) => sim::run(sim),
        Lab::Trace(trace) => trace::run(trace),
        Lab::Figure(args) => figure::run(args),
    }
}
