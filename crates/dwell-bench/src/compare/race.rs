// SPDX-License-Identifier: MIT OR Apache-2.0
//! The runs of a plan, round by round, and what is kept of each.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, anyhow, bail};
use dwell::clock;

use super::{Measured, Plan, Variant, outcome, results, tree};
use crate::keep::Interrupted;
use crate::stats::SplitMix;

/// Results that are not those of the untouched command, with the files that show it.
pub(super) struct Differing {
    pub variant: String,
    pub round: usize,
    pub how: String,
    pub files: [PathBuf; 2],
}

pub(super) struct Race<'p> {
    pub plan: &'p Plan,
    pub variants: Vec<Variant>,
    /// The first of each variant.
    pub differing: Vec<Differing>,
    pub notes: Vec<String>,
    pub runs: PathBuf,
}

/// One run with the file that holds its results.
pub(super) struct Ran {
    pub measured: Measured,
    pub results: PathBuf,
}

impl Race<'_> {
    pub fn run(&mut self, progress: &mut dyn FnMut(&str)) -> Result<()> {
        let mut random = SplitMix(clock::now());
        for turn in 0..self.plan.warmup + self.plan.rounds {
            let round = (turn + 1).checked_sub(self.plan.warmup).filter(|round| *round > 0);
            let mut order: Vec<usize> = (0..self.variants.len()).collect();
            for i in (1..order.len()).rev() {
                order.swap(i, random.below(i + 1));
            }
            let mut ran: Vec<Option<Ran>> = order.iter().map(|_| None).collect();
            let mut outcome = Ok(());
            for (place, &at) in order.iter().enumerate() {
                let name = self.variants[at].name.clone();
                progress(&match round {
                    Some(round) => format!("round {round} of {}, {name}", self.plan.rounds),
                    None => format!("warming up, {name}"),
                });
                let one = self.one(&name, round.unwrap_or(0), place + 1);
                match one {
                    Ok(one) => ran[at] = Some(one),
                    Err(why) if why.is::<Interrupted>() => outcome = Err(why),
                    Err(why) => {
                        let when = match round {
                            Some(round) => format!("round {round}"),
                            None => "warming up".into(),
                        };
                        outcome = Err(why.context(format!("{name}, {when}")));
                    }
                }
                if outcome.is_err() {
                    break;
                }
            }
            self.keep(ran, round.filter(|_| outcome.is_ok()))?;
            outcome?;
        }
        Ok(())
    }

    /// Keeps a complete round; what is not to be kept leaves no files.
    fn keep(&mut self, ran: Vec<Option<Ran>>, round: Option<usize>) -> Result<()> {
        let mut files: Vec<PathBuf> = ran.iter().flatten().map(|ran| ran.results.clone()).collect();
        let all: Option<Vec<Ran>> = ran.into_iter().collect();
        if let (Some(round), Some(all)) = (round, all) {
            let base = &all[0];
            for (variant, ours) in self.variants.iter().zip(&all).skip(1) {
                let name = &variant.name;
                let known = self.differing.iter().any(|known| known.variant == *name);
                if known || ours.measured.results_sum == base.measured.results_sum {
                    continue;
                }
                let how = results::difference(&ours.results, &base.results)
                    .with_context(|| format!("comparing the results under {name}"))?;
                let how = how.unwrap_or_else(|| "their sums differ".into());
                let differing = Differing {
                    variant: name.clone(),
                    round,
                    how,
                    files: [ours.results.clone(), base.results.clone()],
                };
                files.retain(|file| !differing.files.contains(file));
                self.differing.push(differing);
            }
            for (variant, ran) in self.variants.iter_mut().zip(all) {
                variant.rounds.push(ran.measured);
            }
        }
        files.iter().for_each(|file| drop(fs::remove_file(file)));
        Ok(())
    }

    /// Says something once.
    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    /// A command that gets the run's environment and reads nothing.
    fn command(&self, words: &[OsString]) -> Result<Command> {
        let (program, arguments) = words.split_first().context("a command without words")?;
        let mut command = Command::new(program);
        command.args(arguments).envs(self.plan.environment.iter().map(|(k, v)| (k, v)));
        command.stdin(Stdio::null());
        Ok(command)
    }

    fn stopped(&self) -> bool {
        self.plan.stop.load(Ordering::Relaxed)
    }

    /// Runs something untimed with its output in two files.
    fn untimed(&self, what: &str, words: &[OsString], files: [&Path; 2]) -> Result<()> {
        let mut command = self.command(words)?;
        command.stdout(create(files[0])?).stderr(create(files[1])?);
        let account = tree::run(&mut command, &|| self.stopped())
            .with_context(|| format!("the {what} cannot be run"))?;
        let ending = measured(&account.ok_or(Interrupted)?, 0);
        if !ending.succeeded() {
            bail!("the {what} failed: {}{}", ending.ending(), said(files[1]));
        }
        Ok(())
    }

    /// One run with all that belongs to it. Its results lie in a file afterwards.
    pub fn one(&mut self, name: &str, round: usize, place: usize) -> Result<Ran> {
        if self.stopped() {
            return Err(Interrupted.into());
        }
        let plan = self.plan;
        let file = |end: &str| self.runs.join(format!("{}-{round}.{end}", file_name(name)));
        let (stdout, stderr, stats) = (file("stdout"), file("stderr"), file("stats"));
        let (checked, aside) = (file("check"), file("aside"));
        if let Some(setup) = &plan.setup {
            self.untimed("setup", setup, [&aside, &stderr])?;
        }
        let words = plan.words(name, &stats);
        let mut command = self.command(&words)?;
        command.stdout(create(&stdout)?).stderr(create(&stderr)?);
        let account = tree::run(&mut command, &|| self.stopped()).with_context(|| {
            // What was made for its output is of no use.
            [&stdout, &stderr, &aside].iter().for_each(|file| drop(fs::remove_file(file)));
            format!("cannot start {}", words[0].to_string_lossy())
        })?;
        let Some(account) = account else {
            [&stdout, &stderr, &stats, &aside].iter().for_each(|file| drop(fs::remove_file(file)));
            return Err(Interrupted.into());
        };
        let mut run = measured(&account, place);
        let _ = fs::remove_file(&aside);
        if !run.succeeded() && !plan.ignore_failure {
            let _ = fs::remove_file(&stats);
            let (said, kept) = (said(&stderr), stdout.display());
            return Err(anyhow!("{}{said}; its output is in {kept}", run.ending()));
        }
        if account.left_behind {
            self.note(format!("{name} left processes running, whose time is not counted"));
        }
        if let Some(told) = plan.told {
            let text = fs::read(&stdout).context("reading what the command printed")?;
            run.told = told(&String::from_utf8_lossy(&text));
        }
        run.stats = fs::read(&stats).ok().and_then(|text| serde_json::from_slice(&text).ok());
        if !outcome::is_untouched(name) && plan.wrapper.counts() && run.stats.is_none() {
            let said = said(&stderr);
            self.note(format!("{name}: nothing was counted, so nothing was decided{said}"));
        }
        let results = match &plan.check {
            Some(check) => {
                self.untimed("check", check, [&checked, &aside])
                    .with_context(|| format!("after {}", run.ending()))?;
                let _ = fs::remove_file(&stdout);
                checked
            }
            None => stdout,
        };
        run.results_sum = results::sum(&results).context("reading a run's results")?;
        for file in [&stats, &aside] {
            let _ = fs::remove_file(file);
        }
        if run.succeeded() {
            let _ = fs::remove_file(&stderr);
        }
        Ok(Ran { measured: run, results })
    }
}

fn measured(account: &tree::Account, place: usize) -> Measured {
    let status = ExitStatus::from_raw(account.status);
    let bytes = account.bytes;
    Measured {
        place,
        wall_ns: account.wall_ns,
        user_ns: account.user_ns,
        system_ns: account.system_ns,
        voluntary_switches: account.voluntary_switches,
        involuntary_switches: account.involuntary_switches,
        major_faults: account.major_faults,
        read_bytes: bytes.map(|bytes| bytes.read),
        written_bytes: bytes.map(|bytes| bytes.written),
        read_storage_bytes: bytes.map(|bytes| bytes.read_storage),
        written_storage_bytes: bytes.map(|bytes| bytes.written_storage),
        exit_status: status.code(),
        signal: status.signal(),
        ..Measured::default()
    }
}

fn create(path: &Path) -> Result<File> {
    File::create(path).with_context(|| format!("cannot write {}", path.display()))
}

/// What a program complained of, as the rest of a sentence.
fn said(stderr: &Path) -> String {
    match results::tail(stderr) {
        text if text.is_empty() => String::new(),
        text => format!(": {text}"),
    }
}

/// A policy's name as a part of a file's.
fn file_name(name: &str) -> String {
    let usual = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    name.chars().map(|c| if usual(c) { c } else { '_' }).collect()
}
