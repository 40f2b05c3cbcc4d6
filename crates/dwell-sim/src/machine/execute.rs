// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process executes instructions until it must stop.

use dwell_policy::Ns;

use super::{Machine, SimError};
use crate::cache::Level;
use crate::frames::flag;
use crate::params::PreMiss;
use crate::preexecute::Scene;
use crate::report::Accesses;
use crate::table::PageTable;
use crate::tlb::{self, Tlb};

/// Why a process stopped executing.
pub(super) enum Stop {
    /// A page is not mapped.
    Unmapped { page: u64 },
    /// Its time slice is over.
    SliceOver,
    /// Time to tell how far it is.
    Pause,
    /// It has no more instructions.
    Ended,
}

/// Virtual time after which a run pauses to tell how far it is.
const PAUSE_NS: Ns = 2_000_000;

impl Machine {
    /// Executes instructions of a process until it must stop.
    pub(super) fn execute(&mut self, at: usize) -> Result<Stop, SimError> {
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
