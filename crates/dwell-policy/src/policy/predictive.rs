// SPDX-License-Identifier: MIT OR Apache-2.0
//! The forerunner of SmartCon: predicted latency against the cost of switching.

use super::{Check, Looked, WaitPolicy, block, leave, spin};
use crate::{Decision, Kind, Ns, Reason, Wait};

/// Spins where the predicted latency is shorter than the switches it saves ("Adaptive context
/// switch for fast block device", the two-page forerunner).
///
/// The cost of switching is the difference between this queue's own blocked and spun latencies once
/// both are known. Until then it is the probed self switch. The reload of a working set that others
/// evict is added only where others run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Predictive;

impl Predictive {
    /// Cost of blocking for this request and coming back, in nanoseconds.
    pub fn switch_cost_ns(wait: &Wait<'_>) -> Ns {
        let (probed_ns, reload_ns) = wait.profile.map_or((0, 0), |p| (p.switch_ns, p.reload_ns));
        let (spun, blocked) = (wait.estimate.spun, wait.estimate.blocked);
        let measured_ns = if spun.mean_ns > 0 && blocked.mean_ns > 0 {
            blocked.mean_ns.saturating_sub(spun.mean_ns)
        } else {
            probed_ns
        };
        let reload_ns = if wait.load.competitors > 0 { reload_ns } else { 0 };
        measured_ns.saturating_add(reload_ns)
    }
}

impl WaitPolicy for Predictive {
    fn name(&self) -> &str {
        "predictive"
    }

    fn choose(&self, wait: &Wait<'_>) -> Decision {
        if wait.kind == Kind::Sync {
            return block(wait, Reason::Sync);
        }
        let latency_ns = wait.predicted_ns();
        if latency_ns == 0 {
            // Nothing known: one spin, under its deadline, is the first sample.
            return spin(wait, Reason::Explored);
        }
        match latency_ns <= Self::switch_cost_ns(wait) {
            true => spin(wait, Reason::Pays),
            false => leave(wait, Reason::SwitchCheaper),
        }
    }

    fn explain(&self, wait: &Wait<'_>, hear: &mut dyn FnMut(Check)) {
        let latency_ns = wait.predicted_ns();
        let decision = self.choose(wait);
        let mut check = |looked, decides: bool| {
            hear(Check { looked, decision: decides.then_some(decision) });
        };
        check(Looked::Kind(wait.kind), wait.kind == Kind::Sync);
        check(Looked::Latency(latency_ns), latency_ns == 0);
        check(Looked::Switch { latency_ns, switch_ns: Self::switch_cost_ns(wait) }, true);
    }

    fn looks_at_backlog(&self) -> bool {
        false
    }
}
