// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell bench io`: policies × sizes × loads on any device.

mod bundle;
mod nfs;
mod pager;
pub mod probing;
mod workload;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use clap::{Args, Subcommand, ValueEnum};
use dwell::monitor::SystemMonitor;
use dwell_bench::day::Day;
use dwell_bench::keep::{Interrupted, Keep};
use dwell_bench::loads::Means;
use dwell_bench::result::{Direction, Load, Pattern, Run};
use dwell_bench::run::Plan;
use dwell_bench::stand::Stand;
use dwell_bench::subject::Probing;
use dwell_bench::{contender, loads, report, run, sheet, table, units};
use dwell_host::profile::ProfileStore;

use self::probing::ProbeArgs;
use self::workload::Workload;
use crate::answer::wrong;
use crate::progress::{self, Progress};
use crate::show::Screen;
use crate::signals::{Ended, Signals};
use crate::{given, places, show, size};

/// Measure.
#[derive(Subcommand)]
pub enum Bench {
    /// Wait policies on storage devices: throughput, latency, switches and CPU, in interleaved
    /// rounds
    Io(Box<Io>),
    /// Wait policies under workloads from data files: operations per second, latency, switches, CPU
    Workload(Box<Workload>),
    /// A file on an NFS server: one thread with many requests outstanding against blocking threads
    Nfs(Box<nfs::Nfs>),
    /// A file as memory larger than a process may have: the pager against mmap, under one memory
    /// limit
    Pager(Box<pager::Pager>),
    /// Results and the machine's description in one anonymised file, to attach to an issue
    Bundle(bundle::Args),
}

/// What to measure, and how.
#[derive(Args)]
pub struct Io {
    /// Files, block devices or addresses (emu:z-nand). Without any: a loop device on memory (as
    /// root) or a temporary file, and an emulated device
    paths: Vec<PathBuf>,
    /// Policies to compare; also smartcon:cpu-threshold=0.5+queue-limit=1+signal=total (all
    /// policies take :pause=off and :registered=on), hand-written loops (pread, raw-wait,
    /// raw-cq-peek, raw-get-events, raw-taskrun-flag, raw-iopoll) and other runtimes (peer:glommio,
    /// ...: dwell-peers --list)
    #[arg(long, alias = "policy", value_delimiter = ',', default_value = "block,adaptive,smartcon,spin,hybrid", value_parser = contender_name)]
    policies: Vec<String>,
    /// The policy that the others are held against, block if not said
    #[arg(long)]
    baseline: Option<String>,
    /// Request sizes
    #[arg(long, value_delimiter = ',', default_value = "4k,64k,512k", value_parser = size::request_bytes)]
    sizes: Vec<u64>,
    /// Order of the offsets
    #[arg(long, value_enum, value_delimiter = ',', default_value = "rand")]
    pattern: Vec<PatternArg>,
    /// Also measure writes: overwrites PATH, if it holds something only with --force
    #[arg(long)]
    write: bool,
    /// Overwrite what PATH holds
    #[arg(long, requires = "write")]
    force: bool,
    /// What else it starts: nothing; CPU stressors; four I/O programs on the same device; nine
    /// arithmetic processes; four slow readers of a file in the working directory; bystanders whose
    /// speed is measured
    #[arg(long, value_enum, value_delimiter = ',', default_value = "idle")]
    load: Vec<LoadArg>,
    /// CPU stressors of the cpu load, 10 if not said
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=4096))]
    stressors: Option<u16>,
    /// Bystanders of the bystander load, 1 if not said
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..=4096))]
    bystanders: Option<u16>,
    /// I/O schedulers to set on the device while it is measured (needs root); without any, the one
    /// it has
    #[arg(long, value_delimiter = ',')]
    scheduler: Vec<String>,
    /// Requests in flight
    #[arg(long, value_delimiter = ',', default_value = "1", value_parser = clap::value_parser!(u32).range(1..=4096))]
    depth: Vec<u32>,
    /// Interleaved rounds; where something else ran meanwhile, up to twice as many are measured
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Milliseconds for each policy in each round: 60 if not said, 1000 where --load names a load
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    batch_ms: Option<u64>,
    /// Phases of load and request size, of which no contender is told, in place of all
    /// combinations: `mixed`, or a file like it (docs/reference/bench.md)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sizes", "pattern", "load", "scheduler", "depth", "batch_ms"])]
    scenario: Option<String>,
    /// The program with the other runtimes. Without it: dwell-peers, as `make peers` builds it
    #[arg(long, value_name = "FILE")]
    peers_program: Option<PathBuf>,
    /// Directory for report.html, result.json and result.csv
    #[arg(short, long, value_name = "DIR", default_value = "dwell-report")]
    out: PathBuf,
    /// Print the result as JSON in place of the table
    #[arg(long)]
    json: bool,
    /// File for the latency of every request, .csv or .parquet; put it on another disk than the
    /// measured one
    #[arg(long)]
    samples: Option<PathBuf>,
    /// Also read the CPU's event counters: cycles, instructions, cache and TLB misses
    #[arg(long)]
    counters: bool,
    #[command(flatten)]
    probe: ProbeArgs,
}

/// The policy that the others are held against where none is named.
const BASELINE: &str = "block";

fn contender_name(name: &str) -> Result<String, String> {
    contender::check_name(name).map(|()| name.to_owned()).map_err(given::as_text)
}

#[derive(Clone, Copy, ValueEnum)]
enum PatternArg {
    Rand,
    Seq,
}

#[derive(Clone, Copy, ValueEnum)]
enum LoadArg {
    Idle,
    Cpu,
    Io,
    Arithmetic,
    Readers,
    Bystander,
}

/// Runs the bench.
pub fn run(bench: &Bench) -> Result<()> {
    super::off::refuse("a bench")?;
    match bench {
        Bench::Io(args) => io(args),
        Bench::Workload(args) => args.run(),
        Bench::Nfs(args) => args.run(),
        Bench::Pager(args) => args.run(),
        Bench::Bundle(args) => args.run(),
    }
}

fn io(args: &Io) -> Result<()> {
    let mut plan = args.plan()?;
    plan.check(&args.paths)?;
    // Where the report cannot go, nothing needs to be measured.
    std::fs::create_dir_all(&args.out)
        .with_context(|| format!("cannot make the report's directory {}", args.out.display()))?;
    let mut progress = Progress::of("bench");
    let probing = args.probe.probing(&mut progress)?;
    progress.show("making and probing devices", 0.0);
    let stand = args.stand(&places::profiles()?, &probing)?;
    for why in &stand.left_out {
        progress::note(&format!("left out: {why}"));
    }
    let monitor = SystemMonitor::start(places::monitor()).context("starting the system monitor")?;
    let total = plan.batches(stand.subjects.len()).max(1);
    let mut done = 0;
    let command = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    // What comes before leaves nothing behind when a signal ends it.
    let signals = Signals::watch().context("watching for Ctrl-C")?;
    plan.keep.stop = signals.stop.clone();
    let outcome = run::run(&plan, &stand.subjects, &Arc::new(monitor), command, &mut |what| {
        done += 1;
        // Rounds that are measured again are not known beforehand.
        progress.show(what, (f64::from(done) / total as f64).min(1.0));
    });
    progress.finish();
    conclude(outcome, &signals, &args.out, args.json)
}

/// Keeps what was measured in a directory and shows it, also where a signal ended it early.
pub fn conclude(
    outcome: Result<Run>,
    signals: &Signals,
    directory: &Path,
    json: bool,
) -> Result<()> {
    let result = match outcome {
        Err(error) if error.is::<Interrupted>() => {
            let kept = "no round was complete, nothing was kept".to_owned();
            return Err(Ended { signal: signals.received().unwrap_or_default(), kept }.into());
        }
        outcome => outcome?,
    };
    for why in &result.left_out {
        progress::note(&format!("left out: {why}"));
    }
    let saved = save(&result, directory);
    // Measured once, it is shown even where it cannot be kept.
    let shown = match json {
        true => show::out(&show::json(&result)?),
        false => show::out(&table::table(&result, Screen::stdout().width() as u16)),
    };
    for note in &result.notes {
        progress::note(&format!("note: {}", show::one_line(note)));
    }
    let place = match &saved {
        Ok(page) => {
            eprintln!("report: {}", page.display());
            format!("kept in {}", directory.display())
        }
        Err(error) => format!("not kept: {error:#}"),
    };
    if let Some(why) = &result.ended {
        let kept = format!("{}, {place}", complete_rounds(&result));
        match signals.received() {
            Some(signal) => return Err(Ended { signal, kept }.into()),
            None => bail!("ended early: {why}; {kept}"),
        }
    }
    saved?;
    Ok(shown?)
}

/// Writes all forms of a run; where its report is then.
fn save(result: &Run, directory: &Path) -> Result<PathBuf> {
    let page = directory.join("report.html");
    result.save(&directory.join("result.json"))?;
    sheet::save(result, &directory.join("result.csv"))?;
    report::save(result, &page)?;
    Ok(page.canonicalize().unwrap_or(page))
}

/// How much of a run there is, in words.
fn complete_rounds(result: &Run) -> String {
    let counts = result.rows.iter().map(|row| row.rounds.len());
    let (rows, rounds) = (result.rows.len(), counts.sum::<usize>());
    let plural = |count: usize| if count == 1 { "" } else { "s" };
    format!("{rounds} complete round{} of {rows} row{}", plural(rounds), plural(rows))
}

/// One process of a load.
#[derive(Args)]
pub struct Crunch {
    /// What the bench tells its processes.
    #[arg(hide = true)]
    words: Vec<String>,
}

impl Crunch {
    /// Does it.
    pub fn run(&self) -> Result<()> {
        loads::serve(&self.words)
    }
}

impl Io {
    fn plan(&self) -> Result<Plan> {
        self.check()?;
        let loads: Vec<Load> = self.load.iter().map(|&load| load.into()).collect();
        // A loaded machine hands out the CPU in slices of milliseconds.
        let loaded = loads.iter().any(|&load| load != Load::Idle);
        let batch_ms = self.batch_ms.unwrap_or(if loaded { 1000 } else { 60 });
        Ok(Plan {
            contenders: self.policies.clone(),
            baseline: self.baseline.clone().unwrap_or_else(|| BASELINE.into()),
            sizes: self.sizes.clone(),
            patterns: self.pattern.iter().map(|&pattern| pattern.into()).collect(),
            directions: match self.write {
                true => vec![Direction::Read, Direction::Write],
                false => vec![Direction::Read],
            },
            loads,
            schedulers: match self.scheduler.is_empty() {
                true => vec![None],
                false => self.scheduler.iter().cloned().map(Some).collect(),
            },
            depths: self.depth.clone(),
            rounds: self.rounds.into(),
            batch: Duration::from_millis(batch_ms),
            means: Means {
                hidden: hidden(),
                stressors: self.stressors.unwrap_or(10).into(),
                bystanders: self.bystanders.unwrap_or(1).into(),
                directory: ".".into(),
            },
            keep: Keep {
                samples: self.samples.clone(),
                counters: self.counters,
                watch: true,
                ..Keep::default()
            },
            peers_program: self.peers_program.clone(),
            day: self.scenario.as_deref().map(Day::find).transpose()?,
        })
    }

    /// What can be known to be wrong before anything is opened.
    fn check(&self) -> Result<()> {
        let size = |&bytes: &u64| units::bytes(bytes);
        let load = |&load: &LoadArg| Load::from(load).to_string();
        let pattern = |&pattern: &PatternArg| Pattern::from(pattern).to_string();
        given::once("--policies", self.policies.iter().cloned())?;
        given::once("--sizes", self.sizes.iter().map(size))?;
        given::once("--load", self.load.iter().map(load))?;
        given::once("--pattern", self.pattern.iter().map(pattern))?;
        given::once("--depth", self.depth.iter().map(u32::to_string))?;
        given::once("--scheduler", self.scheduler.iter().cloned())?;
        if let Some(baseline) = &self.baseline {
            given::baseline(baseline, &self.policies)?;
        }
        let starts = |load: Load| self.load.iter().any(|&other| Load::from(other) == load);
        let without = [
            ("--stressors", self.stressors, Load::Cpu),
            ("--bystanders", self.bystanders, Load::Bystander),
        ];
        for (option, count, load) in without {
            if count.is_some() && self.scenario.is_none() && !starts(load) {
                return Err(wrong(format!("{option}: none is started without --load {load}")));
            }
        }
        given::subjects(&self.paths)?;
        if self.write {
            given::overwritten(&self.paths, self.force)?;
        }
        given::output(self.samples.as_deref())?;
        given::program(self.peers_program.as_deref())?;
        Ok(())
    }

    fn stand(&self, store: &ProfileStore, probing: &Probing) -> Result<Stand> {
        if self.paths.is_empty() {
            return Stand::default_job(Path::new("."), self.write, probing);
        }
        let mut stand = Stand::default();
        for path in &self.paths {
            stand.add(&path.display().to_string(), path, self.write, Some(store), probing)?;
        }
        Ok(stand)
    }
}

/// Words that make this program one of a load's processes.
pub fn hidden() -> Vec<String> {
    vec!["crunch".into()]
}

impl From<PatternArg> for Pattern {
    fn from(pattern: PatternArg) -> Self {
        match pattern {
            PatternArg::Rand => Pattern::Rand,
            PatternArg::Seq => Pattern::Seq,
        }
    }
}

impl From<LoadArg> for Load {
    fn from(load: LoadArg) -> Self {
        match load {
            LoadArg::Idle => Load::Idle,
            LoadArg::Cpu => Load::Cpu,
            LoadArg::Io => Load::Io,
            LoadArg::Arithmetic => Load::Arithmetic,
            LoadArg::Readers => Load::Readers,
            LoadArg::Bystander => Load::Bystander,
        }
    }
}
