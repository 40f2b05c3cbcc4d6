// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was seen: waits, split into parts, and the load of each device.

use std::ops::AddAssign;

use serde::Serialize;

use crate::Issued;

/// What a request asks a device to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Operation {
    /// A read.
    Read,
    /// A write.
    Write,
    /// A write of a file system's log.
    Journal,
    /// A flush of the device's cache.
    Flush,
    /// A discard, or a write of zeroes.
    Discard,
    /// Anything else.
    Other,
}

impl Operation {
    /// The kernel's REQ_OP_*, and 16 for a journal.
    pub(crate) fn of_kernel(number: u8) -> Operation {
        match number {
            0 => Operation::Read,
            1 => Operation::Write,
            2 => Operation::Flush,
            3 | 5 | 9 => Operation::Discard,
            16 => Operation::Journal,
            _ => Operation::Other,
        }
    }

    /// As tables name it.
    pub fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::Journal => "journal",
            Operation::Flush => "flush",
            Operation::Discard => "discard",
            Operation::Other => "other",
        }
    }
}

/// Where the time of waits went, in nanoseconds. The parts add up to the waits' whole time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Parts {
    /// Queued in the kernel before the device was asked.
    pub queue_ns: u64,
    /// From the device being asked to its completion, with the driver's own threads.
    pub device_ns: u64,
    /// File system, journal and worker threads that passed the answer on.
    pub kernel_ns: u64,
    /// From the wake-up until the thread ran, on a CPU that was idle.
    pub wake_ns: u64,
    /// From the wake-up until the thread ran, on a CPU that ran another program.
    pub busy_ns: u64,
    /// Not explained by a request.
    pub other_ns: u64,
}

impl Parts {
    /// The whole time, in nanoseconds.
    pub fn total_ns(&self) -> u64 {
        self.named().iter().map(|(_, ns)| ns).sum()
    }

    /// Each part with the name that tables give it.
    pub fn named(&self) -> [(&'static str, u64); 6] {
        [
            ("queue", self.queue_ns),
            ("device", self.device_ns),
            ("kernel threads", self.kernel_ns),
            ("waking", self.wake_ns),
            ("busy CPU", self.busy_ns),
            ("unexplained", self.other_ns),
        ]
    }
}

impl AddAssign for Parts {
    fn add_assign(&mut self, more: Parts) {
        self.queue_ns += more.queue_ns;
        self.device_ns += more.device_ns;
        self.kernel_ns += more.kernel_ns;
        self.wake_ns += more.wake_ns;
        self.busy_ns += more.busy_ns;
        self.other_ns += more.other_ns;
    }
}

/// Sleeps of one process that were ended by requests of one kind.
#[derive(Clone, Debug, Serialize)]
pub struct Wait {
    /// Process id.
    pub process: u32,
    /// The program's name, of at most 15 bytes.
    pub program: String,
    /// The device's kernel name, such as `nvme0n1`; `page cache` for a wait that no request ended,
    /// such as that of a writer of many dirty pages.
    pub device: String,
    /// What the device was asked.
    pub operation: Operation,
    /// How the thread came to wait.
    pub issued: Issued,
    /// Size of the last request of each wait, rounded down to a power of two, in bytes; 0 for a
    /// flush.
    pub size_bytes: u64,
    /// A kernel thread, and not the completion itself, woke the thread.
    pub through_thread: bool,
    /// How many waits.
    pub count: u64,
    /// Where their time went.
    pub parts: Parts,
    /// Waits by their length: entry n counts those of 2^(n+7) ns and more.
    pub latency: Vec<u64>,
}

/// What one device did meanwhile, for everybody.
#[derive(Clone, Debug, Serialize)]
pub struct DeviceLoad {
    /// The device's kernel name.
    pub device: String,
    /// What it was asked.
    pub operation: Operation,
    /// Size of a request, rounded down to a power of two, in bytes.
    pub size_bytes: u64,
    /// Requests.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
    /// Mean time in the queue, in nanoseconds.
    pub queue_ns: u64,
    /// Mean time from the device being asked to its completion, in nanoseconds.
    pub device_ns: u64,
    /// Mean number of requests in flight when one completed, that one among them.
    pub in_flight: f64,
}

/// What tracing itself took.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Cost {
    /// CPU time of the tracing programs, in nanoseconds; 0 where the kernel does not count it.
    pub nanos: u64,
    /// Events that they saw.
    pub events: u64,
}

/// Sums of one program, or of the whole machine.
#[derive(Clone, Debug, Serialize)]
pub struct Seen {
    /// How long was looked, in seconds.
    pub seconds: f64,
    /// Time of all threads that waited for storage, from the first to the last of their waits, in
    /// seconds.
    pub thread_seconds: f64,
    /// Waits for storage.
    pub waits: Vec<Wait>,
    /// Sleeps that no request ended: sockets, pipes, timers, locks.
    pub other_waits: u64,
    /// Their time, in seconds.
    pub other_seconds: f64,
    /// What each device did meanwhile.
    pub devices: Vec<DeviceLoad>,
    /// What tracing took.
    pub cost: Cost,
    /// Parts that the trace did not cover, and why.
    pub notes: Vec<String>,
}

impl Seen {
    /// Mean number of requests that a device had in flight when one completed, for everybody: of
    /// one operation, or of all; `None` where it completed none.
    pub fn in_flight(&self, device: &str, operation: Option<Operation>) -> Option<f64> {
        let is_meant = |load: &&DeviceLoad| {
            load.device == device && operation.is_none_or(|operation| load.operation == operation)
        };
        let (count, sum) =
            self.devices.iter().filter(is_meant).fold((0, 0.0), |(count, sum), load| {
                (count + load.count, sum + load.in_flight * load.count as f64)
            });
        (count > 0).then(|| sum / count as f64)
    }
}
