// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether anything else ran while something was measured.
//!
//! The root control group accounts all CPU time of the machine to the nanosecond, that of processes
//! that began and ended meanwhile too. Without the bench's own, that of its children and that of
//! kernel threads, which work for the bench where nobody else does, the rest is what others used.
//! A hypervisor that gave a CPU to another guest says so in ticks, so short windows tell nothing.

use std::fs;
use std::time::Duration;

use dwell::clock;

use crate::usage::children_cpu_ns;

/// A window in which others used more than this share of all CPUs is measured again.
pub const LIMIT: f64 = 0.03;

/// Stolen time comes in ticks of 10 ms: a shorter window says nothing.
pub const SHORTEST: Duration = Duration::from_secs(1);

/// The sum of all groups: version 2, version 2 beside 1, version 1.
const V2: [&str; 2] = ["/sys/fs/cgroup/cpu.stat", "/sys/fs/cgroup/unified/cpu.stat"];
const V1: &str = "/sys/fs/cgroup/cpuacct/cpuacct.usage";

/// CPU time so far, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    at: u64,
    all: u64,
    ours: u64,
    kernel: u64,
    stolen: u64,
}

/// A window that has begun.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    began: Used,
    cpus: usize,
}

/// What a window showed, as shares of all CPUs, 0–1.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Noise {
    /// Used by other processes.
    pub others: f64,
    /// Taken by the hypervisor.
    pub stolen: f64,
}

impl Noise {
    /// Whether what was measured meanwhile counts.
    pub fn is_quiet(self) -> bool {
        self.others + self.stolen <= LIMIT
    }
}

impl std::fmt::Display for Noise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let percent = |share: f64| share * 100.0;
        write!(f, "others {:.1} %, stolen {:.1} %", percent(self.others), percent(self.stolen))
    }
}

impl Window {
    /// Begins; `None` where the kernel does not account CPU time to the root control group.
    pub fn begin() -> Option<Self> {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Some(Window { began: Used::now()?, cpus })
    }

    /// What there was until now.
    pub fn noise(&self) -> Noise {
        Used::now().map_or(Noise::default(), |now| now.since(&self.began, self.cpus))
    }
}

impl Used {
    fn now() -> Option<Self> {
        let all = V2.iter().find_map(|path| usage(&fs::read_to_string(path).ok()?)).or_else(v1)?;
        let kernel_threads = children_of("2");
        let kernel = kernel_threads.iter().filter_map(|&id| clock::cpu_of_process(id)).sum();
        let mut ours = clock::process_cpu() + children_cpu_ns();
        let mut families = vec![std::process::id() as i32];
        while let Some(id) = families.pop() {
            for child in children_of(&id.to_string()) {
                ours += clock::cpu_of_process(child).unwrap_or(0);
                families.push(child);
            }
        }
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        Some(Used { at: clock::now(), all, ours, kernel, stolen: stolen(&stat) })
    }

    fn since(self, earlier: &Used, cpus: usize) -> Noise {
        let had = (self.at.saturating_sub(earlier.at) * cpus as u64).max(1);
        let part = |now: u64, before: u64| now.saturating_sub(before);
        let known = part(self.ours, earlier.ours) + part(self.kernel, earlier.kernel);
        let others = part(self.all, earlier.all).saturating_sub(known);
        let share = |ns: u64| ns as f64 / had as f64;
        Noise { others: share(others), stolen: share(part(self.stolen, earlier.stolen)) }
    }
}

fn v1() -> Option<u64> {
    fs::read_to_string(V1).ok()?.trim().parse().ok()
}

/// From the text of a `cpu.stat`.
fn usage(text: &str) -> Option<u64> {
    let microseconds = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    Some(microseconds.trim().parse::<u64>().ok()? * 1000)
}

/// From the text of /proc/stat: the eighth figure of its first line, in ticks of 10 ms.
fn stolen(text: &str) -> u64 {
    let mut fields = text.lines().next().unwrap_or("").split_whitespace();
    fields.nth(8).and_then(|ticks| ticks.parse::<u64>().ok()).unwrap_or(0) * 10_000_000
}

/// Children of all threads of a process.
fn children_of(id: &str) -> Vec<i32> {
    let Ok(threads) = fs::read_dir(format!("/proc/{id}/task")) else { return vec![] };
    let lists = threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    let ids = |list: String| -> Vec<i32> {
        list.split_whitespace().filter_map(|id| id.parse().ok()).collect()
    };
    lists.flat_map(ids).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_neither_ours_nor_the_kernels_is_others() {
        let before = Used { at: 0, all: 500, ours: 100, kernel: 50, stolen: 0 };
        let now = Used { at: 1000, all: 1600, ours: 900, kernel: 150, stolen: 20 };
        let noise = now.since(&before, 2);
        assert_eq!(noise, Noise { others: 0.1, stolen: 0.01 });
        assert!(!noise.is_quiet());
        assert_eq!(noise.to_string(), "others 10.0 %, stolen 1.0 %");
        let alone = Used { at: 1000, all: 1400, ours: 950, kernel: 100, stolen: 0 };
        assert!(alone.since(&before, 2).is_quiet());
    }

    #[test]
    fn the_kernels_texts_are_read() {
        assert_eq!(usage("usage_usec 12\nuser_usec 3\n"), Some(12_000));
        assert_eq!(usage("nothing"), None);
        assert_eq!(stolen("cpu  1 2 3 4 5 6 7 8 9\ncpu0 1\n"), 80_000_000);
        assert_eq!(stolen("cpu 1"), 0);
    }

    #[test]
    fn our_own_work_is_no_noise_and_that_of_children_neither() {
        let Some(before) = Used::now() else {
            println!("SKIP: the kernel does not account CPU time to the root control group");
            return;
        };
        let mut child =
            std::process::Command::new("sh").args(["-c", "while :; do :; done"]).spawn().unwrap();
        let until = clock::process_cpu() + 50_000_000;
        while clock::process_cpu() < until {}
        let worked = |used: &Used| used.ours - before.ours >= 80_000_000;
        let now = std::iter::repeat_with(|| Used::now().unwrap()).find(worked).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        // The kernel tells the time of those that ended in microseconds.
        let ended = Used::now().unwrap().ours;
        assert!(ended + 1_000_000 >= now.ours, "the time of one that ended is lost");
        assert!(now.all - before.all >= 50_000_000, "{now:?} {before:?}");
    }
}
