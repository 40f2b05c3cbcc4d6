// SPDX-License-Identifier: MIT OR Apache-2.0
//! Fault-aware pre-execution: instructions behind the one that waits, their INV bits, and the way
//! back (§3.4.2, §3.4.3).

use dwell_policy::Ns;

use crate::ahead::{Piece, PreCache, StoreBuffer, pieces};
use crate::cache::{Level, Levels, Line};
use crate::frames::Frames;
use crate::isa::Regs;
use crate::params::{InvalidBranch, Params, PreMiss, PteInv};
use crate::program::{Access, Dictionary, Executed, ProgramError, Window};
use crate::report::PreExecution;
use crate::table::{PageTable, Slot};
use crate::tlb::{self, Tlb};

/// What pre-execution sees of the machine and of its process.
pub(crate) struct Scene<'a> {
    pub window: &'a mut Window,
    pub dictionary: &'a Dictionary,
    pub table: &'a mut PageTable,
    pub tlb: &'a mut Tlb,
    pub frames: &'a Frames,
    pub levels: &'a mut Levels,
    pub params: &'a Params,
    /// What a load does whose line comes from DRAM.
    pub at_miss: PreMiss,
}

/// What a self-improving thread must put back: where the process stands, and the registers' INV
/// bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Checkpoint {
    at: usize,
    access_at: usize,
    inv: Regs,
}

/// Where the data of an access is.
enum Place {
    /// Not in DRAM.
    Storage,
    /// In DRAM, in this line.
    Dram(Line),
}

/// A line on its way from DRAM: when it is there, and the registers that wait for it.
#[derive(Clone, Copy)]
struct Coming {
    line: Line,
    there: Ns,
    regs: Regs,
}

/// The hardware that pre-execution adds to a core.
pub(crate) struct PreExecute {
    /// The register file's INV bits.
    inv: Regs,
    shadow: Option<Checkpoint>,
    buffer: StoreBuffer,
    cache: PreCache,
    /// Entries whose INV bit this pre-execution set.
    marked: Vec<Slot>,
    /// Lines on their way from DRAM.
    coming: Vec<Coming>,
    most_coming: usize,
    /// All registers that wait.
    awaited: Regs,
    line_shift: u32,
    lines_per_page_shift: u32,
    /// When this pre-execution began, and what it has taken since.
    began: Ns,
    elapsed_ps: u64,
    /// Of that, stalls, in nanoseconds.
    stalled_ns: Ns,
    pub counts: PreExecution,
}

impl PreExecute {
    /// With a pre-execute cache of so many sets and ways.
    pub fn new(params: &Params, (sets, ways): (usize, usize)) -> Self {
        let line_shift = params.line_bytes.trailing_zeros();
        PreExecute {
            inv: 0,
            shadow: None,
            buffer: StoreBuffer::new(params.store_buffer_entries as usize),
            cache: PreCache::new(sets, ways),
            marked: Vec::new(),
            coming: Vec::new(),
            most_coming: params.preexecute_misses as usize,
            awaited: 0,
            line_shift,
            lines_per_page_shift: 12 - line_shift,
            began: 0,
            elapsed_ps: 0,
            stalled_ns: 0,
            counts: PreExecution::default(),
        }
    }

    /// Pre-executes from `now` to `until` behind the step whose access number `access_at` waits,
    /// `left` accesses of it being undone; then puts everything back. When it ended: `until`, or
    /// earlier where there was nothing more to execute.
    pub fn run(
        &mut self,
        scene: &mut Scene<'_>,
        now: Ns,
        until: Ns,
        left: u32,
    ) -> Result<Ns, ProgramError> {
        let checkpoint =
            Checkpoint { at: scene.window.at, access_at: scene.window.access_at, inv: self.inv };
        self.shadow = Some(checkpoint);
        self.counts.episodes += 1;
        self.counts.offered_ns += until.saturating_sub(now);
        (self.began, self.elapsed_ps, self.stalled_ns) = (now, 0, 0);
        self.fail(scene, left);
        let ended = self.go(scene, until);
        self.recover(scene);
        if let Ok(ended) = ended {
            self.counts.filled_ns += ended.saturating_sub(now);
            self.counts.stalled_ns += self.stalled_ns.min(ended.saturating_sub(now));
        }
        ended
    }

    /// The waiting instruction has no result: what it writes is invalid.
    fn fail(&mut self, scene: &mut Scene<'_>, left: u32) {
        let Some(step) = scene.window.at.checked_sub(1).map(|at| scene.window.steps()[at]) else {
            return;
        };
        self.inv |= scene.dictionary.get(step.instr()).writes;
        let from = scene.window.access_at;
        for at in from..from + left as usize {
            let access = scene.window.accesses()[at];
            if access.is_store() {
                self.store(scene, access, true);
            }
        }
        scene.window.access_at += left as usize;
    }

    fn go(&mut self, scene: &mut Scene<'_>, until: Ns) -> Result<Ns, ProgramError> {
        let budget_ps = until.saturating_sub(self.began).saturating_mul(1000);
        let mut executed = 0u64;
        while self.elapsed_ps < budget_ps {
            if scene.window.at >= scene.window.steps().len()
                && !scene.window.reach(scene.window.at)?
            {
                break;
            }
            let step = scene.window.steps()[scene.window.at];
            let access_at = scene.window.access_at;
            scene.window.at += 1;
            scene.window.access_at += step.accesses() as usize;
            executed += 1;
            let goes_on = self.execute(scene, step, access_at);
            self.elapsed_ps += scene.params.instruction_ps;
            if !goes_on {
                break;
            }
        }
        self.counts.instructions += executed;
        Ok(until.min(self.began + self.elapsed_ps.div_ceil(1000)))
    }

    fn now(&self) -> Ns {
        self.began + self.elapsed_ps / 1000
    }

    fn stall(&mut self, ns: Ns) {
        self.stalled_ns += ns;
        self.elapsed_ps += ns * 1000;
    }

    /// Waits for the lines whose values `reads` needs, and forgets what `writes` no longer needs.
    #[cold]
    fn settle(&mut self, reads: Regs, writes: Regs) {
        let needed = self.coming.iter().filter(|coming| coming.regs & reads != 0);
        let until = needed.map(|coming| coming.there).max().unwrap_or(0);
        self.stall(until.saturating_sub(self.now()));
        self.arrived();
        self.coming.iter_mut().for_each(|coming| coming.regs &= !writes);
        self.awaited = self.coming.iter().fold(0, |all, coming| all | coming.regs);
    }

    /// Forgets lines that are there.
    fn arrived(&mut self) {
        let now = self.now();
        self.coming.retain(|coming| coming.there > now);
    }

    /// A line is asked for, and `regs` wait for it. Where as many are on their way as can be, the
    /// first of them is waited for.
    fn ask(&mut self, line: Line, dram_ns: Ns, regs: Regs) {
        self.arrived();
        if self.coming.len() >= self.most_coming {
            let first = self.coming.iter().map(|coming| coming.there).min().unwrap_or(0);
            self.stall(first.saturating_sub(self.now()));
            self.arrived();
        }
        self.coming.push(Coming { line, there: self.now() + dram_ns, regs });
        self.awaited |= regs;
    }

    /// A line that was found in the cache may still be on its way: `regs` wait for it then.
    fn joins(&mut self, line: Line, regs: Regs) {
        if let Some(coming) = self.coming.iter_mut().find(|coming| coming.line == line) {
            coming.regs |= regs;
            self.awaited |= regs;
        }
    }

    /// One instruction. One that takes anything from an invalid register is invalid itself: it is
    /// passed over, and what it writes becomes invalid. `false` when pre-execution must end.
    #[inline]
    fn execute(&mut self, scene: &mut Scene<'_>, step: Executed, access_at: usize) -> bool {
        let instr = scene.dictionary.get(step.instr());
        let reads = instr.reads | instr.load_address;
        if (reads | instr.store_address | instr.writes) & self.awaited != 0 {
            self.settle(reads | instr.store_address, instr.writes);
        }
        let mut invalid = reads & self.inv != 0;
        for at in access_at..access_at + step.accesses() as usize {
            let access = scene.window.accesses()[at];
            if access.is_store() {
                // Where a store with an invalid address goes, nobody knows.
                if instr.store_address & self.inv == 0 {
                    self.store(scene, access, invalid);
                } else {
                    invalid = true;
                }
            } else if !invalid {
                invalid = !self.load(scene, access, instr.writes);
            }
        }
        self.inv = if invalid { self.inv | instr.writes } else { self.inv & !instr.writes };
        if invalid {
            self.counts.invalid += 1;
            if instr.branches {
                self.counts.invalid_branches += 1;
                return scene.params.invalid_branch == InvalidBranch::Follow;
            }
        }
        true
    }

    fn place(&mut self, scene: &mut Scene<'_>, piece: Piece) -> Place {
        let page = piece.line >> self.lines_per_page_shift;
        let mut frame = scene.tlb.get(page);
        if frame == tlb::NONE {
            if scene.params.tlb_entries > 0 {
                self.stall(scene.params.tlb_walk_ns);
            }
            let entry = scene.table.of(page);
            if !entry.has_frame() || scene.frames.arrives(entry.frame()) > self.now() {
                return Place::Storage;
            }
            frame = entry.frame();
            if entry.is_present() {
                scene.tlb.keep(page, frame);
            }
        }
        let in_page = piece.line as u32 & ((1 << self.lines_per_page_shift) - 1);
        Place::Dram(frame << self.lines_per_page_shift | in_page)
    }

    fn mark(&mut self, scene: &mut Scene<'_>, piece: Piece) {
        if let Some(slot) = scene.table.find(piece.line >> self.lines_per_page_shift) {
            let entry = scene.table.at(slot);
            if !entry.is_inv() {
                scene.table.put(slot, entry.with_inv(true));
                self.marked.push(slot);
            }
        }
    }

    /// Brings a line to the last-level cache. Whether it came from DRAM.
    fn bring(&mut self, scene: &mut Scene<'_>, line: Line) -> bool {
        let missed = !scene.levels.llc.access_ahead(line);
        self.counts.lines += u64::from(missed);
        missed
    }

    /// A store (Figure 3a). It never changes the caches' data or memory.
    fn store(&mut self, scene: &mut Scene<'_>, access: Access, invalid: bool) {
        for piece in pieces(access, self.line_shift) {
            match self.place(scene, piece) {
                Place::Storage => {
                    self.cache.write(piece, true);
                    self.mark(scene, piece);
                }
                Place::Dram(line) => {
                    if let Some((retired, inv)) = self.buffer.push(piece, invalid) {
                        self.cache.write(retired, inv);
                    }
                    if scene.levels.find(line) == Level::Dram {
                        self.bring(scene, line);
                    }
                    if invalid {
                        self.mark(scene, piece);
                    }
                }
            }
        }
    }

    /// A load (Figure 3b) of an instruction that writes `writes`. Whether it is valid.
    fn load(&mut self, scene: &mut Scene<'_>, access: Access, writes: Regs) -> bool {
        let mut valid = true;
        for piece in pieces(access, self.line_shift) {
            valid &= self.load_piece(scene, piece, writes);
        }
        valid
    }

    fn load_piece(&mut self, scene: &mut Scene<'_>, piece: Piece, writes: Regs) -> bool {
        let Place::Dram(line) = self.place(scene, piece) else { return false };
        let young = self.buffer.look(piece);
        let mut known = young.known;
        let mut inv = young.inv;
        if known != piece.bytes {
            let old = self.cache.look(Piece { bytes: piece.bytes & !known, ..piece });
            known |= old.known;
            inv |= old.inv;
        }
        if inv != 0 {
            return false;
        }
        if known == piece.bytes {
            return true;
        }
        let level = scene.levels.find(line);
        if level != Level::Dram && scene.table.of(piece.line >> self.lines_per_page_shift).is_inv()
        {
            return false;
        }
        match level {
            Level::L1 => true,
            Level::L2 => {
                self.stall(scene.params.l2_hit_ns);
                true
            }
            Level::Llc | Level::LlcAhead => {
                scene.levels.llc.access_ahead(line);
                self.stall(scene.params.llc_hit_ns);
                self.joins(line, writes);
                true
            }
            Level::Dram => {
                self.bring(scene, line);
                let dram_ns = scene.params.dram_ns;
                match scene.at_miss {
                    PreMiss::Wait => self.stall(dram_ns),
                    PreMiss::Overlap => self.ask(line, dram_ns, writes),
                    PreMiss::Invalid => self.ask(line, dram_ns, 0),
                }
                scene.at_miss != PreMiss::Invalid
            }
        }
    }

    /// Puts the process back to where it was (§3.4.3).
    fn recover(&mut self, scene: &mut Scene<'_>) {
        if let Some(checkpoint) = self.shadow.take() {
            scene.window.at = checkpoint.at;
            scene.window.access_at = checkpoint.access_at;
            self.inv = checkpoint.inv;
        }
        self.buffer.clear();
        self.cache.clear();
        self.coming.clear();
        self.awaited = 0;
        let marked = std::mem::take(&mut self.marked);
        if scene.params.pte_inv == PteInv::Clear {
            for &slot in &marked {
                let entry = scene.table.at(slot);
                scene.table.put(slot, entry.with_inv(false));
            }
        }
        self.marked = marked;
        self.marked.clear();
    }
}

#[cfg(test)]
#[path = "preexecute_tests.rs"]
mod tests;
