// SPDX-License-Identifier: MIT OR Apache-2.0
//! The default: SmartCon's answer first, then what was measured.

use super::{Check, Looked, SmartCon, WaitPolicy, block, left, wake};
use crate::{Decision, Goal, Kind, Mode, Profile, Reason, Wait};

/// Does what cost least where both arms were tried, and what [`SmartCon`] says where
/// they were not yet.
///
/// The caller compares the [`Arm`](crate::Arm)s by a [`Switchback`](crate::switchback::Switchback)
/// for each device, direction and size. It puts the one in force into [`Wait::learned`]. Device
/// class, size and backlog then count no more: what they stand for has been measured. A request
/// whose server sleeps still blocks, and so does one for which the host has no spinner left, unless
/// others want the CPUs: there an arm that spins has been measured to take no more of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Adaptive {
    /// Answers until something was measured.
    pub prior: SmartCon,
    /// What CPU time is worth.
    pub goal: Goal,
}

impl WaitPolicy for Adaptive {
    fn name(&self) -> &str {
        "adaptive"
    }

    #[inline]
    fn choose(&self, wait: &Wait<'_>) -> Decision {
        let Some(learned) = wait.learned else { return self.prior.choose(wait) };
        let reason = if learned.trial { Reason::Explored } else { Reason::Measured };
        match learned.arm {
            _ if wait.kind == Kind::Sync => block(wait, Reason::Sync),
            arm if arm.spins() && !wait.awake => wake(wait, Reason::Asleep),
            arm if arm.spins() && !wait.load.may_spin && !wait.load.others_above() => {
                block(wait, Reason::SpinnerLimit)
            }
            arm => arm.decide(wait, reason),
        }
    }

    fn always_inline(&self, profile: Option<&Profile>) -> Option<(Mode, Reason)> {
        let always = self.prior.always_inline(profile)?;
        // Whatever else a profile says may turn out wrong.
        (always.1 == Reason::VeryFast).then_some(always)
    }

    fn leaves(&self, wait: &Wait<'_>) -> Option<Reason> {
        left(self.choose(wait))
    }

    fn goal(&self) -> Option<Goal> {
        Some(self.goal)
    }

    /// Counting it loses more than it gains (docs/explanation/policies.md).
    fn looks_at_backlog(&self) -> bool {
        false
    }

    fn explain(&self, wait: &Wait<'_>, hear: &mut dyn FnMut(Check)) {
        let decision = wait.learned.map(|_| self.choose(wait));
        hear(Check { looked: Looked::Learned(wait.learned), decision });
        self.prior.explain(wait, hear);
    }
}
