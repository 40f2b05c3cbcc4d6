// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sync: a process that waits for a page spins and does nothing.

use super::{Fault, Plan, Policy};

/// Busy-waiting (§4.1).
pub struct Sync;

impl Policy for Sync {
    fn plan(&self, fault: &Fault) -> Plan {
        Plan::wait(fault.decide(&dwell_policy::policy::Spin))
    }
}
