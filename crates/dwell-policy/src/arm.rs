// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ways of waiting that are compared with each other.

use crate::policy::{block, spin};
use crate::{Decision, Enough, Mode, Reason, Route, Routes, Wait};

/// A way of waiting that is compared with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Arm {
    /// A synchronous call: the kernel serves it in the caller's context, or blocks.
    Call,
    /// A request on a ring, and a second call that blocks until it completes.
    Ring,
    /// A request on a ring whose completion the thread spins for.
    Spin,
    /// As [`Arm::Ring`], until half of what a pipeline has in flight has completed.
    RingHalf,
    /// As [`Arm::Spin`], until half of what a pipeline has in flight has completed.
    SpinHalf,
}

/// How many arms there are.
pub const ARMS: usize = Arm::ALL.len();

impl Arm {
    /// All of them.
    pub const ALL: [Arm; 5] = [Arm::Call, Arm::Ring, Arm::Spin, Arm::RingHalf, Arm::SpinHalf];

    /// Those that a lone request can take.
    pub const LONE: [Arm; 3] = [Arm::Call, Arm::Ring, Arm::Spin];

    /// The word used in tables and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Arm::Call => "call",
            Arm::Ring => "ring",
            Arm::Spin => "spin",
            Arm::RingHalf => "ring, for half",
            Arm::SpinHalf => "spin, for half",
        }
    }

    /// Whether the thread spins.
    pub const fn spins(self) -> bool {
        matches!(self, Arm::Spin | Arm::SpinHalf)
    }

    /// The arm that a decision takes; a hybrid wait is none of them.
    pub const fn of(decision: &Decision) -> Option<Arm> {
        match (decision.route, decision.mode, decision.enough) {
            (Route::Inline, ..) => Some(Arm::Call),
            (_, Mode::Block, Enough::Few) => Some(Arm::Ring),
            (_, Mode::Spin, Enough::Few) => Some(Arm::Spin),
            (_, Mode::Block, Enough::Half) => Some(Arm::RingHalf),
            (_, Mode::Spin, Enough::Half) => Some(Arm::SpinHalf),
            (_, Mode::Hybrid { .. }, _) => None,
        }
    }

    /// Whether a queue with these routes can be waited for so. A polled queue wakes nobody, so it
    /// is no ring to block on.
    pub const fn is_among(self, routes: Routes) -> bool {
        match self {
            Arm::Call => routes.has(Route::Inline),
            Arm::Ring | Arm::RingHalf => routes.has(Route::Interrupt),
            Arm::Spin | Arm::SpinHalf => routes.to_spin().is_some(),
        }
    }

    /// This arm as the decision for a request.
    pub fn decide(self, wait: &Wait<'_>, why: Reason) -> Decision {
        let routes = wait.routes;
        match self {
            Arm::Spin => spin(wait, why),
            Arm::SpinHalf => spin(wait, why).for_half(),
            Arm::RingHalf => Arm::Ring.decide(wait, why).for_half(),
            Arm::Ring if routes.has(Route::Interrupt) => {
                Decision::new(Route::Interrupt, Mode::Block, wait.predicted_ns(), why)
            }
            Arm::Call if routes.has(Route::Inline) => {
                Decision::new(Route::Inline, Mode::Block, wait.predicted_ns(), why)
            }
            Arm::Call | Arm::Ring => block(wait, why),
        }
    }
}

/// A set of arms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arms(u8);

impl Arms {
    /// No arm.
    pub const NONE: Arms = Arms(0);

    /// Those that a lone request can take on these routes.
    pub fn on(routes: Routes) -> Arms {
        Arm::LONE.into_iter().filter(|arm| arm.is_among(routes)).collect()
    }

    /// Those that the requests of a pipeline can take on these routes, of which up to `depth` are in
    /// flight. Half of fewer than [`Arms::SPLIT`] is no other number than the first.
    pub fn of_pipeline(routes: Routes, depth: u32) -> Arms {
        let halves = if depth >= Arms::SPLIT { &[Arm::RingHalf, Arm::SpinHalf][..] } else { &[] };
        let all = [Arm::Ring, Arm::Spin].iter().chain(halves).copied();
        all.filter(|arm| arm.is_among(routes)).collect()
    }

    /// Fewest requests in flight of which waiting for half is a way of its own.
    pub const SPLIT: u32 = 4;

    /// This set less those that spin.
    #[must_use]
    pub fn blocking(self) -> Arms {
        Arm::ALL.into_iter().filter(|arm| self.has(*arm) && !arm.spins()).collect()
    }

    /// Whether `arm` is in it.
    pub const fn has(self, arm: Arm) -> bool {
        self.0 >> arm as u8 & 1 == 1
    }

    /// Whether there is more than one: otherwise there is nothing to compare.
    pub const fn is_choice(self) -> bool {
        self.0.count_ones() > 1
    }
}

impl FromIterator<Arm> for Arms {
    fn from_iter<I: IntoIterator<Item = Arm>>(arms: I) -> Arms {
        Arms(arms.into_iter().fold(0, |set, arm| set | 1 << arm as u8))
    }
}

/// What comparing found for requests like one that is about to be submitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Learned {
    /// The way to wait.
    pub arm: Arm,
    /// Whether it is on trial now, rather than the best known.
    pub trial: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Kind;

    #[test]
    fn each_arm_is_known_again_by_its_decision() {
        let routes = Routes::INLINE | Routes::INTERRUPT;
        let wait = Wait { routes, ..Wait::new(Kind::Read, 4096, None) };
        for arm in Arm::ALL {
            assert_eq!(Arm::of(&arm.decide(&wait, Reason::Measured)), Some(arm));
        }
    }

    #[test]
    fn half_is_a_way_of_its_own_from_four_in_flight_on() {
        let routes = Routes::INLINE | Routes::INTERRUPT;
        let of = |depth| Arms::of_pipeline(routes, depth);
        assert_eq!(of(3), [Arm::Ring, Arm::Spin].into_iter().collect());
        assert_eq!(of(4), Arm::ALL.into_iter().filter(|arm| *arm != Arm::Call).collect());
        let blocking = Arms::of_pipeline(routes, 4).blocking();
        assert!(blocking.has(Arm::RingHalf) && !blocking.has(Arm::SpinHalf));
    }
}
