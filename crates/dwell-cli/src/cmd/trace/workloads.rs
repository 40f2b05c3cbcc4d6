// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell lab trace workloads`: records the programs of a catalogue, and says what stands for what.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::Args;
use dwell_bench::units;
use dwell_trace::record::Recording;
use dwell_workloads::{Catalogue, ITS, KERNELS, Workload, program};

use crate::answer::wrong;
use crate::signals::{Ended, Signals};
use crate::{places, show};

/// Record the nine workloads of Idle-Time-Stealing's evaluation by programs that stand for them
#[derive(Args)]
pub struct Workloads {
    /// Only these
    names: Vec<String>,
    /// Directory for the traces and their inputs
    #[arg(short, long, value_name = "DIR", required_unless_present_any = ["list", "print"])]
    out: Option<PathBuf>,
    /// Size of the work: 1 takes minutes
    #[arg(long, default_value_t = 1.0, value_parser = scale)]
    scale: f64,
    /// Leave out the first N instructions of each program [default: as the catalogue says]
    #[arg(long, value_name = "N")]
    skip: Option<u64>,
    /// End each program after N recorded instructions [default: as the catalogue says]
    #[arg(long, value_name = "N")]
    limit: Option<u64>,
    /// Another catalogue
    #[arg(long, value_name = "FILE")]
    catalogue: Option<PathBuf>,
    /// Record also those whose trace is there already
    #[arg(long)]
    again: bool,
    /// Show what stands for what, and record nothing
    #[arg(long)]
    list: bool,
    /// Print the shipped catalogue, to copy and edit
    #[arg(long, exclusive = true)]
    print: bool,
}

fn scale(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(scale) if scale > 0.0 && scale <= 1e6 => Ok(scale),
        _ => Err("must be above 0, a million at most".to_owned()),
    }
}

/// What became of one workload.
struct Row {
    name: String,
    became: String,
    instructions: String,
    size: String,
}

impl Workloads {
    pub(super) fn run(&self) -> Result<()> {
        if self.print {
            return Ok(show::out(ITS)?);
        }
        let catalogue = self.catalogue()?;
        for name in &self.names {
            if !catalogue.workloads.iter().any(|w| w.name == *name) {
                return Err(wrong(format!("{name}: no such workload; --list shows them")));
            }
        }
        show::out(&self.stand_ins(&catalogue))?;
        let Some(out) = self.out.as_ref().filter(|_| !self.list) else { return Ok(()) };
        std::fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        let signals = Signals::watch().context("watching for Ctrl-C")?;
        let mut rows = Vec::new();
        for workload in self.wanted(&catalogue) {
            let limit = self.limit.or(catalogue.limit(self.scale));
            rows.push(self.one(workload, limit, out, &signals)?);
            if let Some(signal) = signals.received() {
                let kept = format!("traces recorded until then are in {}", out.display());
                bail!(Ended { signal, kept });
            }
        }
        show::out(&("\n".to_owned() + &outcome(&rows)))?;
        for batch in &catalogue.batches {
            // What stands beside its traces is simulated by `dwell lab sim its` with the directory.
            let missing = |name: &&String| !out.join(format!("{name}.dwt")).is_file();
            match batch.workloads.iter().find(missing) {
                Some(name) => eprintln!("dwell: batch {}: no trace of {name} yet", batch.name),
                None => {
                    let file = out.join(format!("{}.toml", batch.name));
                    std::fs::write(&file, batch.file())
                        .with_context(|| format!("writing {}", file.display()))?;
                }
            }
        }
        Ok(())
    }

    fn catalogue(&self) -> Result<Catalogue> {
        let read = match &self.catalogue {
            None => Catalogue::its(),
            Some(path) => {
                let text = std::fs::read_to_string(path);
                let text = text.with_context(|| format!("cannot read {}", path.display()))?;
                Catalogue::parse(&text, &path.to_string_lossy())
            }
        };
        read.map_err(|why| anyhow!(why))
    }

    fn wanted<'a>(&'a self, catalogue: &'a Catalogue) -> impl Iterator<Item = &'a Workload> {
        let wanted = move |w: &&Workload| self.names.is_empty() || self.names.contains(&w.name);
        catalogue.workloads.iter().filter(wanted)
    }

    fn stand_ins(&self, catalogue: &Catalogue) -> String {
        let screen = show::Screen::stdout();
        let heads = ["trace", "stands for", "how", "scale", "class", "in batches"];
        let mut table = screen.table(&heads, &[]);
        for workload in self.wanted(catalogue) {
            let in_batch = |b: &&dwell_workloads::Batch| b.workloads.contains(&workload.name);
            let batches: Vec<String> = catalogue
                .batches
                .iter()
                .filter(in_batch)
                .map(|b| b.name.split('_').next().unwrap_or(&b.name).to_owned())
                .collect();
            table.add_row([
                workload.name.clone(),
                workload.stands_for.clone(),
                workload.how.clone(),
                workload.size(self.scale),
                workload.class.clone(),
                batches.join(" "),
            ]);
        }
        show::finished(&table)
    }

    fn one(
        &self,
        workload: &Workload,
        limit: Option<u64>,
        out: &Path,
        signals: &Signals,
    ) -> Result<Row> {
        let row = |became: String| Row {
            name: workload.name.clone(),
            became,
            instructions: String::new(),
            size: String::new(),
        };
        let trace = workload.trace(out);
        if trace.exists() && !self.again {
            return Ok(row("was there already (--again records it anew)".into()));
        }
        let path = places::search_path();
        if let Some(needs) = workload.missing(&path) {
            let (program, package) = (&needs.program, &needs.package);
            return Ok(row(format!("left out: no {program}; apt-get install {package}")));
        }
        let kernels = kernels()?;
        for words in &workload.prepare {
            let words = workload.words(words, out, &kernels, self.scale);
            prepare(&words).with_context(|| format!("preparing {}", workload.name))?;
        }
        let mut command = workload.words(&workload.command, out, &kernels, self.scale);
        if let Some(found) = program(&command[0], &path) {
            command[0] = found.to_string_lossy().into_owned();
        }
        // A trace that a signal cut off must not be taken for a whole one the next time.
        let unfinished = out.join(format!("{}.part", workload.name));
        let plan = Recording {
            command: command.into_iter().map(Into::into).collect(),
            out: unfinished.clone(),
            skip: self.skip.unwrap_or(workload.skip(self.scale)),
            limit,
            children: false,
            tool_dir: places::trace_tool()?,
        };
        let recorded = super::record_with_progress(&plan, &workload.name, signals)
            .with_context(|| format!("recording {}", workload.name))?;
        if signals.received().is_some() {
            let _ = std::fs::remove_file(&unfinished);
            return Ok(row("interrupted".into()));
        }
        let written = recorded.traces[0].written;
        if written.instructions == 0 {
            let _ = std::fs::remove_file(&unfinished);
            return Ok(row(format!(
                "ended within its {} skipped instructions (--skip)",
                plan.skip
            )));
        }
        std::fs::rename(&unfinished, &trace).context("naming the trace")?;
        let became = match recorded.status.success() || limit.is_some() {
            true => trace.display().to_string(),
            false => format!("{} ({})", trace.display(), recorded.status),
        };
        Ok(Row {
            instructions: units::count(written.instructions),
            size: units::bytes(written.bytes),
            ..row(became)
        })
    }
}

/// The program with this project's kernels, beside this one.
fn kernels() -> Result<PathBuf> {
    let here = std::env::current_exe().context("finding this program")?;
    // As it is built, or as it is installed.
    let above = here.ancestors().skip(1).take(2);
    let mut places = above.flat_map(|dir| [dir.join(KERNELS), dir.join("lib/dwell").join(KERNELS)]);
    let beside = places.find(|file| file.is_file());
    beside.with_context(|| format!("{KERNELS} is not beside {}: make build", here.display()))
}

fn prepare(words: &[String]) -> Result<()> {
    let status = Command::new(&words[0]).args(&words[1..]).stdout(Stdio::null()).status();
    let status = status.with_context(|| format!("cannot run {}", words[0]))?;
    ensure!(status.success(), "{}: {status}", words.join(" "));
    Ok(())
}

fn outcome(rows: &[Row]) -> String {
    let screen = show::Screen::stdout();
    let mut table = screen.table(&["workload", "instructions", "size", ""], &[1, 2]);
    for row in rows {
        table.add_row([&row.name, &row.instructions, &row.size, &row.became]);
    }
    show::finished(&table)
}
