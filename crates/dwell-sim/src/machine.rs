// SPDX-License-Identifier: MIT OR Apache-2.0
//! The simulated machine: one CPU, its processes, and the order in which they run.

use std::sync::Arc;

use dwell_policy::Ns;

use crate::cache::{Level, Levels};
use crate::device::Device;
use crate::fault::Waiting;
use crate::frames::{Frames, flag};
use crate::params::{PAGE_BYTES, ParamError, PreMiss};
use crate::policy::{Policy, PolicyKind};
use crate::preexecute::{PreExecute, Scene};
use crate::program::{Dictionary, ProgramError, Source, Window};
use crate::report::{self, Faults, Idle, Prefetches, Report, Time, Waits};
use crate::sched::{Scheduler, slice_ns};
use crate::table::{PageTable, Slot};
use crate::timeline::{Event, Timeline};
use crate::tlb::{self, Tlb};
use crate::{Params, report::Accesses};

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

/// Why a process stopped executing.
enum Stop {
    /// A page is not mapped.
    Unmapped { page: u64 },
    /// Its time slice is over.
    SliceOver,
    /// Time to tell how far it is.
    Pause,
    /// It has no more instructions.
    Ended,
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

/// Virtual time after which a run pauses to tell how far it is.
const PAUSE_NS: Ns = 2_000_000;

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

    /// Executes instructions of a process until it must stop.
    fn execute(&mut self, at: usize) -> Result<Stop, SimError> {
        let params = &self.params;
        let (instruction_ps, dram_ns) = (params.instruction_ps, params.dram_ns);
        let (l2_ns, llc_ns) = (params.l2_hit_ns, params.llc_hit_ns);
        let walk_ps = if params.tlb_entries > 0 { params.tlb_walk_ns * 1000 } else { 0 };
        let line_shift = params.line_bytes.trailing_zeros();
        let frame_shift = 12 - line_shift;
        let at_misses = self.policy.preexecutes_at_misses();
        let by_use = self.frames.orders_by_use();

        let start = self.now;
        let process = &mut self.processes[at];
        let slice_ps = process.slice_left_ns.saturating_mul(1000);
        let budget_ps = slice_ps.min(PAUSE_NS * 1000);
        let (mut ps, mut stall_ps) = (0u64, 0u64);
        let (mut instructions, mut accesses, mut lines_used) = (0u64, Accesses::default(), 0u64);
        let mut left = process.left;
        let stop = 'run: loop {
            while left > 0 {
                let access = process.window.accesses()[process.window.access_at];
                let page = access.page();
                let mut frame = self.tlb.get(page);
                if frame == tlb::NONE {
                    frame = walk(&mut self.tlb, &process.table, page);
                    if frame == tlb::NONE {
                        break 'run Stop::Unmapped { page };
                    }
                    accesses.tlb_misses += 1;
                }
                let (offset, last) = (access.address() as u32 & 4095, access.last());
                let mut last_line = frame << frame_shift | (last as u32 & 4095) >> line_shift;
                let mut second = None;
                if last >> 12 != page {
                    let mut next = self.tlb.get(last >> 12);
                    if next == tlb::NONE {
                        next = walk(&mut self.tlb, &process.table, last >> 12);
                        if next == tlb::NONE {
                            break 'run Stop::Unmapped { page: last >> 12 };
                        }
                        accesses.tlb_misses += 1;
                    }
                    second = Some((next, last_line - (frame << frame_shift)));
                    last_line = frame << frame_shift | 4095 >> line_shift;
                }
                let marks = flag::USED | if access.is_store() { flag::DIRTY } else { 0 };
                self.frames.flags[frame as usize] |= marks;
                if by_use {
                    self.frames.touch(frame);
                }
                let mut line = frame << frame_shift | offset >> line_shift;
                let mut missed = false;
                loop {
                    match self.levels.access(line) {
                        Level::L1 => accesses.l1 += 1,
                        Level::L2 => {
                            accesses.l2 += 1;
                            stall_ps += l2_ns * 1000;
                        }
                        level @ (Level::Llc | Level::LlcAhead) => {
                            accesses.llc += 1;
                            lines_used += u64::from(level == Level::LlcAhead);
                            stall_ps += llc_ns * 1000;
                        }
                        Level::Dram => {
                            accesses.dram += 1;
                            missed = true;
                        }
                    }
                    if line != last_line {
                        line += 1;
                    } else if let Some((next, to)) = second.take() {
                        self.frames.flags[next as usize] |= marks;
                        if by_use {
                            self.frames.touch(next);
                        }
                        line = next << frame_shift;
                        last_line = line + to;
                    } else {
                        break;
                    }
                }
                if missed && at_misses {
                    process.window.forget();
                    let mut scene = Scene {
                        window: &mut process.window,
                        dictionary: &process.dictionary,
                        table: &mut process.table,
                        tlb: &mut self.tlb,
                        frames: &self.frames,
                        levels: &mut self.levels,
                        params: &self.params,
                        at_miss: PreMiss::Invalid,
                    };
                    let now = start
                        + (ps + stall_ps + accesses.tlb_misses * walk_ps) / 1000
                        + dram_ns * accesses.dram;
                    let ran = self.ahead.run(&mut scene, now - dram_ns.min(now), now, left);
                    ran.map_err(|error| SimError::Program { name: process.name.clone(), error })?;
                }
                left -= 1;
                process.window.access_at += 1;
            }
            let spent_ps =
                ps + stall_ps + accesses.dram * dram_ns * 1000 + accesses.tlb_misses * walk_ps;
            if spent_ps >= budget_ps {
                break if spent_ps >= slice_ps { Stop::SliceOver } else { Stop::Pause };
            }
            if process.window.at >= process.window.steps().len() {
                match process.window.advance() {
                    Ok(true) => {}
                    Ok(false) => break Stop::Ended,
                    Err(error) => {
                        return Err(SimError::Program { name: process.name.clone(), error });
                    }
                }
            }
            left = process.window.steps()[process.window.at].accesses();
            process.window.at += 1;
            instructions += 1;
            ps += instruction_ps;
        };
        process.left = left;
        process.counts.instructions += instructions;
        process.counts.llc_misses += accesses.dram;
        let (run_ns, hit_ns, miss_ns) =
            (ps.div_ceil(1000), stall_ps / 1000, accesses.dram * dram_ns);
        let walk_ns = accesses.tlb_misses * walk_ps / 1000;
        let spent_ns = run_ns + hit_ns + miss_ns + walk_ns;
        process.slice_left_ns = process.slice_left_ns.saturating_sub(spent_ns);
        self.now += spent_ns;
        self.time.run_ns += run_ns;
        self.time.cache_hit_ns += hit_ns;
        self.time.cache_miss_ns += miss_ns;
        self.time.tlb_walk_ns += walk_ns;
        self.instructions += instructions;
        self.ahead.counts.lines_used += lines_used;
        self.accesses.l1 += accesses.l1;
        self.accesses.l2 += accesses.l2;
        self.accesses.llc += accesses.llc;
        self.accesses.dram += accesses.dram;
        self.accesses.tlb_misses += accesses.tlb_misses;
        Ok(stop)
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

/// The frame of a mapped page, whose translation the TLB holds from now on; [`tlb::NONE`] for
/// others.
#[cold]
fn walk(tlb: &mut Tlb, table: &PageTable, page: u64) -> u32 {
    let entry = table.of(page);
    if !entry.is_present() {
        return tlb::NONE;
    }
    tlb.keep(page, entry.frame());
    entry.frame()
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
