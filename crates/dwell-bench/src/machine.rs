// SPDX-License-Identifier: MIT OR Apache-2.0
//! Facts about the machine that a figure means nothing without, from /proc and /sys.

use std::{fs, path::Path, time::SystemTime};

use serde::{Deserialize, Serialize};

/// The machine and the moment of a measurement. What could not be learned is empty or `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// CPU model, as the kernel names it.
    pub cpu_model: String,
    /// CPUs online.
    pub cpus: usize,
    /// Memory, in bytes.
    pub memory_bytes: u64,
    /// Kernel release.
    pub kernel: String,
    /// Clock source in use; anything but `tsc` makes short latencies doubtful.
    pub clocksource: String,
    /// Frequency governor of the first CPU.
    pub governor: Option<String>,
    /// What kind of virtual machine this is; `None` on bare metal.
    pub virtualised: Option<String>,
    /// When, in UTC, as `2026-01-31T12:00:00Z`.
    pub date: String,
}

impl Machine {
    /// Learns about this machine, now.
    pub fn gather() -> Self {
        Self::gather_under(Path::new("/"), SystemTime::now())
    }

    fn gather_under(root: &Path, now: SystemTime) -> Self {
        let read = |path: &str| fs::read_to_string(root.join(path)).unwrap_or_default();
        let line = |path: &str| Some(read(path).trim().to_owned()).filter(|text| !text.is_empty());
        let cpuinfo = read("proc/cpuinfo");
        let field = |names: &[&str]| {
            cpuinfo.lines().find_map(|line| {
                let (name, value) = line.split_once(':')?;
                names.contains(&name.trim()).then(|| value.trim().to_owned())
            })
        };
        let online = line("sys/devices/system/cpu/online").map_or(0, |list| count_cpus(&list));
        let meminfo = read("proc/meminfo");
        let is_guest = field(&["flags", "Features"])
            .is_some_and(|flags| flags.split(' ').any(|flag| flag == "hypervisor"));
        let vendor = line("sys/hypervisor/type").or_else(|| line("sys/class/dmi/id/sys_vendor"));
        Machine {
            cpu_model: field(&["model name", "Model", "CPU part"]).unwrap_or_default(),
            cpus: if online > 0 {
                online
            } else {
                cpuinfo.lines().filter(|line| line.starts_with("processor")).count()
            },
            memory_bytes: kib_field(&meminfo, "MemTotal:") << 10,
            kernel: line("proc/sys/kernel/osrelease").unwrap_or_default(),
            clocksource: line("sys/devices/system/clocksource/clocksource0/current_clocksource")
                .unwrap_or_default(),
            governor: line("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            virtualised: is_guest.then(|| vendor.unwrap_or_else(|| "virtual machine".into())),
            date: utc(now),
        }
    }

    /// Whether what was measured on one tells of the other: processor, kernel and clock are alike.
    pub fn is_like(&self, other: &Machine) -> bool {
        self.kind() == other.kind()
    }

    /// Its kind, as a name of a directory: processor, CPUs, whether it is virtual, kernel, clock.
    pub fn kind(&self) -> String {
        // Its first two numbers; what follows them mends.
        let class: Vec<&str> = self.kernel.split('.').take(2).collect();
        let virtualised = self.virtualised.as_deref().unwrap_or("");
        let text = format!(
            "{} {} cpus {virtualised} linux {} {}",
            self.cpu_model,
            self.cpus,
            class.join("."),
            self.clocksource
        );
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '.');
        let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
        words.join("-").to_lowercase()
    }

    /// One line for the head of a table.
    pub fn line(&self) -> String {
        let plural = if self.cpus == 1 { "" } else { "s" };
        let mut line = format!("{}, {} CPU{plural}", self.cpu_model, self.cpus);
        if let Some(kind) = &self.virtualised {
            line += &format!(" ({kind})");
        }
        line + &format!(", Linux {}, clock {}, {}", self.kernel, self.clocksource, self.date)
    }
}

/// Bytes of memory that a new use could have without swapping; `None` when the kernel does not say.
pub fn available_memory_bytes() -> Option<u64> {
    let meminfo = fs::read_to_string("/proc/meminfo").ok()?;
    Some(kib_field(&meminfo, "MemAvailable:") << 10).filter(|&bytes| bytes > 0)
}

/// Time that all CPUs were idle while somebody waited for storage, since boot, in nanoseconds and
/// steps of 10 ms; 0 where the kernel does not say.
pub fn iowait_ns() -> u64 {
    fs::read_to_string("/proc/stat").map_or(0, |stat| iowait_ticks(&stat) * 10_000_000)
}

/// The fifth figure in the first line of /proc/stat, or 0.
fn iowait_ticks(stat: &str) -> u64 {
    let mut fields = stat.lines().next().unwrap_or("").split_whitespace();
    fields.nth(5).and_then(|ticks| ticks.parse().ok()).unwrap_or(0)
}

/// The KiB figure after `name` in the text of /proc/meminfo, or 0.
fn kib_field(meminfo: &str, name: &str) -> u64 {
    let value = meminfo.lines().find_map(|line| line.strip_prefix(name));
    value.and_then(|v| v.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}

/// Number of CPUs in a list such as `0-3,8`; parts that are no numbers count nothing.
fn count_cpus(list: &str) -> usize {
    list.split(',')
        .filter_map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
            Some((last + 1).saturating_sub(first))
        })
        .sum()
}

/// RFC 3339 in UTC, to the second.
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs());
    dwell::clock::utc(seconds).replacen(' ', "T", 1).replace(" UTC", "Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn dates() {
        let at = |seconds| utc(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
        assert_eq!(at(0), "1970-01-01T00:00:00Z");
        assert_eq!(at(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(at(1_735_689_599), "2024-12-31T23:59:59Z");
        assert_eq!(at(1_772_323_200), "2026-03-01T00:00:00Z");
    }

    #[test]
    fn cpu_lists() {
        assert_eq!(count_cpus("0"), 1);
        assert_eq!(count_cpus("0-3,8,10-11"), 7);
        assert_eq!(count_cpus("nonsense"), 0);
    }

    #[test]
    fn iowait_is_the_fifth_figure_of_all_cpus() {
        assert_eq!(iowait_ticks("cpu  1 2 3 4 55 6 7\ncpu0 9 9 9 9 9\n"), 55);
        assert_eq!(iowait_ticks("cpu  1 2"), 0);
        assert_eq!(iowait_ticks(""), 0);
    }

    #[test]
    fn facts_from_a_small_tree() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("proc/cpuinfo", "processor\t: 0\nmodel name\t: Some CPU\nflags\t\t: fpu hypervisor\n");
        put("proc/meminfo", "MemTotal:        2048 kB\n");
        put("proc/sys/kernel/osrelease", "6.1.0\n");
        put("sys/devices/system/cpu/online", "0-1\n");
        put("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
        put("sys/class/dmi/id/sys_vendor", "QEMU\n");
        let machine = Machine::gather_under(root.path(), SystemTime::UNIX_EPOCH);
        assert_eq!(machine.virtualised.as_deref(), Some("QEMU"));
        assert_eq!((machine.cpus, machine.memory_bytes), (2, 2 << 20));
        assert_eq!(
            machine.line(),
            "Some CPU, 2 CPUs (QEMU), Linux 6.1.0, clock tsc, 1970-01-01T00:00:00Z"
        );
    }

    #[test]
    fn an_empty_tree_gives_an_empty_machine() {
        let root = tempfile::tempdir().unwrap();
        let machine = Machine::gather_under(root.path(), SystemTime::UNIX_EPOCH);
        assert_eq!((machine.cpus, machine.virtualised), (0, None));
    }
}
