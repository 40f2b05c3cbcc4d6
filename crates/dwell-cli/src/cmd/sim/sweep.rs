// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell lab sim sweep`: many simulations that differ in parameters.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use dwell_bench::simulator::sweep::{self, Shard};

use crate::given::as_text;
use crate::progress::Progress;
use crate::show;
use crate::signals::{Ended, Signals};

/// Simulate batches with many parameters, into a directory of Parquet files
///
/// A point whose file is there is not simulated again. Shards of several machines make one dataset
/// when their files are copied together.
#[derive(clap::Args)]
pub struct Sweep {
    /// TOML: batches, policies, seeds, limit, and [grid] or [draw] with the parameters
    grid: PathBuf,
    /// Simulate every Mth point from the Nth on, as one of M machines
    #[arg(long, value_name = "N/M", default_value = "1/1", value_parser = shard)]
    shard: Shard,
    /// Directory of the dataset: a file KEY.parquet for each point
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
}

fn shard(text: &str) -> Result<Shard, String> {
    text.parse().map_err(|error: anyhow::Error| as_text(error))
}

impl Sweep {
    pub(super) fn run(&self) -> Result<()> {
        let sweep = sweep::Sweep::read(&self.grid)?;
        let signals = Signals::watch().context("watching for Ctrl-C")?;
        let progress = Mutex::new(Progress::of("sweep"));
        let tell = |batch: &str, point: &str, share: f64| {
            let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
            progress.show(&format!("{batch}: {point}"), share);
        };
        let points = self.shard.part(sweep.points()?);
        let swept = sweep.run(&points, &self.out, &tell, &signals.stop);
        progress.lock().unwrap_or_else(PoisonError::into_inner).finish();
        let swept = swept?;
        if let Some(signal) = signals.received() {
            let there = swept.simulated + swept.kept;
            bail!(Ended { signal, kept: format!("{there} of {} points are there", points.len()) });
        }
        let text = format!(
            "{} points in {}: {} simulated, {} were there\n",
            points.len(),
            self.out.display(),
            swept.simulated,
            swept.kept
        );
        Ok(show::out(&text)?)
    }
}
