// SPDX-License-Identifier: MIT OR Apache-2.0
//! A wait policy outside Dwell: spin for what is due soon, whatever the machine is doing.

use dwell::dwell_policy::{Ns, Wait};
use dwell::{Decision, Kind, Reason, WaitPolicy, policy};

/// Spins for reads that are due within a budget, and blocks for everything else.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Longest predicted latency that is spun for, in nanoseconds.
    pub spin_ns: Ns,
}

impl WaitPolicy for Budget {
    fn name(&self) -> &str {
        "budget"
    }

    fn choose(&self, wait: &Wait<'_>) -> Decision {
        match wait.predicted_ns() {
            // What nobody can predict is not spun for.
            0 => policy::block(wait, Reason::Unprobed),
            _ if wait.kind != Kind::Read => policy::block(wait, Reason::Fixed),
            due_ns if due_ns <= self.spin_ns => policy::spin(wait, Reason::Pays),
            _ => policy::block(wait, Reason::SwitchCheaper),
        }
    }
}
