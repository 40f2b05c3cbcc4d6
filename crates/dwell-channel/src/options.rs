// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a daemon is told.

use std::sync::Arc;
use std::thread;
use std::time::Duration;

use dwell::monitor::SystemMonitor;
use dwell::parameters::DeviceParameters;
use dwell_policy::WaitPolicy;
use dwell_policy::policy::SmartCon;

use crate::owners::Owners;

/// What a daemon is told.
#[derive(Clone)]
pub struct Options {
    /// Parameters of the device beneath the backing directory.
    pub parameters: DeviceParameters,
    /// How a serving thread waits while no channel asks for anything.
    pub policy: Arc<dyn WaitPolicy>,
    /// The system monitor that says how busy the machine is. Without one, all CPUs are taken to be
    /// idle.
    pub monitor: Option<Arc<SystemMonitor>>,
    /// Threads that serve channels, at most; one at least, and half of the CPUs by default.
    pub most_threads: u32,
    /// Open files that one channel can reach at a time.
    pub table_capacity: u32,
    /// Channels of one user.
    pub most_channels: u32,
    /// Memory of one user's channels, in bytes. Commands in flight keep that of a channel that is
    /// gone.
    pub most_bytes: u64,
    /// Memory of files that one user's channels have mapped, in bytes. Files beyond are reached in
    /// another way.
    pub most_mapped_bytes: u64,
    /// Commands in flight, of all channels of one thread, on files that are not memory. One user
    /// has half of them at most, two a third each, and so on: some are free for whoever comes
    /// next.
    pub device_depth: u32,
    /// How long a connection may take to say what it wants.
    pub patience: Duration,
    /// Whose subordinate users share with their owner.
    pub owners: Arc<Owners>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            parameters: DeviceParameters::default(),
            policy: Arc::new(SmartCon::default()),
            monitor: None,
            most_threads: cpus() / 2,
            table_capacity: 1024,
            most_channels: 512,
            most_bytes: 1 << 30,
            most_mapped_bytes: 256 << 30,
            device_depth: 512,
            patience: Duration::from_secs(1),
            owners: Arc::default(),
        }
    }
}

/// CPUs that this process may use.
pub(crate) fn cpus() -> u32 {
    thread::available_parallelism().map_or(1, |cpus| cpus.get() as u32)
}
