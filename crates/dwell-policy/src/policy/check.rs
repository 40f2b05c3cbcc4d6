// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a policy looked at on its way to a decision, for whoever wants to see why.

use super::CpuSignal;
use crate::{Decision, DeviceClass, Kind, Learned, Ns, Route};

/// One check of one request.
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(hidden)]
pub struct Check {
    /// What was looked at, and what it was held against.
    pub looked: Looked,
    /// The decision, if this check settles it: of a policy's checks the first that has one does.
    pub decision: Option<Decision>,
}

/// What a check looks at.
#[derive(Clone, Copy, Debug, PartialEq)]
#[doc(hidden)]
pub enum Looked {
    /// At nothing but the policy itself: its checks are not told apart.
    Policy,
    /// What comparing found for requests like this one; `None` where nothing was compared yet.
    Learned(Option<Learned>),
    /// Whether the device was ever probed.
    Probed(bool),
    /// The device class; `None` where it was never probed.
    Class(Option<DeviceClass>),
    /// Read, write or sync.
    Kind(Kind),
    /// The size of the request.
    Size {
        /// Its size in bytes.
        bytes: u64,
        /// Size threshold in bytes; `None` where the device was never probed.
        threshold_bytes: Option<u64>,
    },
    /// The size with the backlog ahead of it.
    Backlog {
        /// Both together, in bytes.
        bytes: u64,
        /// Size threshold in bytes; `None` where the device was never probed.
        threshold_bytes: Option<u64>,
    },
    /// The number of requests ahead.
    QueueLength {
        /// How many there are.
        requests: u32,
        /// How many there may be; `None` without limit.
        limit: Option<u32>,
    },
    /// Whether who serves the queue is on a CPU.
    Awake(bool),
    /// The CPUs.
    Cpu {
        /// Whose use of them counts.
        signal: CpuSignal,
        /// How much of them is used, 0–1.
        used: f32,
        /// CPU threshold, 0–1.
        threshold: f32,
    },
    /// Whether the host's budget has room for one more spinner.
    SpinnerLimit(bool),
    /// Where a request that is spun for would go; `None` where only synchronous calls are
    /// possible.
    Queue(Option<Route>),
    /// The predicted latency; 0 when nothing is known.
    Latency(Ns),
    /// The caller's nice value against that of what could run next; `None` where nothing waits for
    /// the CPU.
    Priority {
        /// The caller's nice value.
        nice: i8,
        /// The other's.
        next: Option<i8>,
    },
    /// Whether this request is one of those that try the other mode.
    Explore(bool),
    /// The predicted latency against the cost of a switch, in nanoseconds.
    Switch {
        /// Predicted latency.
        latency_ns: Ns,
        /// Cost of blocking and coming back.
        switch_ns: Ns,
    },
}
