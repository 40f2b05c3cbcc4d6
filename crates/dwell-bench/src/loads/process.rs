// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies of this program that do a job beside it and end with it.

use std::ffi::OsStr;
use std::fs;
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::job::Job;
use crate::parent::die_with_parent;

/// One tick of the times in /proc/PID/stat, whatever the kernel's own tick.
const TICK_NS: u64 = 10_000_000;

/// Running processes. Dropping them ends them.
#[derive(Debug)]
pub(super) struct Processes {
    what: &'static str,
    children: Vec<Child>,
}

impl Processes {
    pub(super) fn none() -> Self {
        Processes { what: "processes", children: vec![] }
    }

    /// Starts one copy of this very program per job, with the arguments `hidden` and the job;
    /// they must lead to [`super::serve`]. `what` names the processes in errors.
    pub(super) fn start<S: AsRef<OsStr>>(
        what: &'static str,
        jobs: impl Iterator<Item = Job>,
        hidden: &[S],
    ) -> Result<Self> {
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let mut processes = Processes { what, children: Vec::new() };
        for job in jobs {
            let mut command = Command::new(&program);
            command.args(hidden).arg(job.word()?);
            command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
            die_with_parent(&mut command);
            let child = command.spawn().with_context(|| format!("cannot start {program:?}"))?;
            processes.children.push(child);
        }
        Ok(processes)
    }

    pub(super) fn count(&self) -> usize {
        self.children.len()
    }

    pub(super) fn ids(&self) -> impl Iterator<Item = u32> {
        self.children.iter().map(Child::id)
    }

    /// CPU time that all of them have had so far, in nanoseconds.
    pub(super) fn cpu_ns(&self) -> u64 {
        self.ids().map(cpu_ns).sum()
    }

    /// CPU time that all of them have had so far in user mode and in the kernel, in nanoseconds
    /// and steps of 10 ms.
    pub(super) fn split_ns(&self) -> (u64, u64) {
        self.ids()
            .filter_map(|id| ticks(&fs::read_to_string(format!("/proc/{id}/stat")).ok()?))
            .fold((0, 0), |sum, (user, system)| (sum.0 + user * TICK_NS, sum.1 + system * TICK_NS))
    }

    /// Fails if one of them has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        let (what, total) = (self.what, self.count());
        for child in &mut self.children {
            let ended = child.try_wait().with_context(|| format!("cannot ask after {what}"))?;
            ensure!(ended.is_none(), "one of {total} {what} ended early: measure again");
        }
        Ok(())
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for child in &mut self.children {
            // It fails only when the process is gone, which is what is wanted.
            let _ = child.kill();
        }
        for child in &mut self.children {
            let _ = child.wait();
        }
    }
}

/// CPU time of a process, in nanoseconds; 0 when it is gone.
fn cpu_ns(id: u32) -> u64 {
    let (mut clock, mut time) = (0, libc::timespec { tv_sec: 0, tv_nsec: 0 });
    // SAFETY: the first call writes a clock id, the second a time; both are live.
    let known = unsafe {
        libc::clock_getcpuclockid(id as libc::pid_t, &mut clock) == 0
            && libc::clock_gettime(clock, &mut time) == 0
    };
    if known { time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64 } else { 0 }
}

/// User and system time in the text of /proc/PID/stat, in ticks.
fn ticks(stat: &str) -> Option<(u64, u64)> {
    // The name before the last parenthesis may hold anything.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ').skip(11);
    Some((fields.next()?.parse().ok()?, fields.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_found_behind_any_name() {
        let stat = "77 (a) b (c) R 1 2 3 4 5 6 7 8 9 10 123 45 0 0 20 0";
        assert_eq!(ticks(stat), Some((123, 45)));
        assert_eq!(ticks("nonsense"), None);
    }
}
