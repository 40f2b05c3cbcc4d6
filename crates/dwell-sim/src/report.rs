// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a simulation found: where the time went, faults, misses, finish times.

use dwell_policy::Ns;
use serde::{Deserialize, Serialize};

/// Where every nanosecond of the CPU went; the parts add up to the elapsed time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Time {
    /// Executing instructions.
    pub run_ns: Ns,
    /// Waiting for the second or the last level of the caches.
    pub cache_hit_ns: Ns,
    /// Waiting for DRAM because the last level missed.
    pub cache_miss_ns: Ns,
    /// Walking page tables because the TLB missed.
    pub tlb_walk_ns: Ns,
    /// In the kernel: faults, submissions, interrupts.
    pub kernel_ns: Ns,
    /// Busy-waiting for the device with nothing else to do.
    pub spin_ns: Ns,
    /// Waiting for the device and using the time: prefetch, pre-execution, state recovery.
    pub stolen_ns: Ns,
    /// Nobody was ready: all waited for the device.
    pub nobody_ready_ns: Ns,
    /// Switching between processes.
    pub switch_ns: Ns,
}

impl Time {
    /// The sum of the parts.
    pub const fn total_ns(&self) -> Ns {
        self.run_ns
            + self.cache_hit_ns
            + self.cache_miss_ns
            + self.tlb_walk_ns
            + self.kernel_ns
            + self.spin_ns
            + self.stolen_ns
            + self.nobody_ready_ns
            + self.switch_ns
    }

    /// The time in which no process made progress because of memory or storage (§4.2.1), by cause.
    pub const fn idle(&self) -> Idle {
        Idle {
            cache_miss_ns: self.cache_miss_ns,
            fault_wait_ns: self.spin_ns + self.stolen_ns + self.nobody_ready_ns,
            switch_ns: self.switch_ns,
        }
    }
}

/// Idle time by cause.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Idle {
    /// Misses of the last-level cache.
    pub cache_miss_ns: Ns,
    /// Page faults: spinning, stolen time, and nobody being ready.
    pub fault_wait_ns: Ns,
    /// Context switches. Whether the paper counts them is open.
    pub switch_ns: Ns,
}

impl Idle {
    /// All of it, switches included.
    pub const fn total_ns(&self) -> Ns {
        self.waits_ns() + self.switch_ns
    }

    /// Waits for memory and storage alone.
    pub const fn waits_ns(&self) -> Ns {
        self.cache_miss_ns + self.fault_wait_ns
    }
}

/// Page faults by cause; each fault is counted once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// Major: the page was never in DRAM.
    pub first: u64,
    /// Major: the page had been in DRAM and was replaced.
    pub again: u64,
    /// The page was on its way, by prefetch; the process waits for the rest.
    pub late: u64,
    /// Minor: the page had arrived by prefetch.
    pub prefetched: u64,
    /// Minor: a page of zeroes.
    pub zero: u64,
}

impl Faults {
    /// Faults that ask the device for a page.
    pub const fn major(&self) -> u64 {
        self.first + self.again
    }
}

/// Accesses by the level that answered; lines, so that an access over a boundary counts twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accesses {
    /// The first level.
    pub l1: u64,
    /// The second level.
    pub l2: u64,
    /// The last level.
    pub llc: u64,
    /// DRAM: misses of the last level.
    pub dram: u64,
    /// Accesses whose translation was not in the TLB, whatever level answered.
    pub tlb_misses: u64,
}

/// Prefetched pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Prefetches {
    /// Asked for.
    pub issued: u64,
    /// Used after they arrived.
    pub used: u64,
    /// Used before they arrived.
    pub late: u64,
    /// Replaced, or left at the end of their process, without use.
    pub unused: u64,
    /// Not asked for because no page could leave.
    pub no_frame: u64,
    /// Entries of page tables looked at.
    pub walked: u64,
}

impl Prefetches {
    /// Part of the prefetched pages that were used, 0–1; 0 when there were none.
    pub fn accuracy(&self) -> f64 {
        fraction(self.used + self.late, self.issued)
    }
}

/// Pre-execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PreExecution {
    /// How many times it began.
    pub episodes: u64,
    /// Instructions, invalid ones included.
    pub instructions: u64,
    /// Invalid instructions.
    pub invalid: u64,
    /// Invalid branches.
    pub invalid_branches: u64,
    /// What was left of the waits when it began, in nanoseconds.
    pub offered_ns: Ns,
    /// How much of that it filled.
    pub filled_ns: Ns,
    /// Of what it filled, stalls for caches, DRAM and page-table walks.
    pub stalled_ns: Ns,
    /// Lines brought from DRAM.
    pub lines: u64,
    /// Of those, lines that the process used.
    pub lines_used: u64,
}

impl PreExecution {
    /// Part of the lines that were used, 0–1; 0 when there were none.
    pub fn accuracy(&self) -> f64 {
        fraction(self.lines_used, self.lines)
    }
}

/// How the waits for the device ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Waits {
    /// The process spun.
    pub spun: u64,
    /// The process blocked.
    pub blocked: u64,
    /// Spun past the deadline and blocked then.
    pub expired: u64,
}

/// One process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Process {
    /// Its name.
    pub name: String,
    /// Its nice value: -20 is the highest priority.
    pub nice: i8,
    /// When it ended.
    pub finish_ns: Ns,
    /// Instructions.
    pub instructions: u64,
    /// Major faults.
    pub major_faults: u64,
    /// Misses of the last-level cache.
    pub llc_misses: u64,
}

/// One simulation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The batch.
    pub batch: String,
    /// The policy.
    pub policy: crate::PolicyKind,
    /// The seed.
    pub seed: u64,
    /// DRAM, in bytes.
    pub dram_bytes: u64,
    /// When the last process ended.
    pub elapsed_ns: Ns,
    /// Where the CPU's time went.
    pub time: Time,
    /// Idle time by cause.
    pub idle: Idle,
    /// Page faults.
    pub faults: Faults,
    /// Accesses by level.
    pub accesses: Accesses,
    /// Prefetched pages.
    pub prefetches: Prefetches,
    /// Pre-execution.
    pub preexecution: PreExecution,
    /// Waits for the device.
    pub waits: Waits,
    /// Context switches.
    pub switches: u64,
    /// Pages written to the device.
    pub written_pages: u64,
    /// Instructions of all processes.
    pub instructions: u64,
    /// The processes, in the order of the batch.
    pub processes: Vec<Process>,
}

impl Report {
    /// Mean finish time of the half of the processes with the higher priorities, in nanoseconds;
    /// with an odd number the middle one counts here (Figure 5a).
    pub fn top_half_finish_ns(&self) -> f64 {
        self.mean_finish_ns(|rank, count| rank < count.div_ceil(2))
    }

    /// Mean finish time of the other half, in nanoseconds (Figure 5b).
    pub fn bottom_half_finish_ns(&self) -> f64 {
        self.mean_finish_ns(|rank, count| rank >= count.div_ceil(2))
    }

    fn mean_finish_ns(&self, counts: impl Fn(usize, usize) -> bool) -> f64 {
        let mut ranked: Vec<_> = self.processes.iter().collect();
        ranked.sort_by_key(|process| process.nice);
        let ranked: Vec<_> = ranked
            .iter()
            .enumerate()
            .filter(|(rank, _)| counts(*rank, self.processes.len()))
            .collect();
        let sum: f64 = ranked.iter().map(|(_, process)| process.finish_ns as f64).sum();
        if ranked.is_empty() { 0.0 } else { sum / ranked.len() as f64 }
    }
}

fn fraction(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
