// SPDX-License-Identifier: MIT OR Apache-2.0
//! The arms: routes and wait modes that are compared with each other.

use crate::{Decision, MinComplete, Mode, Route};

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
}

/// A set of arms.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arms(u8);

impl Arms {
    /// No arm.
    pub const NONE: Arms = Arms(0);

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
