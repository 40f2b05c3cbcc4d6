// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one measured process is told, and what it tells.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use dwell::WaitPolicy;
use dwell_host::profile::DeviceProfile;
use serde::{Deserialize, Serialize};

use super::method::Method;
use super::work::{Done, Work};
use crate::result::RoundResult;

/// What a line begins with that is meant for the bench: a test's harness prints lines of its own.
pub(super) const LINE: &str = "dwell-bench: ";
/// The line after which it waits to be told to go on.
pub(super) const READY: &str = "ready";

/// What one process is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// The file or address that becomes memory.
    pub address: PathBuf,
    /// What a probe learned of its device.
    pub profile: Option<DeviceProfile>,
    /// How it becomes memory.
    pub method: Method,
    /// The work done on the memory.
    pub work: Work,
    /// Decides which pages.
    pub seed: u64,
    /// Longest time that visits take, in nanoseconds.
    pub most_ns: u64,
    /// Memory that the process may have in all, in bytes.
    pub limit_bytes: u64,
    /// The control group that it enters, which has that limit; `None` where nobody counts.
    pub group: Option<PathBuf>,
    /// Its nice value.
    pub nice: i32,
    /// The only CPU that it may use.
    pub cpu: Option<usize>,
    /// A file by which processes tell each other their priorities.
    pub board: Option<PathBuf>,
}

/// What it tells.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// What was done.
    #[serde(flatten)]
    pub done: Done,
    /// What it cost, and what was counted.
    pub round: RoundResult,
    /// When it began, by the clock that all processes share, in nanoseconds.
    pub began_ns: u64,
    /// When it ended.
    pub ended_ns: u64,
}

/// A line meant for the bench.
pub(super) enum Line {
    /// All is set up.
    Ready,
    /// The work is done.
    Told(Box<Told>),
}

/// A line of such a process; `None` where it is somebody else's.
pub(super) fn read(line: &str) -> Result<Option<Line>> {
    let Some(text) = line.strip_prefix(LINE) else { return Ok(None) };
    if text == READY {
        return Ok(Some(Line::Ready));
    }
    let told = serde_json::from_str(text).with_context(|| format!("not an answer: {text}"))?;
    Ok(Some(Line::Told(told)))
}

impl Task {
    /// The source of a region, or what is read page by page.
    pub(super) fn open(&self, policy: &Arc<dyn WaitPolicy>) -> Result<dwell::File> {
        let parameters = self.profile.as_ref().map(DeviceProfile::parameters).unwrap_or_default();
        let direct = !dwell::open::is_scheme(&self.address);
        let options = dwell::Options::new().direct(direct).write(self.work.writes());
        let options = options.parameters(parameters).policy(policy.clone());
        Ok(options.open(&self.address)?)
    }
}
