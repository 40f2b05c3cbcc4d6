// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sleep most of the latency away, then spin.

use super::{WaitPolicy, block, spin};
use crate::{Decision, Kind, Mode, Reason, Wait};

/// Sleeps until shortly before the completion is due, then spins.
///
/// The kernel's hybrid polling keeps one estimate per ring and sleeps for half of it. This one
/// uses the estimate of the request's own size and direction, takes off the *measured* overshoot
/// of a timed sleep, and does not sleep at all where nothing would be left.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hybrid;

impl WaitPolicy for Hybrid {
    fn name(&self) -> &str {
        "hybrid"
    }

    fn choose(&self, wait: &Wait<'_>) -> Decision {
        if wait.kind == Kind::Sync {
            return block(wait, Reason::Sync);
        }
        let Some(profile) = wait.profile else {
            return block(wait, Reason::Unprobed);
        };
        let early_ns = match wait.estimate.spun.early_ns() {
            0 => profile.latency_of(wait.size_bytes) / 2,
            early_ns => early_ns,
        };
        let sleep_ns = early_ns.saturating_sub(profile.sleep_overshoot_ns);
        let mut decision = spin(wait, Reason::Fixed);
        if sleep_ns > 0 && decision.mode == Mode::Spin {
            decision.mode = Mode::Hybrid { sleep_ns };
        }
        decision
    }
}
