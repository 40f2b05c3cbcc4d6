// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command untouched and under wait policies, in interleaved rounds: what each took, and whether
//! that can be told apart.

mod outcome;
mod plots;
mod report;
mod results;
mod table;
mod tree;
mod verdict;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail, ensure};
use dwell::clock;

pub use outcome::{
    CONTROL, Comparison, Finding, Measured, Metric, Ratio, Results, SCHEMA, UNTOUCHED, Variant,
};
pub use report::{html, save_report};
pub use table::table;
pub use verdict::Verdict;

use crate::keep::Interrupted;
use crate::machine::Machine;
use crate::stats::SplitMix;

/// What to compare.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The command, word by word.
    pub program: Vec<OsString>,
    /// Policies under which it is run; names of their variants.
    pub policies: Vec<String>,
    /// Runs the command as it is a second time in each round, as a variant that no policy touched.
    pub control: bool,
    /// What puts the command under a policy.
    pub wrapper: Wrapper,
    /// Interleaved rounds.
    pub rounds: usize,
    /// Rounds before them that are not kept.
    pub warmup: usize,
    /// Run before each run, untimed, so that each finds the same.
    pub setup: Option<Vec<OsString>>,
    /// Run after each run, untimed; what it prints are the run's results. Without it they are what
    /// the command itself prints.
    pub check: Option<Vec<OsString>>,
    /// Set for all of them, beside what this process has.
    pub environment: Vec<(OsString, OsString)>,
    /// Goes on after runs that fail.
    pub ignore_failure: bool,
    /// Directory for what runs print; made if need be. Left there is what failed or differed.
    pub directory: PathBuf,
    /// Reads a rate from what the command prints, where it tells one.
    pub told: Option<fn(&str) -> Option<f64>>,
    /// Setting it ends the comparison; complete rounds are kept.
    pub stop: Arc<AtomicBool>,
}

impl Plan {
    /// Ten rounds of a command after one that is not kept.
    pub fn new(program: Vec<OsString>, policies: &[&str], wrapper: Wrapper) -> Self {
        Plan {
            program,
            policies: policies.iter().map(|name| name.to_string()).collect(),
            control: false,
            wrapper,
            rounds: 10,
            warmup: 1,
            setup: None,
            check: None,
            environment: Vec::new(),
            ignore_failure: false,
            directory: PathBuf::from("."),
            told: None,
            stop: Arc::default(),
        }
    }

    /// Runs of the command that it takes.
    pub fn runs(&self) -> u64 {
        (self.names().count() * (self.rounds + self.warmup)) as u64
    }

    /// The variants.
    fn names(&self) -> impl Iterator<Item = &str> {
        let untouched = [UNTOUCHED, CONTROL].into_iter().take(1 + usize::from(self.control));
        untouched.chain(self.policies.iter().map(String::as_str))
    }

    /// The command line of a variant: the program alone, or behind the wrapper.
    fn words(&self, name: &str, stats: &Path) -> Vec<OsString> {
        match outcome::is_untouched(name) {
            true => self.program.clone(),
            false => self.wrapper.wrap(name, stats, &self.program),
        }
    }

    fn check(&self) -> Result<()> {
        ensure!(!self.program.is_empty(), "there is no command: write it after --");
        ensure!(self.rounds > 0, "no round measures nothing: 1 or more is wanted");
        ensure!(!self.policies.is_empty(), "no policy leaves nothing to compare with");
        for (i, policy) in self.policies.iter().enumerate() {
            ensure!(!outcome::is_untouched(policy), "{policy} is the command as it is, no policy");
            ensure!(!self.policies[..i].contains(policy), "{policy} is named twice");
        }
        Ok(())
    }
}

/// The words before a command that put it under a policy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrapper(Vec<OsString>);

impl Wrapper {
    /// Stands for the policy's name among the words.
    pub const POLICY: &str = "{policy}";
    /// Stands for the file that the wrapper writes its counts to, as JSON.
    pub const STATS: &str = "{stats}";

    /// Any words.
    pub fn new(words: impl IntoIterator<Item = impl Into<OsString>>) -> Self {
        Wrapper(words.into_iter().map(Into::into).collect())
    }

    /// `PROGRAM run --policy {policy} --quiet --stats {stats} --`, by a `dwell` program.
    pub fn dwell_run(program: &Path) -> Self {
        let words = ["run", "--policy", Self::POLICY, "--quiet", "--stats", Self::STATS, "--"];
        Self::new([program.as_os_str()].into_iter().chain(words.map(OsStr::new)))
    }

    /// Whether it is told where to write counts.
    fn counts(&self) -> bool {
        self.0.iter().any(|word| word.to_str().is_some_and(|word| word.contains(Self::STATS)))
    }

    fn wrap(&self, policy: &str, stats: &Path, program: &[OsString]) -> Vec<OsString> {
        let fill = |word: &OsString| match (word.to_str(), stats.to_str()) {
            (Some(word), Some(stats)) => {
                word.replace(Self::POLICY, policy).replace(Self::STATS, stats).into()
            }
            (Some(Self::STATS), None) => stats.as_os_str().to_owned(),
            _ => word.clone(),
        };
        self.0.iter().map(fill).chain(program.iter().cloned()).collect()
    }
}

/// Compares; `progress` hears before each run what is being run. What ends it early, a run that
/// fails or [`Plan::stop`], is told in [`Comparison::ended`], and the complete rounds are kept.
///
/// # Errors
/// A plan that cannot be run; what ended it before any round was complete, which is [`Interrupted`]
/// where it was told to stop.
pub fn run(
    plan: &Plan,
    command: Vec<String>,
    progress: &mut dyn FnMut(&str),
) -> Result<Comparison> {
    plan.check()?;
    let runs = plan.directory.join("runs");
    fs::create_dir_all(&runs)
        .with_context(|| format!("cannot make the directory {}", runs.display()))?;
    let mut race = Race {
        plan,
        variants: plan.names().map(|name| variant(plan, name)).collect(),
        differing: Vec::new(),
        notes: Vec::new(),
        runs,
    };
    let outcome = race.run(progress);
    let Race { variants, mut differing, mut notes, runs, .. } = race;
    let words = |words: &Option<Vec<OsString>>| words.as_deref().map(texts).unwrap_or_default();
    let mut comparison = Comparison {
        schema: SCHEMA,
        machine: Machine::gather(),
        command,
        program: texts(&plan.program),
        setup: words(&plan.setup),
        check: words(&plan.check),
        warmup: plan.warmup,
        variants,
        ratios: Vec::new(),
        ended: None,
        notes: Vec::new(),
    };
    comparison.conclude();
    if comparison.untouched().is_some_and(|base| base.results == Results::Unstable) {
        notes.push(
            "results of the untouched command vary from round to round, so those of the others \
             tell nothing: a check that prints what must be the same would (--check)"
                .into(),
        );
        for Differing { files, .. } in differing.drain(..) {
            // A file that cannot be removed misleads nobody.
            files.iter().for_each(|file| drop(fs::remove_file(file)));
        }
    }
    let told = |differing: Differing| {
        let Differing { variant, round, how, files } = differing;
        let [ours, base] = files.map(|file| file.display().to_string());
        format!("RESULTS DIFFER under {variant}, round {round}: {how}; see {ours} and {base}")
    };
    notes.extend(differing.into_iter().map(told));
    notes.extend(comparison.variants.iter().filter_map(failures));
    notes.extend(comparison.unrest());
    comparison.notes = notes;
    // It stays where something was left in it.
    let _ = fs::remove_dir(&runs);
    if let Err(why) = outcome {
        if comparison.variants.iter().all(|variant| variant.rounds.is_empty()) {
            return Err(why);
        }
        comparison.ended = Some(format!("{why:#}").replace('\n', " "));
    }
    Ok(comparison)
}

fn variant(plan: &Plan, name: &str) -> Variant {
    Variant {
        name: name.into(),
        words: texts(&plan.words(name, Path::new(Wrapper::STATS))),
        rounds: Vec::new(),
        finding: None,
        results: Results::Same,
    }
}

/// What to know of a variant whose runs failed and were kept all the same.
fn failures(variant: &Variant) -> Option<String> {
    let failed: Vec<&Measured> = variant.rounds.iter().filter(|run| !run.succeeded()).collect();
    let first = failed.first()?.ending();
    let (count, all) = (failed.len(), variant.rounds.len());
    Some(format!("{}: {count} of {all} runs failed, the first with {first}", variant.name))
}

fn texts(words: &[OsString]) -> Vec<String> {
    words.iter().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// Results that are not those of the untouched command, with the files that show it.
struct Differing {
    variant: String,
    round: usize,
    how: String,
    files: [PathBuf; 2],
}

/// Single runs of a plan's command.
pub struct Runs<'p> {
    race: Race<'p>,
    /// Results by the variant's name, each once.
    results: BTreeMap<String, BTreeSet<Vec<u8>>>,
}

impl<'p> Runs<'p> {
    /// Makes the directory for what runs print.
    ///
    /// # Errors
    /// A plan that cannot be run.
    pub fn new(plan: &'p Plan) -> Result<Self> {
        plan.check()?;
        let runs = plan.directory.join("runs");
        fs::create_dir_all(&runs)
            .with_context(|| format!("cannot make the directory {}", runs.display()))?;
        let race = Race { plan, variants: vec![], differing: vec![], notes: vec![], runs };
        Ok(Runs { race, results: BTreeMap::new() })
    }

    /// One run of the variant of this name.
    ///
    /// # Errors
    /// A run that fails.
    pub fn one(&mut self, name: &str) -> Result<Measured> {
        let Ran { measured, results } = self.race.one(name, 0, 1)?;
        let text = fs::read(&results).with_context(|| results.display().to_string())?;
        self.results.entry(name.to_owned()).or_default().insert(text);
        // It is overwritten by the next run where it stays.
        let _ = fs::remove_file(results);
        Ok(measured)
    }
}

impl Runs<'_> {
    /// What to know of the results of a variant, beside those of [`UNTOUCHED`].
    pub fn differing(&self, name: &str) -> Option<&'static str> {
        let of = |name: &str| self.results.get(name);
        let (untouched, ours) = (of(UNTOUCHED)?, of(name)?);
        match untouched.len() {
            1 if ours == untouched => None,
            1 => Some("RESULTS DIFFER"),
            _ => Some("results vary by themselves"),
        }
    }
}

struct Race<'p> {
    plan: &'p Plan,
    variants: Vec<Variant>,
    /// The first of each variant.
    differing: Vec<Differing>,
    notes: Vec<String>,
    runs: PathBuf,
}

/// One run with the file that holds its results.
struct Ran {
    measured: Measured,
    results: PathBuf,
}

impl Race<'_> {
    fn run(&mut self, progress: &mut dyn FnMut(&str)) -> Result<()> {
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
    fn one(&mut self, name: &str, round: usize, place: usize) -> Result<Ran> {
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
