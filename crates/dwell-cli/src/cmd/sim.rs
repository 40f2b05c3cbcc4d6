// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell sim`: simulates processes that page from a fast device.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, anyhow};
use dwell_sim::params::Said;
use dwell_sim::summary::{Measure, Spread, summarise, to_csv};
use dwell_sim::trace::Recorded;
use dwell_sim::{Batch, Params, Plan, PolicyKind, Runs, SimError, Source, simulate};

use crate::progress::Progress;
use crate::show::{self, Screen};
use crate::signals::{Ended, Signals};

/// Simulate what waits would cost on a machine that you do not have
#[derive(clap::Subcommand)]
pub enum Sim {
    /// Processes that page from an ultra-low-latency device, under five ways to spend the wait
    Its(Its),
}

/// Which batches, how often, and where the reports go.
#[derive(clap::Args)]
pub struct Its {
    /// Batches: TOML files that name the programs; traces are found beside them
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
    /// List the parameters, their values, and which of them the paper leaves open
    #[arg(long)]
    params: bool,
    /// Write all reports to this file as JSON
    #[arg(long)]
    json: Option<PathBuf>,
    /// Write one line per simulation to this file as CSV
    #[arg(long)]
    csv: Option<PathBuf>,
}

/// Simulates and shows.
pub fn run(sim: &Sim) -> Result<()> {
    let Sim::Its(args) = sim;
    if args.params {
        return list_params(args);
    }
    if args.batches.is_empty() {
        return Err(anyhow!(
            "name a batch, as in dwell sim its batch.toml; --params lists the parameters"
        ));
    }
    let signals = Signals::watch().context("watching for Ctrl-C")?;
    let plans = args.batches.iter().map(|path| plan(args, path)).collect::<Result<Vec<_>>>()?;
    let mut reports = Vec::new();
    for plan in &plans {
        let progress = Mutex::new(Progress::of(&plan.batch));
        let tell = |at: dwell_sim::Progress| {
            let share = at.instructions as f64 / at.of_instructions.max(1) as f64;
            let phase = match at.of_instructions {
                0 => "working sets".to_owned(),
                _ => format!("{} of {} simulations", at.runs, at.of_runs),
            };
            let share = if at.of_instructions == 0 { 0.0 } else { share };
            progress.lock().unwrap_or_else(PoisonError::into_inner).show(&phase, share);
        };
        let ran = simulate(plan, &tell, &signals.stop);
        progress.lock().unwrap_or_else(PoisonError::into_inner).finish();
        let runs = ran.map_err(|error| match (error, signals.received()) {
            (SimError::Cancelled, Some(signal)) => {
                anyhow!(Ended { signal, kept: "no batch after this point was simulated".into() })
            }
            (error, _) => anyhow!(error).context(plan.batch.clone()),
        })?;
        show::out(&table(plan, &runs))?;
        reports.extend(runs.reports);
    }
    if let Some(path) = &args.json {
        save(path, serde_json::to_string_pretty(&reports)? + "\n")?;
    }
    if let Some(path) = &args.csv {
        save(path, to_csv(&reports))?;
    }
    Ok(())
}

fn save(path: &Path, text: String) -> Result<()> {
    fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn plan(args: &Its, path: &Path) -> Result<Plan> {
    let text = fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
    let load = || -> Result<Plan> {
        let batch = Batch::parse(&text)?;
        let beside = path.parent().unwrap_or(Path::new(""));
        let mut open = |name: &str, trace: &Path| {
            Recorded::open(name, &beside.join(trace), args.limit)
                .map(|trace| Arc::new(trace) as Arc<dyn Source>)
        };
        let sources = batch.sources(&mut open)?;
        let mut plan = Plan::of(&batch, sources, args.seeds)?;
        args.sets.iter().try_for_each(|set| plan.params.set(set))?;
        plan.params.check()?;
        if !args.policies.is_empty() {
            plan.policies.clone_from(&args.policies);
        }
        Ok(plan)
    };
    load().with_context(|| path.display().to_string())
}

fn list_params(args: &Its) -> Result<()> {
    let mut params = Params::default();
    args.sets.iter().try_for_each(|set| params.set(set))?;
    params.check()?;
    let mut table = Screen::stdout().table(&["parameter", "value", "unit", "paper", "what"], &[1]);
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

fn table(plan: &Plan, runs: &Runs) -> String {
    let lines = summarise(&runs.reports);
    let heads = [
        "policy",
        "idle ms",
        "ITS saves",
        "major faults",
        "LLC misses",
        "top half ms",
        "ITS saves",
        "bottom half ms",
        "ITS saves",
    ];
    let mut table = Screen::stdout().table(&heads, &[1, 2, 3, 4, 5, 6, 7, 8]);
    for &policy in &plan.policies {
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
            value(Measure::MajorFaults, 1.0),
            value(Measure::LlcMisses, 1.0),
            value(Measure::TopFinishNs, 1e6),
            saves(Measure::TopFinishNs),
            value(Measure::BottomFinishNs, 1e6),
            saves(Measure::BottomFinishNs),
        ]);
    }
    let instructions: u64 = runs.surveys.iter().map(|survey| survey.instructions).sum();
    format!(
        "{}: {} processes, {} instructions, {} MiB of DRAM, {} seeds; mean ± standard deviation\n{}\n",
        plan.batch,
        plan.sources.len(),
        instructions,
        runs.dram_bytes >> 20,
        plan.seeds.len(),
        show::finished(&table),
    )
}

fn with_spread(value: &Spread, unit: f64) -> String {
    let digits = if unit > 1.0 { 2 } else { 0 };
    format!("{:.digits$} ± {:.digits$}", value.mean / unit, value.deviation / unit)
}
