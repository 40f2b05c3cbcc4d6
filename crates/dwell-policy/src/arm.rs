// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ways of waiting that are compared with each other.

use crate::policy::{block, spin};
use crate::{Decision, Mode, Reason, Route, Routes, Wait};

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
}

/// How many arms there are.
pub const ARMS: usize = Arm::ALL.len();

impl Arm {
    /// All of them.
    pub const ALL: [Arm; 3] = [Arm::Call, Arm::Ring, Arm::Spin];

    /// The word used in tables and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Arm::Call => "call",
            Arm::Ring => "ring",
            Arm::Spin => "spin",
        }
    }

    /// The arm that a decision takes; a hybrid wait is none of them.
    pub const fn of(decision: &Decision) -> Option<Arm> {
        match (decision.route, decision.mode) {
            (Route::Inline, _) => Some(Arm::Call),
            (_, Mode::Block) => Some(Arm::Ring),
            (_, Mode::Spin) => Some(Arm::Spin),
            (_, Mode::Hybrid { .. }) => None,
        }
    }

    /// Whether a queue with these routes can be waited for so. A polled queue wakes nobody, so it
    /// is no ring to block on.
    pub const fn is_among(self, routes: Routes) -> bool {
        match self {
            Arm::Call => routes.has(Route::Inline),
            Arm::Ring => routes.has(Route::Interrupt),
            Arm::Spin => routes.to_spin().is_some(),
        }
    }

    /// This arm as the decision for a request.
    pub fn decide(self, wait: &Wait<'_>, why: Reason) -> Decision {
        let routes = wait.routes;
        match self {
            Arm::Spin => spin(wait, why),
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
        Arm::ALL.into_iter().filter(|arm| arm.is_among(routes)).collect()
    }

    /// Whether `arm` is in it.
    pub const fn has(self, arm: Arm) -> bool {
        self.0 >> arm as u8 & 1 == 1
    }

    /// This set less `arm`.
    #[must_use]
    pub const fn without(self, arm: Arm) -> Arms {
        Arms(self.0 & !(1 << arm as u8))
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
