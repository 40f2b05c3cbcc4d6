// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `/proc` says of the kernel and of this process. The root is an argument, so that tests
//! can tell another story.

use std::fs;
use std::path::{Path, PathBuf};

/// Administration of the system: mounts, many devices.
const CAP_SYS_ADMIN: u32 = 21;
/// Scheduling classes and negative nice values.
const CAP_SYS_NICE: u32 = 23;
/// Observation by performance counters.
const CAP_PERFMON: u32 = 38;
/// Loading BPF programs.
const CAP_BPF: u32 = 39;

/// Facts that more than one check reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Facts {
    /// Where they were read.
    pub proc: PathBuf,
    /// Release of the kernel, such as `6.18.44-amd64`.
    pub release: Option<String>,
    /// CPUs this process may run on.
    pub cpus_allowed: Option<usize>,
    /// Effective user id.
    pub euid: Option<u32>,
    /// Effective capabilities, one bit each.
    pub capabilities: u64,
    /// Whether a seccomp filter watches this thread.
    pub filtered: bool,
    /// Memory that may be locked, in bytes; `u64::MAX` without limit.
    pub memlock_bytes: Option<u64>,
}

impl Facts {
    /// Reads them below `proc`. What cannot be read stays unknown.
    pub fn read(proc: &Path) -> Self {
        let read = |file: &str| fs::read_to_string(proc.join(file)).ok();
        let status = read("thread-self/status").or_else(|| read("self/status")).unwrap_or_default();
        let field = |name: &str| {
            status
                .lines()
                .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
                .map(str::trim)
        };
        let limit = read("self/limits").and_then(|limits| {
            let soft = limits.lines().find_map(|l| l.strip_prefix("Max locked memory"))?;
            match soft.split_whitespace().next()? {
                "unlimited" => Some(u64::MAX),
                bytes => bytes.parse().ok(),
            }
        });
        Facts {
            proc: proc.to_owned(),
            release: read("sys/kernel/osrelease")
                .map(|release| release.trim().to_owned())
                .filter(|release| !release.is_empty()),
            cpus_allowed: field("Cpus_allowed_list").and_then(count_cpus),
            euid: field("Uid").and_then(|ids| ids.split_whitespace().nth(1)?.parse().ok()),
            capabilities: field("CapEff")
                .and_then(|mask| u64::from_str_radix(mask, 16).ok())
                .unwrap_or(0),
            filtered: field("Seccomp") == Some("2"),
            memlock_bytes: limit,
        }
    }

    /// Major and minor version of the kernel.
    pub fn version(&self) -> Option<(u32, u32)> {
        let mut numbers = self.release.as_deref()?.split(|c: char| !c.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }

    /// Whether the kernel is known to be at least this one.
    pub fn at_least(&self, major: u32, minor: u32) -> bool {
        self.version().is_some_and(|version| version >= (major, minor))
    }

    /// A number below `/proc/sys`.
    pub fn sysctl(&self, name: &str) -> Option<i64> {
        fs::read_to_string(self.proc.join("sys").join(name)).ok()?.trim().parse().ok()
    }

    /// May administer the system.
    pub fn sys_admin(&self) -> bool {
        self.capabilities >> CAP_SYS_ADMIN & 1 == 1
    }

    /// May choose any priority.
    pub fn sys_nice(&self) -> bool {
        self.capabilities >> CAP_SYS_NICE & 1 == 1
    }

    /// May use performance counters whatever `perf_event_paranoid` says.
    pub fn perfmon(&self) -> bool {
        self.sys_admin() || self.capabilities >> CAP_PERFMON & 1 == 1
    }

    /// The capabilities that tracing by BPF needs and this process does not have.
    pub fn lacking_for_bpf(&self) -> Vec<&'static str> {
        let has = |number: u32| self.sys_admin() || self.capabilities >> number & 1 == 1;
        let needed = [("CAP_BPF", CAP_BPF), ("CAP_PERFMON", CAP_PERFMON)];
        needed.into_iter().filter(|(_, number)| !has(*number)).map(|(name, _)| name).collect()
    }
}

/// Number of CPUs in a list such as `0-3,8`.
fn count_cpus(list: &str) -> Option<usize> {
    list.split(',').try_fold(0_usize, |sum, range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        sum.checked_add(last.checked_sub(first)?.checked_add(1)?)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_proc_everything_is_unknown() {
        let dir = tempfile::tempdir().unwrap();
        let facts = Facts::read(dir.path());
        assert_eq!(facts, Facts { proc: dir.path().to_owned(), ..Facts::default() });
        assert_eq!((facts.version(), facts.at_least(0, 0)), (None, false));
    }

    #[test]
    fn a_contained_process_is_seen_as_such() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("self")).unwrap();
        fs::create_dir_all(dir.path().join("sys/kernel")).unwrap();
        let status = "Name:\tx\nUid:\t1000\t0\t0\t0\nCapEff:\t0000000000800000\nSeccomp:\t2\n\
                      Seccomp_filters:\t1\nCpus_allowed_list:\t0-3,8\n";
        fs::write(dir.path().join("self/status"), status).unwrap();
        let limits = "Max locked memory         65536                unlimited            bytes\n";
        fs::write(dir.path().join("self/limits"), limits).unwrap();
        fs::write(dir.path().join("sys/kernel/osrelease"), "6.1.0-35-amd64\n").unwrap();
        let facts = Facts::read(dir.path());
        assert_eq!(facts.version(), Some((6, 1)));
        assert!(facts.at_least(5, 19) && !facts.at_least(6, 13));
        assert_eq!((facts.euid, facts.cpus_allowed), (Some(0), Some(5)));
        assert_eq!(facts.memlock_bytes, Some(65536));
        assert!(facts.filtered && facts.sys_nice() && !facts.sys_admin() && !facts.perfmon());
    }

    #[test]
    fn a_senseless_cpu_list_is_not_counted() {
        for list in ["", "3-1", "x", "0-18446744073709551615"] {
            assert_eq!(count_cpus(list), None, "{list}");
        }
    }
}
