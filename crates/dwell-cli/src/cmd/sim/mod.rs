// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell lab sim`: what waits would cost on machines and devices that are not here.

mod its;
mod model;
mod sweep;
mod wait;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Simulate what waits would cost on a machine that you do not have
#[derive(clap::Subcommand)]
pub enum Sim {
    Its(its::Its),
    Model(model::Model),
    Sweep(sweep::Sweep),
    Wait(wait::Wait),
}

/// Simulates and shows.
pub fn run(sim: &Sim) -> Result<()> {
    match sim {
        Sim::Its(args) => args.run(),
        Sim::Model(args) => args.run(),
        Sim::Sweep(args) => args.run(),
        Sim::Wait(args) => args.run(),
    }
}

fn save(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}
