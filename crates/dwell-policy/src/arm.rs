// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arms: routes and wait modes that are compared with each other.

use crate::policy::{Hybrid, block, spin};
use crate::{Call, Decision, MinComplete, Mode, Reason, Route, Wait};

/// A route and a wait mode that are compared with others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Arm {
    /// A synchronous call: the kernel serves it in the caller's context, or blocks.
    Call,
    /// A request on a ring, and a second call that blocks until it completes.
    Ring,
    /// A request on a ring that is completed by interrupts, whose completion the thread spins for.
    Spin,
    /// As [`Arm::Ring`], until half of what a pipeline has in flight has completed.
    RingHalf,
    /// As [`Arm::Spin`], or as [`Arm::Poll`] where that can be, until half of what a pipeline has
    /// in flight has completed.
    SpinHalf,
    /// A request on a ring whose completion the thread sleeps for by a timer, and then spins for.
    Hybrid,
    /// A request on a polled ring, whose completion the thread spins for.
    Poll,
}

/// How many arms there are.
pub const ARMS: usize = Arm::ALL.len();

impl Arm {
    /// All of them.
    pub const ALL: [Arm; 7] =
        [Arm::Call, Arm::Ring, Arm::Spin, Arm::RingHalf, Arm::SpinHalf, Arm::Hybrid, Arm::Poll];

    /// Those that a lone request can take wherever there is a ring.
    pub const LONE: [Arm; 3] = [Arm::Call, Arm::Ring, Arm::Spin];

    /// The word used in tables and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Arm::Call => "call",
            Arm::Ring => "ring",
            Arm::Spin => "spin",
            Arm::RingHalf => "ring, for half",
            Arm::SpinHalf => "spin, for half",
            Arm::Hybrid => "hybrid",
            Arm::Poll => "poll",
        }
    }

    /// Whether the thread spins.
    pub const fn spins(self) -> bool {
        matches!(self, Arm::Spin | Arm::SpinHalf | Arm::Hybrid | Arm::Poll)
    }

    /// The arm that a decision takes.
    pub const fn of(decision: &Decision) -> Arm {
        match (decision.route, decision.mode, decision.min_complete) {
            (Route::Inline, ..) => Arm::Call,
            (_, Mode::Hybrid { .. }, _) => Arm::Hybrid,
            (_, Mode::Block, MinComplete::Few) => Arm::Ring,
            (_, Mode::Block, MinComplete::Half) => Arm::RingHalf,
            (_, Mode::Spin, MinComplete::Half) => Arm::SpinHalf,
            (Route::Polled, Mode::Spin, MinComplete::Few) => Arm::Poll,
            (Route::Interrupt, Mode::Spin, MinComplete::Few) => Arm::Spin,
        }
    }

    /// Whether a request can be waited for so, where up to `depth` go together. A polled queue
    /// wakes nobody, so it is no ring to block on. A timed sleep is one only if a probe found that
    /// it ends before the completion comes.
    fn can_serve(self, wait: &Wait<'_>, depth: u32) -> bool {
        let routes = wait.routes;
        let is_lone = wait.call == Call::Blocking;
        let splits = !is_lone && depth >= Arms::SPLIT;
        match self {
            Arm::Call => is_lone && routes.has(Route::Inline),
            Arm::Ring | Arm::Spin => routes.has(Route::Interrupt),
            Arm::RingHalf => splits && routes.has(Route::Interrupt),
            Arm::SpinHalf => splits && routes.to_spin().is_some(),
            Arm::Hybrid => is_lone && routes.to_spin().is_some() && Hybrid::sleep_ns(wait) > 0,
            Arm::Poll => routes.has(Route::Polled),
        }
    }

    /// This arm as the decision for a request.
    pub fn decide(self, wait: &Wait<'_>, reason: Reason) -> Decision {
        let routes = wait.routes;
        let on = |route, mode| Decision::new(route, mode, wait.predicted_ns(), reason);
        match self {
            Arm::Spin if routes.has(Route::Interrupt) => on(Route::Interrupt, Mode::Spin),
            Arm::Spin | Arm::Poll => spin(wait, reason),
            Arm::Hybrid => Hybrid::decide(wait, reason),
            Arm::SpinHalf => spin(wait, reason).for_half(),
            Arm::RingHalf => Arm::Ring.decide(wait, reason).for_half(),
            Arm::Ring if routes.has(Route::Interrupt) => on(Route::Interrupt, Mode::Block),
            Arm::Call if routes.has(Route::Inline) => on(Route::Inline, Mode::Block),
            Arm::Call | Arm::Ring => block(wait, reason),
        }
    }
}

/// A set of arms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arms(u8);

impl Arms {
    /// No arm.
    pub const NONE: Arms = Arms(0);

    /// Those that a request can take, a lone one or one of a pipeline that has up to `depth` in
    /// flight. Half of fewer than [`Arms::SPLIT`] is no other number than the first.
    pub fn of(wait: &Wait<'_>, depth: u32) -> Arms {
        Arm::ALL.into_iter().filter(|arm| arm.can_serve(wait, depth)).collect()
    }

    /// Fewest requests in flight of which waiting for half is an arm of its own.
    pub const SPLIT: u32 = 4;

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
    /// The arm.
    pub arm: Arm,
    /// Whether it is on trial now, rather than the best known.
    pub trial: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Kind, Profile, Routes};

    fn wait(routes: Routes, profile: Option<&Profile>) -> Wait<'_> {
        Wait { routes, ..Wait::new(Kind::Read, 4096, profile) }
    }

    fn slow() -> Profile {
        Profile { latency_ns: 80_000, sleep_overshoot_ns: 14_000, ..Profile::default() }
    }

    #[test]
    fn each_arm_is_known_again_by_its_decision() {
        let (routes, slow) = (Routes::INLINE | Routes::INTERRUPT, slow());
        for arm in Arm::ALL {
            let polled = if arm == Arm::Poll { Routes::POLLED } else { Routes::NONE };
            let wait = wait(routes | polled, Some(&slow));
            assert_eq!(Arm::of(&arm.decide(&wait, Reason::Measured)), arm);
        }
    }

    #[test]
    fn half_is_a_way_of_its_own_from_four_in_flight_on() {
        let (routes, slow) = (Routes::INLINE | Routes::INTERRUPT, slow());
        let queued = Wait { call: Call::Async, ..wait(routes, Some(&slow)) };
        let of = |depth| Arms::of(&queued, depth);
        assert_eq!(of(3), [Arm::Ring, Arm::Spin].into_iter().collect());
        let halves = [Arm::Ring, Arm::Spin, Arm::RingHalf, Arm::SpinHalf];
        assert_eq!(of(4), halves.into_iter().collect());
    }

    #[test]
    fn a_timed_sleep_and_a_polled_ring_are_compared_where_they_are_real() {
        let of = |routes, profile| Arms::of(&wait(routes, profile), 1);
        let slow = slow();
        let usual = Routes::INLINE | Routes::INTERRUPT;
        let lone = Arm::LONE.into_iter().collect();
        assert_eq!(of(usual, None), lone);
        assert!(of(usual, Some(&slow)).has(Arm::Hybrid));
        // It would come back after the completion.
        let short = Profile { latency_ns: 10_000, ..slow };
        assert_eq!(of(usual, Some(&short)), lone);
        assert!(of(usual | Routes::POLLED, None).has(Arm::Poll));
        assert!(!of(Routes::INLINE, Some(&slow)).has(Arm::Hybrid));
    }
}
