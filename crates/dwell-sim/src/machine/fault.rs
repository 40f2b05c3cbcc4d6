// SPDX-License-Identifier: MIT OR Apache-2.0
//! Page faults: which kind one is, how its wait goes step by step, and what is done meanwhile.

use dwell_policy::{Ns, Step, WaitMachine};

use crate::frames::{Owner, flag};
use crate::machine::{Charge, Machine, Next, SimError};
use crate::params::{Prefetched, Recovery};
use crate::policy::{Fault, Plan, Prefetch};
use crate::preexecute::Scene;
use crate::table::Entry;
use crate::timeline::Event;

/// A process that waits for a page.
pub(crate) struct Waiting {
    machine: WaitMachine,
    plan: Plan,
    page: u64,
    /// When the page is there.
    done: Ns,
    /// When a spin would be over.
    deadline: Ns,
    /// Whether the idle time has been used.
    used: bool,
    /// Whether there is nothing to do but to look.
    only_looks: bool,
}

impl Machine {
    /// A process touched a page that it has no translation for.
    pub(crate) fn fault(&mut self, at: usize, page: u64) -> Result<Next, SimError> {
        let table = &mut self.processes[at].table;
        let slot = table.make(page);
        let entry = table.at(slot);
        if entry.has_frame() {
            return self.fault_on_prefetched(at, page, entry.frame());
        }
        if entry.is_none() {
            self.charge(at, Charge::Kernel, self.params.minor_fault_ns);
            self.faults.zero += 1;
            self.note(at, Event::Zero { page });
            self.demand_frame(at, page, flag::DIRTY);
            self.map(at, page);
            return Ok(Next::GoesOn);
        }
        self.charge(at, Charge::Kernel, self.params.kernel_entry_ns);
        if entry.was_here() {
            self.faults.again += 1;
        } else {
            self.faults.first += 1;
        }
        self.processes[at].counts.major_faults += 1;
        let backlog = self.device.backlog(self.now);
        let frame = self.demand_frame(at, page, flag::KEPT);
        self.charge(at, Charge::Kernel, self.params.submit_ns);
        let done = self.device.read(self.now);
        self.frames.set_arrival(frame, done);
        self.wait(at, page, done, backlog)
    }

    /// The page is in DRAM or on its way, thanks to a prefetch.
    fn fault_on_prefetched(&mut self, at: usize, page: u64, frame: u32) -> Result<Next, SimError> {
        let minor = self.params.prefetched == Prefetched::Minor;
        if self.frames.arrives(frame) <= self.now {
            if minor {
                self.charge(at, Charge::Kernel, self.params.minor_fault_ns);
            }
            self.faults.prefetched += 1;
            self.prefetches.used += 1;
            self.note(at, Event::Finds { page });
            self.map(at, page);
            return Ok(Next::GoesOn);
        }
        self.note(at, Event::Late { page });
        self.charge(at, Charge::Kernel, self.params.kernel_entry_ns);
        self.faults.late += 1;
        self.prefetches.late += 1;
        let flags = &mut self.frames.flags[frame as usize];
        *flags = *flags & !flag::AHEAD | flag::KEPT;
        let done = self.frames.arrives(frame);
        let backlog = self.device.backlog(self.now);
        self.wait(at, page, done, backlog)
    }

    /// A frame for a page that is needed now. Where every page must stay, the process waits for the
    /// first that arrives: with two frames more than processes there is one.
    fn demand_frame(&mut self, at: usize, page: u64, flags: u8) -> u32 {
        loop {
            if let Some(frame) = self.take_frame(at, page, flags, Charge::Kernel) {
                return frame;
            }
            let until = self.frames.next_arrival(self.now);
            self.charge(at, Charge::Spin, until - self.now);
        }
    }

    fn take_frame(&mut self, at: usize, page: u64, flags: u8, cost: Charge) -> Option<u32> {
        let table = &mut self.processes[at].table;
        let slot = table.store(page);
        let place = table.at(slot).place();
        let owner = Owner { process: at as u32, slot, page, place };
        let (frame, left) = self.frames.take(owner, self.now, flags, self.now)?;
        self.processes[at].table.put(slot, Entry::in_frame(frame));
        self.levels.forget_page(frame);
        if let Some((owner, flags)) = left {
            let loser = &mut self.processes[owner.process as usize];
            loser.table.put(owner.slot, Entry::stored(owner.place).after_being_here());
            self.prefetches.unused += u64::from(flags & flag::AHEAD != 0);
            if flags & flag::DIRTY != 0 && self.params.write_back {
                self.device.write(self.now);
                self.written_pages += 1;
            }
            self.note(owner.process as usize, Event::Loses { page: owner.page });
            if flags & flag::AHEAD == 0 {
                // The TLB has translations of the running process alone.
                if owner.process as usize == at {
                    self.tlb.forget(owner.page);
                }
                self.charge(at, cost, self.params.tlb_shootdown_ns);
            }
        }
        Some(frame)
    }

    fn map(&mut self, at: usize, page: u64) {
        let process = &mut self.processes[at];
        let slot = process.table.make(page);
        let frame = process.table.at(slot).frame();
        process.table.put(slot, Entry::present(frame));
        let flags = &mut self.frames.flags[frame as usize];
        *flags = *flags & !(flag::AHEAD | flag::KEPT) | flag::USED;
    }

    fn wait(
        &mut self,
        at: usize,
        page: u64,
        done: Ns,
        backlog: dwell_policy::Backlog,
    ) -> Result<Next, SimError> {
        self.scheduler.admit(self.now);
        let next = self.scheduler.next();
        let fault = Fault {
            nice: self.processes[at].nice,
            next_nice: next.map(|next| self.processes[next].nice),
            expected_ns: done.saturating_sub(self.now),
            backlog,
        };
        let plan = self.policy.plan(&fault);
        let stays = !plan.decision.may_leave_cpu();
        if !stays {
            // A self-sacrificing thread (§3.3) is entered as a self-improving one is.
            self.charge(at, Charge::Kernel, plan.entry_ns);
        }
        self.note(at, if stays { Event::Spins { page } } else { Event::Blocks { page } });
        let waiting = Waiting {
            machine: WaitMachine::new(&plan.decision, self.now, self.now),
            plan,
            page,
            done,
            deadline: self.now.saturating_add(plan.decision.spin_limit_ns),
            used: false,
            only_looks: false,
        };
        self.step(at, waiting)
    }

    /// A process that slept got the CPU back.
    pub(crate) fn resume(&mut self, at: usize) -> Result<Next, SimError> {
        match self.processes[at].waiting.take() {
            Some(waiting) => {
                self.charge(at, Charge::Kernel, self.params.interrupt_ns);
                self.step(at, waiting)
            }
            None => Ok(Next::GoesOn),
        }
    }

    /// Steps a wait until it is over or the process blocks. The machine says what to do;
    /// here it only takes virtual time.
    fn step(&mut self, at: usize, mut waiting: Waiting) -> Result<Next, SimError> {
        let mut ready = false;
        loop {
            match waiting.machine.step(self.now, ready) {
                Step::Poll => {
                    // A spin's many looks are one step to the look that ends it.
                    if waiting.only_looks && self.now < waiting.done {
                        let until = waiting.done.min(waiting.deadline.max(self.now + 1));
                        self.charge(at, Charge::Spin, until - self.now);
                    }
                    ready = self.now >= waiting.done;
                }
                Step::Offer { .. } => {
                    if waiting.used
                        || waiting.plan.decision.may_leave_cpu()
                        || !waiting.plan.uses_idle_time()
                    {
                        waiting.machine.declined();
                        waiting.only_looks = true;
                    } else {
                        waiting.used = true;
                        self.steal(at, &waiting)?;
                    }
                }
                Step::Sleep { until } => {
                    self.charge(at, Charge::Spin, until.saturating_sub(self.now));
                }
                Step::Park { .. } => {
                    self.scheduler.sleeps(at, waiting.done);
                    self.processes[at].waiting = Some(waiting);
                    return Ok(Next::Left);
                }
                Step::Done => break,
            }
        }
        let outcome = waiting.machine.outcome();
        self.waits.expired += u64::from(outcome.expired);
        if outcome.parks > 0 {
            self.waits.blocked += 1;
        } else {
            self.waits.spun += 1;
        }
        self.map(at, waiting.page);
        self.note(at, Event::Gets { page: waiting.page });
        Ok(Next::GoesOn)
    }

    /// Uses the idle time of a wait (§3.4): prefetch first, then pre-execution.
    fn steal(&mut self, at: usize, waiting: &Waiting) -> Result<(), SimError> {
        self.charge(at, Charge::Stolen, waiting.plan.entry_ns);
        self.prefetch(at, waiting);
        if !waiting.plan.preexecutes || self.now >= waiting.done {
            return Ok(());
        }
        let noticed = match self.params.recovery {
            Recovery::Timer => {
                let ticks = (waiting.done - self.now).div_ceil(self.params.recovery_timer_ns);
                self.now + ticks * self.params.recovery_timer_ns
            }
            Recovery::Interrupt => waiting.done + self.params.interrupt_ns,
        };
        let before = self.ahead.counts.instructions;
        let process = &mut self.processes[at];
        process.window.forget();
        let mut scene = Scene {
            window: &mut process.window,
            dictionary: &process.dictionary,
            table: &mut process.table,
            tlb: &mut self.tlb,
            frames: &self.frames,
            levels: &mut self.levels,
            params: &self.params,
            at_miss: self.params.preexecute_miss,
        };
        let ran = self.ahead.run(&mut scene, self.now, noticed, process.left);
        let ended = ran.map_err(self.program_error(at))?;
        self.charge(at, Charge::Stolen, ended - self.now + self.params.recovery_restore_ns);
        self.note(at, Event::PreExecuted { instructions: self.ahead.counts.instructions - before });
        Ok(())
    }

    fn prefetch(&mut self, at: usize, waiting: &Waiting) {
        let mut candidates = std::mem::take(&mut self.candidates);
        candidates.clear();
        let table = &self.processes[at].table;
        let looked = match waiting.plan.prefetch {
            Prefetch::Nothing => 0,
            Prefetch::Group { pages } => {
                let first = waiting.page - waiting.page % pages;
                for page in first..first + pages {
                    if let Some(slot) = table.find(page)
                        && table.at(slot).is_stored()
                    {
                        candidates.push((page, slot));
                    }
                }
                pages
            }
            Prefetch::Behind { pages } => {
                table.walk_behind(waiting.page, self.params.prefetch_walk_entries, |page, slot| {
                    candidates.push((page, slot));
                    (candidates.len() as u64) < pages
                })
            }
        };
        self.prefetches.walked += looked;
        self.charge(at, Charge::Stolen, (looked * self.params.walk_entry_ps).div_ceil(1000));
        for &(page, _) in &candidates {
            // Stealing ends with the wait.
            if self.now >= waiting.done {
                break;
            }
            let Some(frame) = self.take_frame(at, page, flag::AHEAD, Charge::Stolen) else {
                self.prefetches.no_frame += 1;
                continue;
            };
            self.charge(at, Charge::Stolen, self.params.submit_ns);
            let arrives = self.device.read(self.now);
            self.frames.set_arrival(frame, arrives);
            self.prefetches.issued += 1;
            self.note(at, Event::Prefetches { page });
        }
        self.candidates = candidates;
    }
}
