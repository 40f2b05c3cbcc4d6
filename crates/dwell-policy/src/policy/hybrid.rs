// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sleep most of the latency away, then spin.

use super::{WaitPolicy, block, spin};
use crate::{Decision, Kind, Mode, Ns, Reason, Wait};

/// Sleeps until shortly before the completion is due, then spins.
///
/// The kernel's hybrid polling keeps one estimate per ring and sleeps for half of it. This one
/// uses the estimate of the request's own size and direction, takes off the *measured* overshoot
/// of a timed sleep, and does not sleep at all where nothing would be left.
///
/// It aims to wake at three quarters of the prediction at the latest. A wait that sleeps past its
/// completion cannot tell the device's latency from its own sleep; were the whole prediction slept
/// away, one slow wake-up would keep the estimate high for ever. With the margin the estimate
/// comes back down by itself, and an overshoot that is wrong by some amount can raise it to four
/// times that amount and no further.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hybrid;

impl Hybrid {
    /// How long to ask the timer for, in nanoseconds; 0 where the device was never probed, or the
    /// sleep would come back after the completion.
    pub fn sleep_ns(wait: &Wait<'_>) -> Ns {
        let Some(profile) = wait.profile else { return 0 };
        let spun = wait.estimate.spun;
        let early_ns = match spun.mean_ns {
            0 => profile.latency_of(wait.size_bytes) / 2,
            mean_ns => spun.early_ns().min(mean_ns - mean_ns / 4),
        };
        early_ns.saturating_sub(profile.sleep_overshoot_ns)
    }

    /// Sleeps, then spins; spins alone where there is nothing to sleep away.
    pub fn decide(wait: &Wait<'_>, reason: Reason) -> Decision {
        let (sleep_ns, mut decision) = (Self::sleep_ns(wait), spin(wait, reason));
        if sleep_ns > 0 && decision.mode == Mode::Spin {
            decision.mode = Mode::Hybrid { sleep_ns };
        }
        decision
    }
}

impl WaitPolicy for Hybrid {
    fn name(&self) -> &str {
        "hybrid"
    }

    fn choose(&self, wait: &Wait<'_>) -> Decision {
        match wait.profile {
            _ if wait.kind == Kind::Sync => block(wait, Reason::Sync),
            None => block(wait, Reason::Unprobed),
            Some(_) => Hybrid::decide(wait, Reason::Fixed),
        }
    }

    fn looks_at_backlog(&self) -> bool {
        false
    }
}
