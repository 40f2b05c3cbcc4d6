// SPDX-License-Identifier: MIT OR Apache-2.0
//! What reasons of decisions mean, in sentences.

use dwell::{Decision, Reason};

/// Why it was decided so, as a sentence.
pub(super) fn reason(decision: &Decision, learns: bool, cost_ns: Option<f64>) -> &'static str {
    match decision.reason {
        Reason::Unprobed if learns => UNTRIED,
        Reason::Measured if cost_ns == Some(0.0) => UNTIMED,
        why => sentence(why),
    }
}

/// Said of a mode that serves before its cost is known.
const UNTIMED: &str = "this mode serves until the modes have been compared";

/// Said of a device that was never probed, under a policy that finds out by itself.
const UNTRIED: &str = "the device was never probed and no mode was tried yet: a program's first \
    requests block, and other modes are tried within a second";

/// A reason as a sentence.
fn sentence(why: Reason) -> &'static str {
    match why {
        Reason::Fixed => "the policy decides so for every request",
        Reason::Unprobed => "the device was never probed, so its requests pass through",
        Reason::VeryFast => "the caller's own CPU copies the data",
        Reason::Mainstream => "the device's latency is long beside a context switch",
        Reason::Size => "the request is larger than the size threshold",
        Reason::Backlog => "with what is ahead of it, it is larger than the size threshold",
        Reason::QueueLength => "more requests are ahead of it than the queue limit allows",
        Reason::CpuBusy => "the CPUs are busier than the CPU threshold",
        Reason::SpinnerLimit => "the host's spinner limit is reached",
        Reason::Pays => "every check passed: spinning costs less than a switch",
        Reason::SwitchCheaper => "a switch costs less than the expected latency",
        Reason::Explored => "another mode is being tried",
        Reason::Sync => "a sync takes as long as the device needs",
        Reason::NoQueue => "only system calls are possible, so a thread cannot spin",
        Reason::Cached => "the page cache has the data",
        Reason::SpinExpired => "the spin passed its deadline",
        Reason::Measured => "of the modes that were tried, this one cost least",
        Reason::Sacrificed => "a thread of higher priority could run next",
        Reason::Asleep => "the serving thread sleeps, and needs a CPU first",
        Reason::Off => "Dwell is switched off",
        Reason::HeldBack => "only a part of the requests is steered, and this one is not in it",
        Reason::SpinCap => "the process used up its CPU time for spinning",
        Reason::Regressed => "steered requests of this device took longer than those held back",
        _ => "this command has no sentence for the reason",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_sentence() {
        assert!(Reason::ALL.iter().all(|why| !sentence(*why).starts_with("this command")));
    }
}
