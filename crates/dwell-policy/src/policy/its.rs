// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lower of two priorities gives way.

use super::{Check, Looked, WaitPolicy, block, leave, spin};
use crate::{Decision, Kind, Ns, Reason, Wait};

/// Keeps the CPU during a wait, to use it, unless what could run next has a higher priority ("How to Steal
/// CPU Idle Time When Synchronous I/O Mode Becomes Promising", §3.2: a self-improving thread, and a
/// self-sacrificing one).
///
/// A thread that could have the CPU to itself keeps it only where that can pay: a wait that is expected to
/// be longer than [`Its::LONGEST_SPIN_NS`] is one of a mainstream device, and blocks.
#[derive(Clone, Copy, Debug, Default)]
pub struct Its;

impl Its {
    /// Longest predicted latency that is busy-waited for, in nanoseconds.
    pub const LONGEST_SPIN_NS: Ns = 200_000;
}

impl WaitPolicy for Its {
    fn name(&self) -> &str {
        "its"
    }

    fn choose(&self, wait: &Wait<'_>) -> Decision {
        if wait.kind == Kind::Sync {
            return block(wait, Reason::Sync);
        }
        if wait.next_nice.is_some_and(|next| next < wait.nice) {
            return block(wait, Reason::Sacrificed);
        }
        if wait.predicted_ns() > Self::LONGEST_SPIN_NS {
            return leave(wait, Reason::Mainstream);
        }
        spin(wait, Reason::Pays)
    }

    fn explain(&self, wait: &Wait<'_>, hear: &mut dyn FnMut(Check)) {
        let decision = self.choose(wait);
        let (nice, next) = (wait.nice, wait.next_nice);
        let latency_ns = wait.predicted_ns();
        let looks = [
            (Looked::Kind(wait.kind), decision.why == Reason::Sync),
            (Looked::Priority { nice, next }, decision.why == Reason::Sacrificed),
            (Looked::Latency(latency_ns), decision.why == Reason::Mainstream),
            (Looked::Queue(wait.routes.to_spin()), true),
        ];
        for (looked, decides) in looks {
            hear(Check { looked, decision: decides.then_some(decision) });
        }
    }
}
