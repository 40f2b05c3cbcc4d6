// SPDX-License-Identifier: MIT OR Apache-2.0
//! Where a file's requests meet the system monitor: load in, spinning out.

use dwell_policy::{Decision, Load, Mode, Outcome, Reason, Wait, policy};

use crate::file::File;
use crate::monitor::SpinGuard;
use crate::source::Source;

impl<S: Source> File<S>
where
    S::Queue: Send,
{
    /// The machine in the last window: one atomic read.
    #[inline]
    pub(crate) fn load(&self) -> Load {
        self.monitor.as_ref().map_or_else(Load::default, |monitor| monitor.load())
    }

    /// Takes one of the process's spinners for a decision to spin; where none is left, the
    /// decision becomes one to block.
    #[inline]
    pub(crate) fn permit(&self, wait: &Wait<'_>, decision: &mut Decision) -> Option<SpinGuard> {
        let monitor = self.monitor.as_ref()?;
        if decision.mode != Mode::Spin
            || decision.why == Reason::Fixed
            || decision.why == Reason::VeryFast
        {
            return None;
        }
        let permit = monitor.try_spin();
        if permit.is_none() {
            *decision = policy::block(wait, Reason::SpinBudget);
        }
        permit
    }

    /// Publishes what a wait burnt.
    #[inline]
    pub(crate) fn spun(&self, outcome: &Outcome) {
        if let Some(monitor) = &self.monitor {
            monitor.add_spin(outcome.spun_ns);
        }
    }

    /// Publishes what a kernel worker did for one request.
    #[inline]
    pub(crate) fn worked(&self, bytes: u32) {
        if self.known.worker_ns > 0
            && let Some(monitor) = &self.monitor
        {
            monitor.add_worker(self.known.worker_ns_of(u64::from(bytes)));
        }
    }
}
