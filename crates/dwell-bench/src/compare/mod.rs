// SPDX-License-Identifier: MIT OR Apache-2.0
//! A command untouched and under wait policies, in interleaved rounds: what each took, and whether
//! that can be told apart.

mod outcome;
mod plots;
mod race;
mod report;
mod results;
mod table;
mod tree;
mod verdict;
mod words;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};

pub use outcome::{
    CONTROL, Comparison, Measured, Metric, Ratio, Results, SCHEMA, UNTOUCHED, Variant,
};
pub use report::{html, save_report};
pub use table::table;
pub use verdict::{Finding, Verdict};

use crate::machine::Machine;
use race::{Differing, Race, Ran};

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
/// A plan that cannot be run; what ended it before any round was complete, which is
/// [`crate::keep::Interrupted`] where it was told to stop.
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
