// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this machine lets Dwell do, found by trying; nothing is left changed.

mod facts;
mod host;
mod memory;
mod raw;
mod ring;
mod supply;
mod tracing;

use std::fmt;

use dwell::device::Sysfs;
use dwell::seccomp;
use facts::Facts;

/// How far a capability can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum State {
    /// It does what it should.
    Works,
    /// A part of it can be used.
    Limited,
    /// The kernel, the machine or a package lacks it.
    Missing,
    /// It is there, and this process may not use it.
    Forbidden,
}

impl State {
    /// The word used in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            State::Works => "works",
            State::Limited => "limited",
            State::Missing => "missing",
            State::Forbidden => "forbidden",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// One thing that Dwell can make use of.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Capability {
    /// Its name, such as `io-uring` or `poll-queues`.
    pub name: &'static str,
    /// How far it can be used.
    pub state: State,
    /// What was found, in one line.
    pub detail: String,
    /// What would make it work or work fully, if anything a person can do would.
    pub remedy: Option<String>,
}

impl Capability {
    fn new(name: &'static str, state: State, detail: impl Into<String>) -> Self {
        Capability { name, state, detail: detail.into(), remedy: None }
    }

    fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }
}

/// Tries everything that Dwell can make use of, in an order fit for reading.
///
/// Each check stands alone. Where a seccomp filter is in place, calls that it might answer with
/// death are tried in a child process first.
pub fn survey() -> Vec<Capability> {
    let facts = Facts::read("/proc".as_ref());
    let sysfs = Sysfs::default();
    vec![
        host::kernel(&facts),
        host::cpus(&facts),
        host::privileges(&facts),
        memory::locked(&facts),
        ring::io_uring(&facts),
        ring::defer_taskrun(&facts),
        ring::iopoll(&facts),
        ring::hybrid_iopoll(&facts),
        ring::poll_queues(&ring::Pollable::of(&sysfs)),
        host::interrupt_counts(),
        host::nowait_reads(&facts),
        host::timer_slack(),
        host::perf_counters(&facts),
        tracing::tracing(&facts),
        memory::userfaultfd(&facts),
        supply::fuse(&facts),
        supply::loop_devices(),
        supply::zram(&facts),
    ]
}

/// Whether this process may follow the waits of programs.
pub fn tracing() -> Capability {
    tracing::tracing(&Facts::read("/proc".as_ref()))
}

/// Release of the running kernel (`uname -r`); `None` where `/proc` is not mounted.
pub fn kernel_release() -> Option<String> {
    Facts::read("/proc".as_ref()).release
}

/// The same, as profiles carry it.
pub(crate) fn profiled_release() -> String {
    kernel_release().unwrap_or_else(|| "unknown".to_owned())
}

/// Effective user of this process.
pub fn effective_uid() -> u32 {
    dwell::monitor::sys::effective_uid()
}

/// Why a system call that was tried gave nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    /// The kernel or a seccomp filter answered with this error number.
    Errno(i32),
    /// A seccomp filter kills who makes the call, so it was made by a child only.
    Deadly,
}

impl From<std::io::Error> for Refused {
    fn from(error: std::io::Error) -> Self {
        Refused::Errno(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Errno(number) => write!(f, "{}", std::io::Error::from_raw_os_error(*number)),
            Refused::Deadly => write!(f, "a seccomp filter kills who calls it"),
        }
    }
}

/// Makes a system call, unless a seccomp filter would kill this process for it.
fn attempt<T>(
    facts: &Facts,
    syscall: libc::c_long,
    call: impl FnOnce() -> std::io::Result<T>,
) -> Result<T, Refused> {
    if facts.filtered && !seccomp::child_survives(syscall) {
        return Err(Refused::Deadly);
    }
    Ok(call()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_survey_of_any_machine_ends_and_says_something_of_everything() {
        let survey = survey();
        for (i, capability) in survey.iter().enumerate() {
            let Capability { name, state, detail, remedy } = capability;
            assert!(!detail.is_empty() && !detail.contains('\n'), "{name}: {detail:?}");
            assert!(!survey[..i].iter().any(|earlier| earlier.name == *name), "{name} twice");
            assert!(*state != State::Works || remedy.is_none(), "{name}");
        }
    }

    #[test]
    fn a_filtered_process_survives_the_survey() {
        let facts = Facts { filtered: true, ..Facts::read("/proc".as_ref()) };
        let tried = attempt(&facts, libc::SYS_io_uring_setup, || raw::io_uring(0).map(drop));
        // Nothing kills here, so the answer is that of the kernel.
        assert_ne!(tried, Err(Refused::Deadly));
    }
}
