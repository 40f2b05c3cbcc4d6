// SPDX-License-Identifier: MIT OR Apache-2.0
//! Async: a process that waits for a page blocks.

use super::{Fault, Plan, Policy};

/// The traditional way (§4.1).
pub struct Async;

impl Policy for Async {
    fn plan(&self, fault: &Fault) -> Plan {
        Plan::wait(fault.decide(&dwell_policy::policy::Block))
    }
}
