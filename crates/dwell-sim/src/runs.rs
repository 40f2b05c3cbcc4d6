// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many simulations of one batch: every policy with every seed, on all cores.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rayon::prelude::*;

use crate::batch::{Batch, BatchError};
use crate::machine::{Machine, SimError, Task};
use crate::params::PAGE_BYTES;
use crate::program::Source;
use crate::sched::assign;
use crate::survey::{Survey, survey};
use crate::trace::{Extent, Recorded};
use crate::{Params, PolicyKind, Report};

/// The simulations of one batch: its programs under each policy and seed.
pub struct Plan {
    /// The batch's name.
    pub batch: String,
    /// What it is compared in by its number of processes.
    pub series: Option<String>,
    /// Its programs.
    pub sources: Vec<Arc<dyn Source>>,
    /// Their nice values, where they are given.
    pub nice: Vec<Option<i8>>,
    /// The parameters.
    pub params: Params,
    /// The policies.
    pub policies: Vec<PolicyKind>,
    /// The seeds: each draws its own priorities.
    pub seeds: Vec<u64>,
}

impl Plan {
    /// A batch under all policies with seeds 1 to `seeds`.
    pub fn of(
        batch: &Batch,
        sources: Vec<Arc<dyn Source>>,
        seeds: u64,
    ) -> Result<Plan, BatchError> {
        Ok(Plan {
            batch: batch.name.clone(),
            series: batch.series.clone(),
            sources,
            nice: batch.processes.iter().map(|process| process.nice).collect(),
            params: batch.params()?,
            policies: PolicyKind::ALL.to_vec(),
            seeds: (1..=seeds).collect(),
        })
    }

    /// The batch in a file, its traces found beside it, so much of each executed.
    pub fn open(path: &Path, seeds: u64, extent: Extent) -> Result<Plan, BatchError> {
        let failed = |why: String| BatchError::File { path: path.display().to_string(), why };
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let beside = path.parent().unwrap_or(Path::new(""));
        let mut open = |name: &str, trace: &Path| {
            Recorded::open(name, &beside.join(trace), extent)
                .map(|trace| Arc::new(trace) as Arc<dyn Source>)
        };
        let plan = Batch::parse(&text)
            .and_then(|batch| Plan::of(&batch, batch.sources(&mut open)?, seeds));
        plan.map_err(|error| failed(error.to_string()))
    }
}

/// Reports of simulations that were made before, so that many of them can go on where they stopped.
pub trait Kept: Sync {
    /// The report of a simulation of this very plan, if it was made before.
    fn find(&self, policy: PolicyKind, seed: u64) -> Option<Report>;

    /// Keeps a report.
    ///
    /// # Errors
    /// Why it could not be kept.
    fn keep(&self, report: &Report) -> Result<(), String>;
}

/// Keeps nothing.
struct Nothing;

impl Kept for Nothing {
    fn find(&self, _: PolicyKind, _: u64) -> Option<Report> {
        None
    }

    fn keep(&self, _: &Report) -> Result<(), String> {
        Ok(())
    }
}

/// How far the simulations are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Instructions executed so far, those of surveys included.
    pub instructions: u64,
    /// Instructions to be executed; 0 until the surveys are done.
    pub of_instructions: u64,
    /// Simulations that ended.
    pub runs: u64,
    /// Simulations to be done.
    pub of_runs: u64,
}

/// What the simulations found.
#[derive(Clone, Debug, PartialEq)]
pub struct Runs {
    /// The survey of each program run alone.
    pub surveys: Vec<Survey>,
    /// DRAM, in bytes.
    pub dram_bytes: u64,
    /// One report per policy and seed: policies in the plan's order, seeds within.
    pub reports: Vec<Report>,
}

struct Count<'a> {
    instructions: AtomicU64,
    runs: AtomicU64,
    of_instructions: AtomicU64,
    of_runs: u64,
    tell: &'a (dyn Fn(Progress) + Sync),
    cancel: &'a AtomicBool,
}

impl Count<'_> {
    /// A listener of one run: adds what is new, tells it, answers whether to go on.
    fn listener(&self) -> impl FnMut(u64) -> bool {
        let mut last = 0;
        move |instructions| {
            self.instructions.fetch_add(instructions - last, Ordering::Relaxed);
            last = instructions;
            self.tell();
            !self.cancel.load(Ordering::Relaxed)
        }
    }

    fn tell(&self) {
        (self.tell)(Progress {
            instructions: self.instructions.load(Ordering::Relaxed),
            of_instructions: self.of_instructions.load(Ordering::Relaxed),
            runs: self.runs.load(Ordering::Relaxed),
            of_runs: self.of_runs,
        });
    }
}

/// Runs every policy with every seed, as many at a time as there are cores. `tell` hears from
/// several threads how far it is; once `cancel` is set all of it stops soon. Reports depend on the
/// plan alone, not on the number of cores.
pub fn simulate(
    plan: &Plan,
    tell: &(dyn Fn(Progress) + Sync),
    cancel: &AtomicBool,
) -> Result<Runs, SimError> {
    resume(plan, &Nothing, tell, cancel)
}

/// As [`simulate`], without the simulations whose reports are kept; the others' are kept now.
pub fn resume(
    plan: &Plan,
    kept: &dyn Kept,
    tell: &(dyn Fn(Progress) + Sync),
    cancel: &AtomicBool,
) -> Result<Runs, SimError> {
    plan.params.check()?;
    let count = Count {
        instructions: AtomicU64::new(0),
        runs: AtomicU64::new(0),
        of_instructions: AtomicU64::new(0),
        of_runs: (plan.policies.len() * plan.seeds.len()) as u64,
        tell,
        cancel,
    };
    let begin = || match cancel.load(Ordering::Relaxed) {
        true => Err(SimError::Cancelled),
        false => Ok(()),
    };
    let surveys = plan.sources.par_iter().map(|source| {
        begin()?;
        let surveyed = survey(&**source, &plan.params, &mut count.listener());
        let failed = |error| SimError::Program { name: source.name().into(), error };
        surveyed.map_err(failed)?.ok_or(SimError::Cancelled)
    });
    let surveys = surveys.collect::<Result<Vec<_>, _>>()?;
    let per_run: u64 = surveys.iter().map(|survey| survey.instructions).sum();
    count.instructions.store(per_run, Ordering::Relaxed);
    count.of_instructions.store(per_run * (count.of_runs + 1), Ordering::Relaxed);
    let dram_bytes = dram_bytes(&plan.params, &surveys);
    let on_device: Vec<Vec<u64>> =
        surveys.iter().map(|survey| survey.on_device(&plan.params)).collect();

    let pairs: Vec<_> = plan
        .policies
        .iter()
        .flat_map(|&kind| plan.seeds.iter().map(move |&seed| (kind, seed)))
        .collect();
    let reports = pairs.par_iter().map(|&(kind, seed)| {
        begin()?;
        let report = match kept.find(kind, seed) {
            Some(report) => {
                count.listener()(per_run);
                report
            }
            None => {
                let mut listener = count.listener();
                let report = one(plan, kind, seed, dram_bytes, &on_device, &mut listener)?;
                // A run pauses now and then only: what is left is told here.
                listener(report.instructions);
                kept.keep(&report).map_err(SimError::NotKept)?;
                report
            }
        };
        count.runs.fetch_add(1, Ordering::Relaxed);
        count.tell();
        Ok::<_, SimError>(report)
    });
    let reports = reports.collect::<Result<Vec<_>, _>>()?;
    Ok(Runs { surveys, dram_bytes, reports })
}

/// DRAM sized to the working sets of all processes together (§4.1), with room for what each waits
/// for; or as the parameters say.
fn dram_bytes(params: &Params, surveys: &[Survey]) -> u64 {
    if params.dram_bytes > 0 {
        return params.dram_bytes;
    }
    let pages: u64 = surveys.iter().map(|survey| survey.working_set_pages).sum();
    let wanted = u128::from(pages) * u128::from(params.dram_percent) / 100;
    (wanted.min(1 << 24) as u64).max(surveys.len() as u64 + 2) * PAGE_BYTES
}

fn one(
    plan: &Plan,
    kind: PolicyKind,
    seed: u64,
    dram_bytes: u64,
    on_device: &[Vec<u64>],
    go_on: &mut dyn FnMut(u64) -> bool,
) -> Result<Report, SimError> {
    let mut given = plan.nice.clone();
    given.resize(plan.sources.len(), None);
    let nice = assign(&given, plan.params.priorities, seed);
    let tasks: Vec<_> = plan
        .sources
        .iter()
        .zip(on_device)
        .zip(nice)
        .map(|((source, pages), nice)| Task { source: &**source, nice, pages })
        .collect();
    let mut machine = Machine::new(&plan.params, kind, seed, dram_bytes, &tasks)?;
    machine.run(go_on)?;
    Ok(machine.report(&plan.batch))
}
