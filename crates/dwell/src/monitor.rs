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
