// SPDX-License-Identifier: MIT OR Apache-2.0
//! The setting of a measurement: requests or a workload, on a device, beside a load.

use serde::{Deserialize, Serialize};

use crate::subject::Subject;

/// Order of the offsets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// One request after the other.
    Seq,
    /// Random, aligned to the request size.
    Rand,
}

/// Direction of the transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// From the device.
    Read,
    /// To the device.
    Write,
}

/// What else runs on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Load {
    /// Nothing.
    Idle,
    /// Ten CPU stressors ([`crate::loads`]).
    Cpu,
    /// Four I/O programs on the same device.
    Io,
    /// Nine arithmetic processes, the forerunner's load.
    Arithmetic,
    /// Four readers as slow as a hard disk makes them.
    Readers,
    /// Ordinary programs whose progress is counted.
    Bystander,
}

macro_rules! words {
    ($($type:ident { $($variant:ident => $word:literal),+ })+) => {$(
        impl $type {
            /// The word used in JSON, tables and on the command line.
            pub const fn as_str(self) -> &'static str {
                match self { $($type::$variant => $word),+ }
            }
        }
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    )+};
}
words! {
    Pattern { Seq => "seq", Rand => "rand" }
    Direction { Read => "read", Write => "write" }
    Load {
        Idle => "idle",
        Cpu => "cpu",
        Io => "io",
        Arithmetic => "arithmetic",
        Readers => "readers",
        Bystander => "bystander"
    }
}

/// Requests of one kind, one after the other or many at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Requests {
    /// Order of the offsets.
    pub pattern: Pattern,
    /// Direction of the transfer.
    pub direction: Direction,
    /// Queue depth, in requests.
    pub depth: u32,
}

impl Requests {
    /// Random reads, one after the other.
    pub const fn random_reads() -> Self {
        Requests { pattern: Pattern::Rand, direction: Direction::Read, depth: 1 }
    }
}

impl std::fmt::Display for Requests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pattern = match self.pattern {
            Pattern::Seq => "sequential",
            Pattern::Rand => "random",
        };
        write!(f, "{pattern} {}, queue depth {}", self.direction, self.depth)
    }
}

/// The work of a setting: requests of one kind, or a named workload.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Work {
    /// Requests of one kind.
    Requests(Requests),
    /// A workload with a name.
    Named {
        /// The name.
        workload: String,
    },
}

/// What rows that can be drawn in one chart have in common.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Setting {
    /// Name of a [`Device`](super::Device).
    pub device: String,
    /// What else ran.
    pub load: Load,
    /// I/O scheduler of the device, where the run chose it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scheduler: Option<String>,
    /// What was done.
    #[serde(flatten)]
    pub work: Work,
}

impl std::fmt::Display for Setting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let load = match self.load {
            Load::Idle => "idle machine",
            Load::Cpu => "CPU load",
            Load::Io => "I/O load",
            Load::Arithmetic => "nine arithmetic processes",
            Load::Readers => "disk readers",
            Load::Bystander => "bystanders",
        };
        write!(f, "{}, {load}, {}", self.device, self.workload())
    }
}

impl Setting {
    /// Requests on a subject, under the scheduler that its device has.
    pub fn new(subject: &Subject, load: Load, requests: Requests) -> Self {
        let work = Work::Requests(requests);
        Setting { device: subject.name.clone(), load, scheduler: None, work }
    }

    /// The work in words, with the I/O scheduler where the run chose it.
    pub fn workload(&self) -> String {
        let work = match &self.work {
            Work::Requests(requests) => requests.to_string(),
            Work::Named { workload } => workload.clone(),
        };
        match &self.scheduler {
            Some(scheduler) => format!("{work}, scheduler {scheduler}"),
            None => work,
        }
    }

    /// The requests, where the work is nothing else.
    pub fn requests(&self) -> Option<Requests> {
        match self.work {
            Work::Requests(requests) => Some(requests),
            Work::Named { .. } => None,
        }
    }
}
