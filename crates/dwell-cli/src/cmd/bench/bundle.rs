// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell bench bundle`: results and the machine in one file for an issue.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result};
use dwell_bench::bundle::Bundle;
use serde_json::Value;

use crate::{given, places, show};

/// Directories of results, and where the bundle goes.
#[derive(clap::Args)]
pub struct Args {
    /// Directories with a result.json, as bench and advise write them
    #[arg(default_value = "dwell-report")]
    results: Vec<PathBuf>,
    /// The file to write
    #[arg(short, long, value_name = "FILE", default_value = "dwell-bundle.json")]
    out: PathBuf,
    /// Overwrite a file that is there
    #[arg(short, long)]
    force: bool,
}

impl Args {
    pub(super) fn run(&self) -> Result<()> {
        given::new_output(&self.out, self.force)?;
        let results = self.results.iter().map(|dir| read(&dir.join("result.json")));
        let results = results.collect::<Result<Vec<_>>>()?;
        // Its status says what is lacking; its output is whole either way.
        let doctor = Command::new(places::own_program()?).args(["doctor", "--json"]).output();
        let doctor = doctor.context("starting dwell doctor")?;
        let doctor =
            serde_json::from_slice(&doctor.stdout).context("the output of dwell doctor")?;
        let bundle = Bundle::new(doctor, results, &places::names());
        std::fs::write(&self.out, show::json(&bundle)?)
            .with_context(|| format!("cannot write {}", self.out.display()))?;
        let text = format!(
            "{}: {} results and dwell doctor, without paths, hardware ids and names; read it before \
             you attach it\n",
            self.out.display(),
            bundle.results.len()
        );
        Ok(show::out(&text)?)
    }
}

fn read(path: &std::path::Path) -> Result<Value> {
    let text = std::fs::read(path).with_context(|| {
        format!("cannot read {}; name a directory that bench or advise wrote", path.display())
    })?;
    serde_json::from_slice(&text).with_context(|| path.display().to_string())
}
