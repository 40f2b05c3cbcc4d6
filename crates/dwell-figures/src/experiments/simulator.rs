// SPDX-License-Identifier: MIT OR Apache-2.0
//! P2: how fast the simulator is on one core, and what it keeps in memory.

use std::time::Instant;

use anyhow::{Context, Result};
use dwell_sim::params::PAGE_BYTES;
use dwell_sim::synthetic::{Loop, Order};
use dwell_sim::trace::Extent;
use dwell_sim::{Held, Machine, Params, Plan, PolicyKind, Source, Survey, Task, survey};

use super::lab::skip;
use super::{Lab, Progress, its};
use crate::figure::{FigureResult, Measured};
use dwell_bench::stats::Summary;

const HELD: &str = "cache only, references in memory";
const TRACED: &str = "cache only, one level";
const FULL: &str = "full timing under ITS, recorded traces";
const MEMORY: &str = "memory at 4 times the length of the trace ÷ at once";

/// P2.
pub(super) fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    progress("memory", 0.0);
    memory(lab, result)?;
    let traces = match its::traces(lab, progress) {
        Ok(traces) => traces,
        Err(why) => return skip(result, &[HELD, TRACED, FULL], &why).map(|()| None),
    };
    let limit = (60e6 * lab.effort.min(1.0)) as u64;
    let (mut held, mut traced, mut together) = (Vec::new(), Vec::new(), Vec::new());
    let rounds = lab.times(5);
    for round in 0..rounds {
        progress("simulating", 0.1 + 0.9 * round as f64 / rounds as f64);
        let plan =
            Plan::open(&traces.join("2_Data_Intensive.toml"), 1, Extent { limit, partial: false })?;
        // One level, as in the simulator of caches that it is compared with.
        let flat = Params { l1_bytes: 0, l2_bytes: 0, ..plan.params.clone() };
        let (mut from_memory, mut from_trace) = (Speed::default(), Speed::default());
        for source in &plan.sources {
            from_trace.add(&**source, &flat)?;
            from_memory.add(&Held::of(&**source)?, &flat)?;
        }
        held.push(from_memory.millions());
        traced.push(from_trace.millions());
        together.push(full(&plan)?);
    }
    for (case, values) in [(HELD, &held), (TRACED, &traced), (FULL, &together)] {
        if let Some(summary) = Summary::of(values.iter().copied()) {
            result.measured(case, Measured::from(summary))?;
        }
    }
    result.note(HELD, "the recorded programs, decoded into memory before")?;
    result.note(TRACED, "the same, unpacked and decoded on the way")?;
    Ok(None)
}

/// References a second, over the programs of a batch.
#[derive(Default)]
struct Speed {
    references: u64,
    seconds: f64,
}

impl Speed {
    /// Executes a program over the caches alone.
    fn add(&mut self, source: &dyn Source, params: &Params) -> Result<()> {
        let began = Instant::now();
        let accesses = surveyed(source, params)?.accesses;
        self.seconds += began.elapsed().as_secs_f64();
        self.references += accesses.llc + accesses.dram;
        Ok(())
    }

    fn millions(&self) -> f64 {
        self.references as f64 / self.seconds.max(1e-9) / 1e6
    }
}

fn surveyed(source: &dyn Source, params: &Params) -> Result<Survey> {
    let surveyed = survey(source, params, &mut |_| true)?;
    surveyed.with_context(|| format!("{}: stopped", source.name()))
}

/// Millions of instructions per second of a batch under ITS.
fn full(plan: &Plan) -> Result<f64> {
    let surveys: Vec<Survey> = plan
        .sources
        .iter()
        .map(|source| surveyed(&**source, &plan.params))
        .collect::<Result<_>>()?;
    let nice = [-20, -12, -4, 4, 12, 19];
    let tasks: Vec<Task<'_>> = plan
        .sources
        .iter()
        .zip(&surveys)
        .zip(nice)
        .map(|((source, survey), nice)| Task { source: &**source, nice, pages: &survey.pages })
        .collect();
    let pages: u64 = surveys.iter().map(|survey| survey.working_set_pages).sum();
    let dram_bytes = pages.max(8) * PAGE_BYTES;
    let began = Instant::now();
    let mut machine = Machine::new(&plan.params, PolicyKind::Its, 1, dram_bytes, &tasks)?;
    machine.run(&mut |_| true)?;
    let seconds = began.elapsed().as_secs_f64();
    Ok(machine.report(&plan.batch).instructions as f64 / seconds / 1e6)
}

/// The most memory that a run of the same loop takes, four times as long, against once.
fn memory(lab: &Lab, result: &mut FigureResult) -> Result<()> {
    let visits = (2e6 * lab.effort.min(1.0)).max(1000.0) as u64;
    let run = |times: u64| -> Result<Option<u64>> {
        let program =
            Loop { work: 4, ..Loop::new(Order::Draw, 64 << 20, visits * times) }.named("loop");
        // From here on the kernel keeps the highest value anew.
        if std::fs::write("/proc/self/clear_refs", "5").is_err() {
            return Ok(None);
        }
        let params = Params::default();
        let survey = surveyed(&program, &params)?;
        let tasks = [Task { source: &program, nice: 0, pages: &survey.pages }];
        let mut machine = Machine::new(&params, PolicyKind::Its, 1, 32 << 20, &tasks)?;
        machine.run(&mut |_| true)?;
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        Ok(line.and_then(|line| line.split_whitespace().next()?.parse().ok()))
    };
    // Once before, so that both find what is made once in a process.
    run(1)?;
    match (run(1)?, run(4)?) {
        (Some(once), Some(longer)) if once > 0 => {
            result.measured(MEMORY, Measured::exact(longer as f64 / once as f64))
        }
        _ => result.note(MEMORY, "the kernel does not say how much memory was used"),
    }
}
