// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a probe learned of one device, and the directory that keeps it.

mod beneath;
mod check;
mod damage;
mod store;
#[cfg(test)]
mod tests;

use std::path::PathBuf;

use dwell_policy::{DeviceClass, Ns};
use serde::{Deserialize, Serialize};

pub use beneath::{Beneath, BeneathError};
use dwell::parameters::DeviceParameters;
pub use dwell::ring::SpinMethod;
pub use store::{Listed, ProfileStore};

/// Version of the profile format that this library writes. A later format under the same number
/// only adds fields; readers ignore those they do not know.
pub const SCHEMA: u32 = 4;

/// What a probe learned of one device under one kernel and one I/O scheduler.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceProfile {
    /// Version of the format: [`SCHEMA`].
    pub schema: u32,
    /// Identity of the device ([`Device::id`](dwell::device::Device::id)).
    pub device_id: String,
    /// Name the kernel gave it when it was measured.
    pub kernel_name: String,
    /// Model, as the device reports it.
    #[serde(default)]
    pub model: Option<String>,
    /// Capacity when it was measured, in bytes.
    pub size_bytes: u64,
    /// Release of the kernel it was measured under (`uname -r`).
    pub kernel_release: String,
    /// I/O scheduler it was measured under.
    pub scheduler: String,
    /// When it was measured, in seconds since 1970 (UTC).
    pub measured_unix_s: u64,
    /// Version of Dwell that measured it.
    pub dwell_version: String,
    /// What decisions read.
    pub decision: dwell_policy::Profile,
    /// Whether the device's class depends on the [state](States) of its requests: `mainstream` in
    /// the best, `fast` in the worst. `decision` then holds what follows from the worst.
    #[serde(default)]
    pub contested: bool,
    /// Latency by request size, one curve per arm.
    pub curves: Vec<Curve>,
    /// What requests cost when one thread keeps several in flight, sizes rising; empty where no
    /// queue takes them.
    pub async_submission: Vec<AsyncPoint>,
    /// What blocking costs.
    pub switches: SwitchCosts,
    /// By how much timed sleeps came back late, by their length.
    #[serde(default)]
    pub sleeps: Vec<SleepOvershoot>,
    /// Whether polled requests are really polled.
    pub polling: Polling,
    /// The cheapest spin method found for a completion.
    pub spin_method: SpinMethod,
    /// CPU time that a kernel worker spends on each request, in nanoseconds; 0 without worker.
    pub worker_ns_per_request: Ns,
    /// Further CPU time of the worker per byte, in picoseconds.
    pub worker_ps_per_byte: u64,
    /// Remarks for the person who reads the profile: why class and threshold are what they are,
    /// then whatever disturbed or shortened the measurement.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// Latency and CPU use by request size, of one arm.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Curve {
    /// Route and wait mode: `inline`, `interrupt-spin`, `interrupt-block`, `polled-spin`,
    /// `hybrid`. Others may follow.
    pub mode: String,
    /// One point per size, sizes rising.
    pub points: Vec<CurvePoint>,
}

/// One request size on a curve.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CurvePoint {
    /// Size of each request, in bytes.
    pub size_bytes: u64,
    /// Median latency, in nanoseconds.
    pub median_ns: Ns,
    /// Mean latency, in nanoseconds: the median of the rounds' means. It is what a thread gets that
    /// makes one request after the other.
    pub mean_ns: Ns,
    /// Latency that one request in ten stays below, in nanoseconds.
    pub p10_ns: Ns,
    /// Latency that nine requests in ten stay below, in nanoseconds.
    pub p90_ns: Ns,
    /// The states of an arm that devices are judged by: one that blocks or spins. Profiles of
    /// earlier versions have none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub states: Option<States>,
    /// Voluntary context switches of the waiting thread, per request.
    pub voluntary_switches_per_request: f64,
    /// CPU time of the waiting thread, in nanoseconds per request.
    pub cpu_ns_per_request: f64,
}

/// How long a request takes in the best and in the worst state: by where the kernel runs what
/// completes it, and whether that CPU has halted. Both
/// are medians of batches of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct States {
    /// Median latency in the best state, in nanoseconds.
    pub best_ns: Ns,
    /// Median latency in the worst state, in nanoseconds.
    pub worst_ns: Ns,
}

impl CurvePoint {
    /// Both states; the median latency twice where only one is known.
    pub fn states(&self) -> States {
        self.states.unwrap_or(States { best_ns: self.median_ns, worst_ns: self.median_ns })
    }
}

/// One request size with several requests in flight.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AsyncPoint {
    /// Size of each request, in bytes.
    pub size_bytes: u64,
    /// Requests in flight.
    pub depth: u32,
    /// Waiting blocked.
    pub block: AsyncCost,
    /// Waiting by spinning.
    pub spin: AsyncCost,
}

/// What each of several requests in flight costs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct AsyncCost {
    /// Time from one completion to the next, in nanoseconds.
    pub ns_per_request: Ns,
    /// CPU time of the thread, in nanoseconds.
    pub cpu_ns_per_request: f64,
    /// Voluntary context switches of the thread.
    pub voluntary_switches_per_request: f64,
}

/// What blocking costs.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SwitchCosts {
    /// To block with nothing else to run and come back (SmartCon §3.3), in nanoseconds.
    pub self_ns: Ns,
    /// From one process to another that touches no memory, by the number of processes.
    #[serde(default)]
    pub direct: Vec<DirectSwitch>,
    /// To reload what another process evicted from the caches, by the size of the working set.
    #[serde(default)]
    pub indirect: Vec<IndirectSwitch>,
}

/// A direct switch between a number of processes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DirectSwitch {
    /// Processes that take turns.
    pub processes: u32,
    /// Cost of one switch, in nanoseconds.
    pub ns: Ns,
}

/// The indirect cost of a switch for one working set.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct IndirectSwitch {
    /// Memory that each process touches between switches, in bytes.
    pub working_set_bytes: u64,
    /// Added cost of one switch, in nanoseconds.
    pub ns: Ns,
}

/// How late a timed sleep of one length returned.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SleepOvershoot {
    /// Sleep asked for, in nanoseconds.
    pub asked_ns: Ns,
    /// Median time beyond it, in nanoseconds.
    pub overshoot_ns: Ns,
}

/// Whether requests sent to be polled are really polled, told by the device's interrupts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "kebab-case")]
pub enum Polling {
    /// No interrupt came for any of them.
    Real,
    /// They were accepted, and interrupts completed them all the same.
    Fake {
        /// Interrupts of the device per request.
        interrupts_per_request: f64,
    },
    /// They were refused.
    Unsupported {
        /// What the kernel said, and what would help.
        why: String,
    },
}

impl DeviceProfile {
    /// When it was measured, as `2026-01-31 12:00:00 UTC`.
    pub fn measured_utc(&self) -> String {
        dwell::clock::utc(self.measured_unix_s)
    }

    /// What issuing requests needs of it.
    pub fn parameters(&self) -> DeviceParameters {
        DeviceParameters {
            profile: Some(self.decision),
            method: self.spin_method,
            polled: self.polling == Polling::Real,
            worker_ns: self.worker_ns_per_request,
            worker_ps_per_byte: self.worker_ps_per_byte,
        }
    }

    /// The device class in words: with `contested` behind it where it depends on the state.
    pub fn class(&self) -> &'static str {
        match (self.decision.class, self.contested) {
            (DeviceClass::Fast, true) => "fast, contested",
            (class, _) => class.as_str(),
        }
    }

    /// The curve of the blocking arm that the device is judged by: the better of the two.
    pub fn blocking(&self) -> Option<&Curve> {
        let ring = self.curve("interrupt-block");
        match self.decision.ring_threshold_bytes {
            0 => self.curve("inline").or(ring),
            _ => ring,
        }
    }

    /// The curve of the spinning arm that the device is judged by.
    pub fn spinning(&self) -> Option<&Curve> {
        self.curve("polled-spin").or(self.curve("interrupt-spin"))
    }

    /// The curve of one arm.
    pub fn curve(&self, mode: &str) -> Option<&Curve> {
        self.curves.iter().find(|curve| curve.mode == mode)
    }
}

/// Why a profile could not be read, kept or removed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ProfileError {
    /// The file system refused.
    #[error("{path}: cannot {action}: {error}; check the directory's owner and free space")]
    Io {
        /// File or directory.
        path: PathBuf,
        /// What was tried: read, write, list or remove.
        action: &'static str,
        /// What the kernel said.
        error: std::io::Error,
    },
    /// It is no complete JSON text of this format.
    #[error(
        "{path}: damaged at {field}: {why}; measure again (dwell probe PATH) or drop it (dwell profile rm {name})"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Name of the profile in the store.
        name: String,
        /// The field, such as `curves[2].points[0].p10_ns`.
        field: String,
        /// The fault of the field, in words.
        why: String,
    },
    /// A field holds what no measurement gives.
    #[error(
        "{path}: field {field} {why}; measure again (dwell probe PATH) or drop it (dwell profile rm {name})"
    )]
    Range {
        /// The file.
        path: PathBuf,
        /// Name of the profile in the store.
        name: String,
        /// The field, such as `curves[2].points[0].p10_ns`.
        field: String,
        /// The fault of the field, in words.
        why: String,
    },
    /// A newer Dwell wrote it, or one too old to be understood.
    #[error(
        "{path}: field schema is {found}, this program reads {SCHEMA}; use the version of Dwell that wrote it, or measure again (dwell probe PATH)"
    )]
    Schema {
        /// The file.
        path: PathBuf,
        /// The version found.
        found: u64,
    },
    /// It speaks of another device, kernel or scheduler than its name says.
    #[error(
        "{path}: field {field} is {found:?}, expected {expected:?}; a copied or renamed profile: drop it (dwell profile rm {name}) and measure again (dwell probe PATH)"
    )]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Name of the profile in the store.
        name: String,
        /// Which of the three differs.
        field: &'static str,
        /// What the file says.
        found: String,
        /// What was asked for.
        expected: String,
    },
    /// There is no such profile.
    #[error("{dir}: no profile of that name or device: {asked}; dwell profile list shows them")]
    Absent {
        /// The store's directory.
        dir: PathBuf,
        /// What was asked for.
        asked: String,
    },
}
