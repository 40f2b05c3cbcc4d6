// SPDX-License-Identifier: MIT OR Apache-2.0
//! D4 and D5: databases, as they are, on a served directory: under `dwell run`, where their files
//! take channels, without it, and past the mount.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use dwell_channel::daemon;

use super::super::lab::{put, skip, skip_all};
use super::super::wrapped::{POLICY, Wrapping, open_to_all};
use super::super::{Lab, Progress};
use super::Stage;
use crate::figure::FigureResult;
use dwell_bench::fixture::Directory;
use dwell_bench::stats::{Middle, Paired};

/// A program with its script, and what it is asked to do: the name of a case, and the script's word
/// for it.
struct Program {
    script: &'static str,
    cases: &'static [(&'static str, &'static str)],
}

const TRANSACTIONS: [Program; 2] = [
    Program {
        script: "sqlite",
        cases: &[
            ("sqlite rollback, sync FULL", "delete full"),
            ("sqlite WAL, sync FULL", "wal full"),
            ("sqlite WAL, sync NORMAL", "wal normal"),
        ],
    },
    Program {
        script: "pgbench",
        cases: &[
            ("pgbench, sync commit, 128 MB", "synchronous_commit=on shared_buffers=128MB"),
            ("pgbench, sync commit, 1 MB", "synchronous_commit=on shared_buffers=1MB"),
        ],
    },
];

const RECORDS: [Program; 1] = [Program {
    script: "berkeleydb",
    cases: &[
        ("BDB, B-tree, lookups", "btree lookup"),
        ("BDB, B-tree, durable updates", "btree update"),
        ("BDB, hash, lookups", "hash lookup"),
        ("BDB, hash, durable updates", "hash update"),
    ],
}];

/// Where a program works: past the mount, through it, and through it under `dwell run`.
const PLACES: [&str; 3] = ["bare", "mount", "channel"];
const CHANNEL: usize = 2;
/// Which places are compared.
const PAIRS: [(&str, usize, usize); 3] = [
    ("channel ÷ bare tmpfs", CHANNEL, 0),
    ("channel ÷ mount", CHANNEL, 1),
    ("mount ÷ bare tmpfs", 1, 0),
];

/// D4.
pub fn transactions(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    measure(lab, result, progress, &TRANSACTIONS)
}

/// D5.
pub fn records(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    measure(lab, result, progress, &RECORDS)
}

fn names(case: &str) -> [String; 3] {
    PAIRS.map(|(pair, ..)| format!("{case}: {pair}"))
}

fn measure(
    lab: &Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
    programs: &[Program],
) -> Result<Option<String>> {
    progress("looking for programs", 0.0);
    let Some(scripts) = lab.programs.as_ref().map(|scripts| scripts.join("oltp")) else {
        let why =
            "the scripts that run them, tests/programs/oltp, are not in the working directory";
        return skip_all(result, why).map(|()| None);
    };
    let wrapping = match Wrapping::make(lab)? {
        Ok(wrapping) => wrapping,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let backing = match Directory::new(Path::new("/dev/shm")) {
        Ok(backing) => backing,
        Err(why) => return skip_all(result, &why.to_string()).map(|()| None),
    };
    // As a daemon has it that `dwell serve` starts.
    let options = daemon::Options { monitor: Some(lab.monitor.clone()), ..Default::default() };
    let stage = match Stage::passed_through(backing.path(), false, options)? {
        Ok(stage) => stage,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    // Servers that refuse root must be able to enter.
    open_to_all(stage.backing())?;
    open_to_all(stage.mount())?;
    let all = programs.iter().map(|program| program.cases.len()).sum::<usize>() as f64;
    let mut done = 0.0;
    for program in programs {
        let bench = Bench {
            script: scripts.join(format!("{}.sh", program.script)),
            wrap: format!(
                "{} run --policy {POLICY} --channels --quiet --",
                wrapping.dwell().display()
            ),
            stage: &stage,
            span: lab.span(2000),
            rounds: lab.times(9),
        };
        progress(&format!("setting up {}", program.script), done / all);
        let ready = bench.prepare();
        for (case, words) in program.cases {
            let rates = match &ready {
                Ok(()) => {
                    bench.rates(words, &mut |what| progress(&format!("{case}, {what}"), done / all))
                }
                Err(why) => Err(anyhow::anyhow!("{why}")),
            };
            match rates {
                Ok(rates) => enter(result, case, &rates)?,
                Err(why) => skip(result, &names(case), &format!("{why:#}").replace('\n', " "))?,
            }
            done += 1.0;
        }
        bench.clear()?;
    }
    Ok(None)
}

fn enter(result: &mut FigureResult, case: &str, rates: &[[f64; 3]]) -> Result<()> {
    let middle = |place: usize| {
        Middle::of(rates.iter().map(|round| round[place])).map_or(f64::NAN, |rate| rate.value)
    };
    for (name, (_, ours, base)) in names(case).iter().zip(PAIRS) {
        let ratio = Paired::of(rates.iter().map(|round| (round[ours], round[base])));
        let remark = format!("{:.0} per second against {:.0}", middle(ours), middle(base));
        put(result, name, ratio, Some(remark))?;
    }
    Ok(())
}

/// One program in three places that are alike but for the way to them.
struct Bench<'a> {
    script: PathBuf,
    wrap: String,
    stage: &'a Stage,
    span: Duration,
    rounds: usize,
}

impl Bench<'_> {
    /// The directory of a place, as the program sees it.
    fn seen(&self, place: usize) -> PathBuf {
        let root = if place == 0 { self.stage.backing() } else { self.stage.mount() };
        root.join(PLACES[place])
    }

    /// The same directory, past the mount.
    fn beneath(&self, place: usize) -> PathBuf {
        self.stage.backing().join(PLACES[place])
    }

    /// Makes the same database in all places, past the mount.
    fn prepare(&self) -> Result<(), String> {
        let script = self.script.display();
        let mut asked = Command::new(&self.script);
        let asked = asked.arg("available").stdin(Stdio::null()).output();
        let asked = asked.map_err(|error| format!("{script}: {error}"))?;
        if !asked.status.success() {
            let said = String::from_utf8_lossy(&asked.stdout);
            return Err(said.lines().next().unwrap_or("not installed").to_owned());
        }
        let first = self.beneath(0);
        let made = || -> Result<()> {
            std::fs::create_dir(&first).with_context(|| first.display().to_string())?;
            self.run("setup", &first, [])?;
            for place in 1..PLACES.len() {
                let copied =
                    Command::new("cp").arg("-a").args([&first, &self.beneath(place)]).status()?;
                ensure!(copied.success(), "cp -a {}: {copied}", first.display());
            }
            Ok(())
        };
        made().map_err(|why| format!("{why:#}"))
    }

    /// What the program says of its speed in each round and place.
    fn rates(&self, words: &str, progress: &mut dyn FnMut(&str)) -> Result<Vec<[f64; 3]>> {
        let span = format!("{:.3}", self.span.as_secs_f64());
        let mut rates = Vec::new();
        for round in 0..self.rounds {
            let mut rate = [0.0; PLACES.len()];
            for turn in 0..PLACES.len() {
                let place = (round + turn) % PLACES.len();
                progress(&format!("round {} of {}, {}", round + 1, self.rounds, PLACES[place]));
                let wrap = if place == CHANNEL { &*self.wrap } else { "" };
                let environment = [("CASE", words), ("SPAN", &*span), ("WRAP", wrap)];
                let said = self.run("run", &self.seen(place), environment)?;
                let told = said.lines().rev().find_map(|line| line.strip_prefix("rate "));
                rate[place] = told
                    .and_then(|rate| rate.trim().parse().ok())
                    .with_context(|| format!("{} told no rate: {said}", self.script.display()))?;
            }
            rates.push(rate);
        }
        // What was acknowledged has to be there, whatever way it took.
        for place in 0..PLACES.len() {
            self.run("check", &self.beneath(place), [("CASE", words)])?;
        }
        Ok(rates)
    }

    fn run<'v>(
        &self,
        verb: &str,
        directory: &Path,
        environment: impl IntoIterator<Item = (&'v str, &'v str)>,
    ) -> Result<String> {
        let mut command = Command::new(&self.script);
        command.arg(verb).arg(directory).stdin(Stdio::null());
        command.envs(environment.into_iter().map(|(name, value)| (name, OsStr::new(value))));
        let output = command.output().with_context(|| self.script.display().to_string())?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            let said = said.trim().lines().last().unwrap_or_default().to_owned();
            bail!("FAILED: {verb} in {}: {}: {said}", directory.display(), output.status);
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn clear(&self) -> Result<()> {
        for place in 0..PLACES.len() {
            let directory = self.beneath(place);
            match std::fs::remove_dir_all(&directory) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error).with_context(|| directory.display().to_string());
                }
                _ => {}
            }
        }
        Ok(())
    }
}
