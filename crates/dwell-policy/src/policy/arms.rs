// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arms that a request can take, and the decision that each is.

use super::{Hybrid, block, spin};
use crate::{Arm, Arms, Call, Decision, Mode, Reason, Route, Wait};

impl Arms {
    /// Those that a request can take, a lone one or one of a pipeline that has up to `depth` in
    /// flight. Half of fewer than [`Arms::SPLIT`] is no other number than the first.
    pub fn of(wait: &Wait<'_>, depth: u32) -> Arms {
        Arm::ALL.into_iter().filter(|arm| arm.can_serve(wait, depth)).collect()
    }
}

impl Arm {
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
