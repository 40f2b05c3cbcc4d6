// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated machine: one CPU, its processes, and the order in which they run.

mod execute;
mod fault;

use std::sync::Arc;

use dwell_policy::Ns;

use crate::cache::Levels;
use crate::device::Device;
use crate::frames::Frames;
use crate::params::{PAGE_BYTES, ParamError};
use crate::policy::{Policy, PolicyKind};
use crate::preexecute::PreExecute;
use crate::program::{Dictionary, ProgramError, Source, Window};
use crate::report::{self, Faults, Idle, Prefetches, Report, Time, Waits};
use crate::sched::{Scheduler, slice_ns};
use crate::table::{PageTable, Slot};
use crate::timeline::{Event, Timeline};
use crate::tlb::Tlb;
use crate::{Params, report::Accesses};
use execute::Stop;
use fault::Waiting;

/// A process before it runs.
pub struct Task<'a> {
    /// Its program.
    pub source: &'a dyn Source,
    /// Its priority, -20 (highest) to 19.
    pub nice: i8,
    /// The pages that are on the device at the start; what else it touches is nowhere yet.
    pub pages: &'a [u64],
}

/// Why a simulation stopped short.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SimError {
    /// A parameter makes no machine.
    #[error(transparent)]
    Param(#[from] ParamError),
    /// A program could not go on.
    #[error("{name}: {error}")]
    Program {
        /// The program.
        name: String,
        /// Why.
        error: ProgramError,
    },
    /// DRAM cannot hold what the processes wait for.
    #[error(
        "{frames} pages of DRAM for {processes} processes: give at least {needed} (dram_bytes)"
    )]
    TooLittleDram {
        /// Pages there are.
        frames: u64,
        /// Processes there are.
        processes: usize,
        /// Pages there must be.
        needed: u64,
    },
    /// A report could not be kept.
    #[error("{0}")]
    NotKept(String),
    /// The caller asked it to stop.
    #[error("stopped on request")]
    Cancelled,
}

pub(crate) struct Running {
    pub name: String,
    pub nice: i8,
    slice_ns: Ns,
    pub slice_left_ns: Ns,
    pub window: Window,
    pub dictionary: Arc<Dictionary>,
    pub table: PageTable,
    /// Accesses of the present instruction that are still to be made.
    pub left: u32,
    pub waiting: Option<Waiting>,
    pub counts: report::Process,
}

/// What becomes of a process that took a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// It goes on.
    GoesOn,
    /// It blocked.
    Left,
}

/// The parts of [`Time`] that can be charged at once.
#[derive(Clone, Copy)]
pub(crate) enum Charge {
    Kernel,
    Spin,
    Stolen,
}

/// One machine with its processes, from the start of a batch to its end.
pub struct Machine {
    pub(crate) params: Params,
    pub(crate) kind: PolicyKind,
    seed: u64,
    pub(crate) policy: Box<dyn Policy>,
    pub(crate) now: Ns,
    pub(crate) time: Time,
    pub(crate) processes: Vec<Running>,
    pub(crate) scheduler: Scheduler,
    pub(crate) frames: Frames,
    pub(crate) levels: Levels,
    pub(crate) tlb: Tlb,
    pub(crate) device: Device,
    pub(crate) ahead: PreExecute,
    pub(crate) faults: Faults,
    pub(crate) prefetches: Prefetches,
    pub(crate) waits: Waits,
    pub(crate) written_pages: u64,
    pub(crate) candidates: Vec<(u64, Slot)>,
    accesses: Accesses,
    switches: u64,
    instructions: u64,
    timeline: Option<Timeline>,
}

impl Machine {
    /// A machine with `dram_bytes` of DRAM whose processes are all ready, in this order.
    pub fn new(
        params: &Params,
        kind: PolicyKind,
        seed: u64,
        dram_bytes: u64,
        tasks: &[Task<'_>],
    ) -> Result<Self, SimError> {
        params.check()?;
        let frames = dram_bytes / PAGE_BYTES;
        let needed = tasks.len() as u64 + 2;
        if frames < needed {
            return Err(SimError::TooLittleDram { frames, processes: tasks.len(), needed });
        }
        let policy = kind.build(params);
        let (levels, ahead_shape) = Levels::new(params, policy.has_preexecute_cache());
        let ahead = PreExecute::new(params, ahead_shape);
        let processes =
            tasks.iter().map(|task| start(task, params)).collect::<Result<Vec<_>, _>>()?;
        Ok(Machine {
            policy,
            kind,
            seed,
            now: 0,
            time: Time::default(),
            scheduler: Scheduler::new(processes.len(), params.wake_to),
            processes,
            frames: Frames::new(frames.min(1 << 24) as u32, params.replacement),
            levels,
            tlb: Tlb::new(params),
            device: Device::new(params, seed),
            ahead,
            faults: Faults::default(),
            prefetches: Prefetches::default(),
            waits: Waits::default(),
            written_pages: 0,
            candidates: Vec::new(),
            accesses: Accesses::default(),
            switches: 0,
            instructions: 0,
            timeline: None,
            params: params.clone(),
        })
    }

    /// Keeps a record of what happens when.
    pub fn keep_timeline(&mut self) {
        let names = self.processes.iter().map(|process| process.name.clone()).collect();
        self.timeline = Some(Timeline::new(names));
    }

    /// What happened when, where it was kept.
    pub fn timeline(&self) -> Option<&Timeline> {
        self.timeline.as_ref()
    }

    pub(crate) fn note(&mut self, process: usize, event: Event) {
        if let Some(timeline) = &mut self.timeline {
            timeline.note(self.now, process, event);
        }
    }

    /// Runs all processes to their ends. `go_on` is told now and then how many instructions were
    /// executed; where it says `false` the run stops.
    pub fn run(&mut self, go_on: &mut dyn FnMut(u64) -> bool) -> Result<(), SimError> {
        // Whose context the CPU holds; nobody's after it was idle. Whose translations the TLB
        // holds.
        let (mut held, mut translated) = (None, None);
        let mut first = true;
        loop {
            self.scheduler.admit(self.now);
            let Some(process) = self.scheduler.take() else {
                let Some(wake) = self.scheduler.next_wake() else { return Ok(()) };
                self.time.nobody_ready_ns += wake - self.now;
                self.now = wake;
                held = None;
                continue;
            };
            if held != Some(process) && !std::mem::take(&mut first) {
                self.switch();
            }
            held = Some(process);
            if translated.replace(process) != Some(process) {
                self.tlb.flush();
            }
            self.note(process, Event::Runs);
            self.turn(process, go_on)?;
        }
    }

    fn switch(&mut self) {
        self.switches += 1;
        self.now += self.params.switch_ns;
        self.time.switch_ns += self.params.switch_ns;
        // The kernel's data has frames of its own, behind those of the processes.
        let lines_per_page = PAGE_BYTES / self.params.line_bytes;
        let first = self.frames.count() as u64 * lines_per_page;
        for line in first..first + self.params.switch_lines {
            self.levels.access(line as u32);
        }
    }

    /// One turn of a process, until it blocks.
    fn turn(&mut self, at: usize, go_on: &mut dyn FnMut(u64) -> bool) -> Result<(), SimError> {
        if self.resume(at)? == Next::Left {
            return Ok(());
        }
        loop {
            match self.execute(at)? {
                Stop::Unmapped { page } => {
                    if self.fault(at, page)? == Next::Left {
                        return Ok(());
                    }
                }
                Stop::SliceOver => {
                    let process = &mut self.processes[at];
                    process.slice_left_ns = process.slice_ns;
                    self.scheduler.admit(self.now);
                    if self.scheduler.next().is_some() {
                        self.note(at, Event::Yields);
                        self.scheduler.yields(at);
                        return Ok(());
                    }
                }
                Stop::Pause => {
                    if !go_on(self.instructions) {
                        return Err(SimError::Cancelled);
                    }
                }
                Stop::Ended => {
                    self.note(at, Event::Ends);
                    self.processes[at].counts.finish_ns = self.now;
                    self.prefetches.unused += self.frames.release(at as u32);
                    return Ok(());
                }
            }
        }
    }

    pub(crate) fn charge(&mut self, at: usize, what: Charge, ns: Ns) {
        let part = match what {
            Charge::Kernel => &mut self.time.kernel_ns,
            Charge::Spin => &mut self.time.spin_ns,
            Charge::Stolen => &mut self.time.stolen_ns,
        };
        *part += ns;
        self.now += ns;
        let left = &mut self.processes[at].slice_left_ns;
        *left = left.saturating_sub(ns);
    }

    pub(crate) fn program_error(&self, at: usize) -> impl Fn(ProgramError) -> SimError + use<> {
        let name = self.processes[at].name.clone();
        move |error| SimError::Program { name: name.clone(), error }
    }

    /// What the run found; call it when [`Machine::run`] has ended.
    pub fn report(&self, batch: &str) -> Report {
        let idle: Idle = self.time.idle();
        Report {
            batch: batch.into(),
            policy: self.kind,
            seed: self.seed,
            dram_bytes: self.frames.count() as u64 * PAGE_BYTES,
            elapsed_ns: self.now,
            time: self.time,
            idle,
            faults: self.faults,
            accesses: self.accesses,
            prefetches: self.prefetches,
            preexecution: self.ahead.counts,
            waits: self.waits,
            switches: self.switches,
            written_pages: self.written_pages,
            instructions: self.instructions,
            processes: self.processes.iter().map(|process| process.counts.clone()).collect(),
        }
    }
}

fn start(task: &Task<'_>, params: &Params) -> Result<Running, SimError> {
    let name = task.source.name().to_string();
    let program =
        task.source.open().map_err(|error| SimError::Program { name: name.clone(), error })?;
    let mut table = PageTable::default();
    task.pages.iter().for_each(|&page| {
        table.store(page);
    });
    let slice_ns = slice_ns(task.nice, params.slice_scale);
    Ok(Running {
        counts: report::Process {
            name: name.clone(),
            nice: task.nice,
            ..report::Process::default()
        },
        name,
        nice: task.nice,
        slice_ns,
        slice_left_ns: slice_ns,
        window: Window::new(program),
        dictionary: task.source.dictionary(),
        table,
        left: 0,
        waiting: None,
    })
}
