// SPDX-License-Identifier: MIT OR Apache-2.0
//! The text of `/proc/stat`, as CPU times.

/// Times of one CPU since boot, in ticks of 10 ms (USER_HZ), whatever the kernel's own HZ is. A
/// window of 100 ms is thus ten ticks of each CPU, and that is the resolution of what follows.
///
/// The columns `guest` and `guest_nice` are left out: they are contained in `user` and `nice`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Number of the CPU.
    pub cpu: u32,
    /// In the order of the file: user, nice, system, idle, iowait, irq, softirq, steal.
    pub ticks: [u64; 8],
}

const IDLE: usize = 3;
const IOWAIT: usize = 4;

impl CpuTimes {
    /// Busy and idle ticks since `earlier`. iowait is idle and steal is busy; a column that went
    /// backwards (as iowait does) counts as unchanged.
    pub fn since(&self, earlier: &CpuTimes) -> (u64, u64) {
        let (mut busy, mut idle) = (0u64, 0u64);
        for (column, (now, then)) in self.ticks.iter().zip(&earlier.ticks).enumerate() {
            let side = if matches!(column, IDLE | IOWAIT) { &mut idle } else { &mut busy };
            *side = side.saturating_add(now.saturating_sub(*then));
        }
        (busy, idle)
    }
}

/// The figures taken from `/proc/stat`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcStat {
    /// The CPUs asked for that are online, in ascending order.
    pub cpus: Vec<CpuTimes>,
    /// CPUs that are online.
    pub online: u32,
    /// Runnable threads of the whole machine.
    pub procs_running: u32,
}

/// Parses the lines of `allowed` CPUs (ascending) and the number of runnable threads. A line that
/// is cut off or malformed is left out: its CPU then counts as offline for this window.
pub fn parse(text: &str, allowed: &[u32]) -> ProcStat {
    let mut stat = ProcStat::default();
    for line in text.split_inclusive('\n') {
        let Some(line) = line.strip_suffix('\n') else { break };
        if let Some(rest) = line.strip_prefix("cpu") {
            let Some(times) = parse_cpu(rest) else { continue };
            stat.online += 1;
            if allowed.binary_search(&times.cpu).is_ok() {
                stat.cpus.push(times);
            }
        } else if let Some(count) = line.strip_prefix("procs_running ") {
            stat.procs_running = count.trim().parse().unwrap_or(0);
        }
    }
    stat.cpus.sort_unstable_by_key(|c| c.cpu);
    stat.cpus.dedup_by_key(|c| c.cpu);
    stat
}

/// A line without its leading "cpu"; `None` for the sum of all CPUs, which starts with a space.
fn parse_cpu(line: &str) -> Option<CpuTimes> {
    let (number, columns) = line.split_once(' ')?;
    let mut times = CpuTimes { cpu: number.parse().ok()?, ..CpuTimes::default() };
    let mut seen = 0;
    for (slot, text) in times.ticks.iter_mut().zip(columns.split_ascii_whitespace()) {
        *slot = text.parse().ok()?;
        seen += 1;
    }
    // Kernels before 2.6 stop after idle; less is no CPU line.
    (seen > IDLE).then_some(times)
}

/// When a process started, in clock ticks since boot, from its `/proc/PID/stat`. The name of the
/// program, in parentheses, may itself hold anything.
pub fn parse_start_ticks(text: &str) -> Option<u64> {
    let (_, after_name) = text.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(19)?.parse().ok()
}

/// Threads of a process, from its `/proc/PID/stat`.
pub fn parse_threads(text: &str) -> Option<u32> {
    let (_, after_name) = text.rsplit_once(')')?;
    after_name.split_ascii_whitespace().nth(17)?.parse().ok()
}

/// When a process started, in clock ticks since boot. `None` where there is none, or only what its
/// parent has not collected yet. A process whose first thread has ended goes on with its others.
pub fn start_ticks(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, after_name) = text.rsplit_once(')')?;
    let state = after_name.split_ascii_whitespace().next()?;
    let has_ended = state == "X" || state == "Z" && parse_threads(&text) <= Some(1);
    if has_ended { None } else { parse_start_ticks(&text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_start_of_a_process_is_found_behind_any_name() {
        let text =
            "95 (a) R 1 (x) R 9565 9565 7838 0 -1 4194304 102 0 0 0 0 0 0 0 20 0 1 0 109415 31 394";
        assert_eq!(parse_start_ticks(text), Some(109_415));
        assert_eq!(parse_threads(text), Some(1));
        assert_eq!(parse_threads("95 (cat) R 1 2"), None);
        assert_eq!(parse_start_ticks("95 (cat) R 1 2"), None);
        assert_eq!(parse_start_ticks(""), None);
    }

    const TEXT: &str = "cpu  30 0 30 600 9 0 3 3 0 0\n\
                        cpu0 10 1 2 200 3 4 5 6 7 8\n\
                        cpu1 20 0 0 400 6 0 0 0 0 0\n\
                        cpu3 1 2 3 4\n\
                        intr 294099 0 0 0\n\
                        procs_running 5\n\
                        procs_blocked 0\n";

    #[test]
    fn allowed_cpus_are_read_without_their_guest_columns() {
        let stat = parse(TEXT, &[0, 3]);
        assert_eq!(stat.procs_running, 5);
        assert_eq!(stat.cpus.iter().map(|c| c.cpu).collect::<Vec<_>>(), [0, 3]);
        assert_eq!(stat.cpus[0].ticks, [10, 1, 2, 200, 3, 4, 5, 6]);
        assert_eq!(stat.cpus[1].ticks, [1, 2, 3, 4, 0, 0, 0, 0]);
    }

    #[test]
    fn iowait_is_idle_and_steal_is_busy() {
        let earlier = CpuTimes::default();
        let now = CpuTimes { cpu: 0, ticks: [1, 2, 4, 100, 200, 8, 16, 32] };
        assert_eq!(now.since(&earlier), (63, 300));
    }

    #[test]
    fn a_column_that_goes_backwards_counts_as_unchanged() {
        let earlier = CpuTimes { cpu: 0, ticks: [50, 0, 0, 100, 90, 0, 0, 0] };
        let now = CpuTimes { cpu: 0, ticks: [55, 0, 0, 105, 80, 0, 0, 0] };
        assert_eq!(now.since(&earlier), (5, 5));
        let full = CpuTimes { cpu: 0, ticks: [u64::MAX; 8] };
        assert_eq!(full.since(&CpuTimes::default()), (u64::MAX, u64::MAX));
    }

    #[test]
    fn cut_off_and_malformed_lines_are_left_out() {
        for (text, cpus) in [
            ("", 0),
            ("cpu", 0),
            ("cpu0 10 1 2 200 3 4", 0),
            ("cpu0 10 1 2\n", 0),
            ("cpu0 10 1 2 x\n", 0),
            ("cpu0 10 1 2 99999999999999999999999\n", 0),
            ("cpu99999999999 1 2 3 4\n", 0),
            ("cpu0 1 2 3 4\ncpu0 1 2 3 5\ncpu1 1 2", 1),
            ("procs_running many\n", 0),
        ] {
            let stat = parse(text, &[0, 1]);
            assert_eq!((stat.cpus.len(), stat.procs_running), (cpus, 0), "{text:?}");
        }
        for cut in 0..TEXT.len() {
            assert!(parse(&TEXT[..cut], &[0, 1, 3]).cpus.len() <= 3);
        }
    }
}
