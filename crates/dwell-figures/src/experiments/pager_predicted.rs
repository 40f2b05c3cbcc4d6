// SPDX-License-Identifier: MIT OR Apache-2.0
//! V4: what the simulator predicts for a batch of processes, beside what the pager measures for the
//! same batch.

use std::sync::Arc;

use anyhow::{Context, Result};
use dwell_sim::isa::{Instr, reg};
use dwell_sim::{
    Access, Dictionary, Machine, Params, PolicyKind, Program, ProgramError, Source, Tape,
};
use dwell_sim::{Report, Task};

use super::lab::{skip, skip_all};
use super::pager_batch::{Files, Member, NICE, Taken, VISITING};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::fixture::Directory;
use dwell_bench::pager::{Method, PAGE_BYTES, Pages, Visits, regions, together};
use dwell_bench::stand::Kind;
use dwell_bench::stats::Paired;

/// Policies as the pager has them, ITS first. Nothing executes ahead of a real process.
const MODES: [(PolicyKind, &str, &str); 4] = [
    (PolicyKind::Its, "ITS", "region"),
    (PolicyKind::Sync, "Sync", "region-spin"),
    (PolicyKind::Async, "Async", "region-block"),
    (PolicyKind::SyncPrefetch, "Sync_Prefetch", "region-spin-ahead"),
];
/// A fault that the process handles in its own signal handler, without the device.
const FAULT_NS: u64 = 5_000;

/// V4.
pub(super) fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    if let Err(why) = regions() {
        return skip_all(result, &why).map(|()| None);
    }
    let device = match lab.subject(Kind::Emulated)? {
        Ok(device) => device,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let directory = match Directory::new(&lab.directory) {
        Ok(directory) => directory,
        Err(why) => return skip_all(result, &why.to_string()).map(|()| None),
    };
    let bytes = Files::make(lab, directory.path()).context("making the files")?;
    let files = Files { directory: directory.path(), profile: device.profile.clone(), bytes };
    progress("simulating", 0.0);
    let predicted = predicted(&files, lab.switches.self_ns)?;
    let rounds = lab.times(9);
    let mut measured: [Vec<Taken>; MODES.len()] = Default::default();
    for round in 0..rounds {
        for turn in 0..MODES.len() {
            let mode = (turn + round) % MODES.len();
            let step = (round * MODES.len() + turn) as f64;
            progress(MODES[mode].1, 0.1 + 0.9 * step / (rounds * MODES.len()) as f64);
            let method = Method::of(MODES[mode].2)?;
            let tasks = VISITING.iter().zip(NICE).enumerate().map(|(seed, (member, nice))| {
                files.task(*member, &method, nice, (round * 6 + seed) as u64)
            });
            let tasks = tasks.collect::<Result<Vec<_>>>()?;
            let told = together(&tasks, &lab.hidden).with_context(|| MODES[mode].1.to_string())?;
            measured[mode].push(Taken::of(&told));
        }
    }
    type Of = fn(&Taken) -> f64;
    let parts: [(&str, Of); 3] = [
        ("high-priority finish", |taken| taken.high_ns),
        ("low-priority finish", |taken| taken.low_ns),
        ("idle time", |taken| taken.idle_ns),
    ];
    for (other, (_, name, _)) in MODES.iter().enumerate().skip(1) {
        for (what, of) in parts {
            let case = format!("{what} of ITS ÷ {name}");
            let foretold = of(&predicted[0]) / of(&predicted[other]);
            let found = measured[0].iter().zip(&measured[other]);
            if !foretold.is_finite() || foretold <= 0.0 {
                skip(result, &[case], "the simulator predicts no such time")?;
                continue;
            }
            // Predicted ÷ measured, round by round.
            let pairs = found.map(|(its, other)| (foretold * of(other), of(its)));
            match Paired::of(pairs) {
                Some(ratio) => {
                    let note =
                        format!("{foretold:.2} predicted, {:.2} measured", foretold / ratio.median);
                    result.measured(&case, ratio)?;
                    result.note(&case, &note)?;
                }
                None => skip(result, &[case], "a side took no time in any round")?,
            }
        }
    }
    Ok(None)
}

/// The batch in the simulator under each mode, with the pager's costs.
fn predicted(files: &Files<'_>, switch_ns: u64) -> Result<Vec<Taken>> {
    let pages = files.bytes[1] / PAGE_BYTES as u64;
    let params = Params {
        // Turns of arithmetic take a nanosecond.
        instruction_ps: 1000,
        kernel_entry_ns: FAULT_NS,
        minor_fault_ns: FAULT_NS,
        switch_ns,
        its_entry_ns: 0,
        its_preexecute: false,
        write_back: false,
        ..Params::default()
    };
    let programs = VISITING.iter().enumerate().map(|(seed, member)| -> Result<Visiting> {
        let visits = member.visits(pages).context("the batch only visits pages")?;
        Ok(Visiting { name: member.name, visits, pages: pages as usize, seed: seed as u64 })
    });
    let programs = programs.collect::<Result<Vec<_>>>()?;
    let touched: Vec<u64> = (0..pages).map(|page| FIRST_PAGE + page).collect();
    let tasks: Vec<Task<'_>> = programs
        .iter()
        .zip(NICE)
        .map(|(program, nice)| Task { source: program, nice: nice as i8, pages: &touched })
        .collect();
    // What one process has in memory, the simulator's share among themselves.
    let limits = VISITING.iter().map(|_| files.bytes[1] / super::pager_batch::OVER);
    let dram_bytes = limits.sum::<u64>().max(16 * PAGE_BYTES as u64);
    let runs = MODES.map(|(kind, ..)| -> Result<Taken> {
        let mut machine = Machine::new(&params, kind, 1, dram_bytes, &tasks)?;
        machine.run(&mut |_| true)?;
        Ok(taken(&machine.report("V4")))
    });
    runs.into_iter().collect()
}

/// The same measures of a simulation.
fn taken(report: &Report) -> Taken {
    let time = report.time;
    Taken {
        high_ns: report.top_half_finish_ns(),
        low_ns: report.bottom_half_finish_ns(),
        idle_ns: (time.spin_ns + time.nobody_ready_ns) as f64,
    }
}

/// Where a simulated process has its file.
const FIRST_PAGE: u64 = 1 << 20;

/// A member of the batch as a program of the simulator: it reads each line of a page, and computes.
struct Visiting {
    name: &'static str,
    visits: Visits,
    pages: usize,
    seed: u64,
}

const LOAD: u32 = 0;
const TURN: u32 = 1;

impl Source for Visiting {
    fn name(&self) -> &str {
        self.name
    }

    fn dictionary(&self) -> Arc<Dictionary> {
        Arc::new(Dictionary::new(vec![
            Instr::load(reg::RAX, reg::RBX),
            Instr::compute(reg::RDX, reg::RDX),
        ]))
    }

    fn open(&self) -> Result<Box<dyn Program>, ProgramError> {
        let order = Pages::new(self.visits.order, self.pages, self.seed);
        Ok(Box::new(Turns { order, left: self.visits.visits, turns: self.visits.turns }))
    }
}

struct Turns {
    order: Pages,
    left: u64,
    turns: u32,
}

impl Program for Turns {
    fn fill(&mut self, tape: &mut Tape) -> Result<(), ProgramError> {
        if self.left == 0 {
            return Ok(());
        }
        self.left -= 1;
        let page = FIRST_PAGE + self.order.draw() as u64;
        for line in 0..64 {
            tape.push(LOAD, &[Access::load((page << 12) + line * 64, 8)]);
        }
        (0..self.turns).for_each(|_| tape.push(TURN, &[]));
        Ok(())
    }
}

impl Member {
    /// Its visits to a file of so many pages; `None` for a walk over a graph.
    fn visits(&self, pages: u64) -> Option<Visits> {
        self.visiting().map(|of| Visits { visits: of.visits * pages / 1000, ..of })
    }
}
