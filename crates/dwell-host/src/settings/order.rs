// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `dwell run` tells the processes of a run.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::{Pattern, Settings};
use crate::profile::ProfileStore;

/// All that a process of a run is told, as JSON in one environment variable.
///
/// Where it is absent or cannot be read, the program runs as if Dwell were not there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RunOrder {
    /// Random number that all processes of the run share.
    pub run_id: u64,
    /// The process that `dwell run` was, and that the command became.
    pub root_pid: u32,
    /// Policy in place of what the settings say: `--policy`.
    #[serde(default)]
    pub policy: Option<String>,
    /// Whether decisions are recorded only.
    #[serde(default)]
    pub shadow: bool,
    /// Where processes publish what they do; `None` where no such directory could be made.
    #[serde(default)]
    pub stats_dir: Option<PathBuf>,
    /// File for the figures at the end of the run.
    #[serde(default)]
    pub stats_file: Option<PathBuf>,
    /// Where profiles of devices are kept.
    pub profile_dir: PathBuf,
    /// Where profiles of the whole machine are kept, for devices of which `profile_dir` has none.
    #[serde(default)]
    pub machine_profile_dir: Option<PathBuf>,
    /// Whether the library prints no warnings: `--quiet`.
    #[serde(default)]
    pub quiet: bool,
    /// Whether the first process prints the run's figures when it ends: `--verbose`.
    #[serde(default)]
    pub verbose: bool,
    /// Whether files of served mounts take channels: `--channels`.
    #[serde(default)]
    pub channels: bool,
    /// Seccomp filters that `dwell run` had. A process that begins with more may be killed for
    /// calls that it does not make itself.
    #[serde(default)]
    pub filters: u32,
    /// Files whose mappings the pager takes over: `--pager`.
    #[serde(default)]
    pub pager: Option<Paging>,
    /// All that was said, `policy` and `shadow` of this order included.
    #[serde(default)]
    pub settings: Settings,
}

/// Which mapped files the pager brings in, and by how much memory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Paging {
    /// Their paths.
    pub files: Vec<Pattern>,
    /// Memory for the pages of each, in bytes.
    pub budget_bytes: u64,
    /// Device and inode of what stderr is: a process whose stderr is another one says nothing
    /// there.
    #[serde(default)]
    pub stderr: Option<(u64, u64)>,
}

impl RunOrder {
    /// The environment variable that carries it.
    pub const VARIABLE: &str = "DWELL_RUN";

    /// The profiles that hold for the run.
    pub fn profiles(&self) -> ProfileStore {
        let own = ProfileStore::new(&self.profile_dir);
        match &self.machine_profile_dir {
            Some(machine) => own.or_machine(machine),
            None => own,
        }
    }
}
