// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lower of two priorities gives way.

use super::{Check, Looked, WaitPolicy, block, leave, spin};
use crate::{Decision, Kind, Ns, Reason, Wait};

/// Spins during a wait, to use the time, unless what could run next has a higher priority ("How
/// to Steal CPU Idle Time When Synchronous I/O Mode Becomes Promising", §3.2: a self-improving
/// thread, and a self-sacrificing one).
///
/// A wait can be used only while it spins, so a spin need not be cheaper than a switch, but
/// it must not be slower. On a busy machine the thread that serves the request may need the very
/// CPU that is spun on. Where this queue's own estimates say so, or the device takes longer than
/// [`Its::LONGEST_SPIN_NS`], the thread blocks. A few runs of requests try the other mode, so that
/// both estimates stay true.
#[derive(Clone, Copy, Debug, Default)]
pub struct Its;

impl Its {
    /// Longest predicted latency that is busy-waited for, in nanoseconds.
    pub const LONGEST_SPIN_NS: Ns = 200_000;
    /// One run of requests in so many explores.
    pub const EXPLORE_ONE_IN: u64 = 16;
    /// Requests in a row that explore together.
    const RUN: u64 = 32;

    fn explores(wait: &Wait<'_>) -> bool {
        let run = wait.sequence / Self::RUN;
        run == 1 || run > 1 && scatter(run).is_multiple_of(Self::EXPLORE_ONE_IN)
    }

    /// Whether blocking serves requests like this one sooner. What most requests reach is compared:
    /// the mode that was left is not measured for a while, so a stall or two must not decide.
    fn leaves(wait: &Wait<'_>) -> Option<Reason> {
        let (spun, blocked) = (wait.estimate.spun, wait.estimate.blocked);
        if spun.mean_ns > 0 && blocked.mean_ns > 0 {
            return (blocked.early_ns() < spun.early_ns()).then_some(Reason::SwitchCheaper);
        }
        (wait.predicted_ns() > Self::LONGEST_SPIN_NS).then_some(Reason::Mainstream)
    }
}

/// Spreads consecutive numbers evenly over all of 64 bits.
fn scatter(number: u64) -> u64 {
    let mut x = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
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
        match (Self::leaves(wait), Self::explores(wait)) {
            (Some(reason), false) => leave(wait, reason),
            (None, false) => spin(wait, Reason::Pays),
            (Some(_), true) => spin(wait, Reason::Explored),
            (None, true) => leave(wait, Reason::Explored),
        }
    }

    fn explain(&self, wait: &Wait<'_>, hear: &mut dyn FnMut(Check)) {
        let decision = self.choose(wait);
        let (nice, next) = (wait.nice, wait.next_nice);
        let explored = Self::explores(wait);
        let looks = [
            (Looked::Kind(wait.kind), decision.reason == Reason::Sync),
            (Looked::Priority { nice, next }, decision.reason == Reason::Sacrificed),
            (Looked::Explore(explored), explored),
            (Looked::Latency(wait.predicted_ns()), true),
        ];
        for (looked, decides) in looks {
            hear(Check { looked, decision: decides.then_some(decision) });
        }
    }

    fn looks_at_backlog(&self) -> bool {
        false
    }
}
