// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell lab sim its`: batches of processes that page from a fast device, under five policies.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};
use dwell_bench::simulator::{Ask, Simulated, Study, report, sensitivity};
use dwell_sim::columns;
use dwell_sim::params::Said;
use dwell_sim::summary::{Measure, Spread};
use dwell_sim::{Params, PolicyKind};

use super::save;
use crate::answer::wrong;
use crate::progress::Progress;
use crate::show::{self, Screen};
use crate::signals::{Ended, Signals};

/// Processes that page from an ultra-low-latency device, under five ways to spend the wait
#[derive(clap::Args)]
pub struct Its {
    /// Batches: TOML files that name the programs, their traces beside them; or a directory of such
    #[arg(required_unless_present = "params")]
    batches: Vec<PathBuf>,
    /// Policies: async, sync, sync_runahead, sync_prefetch, its; all five when left out
    #[arg(long, value_delimiter = ',')]
    policies: Vec<PolicyKind>,
    /// How many seeds: each draws its own priorities
    #[arg(long, default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    seeds: u64,
    /// Set a parameter, as in --set switch_ns=5000; may be given again
    #[arg(long = "set", value_name = "NAME=VALUE")]
    sets: Vec<String>,
    /// Execute at most so many instructions of each trace
    #[arg(long, default_value_t = u64::MAX, hide_default_value = true)]
    limit: u64,
    /// Simulate traces that end early as far as they go
    #[arg(long)]
    partial: bool,
    /// Vary what the paper leaves open, too, with five seeds
    #[arg(long)]
    sensitivity: bool,
    /// Execute at most so many instructions of each trace while varying
    #[arg(long, default_value_t = 20_000_000, value_name = "LIMIT")]
    sensitivity_limit: u64,
    /// List the parameters, their values, and which of them the paper leaves open
    #[arg(long)]
    params: bool,
    /// Directory for report.html (the paper's figures beside its bands), result.json, result.csv,
    /// and each run as it is made; the same command again goes on there
    #[arg(short, long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Print the result as JSON in place of the tables
    #[arg(long)]
    json: bool,
}

impl Its {
    pub(super) fn run(&self) -> Result<()> {
        let params = self.params()?;
        if self.params {
            return list(&params);
        }
        // Where the report cannot go, nothing needs to be simulated.
        if let Some(dir) = &self.out {
            std::fs::create_dir_all(dir)
                .with_context(|| format!("cannot make the directory {}", dir.display()))?;
        }
        let signals = Signals::watch().context("watching for Ctrl-C")?;
        let progress = Mutex::new(Progress::of("sim").with_end());
        let tell = |batch: &str, phase: &str, share: f64| {
            let mut progress = progress.lock().unwrap_or_else(PoisonError::into_inner);
            progress.show(&format!("{batch}: {phase}"), share);
        };
        let ask = Ask {
            batches: self.batches.clone(),
            policies: self.policies.clone(),
            seeds: self.seeds,
            limit: self.limit,
            partial: self.partial,
            sets: self.sets.clone(),
            keep: self.out.as_ref().map(|dir| dir.join("runs")),
        };
        let study = Study::simulate(&ask, &tell, &signals.stop);
        let varied = match (&study, self.sensitivity) {
            (Ok(study), true) if study.ended.is_none() => {
                let limit = self.limit.min(self.sensitivity_limit);
                let ask = Ask { seeds: self.seeds.min(5), limit, ..ask };
                sensitivity::vary(&ask, &tell, &signals.stop)
            }
            _ => Ok(Vec::new()),
        };
        progress.lock().unwrap_or_else(PoisonError::into_inner).finish();
        let mut study = study?;
        study.sensitivity = varied?;
        study.command = std::env::args().collect();
        self.show(&study)?;
        self.save(&study)?;
        if let Some(signal) = signals.received() {
            let kept = format!("{} batches were complete", study.batches.len());
            bail!(Ended { signal, kept });
        }
        Ok(())
    }

    fn show(&self, study: &Study) -> Result<()> {
        if self.json {
            return Ok(show::out(&show::json(study)?)?);
        }
        for batch in &study.batches {
            show::out(&table(batch))?;
        }
        if !study.sensitivity.is_empty() {
            show::out(&varied_table(study))?;
        }
        Ok(())
    }

    fn save(&self, study: &Study) -> Result<()> {
        let Some(dir) = &self.out else { return Ok(()) };
        let page = dir.join("report.html");
        save(&dir.join("result.json"), &show::json(study)?)?;
        save(&dir.join("result.csv"), &columns::csv(&columns::of_runs(&study.reports())))?;
        report::save(study, &page)?;
        eprintln!("report: {}", page.canonicalize().unwrap_or(page).display());
        Ok(())
    }

    fn params(&self) -> Result<Params> {
        let mut params = Params::default();
        self.sets.iter().try_for_each(|set| params.set(set)).map_err(wrong)?;
        params.check().map_err(wrong)?;
        Ok(params)
    }
}

fn list(params: &Params) -> Result<()> {
    let heads = ["parameter", "value", "unit", "paper", "what"];
    let mut table = Screen::stdout().table(&heads, &[1]);
    for field in Params::FIELDS {
        let said = match field.said {
            Said::Given => format!("§{}", field.section),
            Said::Open => format!("§{} open", field.section),
        };
        let value = params.get(field.name).unwrap_or_default();
        table.add_row([field.name, &value, field.unit, &said, field.doc.trim()]);
    }
    Ok(show::out(&show::finished(&table))?)
}

fn table(batch: &Simulated) -> String {
    let lines = batch.summary();
    let heads = [
        "policy",
        "idle ms",
        "ITS saves",
        "without switches ms",
        "ITS saves",
        "major faults",
        "LLC misses",
        "top half ms",
        "ITS saves",
        "bottom half ms",
        "ITS saves",
    ];
    let mut table = Screen::stdout().table(&heads, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    for policy in batch.policies() {
        let find =
            |measure| lines.iter().find(|line| (line.policy, line.measure) == (policy, measure));
        let value = |measure, unit| {
            find(measure).map_or(String::new(), |line| with_spread(&line.value, unit))
        };
        let saves = |measure| {
            find(measure).and_then(|line| line.its_saves).map_or(String::new(), |saves| {
                format!("{:.0} ± {:.0} %", saves.mean * 100.0, saves.deviation * 100.0)
            })
        };
        table.add_row([
            policy.to_string(),
            value(Measure::IdleNs, 1e6),
            saves(Measure::IdleNs),
            value(Measure::WaitsNs, 1e6),
            saves(Measure::WaitsNs),
            value(Measure::MajorFaults, 1.0),
            value(Measure::LlcMisses, 1.0),
            value(Measure::TopFinishNs, 1e6),
            saves(Measure::TopFinishNs),
            value(Measure::BottomFinishNs, 1e6),
            saves(Measure::BottomFinishNs),
        ]);
    }
    let instructions: u64 = batch.programs.iter().map(|program| program.instructions).sum();
    format!(
        "{}: {} processes, {} instructions, {} MiB of DRAM, {} seeds; mean ± standard deviation\n{}\n",
        batch.name,
        batch.programs.len(),
        instructions,
        batch.dram_bytes >> 20,
        batch.reports.len() / batch.policies().len().max(1),
        show::finished(&table),
    )
}

fn with_spread(value: &Spread, unit: f64) -> String {
    let digits = if unit > 1.0 { 2 } else { 0 };
    format!("{:.digits$} ± {:.digits$}", value.mean / unit, value.deviation / unit)
}

fn varied_table(study: &Study) -> String {
    let others: Vec<PolicyKind> =
        PolicyKind::ALL.into_iter().filter(|policy| *policy != PolicyKind::Its).collect();
    let heads: Vec<&str> =
        std::iter::once("choice").chain(others.iter().map(|policy| policy.as_str())).collect();
    let mut table = Screen::stdout().table(&heads, &[1, 2, 3, 4]);
    for variation in &study.sensitivity {
        let set = if variation.set.is_empty() { "as it is" } else { &variation.set };
        let range = |policy: &PolicyKind| {
            let found = variation.idle.iter().find(|(known, ..)| known == policy);
            found.map_or(String::new(), |(_, least, most)| format!("{least:.2}–{most:.2}"))
        };
        table.add_row(std::iter::once(set.to_owned()).chain(others.iter().map(range)));
    }
    format!(
        "idle time of each policy ÷ that of ITS, least–most over the batches\n{}\n",
        show::finished(&table)
    )
}
