// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell bench workload`: workloads from data files, by several policies.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use dwell::monitor::SystemMonitor;
use dwell_bench::result::Run;
use dwell_bench::stand::Kind;
use dwell_bench::subject::Probing;
use dwell_bench::workload::spec::FileSystemKind;
use dwell_bench::workload::{self, Place, PlaceKind, Plan, Variant};

use crate::answer::wrong;
use crate::cmd::bench::conclude;
use crate::cmd::bench::probing::ProbeArgs;
use crate::progress::{self, Progress};
use crate::signals::Signals;
use crate::{given, places, show, size};

/// Which workloads, where, and how.
#[derive(Args)]
pub struct Workload {
    /// Shipped workloads (see --list), or files
    #[arg(required_unless_present_any = ["list", "print"], value_parser = known_workload)]
    names: Vec<String>,
    /// Where the files go: loop, zram, disk, or a directory
    #[arg(long, value_delimiter = ',', default_value = "loop")]
    on: Vec<String>,
    /// Bytes of a device made for it, or that files in a directory may take
    #[arg(long, default_value = "2g", value_parser = size::device_bytes)]
    size: u64,
    /// Gives a parameter of the workloads another value, or several: read_bias=0,10
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// Policies to compare; also pread, for plain calls
    #[arg(long, alias = "policy", value_delimiter = ',', default_value = "block,adaptive,pread", value_parser = contender_name)]
    policies: Vec<String>,
    /// The policy that the others are held against
    #[arg(long, default_value = "block")]
    baseline: String,
    /// Interleaved rounds
    #[arg(long, default_value_t = 7, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Milliseconds for each policy in each round
    #[arg(long, default_value_t = 500, value_parser = clap::value_parser!(u64).range(1..=600_000))]
    batch_ms: u64,
    /// Directory for report.html, result.json and result.csv
    #[arg(short, long, value_name = "DIR", default_value = "dwell-report")]
    out: PathBuf,
    /// Print the result as JSON in place of the table
    #[arg(long)]
    json: bool,
    /// List the shipped workloads
    #[arg(long, exclusive = true)]
    list: bool,
    /// Print a shipped workload, to copy and edit
    #[arg(long, value_name = "NAME", exclusive = true, value_parser = shipped)]
    print: Option<String>,
    #[command(flatten)]
    probe: ProbeArgs,
}

fn contender_name(name: &str) -> Result<String, String> {
    workload::check_names(&[name.to_owned()]).map(|()| name.to_owned()).map_err(given::as_text)
}

/// The name of a file, or of a workload that is shipped.
fn known_workload(name: &str) -> Result<String, String> {
    match name.contains('/') || name.ends_with(".toml") {
        true => Ok(name.to_owned()),
        false => shipped(name),
    }
}

fn shipped(name: &str) -> Result<String, String> {
    workload::text_of(name).map(|_| name.to_owned()).map_err(given::as_text)
}

impl Workload {
    /// Lists, prints or measures.
    pub fn run(&self) -> Result<()> {
        if self.list {
            return list();
        }
        if let Some(name) = &self.print {
            return Ok(show::out(workload::text_of(name)?)?);
        }
        given::once("--policies", self.policies.iter().cloned())?;
        given::once("--on", self.on.iter().cloned())?;
        given::baseline(&self.baseline, &self.policies)?;
        self.measure()
    }

    fn variants(&self) -> Result<Vec<Variant>> {
        let files = self.names.iter().map(|name| workload::find(name));
        let mut files = files.collect::<Result<Vec<_>>>()?;
        for assignment in &self.set {
            // Of several workloads those take it that know it.
            let taken: Vec<_> = files.iter_mut().map(|file| file.set(assignment)).collect();
            if taken.iter().all(Result::is_err) {
                taken.into_iter().collect::<Result<()>>().map_err(wrong)?;
            }
        }
        let mut variants = Vec::new();
        for file in &files {
            variants.extend(file.variants()?);
        }
        Ok(variants)
    }

    fn plan(&self) -> Plan {
        Plan {
            contenders: self.policies.clone(),
            baseline: self.baseline.clone(),
            schedulers: Vec::new(),
            rounds: self.rounds.into(),
            batch: Duration::from_millis(self.batch_ms),
            lead_in: Plan::LEAD_IN,
            stop: Arc::default(),
        }
    }

    fn measure(&self) -> Result<()> {
        let (mut plan, variants) = (self.plan(), self.variants()?);
        for (kind, ..) in self.roots(&variants) {
            if let PlaceKind::In(directory) = &kind
                && !directory.is_dir()
            {
                let what = "is no directory; there are also loop, zram and disk";
                bail!("--on {}: {what}", directory.display());
            }
        }
        // Where the report cannot go, nothing needs to be measured.
        std::fs::create_dir_all(&self.out).with_context(|| {
            format!("cannot make the report's directory {}", self.out.display())
        })?;
        let mut progress = Progress::of("workload");
        let probing = self.probe.probing(&mut progress)?;
        let monitor =
            SystemMonitor::start(places::monitor()).context("starting the system monitor")?;
        let monitor = Arc::new(monitor);
        // What comes before leaves nothing behind when a signal ends it.
        let signals = Signals::watch().context("watching for Ctrl-C")?;
        plan.stop = signals.stop.clone();
        let outcome = self.play(&plan, &variants, &probing, &monitor, &mut progress);
        progress.finish();
        conclude(outcome, &signals, &self.out, self.json)
    }

    fn play(
        &self,
        plan: &Plan,
        variants: &[Variant],
        probing: &Probing,
        monitor: &Arc<SystemMonitor>,
        progress: &mut Progress,
    ) -> Result<Run> {
        let command: Vec<String> =
            std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let total = plan.steps(variants.len() * self.on.len()).max(1) as f64;
        let (mut done, mut result) = (0.0, None::<Run>);
        // A device is made when it is its turn, so that they do not take memory all at once.
        for (kind, file_system, here) in self.roots(variants) {
            progress.show(&format!("making and probing {}", kind.name()), done / total);
            let Some(place) = self.place(&kind, file_system, probing)? else { continue };
            let run = workload::run(plan, &here, &[place], monitor, command.clone(), &mut |what| {
                progress.show(what, done / total);
                done += 1.0;
            });
            match (&mut result, run) {
                (None, run) => result = Some(run?),
                (Some(all), Ok(run)) => all.append(run),
                (Some(all), Err(why)) => all.ended = Some(show::one_line(&format!("{why:#}"))),
            }
            if result.as_ref().is_some_and(|run| run.ended.is_some()) {
                break;
            }
        }
        let mut result = result.context("nowhere to put the files: see --on")?;
        result.conclude_each(&self.baseline);
        Ok(result)
    }

    /// Each place with a file system, and the workloads that want it.
    fn roots(&self, variants: &[Variant]) -> Vec<(PlaceKind, FileSystemKind, Vec<Variant>)> {
        let mut roots = Vec::new();
        for name in &self.on {
            let kind = match name.as_str() {
                "loop" => PlaceKind::Made(Kind::Loop),
                "zram" => PlaceKind::Made(Kind::Zram),
                "disk" => PlaceKind::Made(Kind::Disk),
                directory => PlaceKind::In(directory.into()),
            };
            for file_system in [FileSystemKind::Ext4, FileSystemKind::Ext2] {
                let wants = |variant: &&Variant| match kind {
                    PlaceKind::Made(Kind::Loop | Kind::Zram) => {
                        variant.spec.file_system == file_system
                    }
                    _ => file_system == FileSystemKind::Ext4,
                };
                let here: Vec<Variant> = variants.iter().filter(wants).cloned().collect();
                if !here.is_empty() {
                    roots.push((kind.clone(), file_system, here));
                }
            }
        }
        roots
    }

    /// A place, or for a device that cannot be made here the machine's own disk, which is said.
    fn place(
        &self,
        kind: &PlaceKind,
        file_system: FileSystemKind,
        probing: &Probing,
    ) -> Result<Option<Place>> {
        let make = |kind| Place::make(kind, file_system, self.size, Path::new("."), probing);
        let why = match make(kind)? {
            Ok(place) => return Ok(Some(place)),
            Err(why) => why,
        };
        ensure!(matches!(kind, PlaceKind::Made(_)), "{}: {why}", kind.name());
        let disk = PlaceKind::Made(Kind::Disk);
        if *kind == disk || self.on.iter().any(|name| name == "disk") {
            progress::note(&format!("left out: {}: {why}", kind.name()));
            return Ok(None);
        }
        progress::note(&format!(
            "left out: {}: {why}; files go to the working directory",
            kind.name()
        ));
        match make(&disk)? {
            Ok(place) => Ok(Some(place)),
            Err(why) => bail!("disk: {why}"),
        }
    }
}

fn list() -> Result<()> {
    let mut text = String::new();
    for (name, _) in workload::SHIPPED {
        let variants = workload::shipped(name)?.variants()?;
        text += &format!("{name:20} {}\n", variants[0].spec.about);
    }
    Ok(show::out(&text)?)
}
