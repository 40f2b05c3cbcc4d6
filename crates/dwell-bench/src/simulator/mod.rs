// SPDX-License-Identifier: MIT OR Apache-2.0
//! Simulated batches of paging processes: what is asked, what was found, and what the paper found.

mod content;
pub mod plots;
pub mod report;
pub mod sensitivity;
pub mod sweep;

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use dwell_sim::params::PAGE_BYTES;
use dwell_sim::summary::{Measure, Spread, Summary, summarise};
use dwell_sim::trace::Extent;
use dwell_sim::{Params, Plan, PolicyKind, Progress, Report, SimError};
use serde::{Deserialize, Serialize};

use crate::machine::Machine;
pub use sensitivity::Variation;

/// Version of the JSON of a [`Study`].
pub const SCHEMA: u32 = 1;

/// The simulations to run: batches, policies, seeds, and how much of each batch.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Batches: files, or directories of them.
    pub batches: Vec<PathBuf>,
    /// Policies; all where it is empty.
    pub policies: Vec<PolicyKind>,
    /// How many seeds.
    pub seeds: u64,
    /// Instructions of each trace at most.
    pub limit: u64,
    /// Whether traces that end early will do.
    pub partial: bool,
    /// Parameters, each as `name=value`.
    pub sets: Vec<String>,
    /// Where reports are kept as they are made. Those that are there are not made again, so what
    /// was stopped goes on.
    pub keep: Option<PathBuf>,
}

/// Hears the batch, what is done with it, and the share of everything that is done, 0–1; from
/// several threads.
pub type Tell<'a> = dyn Fn(&str, &str, f64) + Sync + 'a;

/// What was simulated and found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Study {
    /// [`SCHEMA`] of the code that wrote it.
    pub schema: u32,
    /// The command, where there was one.
    pub command: Vec<String>,
    /// Where it was simulated, which changes nothing but the time it took.
    pub machine: Machine,
    /// The batches.
    pub batches: Vec<Simulated>,
    /// What other choices of single parameters change.
    pub sensitivity: Vec<Variation>,
    /// Why it ended early, if it did: the batches here are complete.
    pub ended: Option<String>,
}

/// One batch under its policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Simulated {
    /// Its name.
    pub name: String,
    /// What it is compared in by its number of processes.
    pub series: Option<String>,
    /// Its programs.
    pub programs: Vec<Program>,
    /// DRAM, in bytes.
    pub dram_bytes: u64,
    /// All parameters.
    pub params: Params,
    /// One report per policy and seed.
    pub reports: Vec<Report>,
}

/// A program alone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Program {
    /// Its name.
    pub name: String,
    /// Instructions.
    pub instructions: u64,
    /// All pages that it touches.
    pub footprint_bytes: u64,
    /// The pages that answer nearly all misses.
    pub working_set_bytes: u64,
}

/// What a batch that stopped on request left.
enum Outcome {
    Complete(Box<Simulated>),
    Cancelled,
}

impl Study {
    /// Simulates all batches. Once `cancel` is set, what is complete is kept.
    pub fn simulate(ask: &Ask, tell: &Tell<'_>, cancel: &AtomicBool) -> Result<Study> {
        let mut study = Study {
            schema: SCHEMA,
            command: Vec::new(),
            machine: Machine::gather(),
            batches: Vec::new(),
            sensitivity: Vec::new(),
            ended: None,
        };
        // An error in the last batch is reported before the first one runs.
        let plans = plans(ask)?;
        let all = plans.len().max(1) as f64;
        for (at, (path, plan)) in plans.into_iter().enumerate() {
            let hear = |batch: &str, phase: &str, share: f64| {
                tell(batch, phase, (at as f64 + share.min(1.0)) / all);
            };
            match one(ask, &path, &plan, &hear, cancel)? {
                Outcome::Complete(batch) => study.batches.push(*batch),
                Outcome::Cancelled => {
                    study.ended = Some(format!("interrupted in {}", plan.batch));
                    break;
                }
            }
        }
        Ok(study)
    }

    /// The batches that are compared by policy, not by their number of processes.
    pub fn compared(&self) -> impl Iterator<Item = &Simulated> {
        self.batches.iter().filter(|batch| batch.series.is_none())
    }

    /// The batches of one series after the other, each by rising number of processes.
    pub fn series(&self) -> Vec<(&str, Vec<&Simulated>)> {
        let mut series: Vec<(&str, Vec<&Simulated>)> = Vec::new();
        for batch in &self.batches {
            let Some(name) = batch.series.as_deref() else { continue };
            match series.iter_mut().find(|(known, _)| *known == name) {
                Some((_, batches)) => batches.push(batch),
                None => series.push((name, vec![batch])),
            }
        }
        for (_, batches) in &mut series {
            batches.sort_by_key(|batch| batch.programs.len());
        }
        series
    }

    /// All reports, in order.
    pub fn reports(&self) -> Vec<Report> {
        self.batches.iter().flat_map(|batch| batch.reports.iter().cloned()).collect()
    }
}

impl Simulated {
    /// The policies that ran, in order.
    pub fn policies(&self) -> Vec<PolicyKind> {
        crate::result::in_order(self.reports.iter().map(|report| report.policy))
    }

    /// All measures under all policies.
    pub fn summary(&self) -> Vec<Summary> {
        summarise(&self.reports)
    }

    /// How many times as much a policy has of a measure as ITS, seed by seed: as the paper's
    /// figures are normalised. `None` where either did not run or ITS has nothing of it.
    pub fn against_its(&self, policy: PolicyKind, measure: Measure) -> Option<Spread> {
        self.ratio(policy, PolicyKind::Its, |report| measure.of(report))
    }

    /// The ratio of what two policies have of something, seed by seed.
    pub fn ratio(
        &self,
        policy: PolicyKind,
        base: PolicyKind,
        of: impl Fn(&Report) -> f64,
    ) -> Option<Spread> {
        let by = |policy| self.reports.iter().filter(move |report| report.policy == policy);
        let ratios: Vec<f64> = by(policy)
            .filter_map(|report| {
                let base = of(by(base).find(|base| base.seed == report.seed)?);
                (base > 0.0).then(|| of(report) / base)
            })
            .collect();
        (!ratios.is_empty()).then(|| Spread::of(&ratios))
    }

    /// The mean over seeds of something in the reports of one policy.
    pub fn mean(&self, policy: PolicyKind, of: impl Fn(&Report) -> f64) -> f64 {
        let values: Vec<f64> =
            self.reports.iter().filter(|report| report.policy == policy).map(of).collect();
        Spread::of(&values).mean
    }
}

/// What the paper says ITS saves of a measure against a policy over its four batches, as fractions
/// of that policy's: the least and the most. Where it only says "at least", the most is `None`.
pub fn printed(measure: Measure, policy: PolicyKind) -> Option<(f64, Option<f64>)> {
    use PolicyKind::{Async, Sync, SyncPrefetch, SyncRunahead};
    Some(match (measure, policy) {
        (Measure::IdleNs | Measure::WaitsNs, Async) => (0.61, Some(0.66)),
        (Measure::IdleNs | Measure::WaitsNs, Sync) => (0.17, Some(0.43)),
        (Measure::IdleNs | Measure::WaitsNs, SyncRunahead) => (0.07, Some(0.37)),
        (Measure::IdleNs | Measure::WaitsNs, SyncPrefetch) => (0.10, Some(0.15)),
        (Measure::TopFinishNs, Async) => (0.65, Some(0.75)),
        (Measure::TopFinishNs, Sync) => (0.11, Some(0.33)),
        (Measure::TopFinishNs, SyncRunahead | SyncPrefetch) => (0.14, Some(0.75)),
        (Measure::BottomFinishNs, Async) => (0.34, Some(0.58)),
        (Measure::BottomFinishNs, Sync) => (0.21, Some(0.27)),
        (Measure::BottomFinishNs, SyncRunahead) => (0.13, Some(0.24)),
        (Measure::BottomFinishNs, SyncPrefetch) => (0.11, Some(0.17)),
        (Measure::MajorFaults, Async) => (0.65, None),
        (Measure::MajorFaults, Sync) => (0.61, None),
        _ => return None,
    })
}

/// A saving as the ratio to ITS that it is: 60 % less is 2.5 times as much.
pub fn as_ratio(saving: f64) -> f64 {
    1.0 / (1.0 - saving)
}

/// Files as they are, directories by the batches in them.
fn files(paths: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let cannot = || format!("cannot list {}", path.display());
        let mut inside = Vec::new();
        for entry in std::fs::read_dir(path).with_context(cannot)? {
            inside.push(entry.with_context(cannot)?.path());
        }
        inside.retain(|file| file.extension().is_some_and(|end| end == "toml"));
        ensure!(!inside.is_empty(), "{}: no batch (*.toml) in it", path.display());
        inside.sort();
        files.append(&mut inside);
    }
    Ok(files)
}

fn plans(ask: &Ask) -> Result<Vec<(PathBuf, Plan)>> {
    let with_path = |path: PathBuf| plan(ask, &path).map(|plan| (path, plan));
    files(&ask.batches)?.into_iter().map(with_path).collect()
}

fn plan(ask: &Ask, path: &Path) -> Result<Plan> {
    let extent = Extent { limit: ask.limit, partial: ask.partial };
    let mut plan = Plan::open(path, ask.seeds, extent)?;
    let set = |plan: &mut Plan| {
        ask.sets.iter().try_for_each(|set| plan.params.set(set))?;
        plan.params.check()
    };
    set(&mut plan).with_context(|| path.display().to_string())?;
    if !ask.policies.is_empty() {
        plan.policies.clone_from(&ask.policies);
    } else if plan.series.is_some() {
        // A comparison by the number of processes is one of waits that spin: Sync alone.
        plan.policies = vec![PolicyKind::Sync];
    }
    Ok(plan)
}

fn one(
    ask: &Ask,
    path: &Path,
    plan: &Plan,
    tell: &Tell<'_>,
    cancel: &AtomicBool,
) -> Result<Outcome> {
    let hear = |at: Progress| {
        if at.of_instructions == 0 {
            tell(&plan.batch, "working sets", 0.0);
            return;
        }
        let phase = format!("{} of {} simulations", at.runs, at.of_runs);
        tell(&plan.batch, &phase, at.instructions as f64 / at.of_instructions as f64);
    };
    let ran = match &ask.keep {
        None => dwell_sim::simulate(plan, &hear, cancel),
        Some(root) => {
            let kept = content::KeptRuns::new(root, plan, path, ask.limit)?;
            dwell_sim::resume(plan, &kept, &hear, cancel)
        }
    };
    let runs = match ran {
        Err(SimError::Cancelled) => return Ok(Outcome::Cancelled),
        runs => runs.with_context(|| plan.batch.clone())?,
    };
    let programs = plan.sources.iter().zip(&runs.surveys).map(|(source, survey)| Program {
        name: source.name().into(),
        instructions: survey.instructions,
        footprint_bytes: survey.pages.len() as u64 * PAGE_BYTES,
        working_set_bytes: survey.working_set_pages * PAGE_BYTES,
    });
    Ok(Outcome::Complete(Box::new(Simulated {
        name: plan.batch.clone(),
        series: plan.series.clone(),
        programs: programs.collect(),
        dram_bytes: runs.dram_bytes,
        params: plan.params.clone(),
        reports: runs.reports,
    })))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Two small batches and a series of two, really simulated.
    pub(crate) fn study() -> Study {
        let dir = tempfile::tempdir().unwrap();
        let process = |name: &str, order: &str| {
            format!(
                "[[process]]\nname = \"{name}\"\nloop = {{ order = \"{order}\", bytes = 400000, \
                 visits = 3000, stride_bytes = 512, work = 4 }}\n"
            )
        };
        let set = "set = { llc_bytes = \"64K\", l1_bytes = 0, dram_percent = 60 }\n";
        let write = |name: &str, series: &str, orders: &[&str]| {
            let mut text = format!("name = \"{name}\"\n{series}{set}");
            for (at, order) in orders.iter().enumerate() {
                text += &process(&format!("p{at}"), order);
            }
            std::fs::write(dir.path().join(format!("{name}.toml")), text).unwrap();
        };
        let growth = "series = \"growth\"\n";
        write("a", "", &["sweep", "draw"]);
        write("b", "", &["draw", "chase", "sweep"]);
        write("g2", growth, &["sweep", "draw"]);
        write("g3", growth, &["sweep", "draw", "draw"]);
        let ask = Ask {
            batches: vec![dir.path().into()],
            policies: vec![],
            seeds: 2,
            limit: u64::MAX,
            partial: false,
            sets: vec!["switch_ns=5000".into()],
            keep: Some(dir.path().join("runs")),
        };
        let simulate = || Study::simulate(&ask, &|_, _, _| {}, &AtomicBool::new(false)).unwrap();
        let study = simulate();
        let again = simulate();
        assert_eq!(again.batches, study.batches, "what is kept is what was simulated");
        study
    }

    #[test]
    fn batches_of_a_directory_are_simulated_and_series_stand_apart() {
        let study = study();
        assert!(study.compared().map(|batch| batch.name.as_str()).eq(["a", "b"]));
        let series = study.series();
        assert_eq!(series.len(), 1);
        assert!(series[0].1.iter().map(|batch| batch.programs.len()).eq([2, 3]));
        assert_eq!(study.batches[0].policies(), PolicyKind::ALL);
        assert_eq!(series[0].1[0].policies(), [PolicyKind::Sync]);
        assert!(study.batches.iter().all(|batch| batch.params.switch_ns == 5000));
        let ratio = study.batches[0].against_its(PolicyKind::Its, Measure::IdleNs).unwrap();
        assert_eq!((ratio.mean, ratio.seeds), (1.0, 2));
        let text = serde_json::to_string(&study).unwrap();
        assert_eq!(serde_json::from_str::<Study>(&text).unwrap(), study);
    }

    #[test]
    fn a_cancelled_study_keeps_its_complete_runs() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("b.toml");
        std::fs::write(&file, "name = \"b\"\n[[process]]\nname = \"p\"\nloop = { order = \"draw\", bytes = 400000, visits = 3000 }\n").unwrap();
        let mut ask = Ask {
            batches: vec![file],
            policies: vec![],
            seeds: 1,
            limit: 1,
            partial: false,
            sets: vec![],
            keep: None,
        };
        let stopped = Study::simulate(&ask, &|_, _, _| {}, &AtomicBool::new(true)).unwrap();
        assert!(stopped.batches.is_empty() && stopped.ended.unwrap().contains("in b"));
        let told = |ask: &Ask| {
            let error = Study::simulate(ask, &|_, _, _| {}, &AtomicBool::new(false)).unwrap_err();
            format!("{error:#}")
        };
        ask.sets = vec!["swich_ns=3".into()];
        assert!(told(&ask).contains("b.toml") && told(&ask).contains("swich_ns"));
        ask.batches = vec![dir.path().join("none.toml")];
        assert!(told(&ask).contains("none.toml"));
        let empty = tempfile::tempdir().unwrap();
        ask.batches = vec![empty.path().into()];
        assert!(told(&ask).contains("no batch"));
    }

    #[test]
    fn a_saving_is_a_ratio() {
        assert_eq!(as_ratio(0.6), 2.5);
        assert_eq!(printed(Measure::IdleNs, PolicyKind::Its), None);
        assert_eq!(printed(Measure::IdleNs, PolicyKind::Sync), Some((0.17, Some(0.43))));
    }
}
