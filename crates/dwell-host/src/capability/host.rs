// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel, the CPUs, what this process may do, and the clocks and counters it can read.

use std::fs::{self, File};

use super::facts::Facts;
use super::{Capability, Refused, State, attempt, raw};

pub(super) fn kernel(facts: &Facts) -> Capability {
    let Some(release) = &facts.release else {
        return Capability::new("kernel", State::Limited, "release unknown: no /proc")
            .remedy("mount proc on /proc");
    };
    if facts.at_least(6, 1) {
        return Capability::new("kernel", State::Works, format!("Linux {release}"));
    }
    let detail = format!("Linux {release}, older than 6.1: rings spin at a higher cost");
    Capability::new("kernel", State::Limited, detail).remedy("run Linux 6.1 or later")
}

pub(super) fn cpus(facts: &Facts) -> Capability {
    match facts.cpus_allowed {
        None => Capability::new("cpus", State::Limited, "number of allowed CPUs unknown: no /proc"),
        Some(1) => Capability::new(
            "cpus",
            State::Limited,
            "1 allowed: a thread that spins holds up the one that would serve it",
        )
        .remedy("allow two CPUs or more (taskset, cpuset)"),
        Some(n) => Capability::new("cpus", State::Works, format!("{n} allowed")),
    }
}

pub(super) fn privileges(facts: &Facts) -> Capability {
    let user = match facts.euid {
        Some(0) => "root".to_owned(),
        Some(id) => format!("user {id}"),
        None => "unknown user".to_owned(),
    };
    let has = |held: bool| if held { "with" } else { "without" };
    let detail = format!(
        "{user}, {} CAP_SYS_ADMIN, {} CAP_SYS_NICE{}",
        has(facts.sys_admin()),
        has(facts.sys_nice()),
        if facts.filtered { ", behind a seccomp filter" } else { "" }
    );
    if facts.sys_admin() && facts.sys_nice() {
        return Capability::new("privileges", State::Works, detail);
    }
    Capability::new("privileges", State::Limited, detail)
        .remedy("needed to set up devices and mounts, to raise priorities, for dwell advise and for dwell off on the machine: run as root")
}

/// What tells real polling from fake.
pub(super) fn interrupt_counts() -> Capability {
    const NAME: &str = "interrupt-counts";
    match fs::read_to_string("/proc/interrupts") {
        Ok(table) if table.trim_start().starts_with("CPU") => {
            Capability::new(NAME, State::Works, "/proc/interrupts counts completions by device")
        }
        Ok(_) => Capability::new(NAME, State::Missing, "/proc/interrupts has no columns"),
        Err(error) => Capability::new(NAME, State::Missing, format!("/proc/interrupts: {error}"))
            .remedy("without it, fake polling goes unnoticed: run outside the container"),
    }
}

pub(super) fn timer_slack() -> Capability {
    const NAME: &str = "timer-slack";
    match raw::timer_slack_ns() {
        Ok(ns) => {
            let detail = format!("{ns} ns added to each timed sleep; a thread may lower its own");
            Capability::new(NAME, State::Works, detail)
        }
        Err(error) => Capability::new(NAME, State::Missing, format!("cannot be read: {error}")),
    }
}

/// Reads that fail rather than wait, tried on the running program's file.
pub(super) fn nowait_reads(facts: &Facts) -> Capability {
    let tried = match File::open("/proc/self/exe") {
        Ok(file) => attempt(facts, libc::SYS_preadv2, || raw::read_nowait(&file)),
        Err(error) => Err(error.into()),
    };
    nowait_verdict(tried)
}

fn nowait_verdict(tried: Result<usize, Refused>) -> Capability {
    const NAME: &str = "nowait-reads";
    match tried {
        // EAGAIN: it would have had to wait, and said so.
        Ok(_) | Err(Refused::Errno(libc::EAGAIN)) => {
            Capability::new(NAME, State::Works, "RWF_NOWAIT, on the file system of this program")
        }
        Err(Refused::Errno(libc::EOPNOTSUPP)) => Capability::new(
            NAME,
            State::Limited,
            "RWF_NOWAIT is refused by the file system of this program; others may take it",
        ),
        Err(Refused::Errno(libc::ENOSYS | libc::EINVAL)) => {
            Capability::new(NAME, State::Missing, "no preadv2 with RWF_NOWAIT (Linux 4.14)")
        }
        Err(refused) => {
            Capability::new(NAME, State::Forbidden, format!("preadv2 with RWF_NOWAIT: {refused}"))
        }
    }
}

pub(super) fn perf_counters(facts: &Facts) -> Capability {
    let open = |kind, config| {
        attempt(facts, libc::SYS_perf_event_open, || raw::perf_event(kind, config).map(drop))
    };
    perf_verdict(
        open(raw::PERF_HARDWARE, raw::PERF_CPU_CYCLES),
        open(raw::PERF_SOFTWARE, raw::PERF_CONTEXT_SWITCHES).is_ok(),
        facts.sysctl("kernel/perf_event_paranoid"),
        facts,
    )
}

fn perf_verdict(
    hardware: Result<(), Refused>,
    software: bool,
    paranoid: Option<i64>,
    facts: &Facts,
) -> Capability {
    const NAME: &str = "perf-counters";
    let level = paranoid.map_or_else(String::new, |p| format!(" (perf_event_paranoid {p})"));
    let kernels = if software { "the kernel's own counters work" } else { "none of any kind" };
    match hardware {
        Ok(()) => Capability::new(NAME, State::Works, format!("hardware counters{level}")),
        Err(Refused::Errno(libc::ENOENT | libc::ENODEV | libc::EOPNOTSUPP)) => {
            let state = if software { State::Limited } else { State::Missing };
            Capability::new(NAME, state, format!("no hardware counters on this CPU; {kernels}"))
                .remedy("in a virtual machine, have its host pass the counters on (vPMU)")
        }
        Err(Refused::Errno(libc::ENOSYS)) => {
            Capability::new(NAME, State::Missing, "kernel built without perf events")
        }
        Err(Refused::Errno(libc::EACCES | libc::EPERM))
            if !facts.perfmon() && paranoid.is_some_and(|level| level > 2) =>
        {
            Capability::new(NAME, State::Forbidden, format!("closed to users{level}"))
                .remedy("sysctl kernel.perf_event_paranoid=2, or grant CAP_PERFMON")
        }
        Err(refused) => {
            Capability::new(NAME, State::Forbidden, format!("perf_event_open: {refused}{level}"))
                .remedy("allow perf_event_open in the container's seccomp profile")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_without_counters_is_not_told_to_change_its_permissions() {
        let none = Err(Refused::Errno(libc::ENOENT));
        let told = perf_verdict(none, true, Some(4), &Facts::default());
        assert_eq!(told.state, State::Limited);
        assert!(told.remedy.unwrap().contains("vPMU"));
        assert_eq!(perf_verdict(none, false, None, &Facts::default()).state, State::Missing);
    }

    #[test]
    fn a_paranoid_kernel_and_a_filter_need_different_remedies() {
        let refused = Err(Refused::Errno(libc::EACCES));
        let remedy = |level| perf_verdict(refused, false, Some(level), &Facts::default()).remedy;
        assert!(remedy(3).unwrap().contains("perf_event_paranoid=2"));
        assert!(remedy(2).unwrap().contains("seccomp"));
    }

    #[test]
    fn a_read_that_would_wait_shows_that_nowait_works() {
        assert_eq!(nowait_verdict(Err(Refused::Errno(libc::EAGAIN))).state, State::Works);
        assert_eq!(nowait_verdict(Err(Refused::Errno(libc::EOPNOTSUPP))).state, State::Limited);
        assert_eq!(nowait_verdict(Err(Refused::Deadly)).state, State::Forbidden);
    }

    #[test]
    fn an_unknown_kernel_and_a_lone_cpu_are_limits() {
        assert_eq!(kernel(&Facts::default()).state, State::Limited);
        let lone = Facts { cpus_allowed: Some(1), ..Facts::default() };
        assert_eq!(cpus(&lone).state, State::Limited);
    }
}
