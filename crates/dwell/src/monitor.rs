// SPDX-License-Identifier: MIT OR Apache-2.0
//! Placeholder for the system monitor.

use dwell_policy::Load;

/// Handle.
#[derive(Clone, Debug, Default)]
pub struct SystemMonitor;

/// One spinning thread.
pub struct SpinGuard;

impl SystemMonitor {
    /// Load.
    pub fn load(&self) -> Load {
        Load::default()
    }
    /// Permit.
    pub fn try_spin(&self) -> Option<SpinGuard> {
        Some(SpinGuard)
    }
    /// Publish.
    pub fn add_spin(&self, _ns: u64) {}
    /// Publish.
    pub fn add_worker(&self, _ns: u64) {}
}

/// Busy time of all CPUs, in nanoseconds.
pub fn busy_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
    let f: Vec<u64> = text
        .lines()
        .next()
        .unwrap_or("")
        .split_whitespace()
        .skip(1)
        .filter_map(|x| x.parse().ok())
        .collect();
    (f[0] + f[1] + f[2] + f[5] + f[6] + f[7]) * 10_000_000
}
