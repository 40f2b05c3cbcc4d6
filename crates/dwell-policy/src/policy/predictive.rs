// SPDX-License-Identifier: MIT OR Apache-2.0
//! The forerunner of SmartCon: predicted latency against the cost of switching.

use super::{Check, Looked, WaitPolicy, block, leave, spin};
use crate::guard::scatter;
use crate::{Decision, Kind, Mode, Ns, Reason, Wait};

/// Spins where the predicted latency is shorter than the switches it saves ("Adaptive context
/// switch for fast block device", the two-page forerunner).
///
/// The cost of switching is the difference between this queue's own blocked and spun latencies
/// once both are known, and the probed self switch until then; the reload of a working set that
/// others evict is added only where others run. A small share of requests takes the other mode,
/// so that both estimates stay true and a wrong profile corrects itself.
#[derive(Clone, Copy, Debug)]
pub struct Predictive {
    /// One request in this many explores the other mode; 0 explores never.
    pub explore_one_in: u32,
}

impl Predictive {
    /// Default share of exploring requests: one in 64.
    pub const EXPLORE_ONE_IN: u32 = 64;
    /// So many requests in a row explore. A lone spin among blocking requests meets CPUs that have
    /// gone to sleep, a lone block among spinning ones meets CPUs that are awake: neither shows
    /// what the mode would give if it were kept.
    const RUN: u64 = 32;

    /// Cost of leaving the CPU for this request and coming back, in nanoseconds.
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

    /// Whether this request tries the other mode.
    fn explores(&self, wait: &Wait<'_>) -> bool {
        let run = wait.sequence / Self::RUN;
        // The second run always explores, so that a wrong profile is found out early.
        self.explore_one_in > 0
            && (run == 1 || scatter(run).is_multiple_of(u64::from(self.explore_one_in)))
    }
}

impl Default for Predictive {
    fn default() -> Self {
        Predictive { explore_one_in: Self::EXPLORE_ONE_IN }
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
        let pays = latency_ns <= Self::switch_cost_ns(wait);
        let mut decision = match (pays, self.explores(wait)) {
            (true, false) => spin(wait, Reason::Pays),
            (false, false) => leave(wait, Reason::SwitchCheaper),
            (true, true) => leave(wait, Reason::Explored),
            (false, true) => spin(wait, Reason::Explored),
        };
        if decision.why == Reason::Explored && decision.mode == Mode::Spin {
            // An experiment may cost what it could win, not more.
            decision.spin_limit_ns = decision.spin_limit_ns.min(latency_ns.saturating_mul(2));
        }
        decision
    }

    fn explain(&self, wait: &Wait<'_>, hear: &mut dyn FnMut(Check)) {
        let latency_ns = wait.predicted_ns();
        let explores = self.explores(wait);
        let decision = self.choose(wait);
        let mut check = |looked, decides: bool| {
            hear(Check { looked, decision: decides.then_some(decision) });
        };
        check(Looked::Kind(wait.kind), wait.kind == Kind::Sync);
        check(Looked::Latency(latency_ns), latency_ns == 0);
        check(Looked::Explore(explores), explores);
        check(Looked::Switch { latency_ns, switch_ns: Self::switch_cost_ns(wait) }, true);
    }
}
