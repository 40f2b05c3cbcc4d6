// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether anything else ran while something was measured.
//!
//! The root control group accounts all CPU time of the machine, that of processes that began and
//! ended meanwhile too. Without the bench's own, that of its children, and that of kernel threads
//! and interrupts, which work for the bench where nobody else does, the rest is what others used.
//! In a container there is no root group to be seen, and so nothing to be said.
//! A hypervisor that gave a CPU to another guest says so in ticks, so short windows tell nothing.

use std::fs;
use std::path::Path;
use std::time::Duration;

use dwell::clock;

use crate::usage::children_cpu_ns;

/// A window in which others used more than this share of all CPUs is measured again.
pub const LIMIT: f64 = 0.03;

/// Stolen time comes in ticks of 10 ms: a shorter window says nothing.
pub const SHORTEST: Duration = Duration::from_secs(1);

/// The group of all groups. Version 1 counts what tasks had, to the nanosecond; version 2, alone or
/// beside 1, sums up the ticks of /proc/stat, those of interrupts among them.
const V1: &str = "sys/fs/cgroup/cpuacct";
const V2: [&str; 2] = ["sys/fs/cgroup", "sys/fs/cgroup/unified"];

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
    /// Begins; `None` where the CPU time of the whole machine cannot be seen.
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
        let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
        let all = all(Path::new("/"), &stat)?;
        let kernel_threads = children_of("2");
        let kernel = kernel_threads.iter().filter_map(|&id| clock::cpu_of_process(id)).sum();
        let mut ours = clock::process_cpu() + children_cpu_ns();
        let mut families = vec![std::process::id() as i32];
        while let Some(id) = families.pop() {
            for child in children_of(&id.to_string()) {
                ours += clock::cpu_of_process(child).unwrap_or(0) + ended_children_ns(child);
                families.push(child);
            }
        }
        Some(Used { at: clock::now(), all, ours, kernel, stolen: ticks(&stat, 7) })
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

/// What all tasks of the machine had; `None` where they cannot all be seen.
fn all(root: &Path, stat: &str) -> Option<u64> {
    let read = |path: &str| fs::read_to_string(root.join(path)).ok();
    let exists = |path: &str| root.join(path).exists();
    // In a container it is somebody else.
    if read("proc/2/comm")?.trim() != "kthreadd" {
        return None;
    }
    // Each of the two files tells a root group from others.
    if exists(&format!("{V1}/release_agent")) {
        return read(&format!("{V1}/cpuacct.usage"))?.trim().parse().ok();
    }
    let mut roots = V2.into_iter().filter(|group| !exists(&format!("{group}/cgroup.type")));
    let used = roots.find_map(|group| usage(&read(&format!("{group}/cpu.stat"))?))?;
    Some(used.saturating_sub(ticks(stat, 5) + ticks(stat, 6)))
}

/// From the text of a `cpu.stat`.
fn usage(text: &str) -> Option<u64> {
    let microseconds = text.lines().find_map(|line| line.strip_prefix("usage_usec "))?;
    Some(microseconds.trim().parse::<u64>().ok()? * 1000)
}

/// A figure of the first line of /proc/stat, counted from 0, which is in ticks of 10 ms.
fn ticks(text: &str, figure: usize) -> u64 {
    let mut fields = text.lines().next().unwrap_or("").split_whitespace().skip(1);
    fields.nth(figure).and_then(|ticks| ticks.parse::<u64>().ok()).unwrap_or(0) * 10_000_000
}

/// CPU time of a process's children that it has waited for, in ticks of 10 ms; none where it is
/// gone.
fn ended_children_ns(id: i32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    // Behind the name of the program, which may itself hold anything: user time, then system time.
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields).split_whitespace();
    let ticks = fields.skip(13).take(2).filter_map(|ticks| ticks.parse::<u64>().ok());
    ticks.sum::<u64>() * 10_000_000
}

/// Children of all threads of a process.
pub(crate) fn children_of(id: &str) -> Vec<i32> {
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
    fn cpu_time_that_is_neither_ours_nor_the_kernels_is_others() {
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
        assert_eq!(ticks("cpu  1 2 3 4 5 6 7 8 9\ncpu0 1\n", 7), 80_000_000);
        assert_eq!(ticks("cpu 1", 7), 0);
    }

    #[test]
    fn only_the_root_group_of_the_machine_is_believed() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let stat = "cpu  1 2 3 4 5 6 7 8 9\n";
        let all = || all(root.path(), stat);
        put("sys/fs/cgroup/cpu.stat", "usage_usec 500000\n");
        assert_eq!(all(), None);
        put("proc/2/comm", "sh\n");
        assert_eq!(all(), None);
        put("proc/2/comm", "kthreadd\n");
        // Without 60 ms and 70 ms of interrupts.
        assert_eq!(all(), Some(370_000_000));
        put("sys/fs/cgroup/cgroup.type", "domain\n");
        assert_eq!(all(), None);
        put("sys/fs/cgroup/cpuacct/cpuacct.usage", "123\n");
        assert_eq!(all(), None);
        put("sys/fs/cgroup/cpuacct/release_agent", "");
        assert_eq!(all(), Some(123));
    }

    #[test]
    fn a_grandchild_that_has_ended_is_still_ours() {
        let Some(before) = Used::now() else {
            println!("SKIP: the CPU time of the whole machine cannot be seen");
            return;
        };
        let works = "i=0; while [ $i -lt 300000 ]; do i=$((i+1)); done";
        let mut child = std::process::Command::new("sh")
            .args(["-c", &format!("sh -c '{works}'; echo; read _")])
            .stdin(std::process::Stdio::piped())
            .stdout(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        // It has waited for its own child by then, and lives.
        let mut line = String::new();
        let mut from_child = std::io::BufReader::new(child.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut from_child, &mut line).unwrap();
        let worked = Used::now().unwrap().ours - before.ours;
        drop(child.stdin.take());
        child.wait().unwrap();
        let in_all = Used::now().unwrap().ours - before.ours;
        assert!(worked + 20_000_000 >= in_all && worked > 50_000_000, "{worked} of {in_all}");
    }

    #[test]
    fn our_own_work_is_no_noise_and_that_of_children_neither() {
        let Some(before) = Used::now() else {
            println!("SKIP: the CPU time of the whole machine cannot be seen");
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
