// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell lab figure`: measures the papers' figures.

use std::io::Write as _;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context, Result, bail};

use dwell::monitor::SystemMonitor;
use dwell_figures::experiments::{self, Lab};
use dwell_figures::figure::{self, FULL_ROW_S};

use crate::answer::wrong;
use crate::cmd::bench::hidden;
use crate::cmd::bench::probing::switch_costs;
use crate::given::{self, as_text};
use crate::progress::Progress;
use crate::{places, show, signals};

/// Shortest such time, in milliseconds: a hundredth only shows that all works.
const LEAST_ROW_MS: u64 = 6_000;

/// Measure the figures of the papers, and keep them
#[derive(clap::Args)]
pub struct Args {
    /// Ids, as in S4; see --list
    #[arg(required_unless_present_any = ["all", "list", "docs"], conflicts_with = "all", value_parser = known_figure)]
    ids: Vec<String>,
    /// All of which rows are lacking that were measured with this code, on a machine of this kind
    #[arg(long)]
    all: bool,
    /// Only rows whose names contain this, in figures that are sampled row by row
    #[arg(long, value_name = "TEXT", conflicts_with = "all")]
    case: Option<String>,
    /// List the figures and what they show
    #[arg(long)]
    list: bool,
    /// Directory for ID.json and ID.svg
    #[arg(short, long, value_name = "DIR", default_value = "target/figures")]
    out: PathBuf,
    /// Rewrite the tables in the documents of these directories from --kept, to which the results
    /// in --out are added
    #[arg(long)]
    docs: Vec<PathBuf>,
    /// Directory of results to keep, one for each kind of machine
    #[arg(long, value_name = "DIR", default_value = "docs/results")]
    kept: PathBuf,
    /// Directory of recorded workloads [default: target/traces, recorded when it is needed]
    #[arg(long, value_name = "DIR")]
    traces: Option<PathBuf>,
    /// Longest time to sample a row; what is not sampled takes less in proportion
    #[arg(long, value_name = "TIME", default_value = "600s", value_parser = row_time)]
    max_time: u64,
}

fn known_figure(id: &str) -> Result<String, String> {
    figure::catalogue().figure(id).map(|_| id.to_owned()).map_err(as_text)
}

/// Milliseconds that a row takes at most.
fn row_time(text: &str) -> Result<u64, String> {
    match given::milliseconds(text)? {
        time if time >= LEAST_ROW_MS => Ok(time),
        _ => Err("want a time from 6s to 600s".to_owned()),
    }
}

/// Measures, saves, prints.
pub fn run(args: &Args) -> Result<()> {
    if args.list {
        for id in experiments::ids() {
            println!("{id:4} {}", figure::catalogue().figure(id)?.what);
        }
        return Ok(());
    }
    let ids: Vec<String> = match args.all {
        true => experiments::ids().into_iter().map(str::to_owned).collect(),
        false => args.ids.clone(),
    };
    if !ids.is_empty() {
        super::off::refuse("a figure")?;
    }
    if let Some(dir) = args.traces.as_deref().filter(|dir| !dir.is_dir()) {
        bail!("{}: there is no such directory", dir.display());
    }
    if let Some(text) = &args.case {
        let figures = ids.iter().map(|id| figure::catalogue().figure(id));
        let figures = figures.collect::<Result<Vec<_>>>()?;
        if !figures.iter().flat_map(|of| &of.cases).any(|row| row.case.contains(text)) {
            return Err(wrong(format!("--case {text}: no row of {} has that", ids.join(", "))));
        }
    }
    // Where results cannot go, nothing needs to be measured.
    if !ids.is_empty() {
        given::directory(&args.out)?;
        given::directory(&args.kept)?;
    }
    // The holder of the lock is writing; the ids in it were written.
    let written: Arc<Mutex<Vec<String>>> = Arc::default();
    let seen = written.clone();
    let out = args.out.display().to_string();
    signals::end_with(move |signal| {
        let written = seen.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = match &written[..] {
            [] => "no row was complete, nothing was kept".to_owned(),
            ids => format!("kept {} in {out}; the same command goes on there", ids.join(", ")),
        };
        let line = signals::Ended { signal, kept };
        let _ = writeln!(std::io::stderr(), "dwell: {line}");
        // Until the program is gone, nothing more is written.
        std::mem::forget(written);
    })
    .context("watching for Ctrl-C")?;
    if !ids.is_empty() {
        let mut progress = Progress::of("figures");
        let switches = switch_costs(&mut progress)?;
        let monitor =
            SystemMonitor::start(places::monitor()).context("starting the system monitor")?;
        let here = std::env::current_dir().context("finding the working directory")?;
        let effort = args.max_time as f64 / 1e3 / FULL_ROW_S;
        let mut lab = Lab::new(switches, Arc::new(monitor), hidden(), here, effort);
        lab.dwell = Some(places::own_program()?);
        lab.programs = Some(PathBuf::from("tests/programs")).filter(|scripts| scripts.is_dir());
        lab.programs = lab.programs.map(std::path::absolute).transpose()?;
        lab.traces.clone_from(&args.traces);
        lab.results = Some(args.out.clone());
        lab.kept = Some(args.kept.clone());
        lab.only.clone_from(&args.case);
        let (kept, directory) = (written.clone(), args.out.clone());
        lab.keep = Box::new(move |result| {
            let mut written = kept.lock().unwrap_or_else(PoisonError::into_inner);
            let rows = format!("rows of {}", result.id);
            if !written.contains(&rows) {
                written.push(rows);
            }
            result.save(&directory, None)
        });
        let due = |id: &&String| -> Result<bool> {
            let due = !args.all || experiments::is_due(id, &lab)?;
            if !due {
                show::out(&format!("{id}: nothing of it is stale\n"))?;
            }
            Ok(due)
        };
        let due: Vec<&String> = ids
            .iter()
            .filter_map(|id| due(&id).map(|due| due.then_some(id)).transpose())
            .collect::<Result<_>>()?;
        for id in due {
            let mut progress = Progress::of(id).with_end();
            let (result, svg) = experiments::measure(id, &mut lab, &mut |what, share| {
                progress.show(what, share);
            })?;
            progress.finish();
            let mut written = written.lock().unwrap_or_else(PoisonError::into_inner);
            result.save(&args.out, svg.as_deref())?;
            written.retain(|kept| *kept != format!("rows of {id}"));
            written.push(id.clone());
            drop(written);
            show::out(&format!("{id}: {}\n\n{}\n", result.what, result.markdown()))?;
        }
    }
    let _writing = written.lock().unwrap_or_else(PoisonError::into_inner);
    if !args.docs.is_empty() {
        let kept = figure::keep_results(&args.out, &args.kept)?;
        let tables = args.docs.iter().map(|docs| figure::regenerate_docs(docs, &args.kept));
        let tables: Vec<Vec<PathBuf>> = tables.collect::<Result<_>>()?;
        for changed in kept.iter().chain(tables.iter().flatten()) {
            show::out(&format!("wrote {}\n", changed.display()))?;
        }
    }
    Ok(())
}
