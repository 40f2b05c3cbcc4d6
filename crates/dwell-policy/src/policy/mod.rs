// SPDX-License-Identifier: MIT OR Apache-2.0
//! Wait policies: each answers one request with one [`Decision`].

mod adaptive;
mod arms;
mod check;
mod fixed;
mod hybrid;
mod its;
mod predictive;
mod smartcon;

pub use crate::load::CpuSignal;
pub use adaptive::Adaptive;
pub use check::{Check, Looked};
pub use fixed::{Block, Spin};
pub use hybrid::Hybrid;
pub use its::Its;
pub use predictive::Predictive;
pub use smartcon::SmartCon;

use crate::{Decision, Goal, Mode, Profile, Reason, Route, Wait};

/// Chooses how one request is issued and waited for. Asked once, before submission, because the
/// route depends on the answer.
///
/// Implementations are pure: they read the [`Wait`] and nothing else, so a decision can be
/// explained, replayed and simulated.
pub trait WaitPolicy: Send + Sync {
    /// The word that selects this policy on a command line and names it in tables.
    fn name(&self) -> &str;

    /// Decides one request.
    fn choose(&self, wait: &Wait<'_>) -> Decision;

    /// The reason that holds for every read and write of a device with this profile, if no size,
    /// backlog or load can change it: the caller may then issue them inline without asking again.
    fn always_inline(&self, profile: Option<&Profile>) -> Option<(Mode, Reason)> {
        let _ = profile;
        None
    }

    /// Why a lone request is left to the synchronous call, where request, device and load say so.
    /// [`WaitPolicy::choose`] then decides that whatever the estimate, the sequence and the
    /// niceness of the [`Wait`] are. A caller that hears this need not prepare what only another
    /// decision takes.
    fn leaves(&self, wait: &Wait<'_>) -> Option<Reason> {
        let _ = wait;
        None
    }

    /// What CPU time is worth to a policy that reads [`Wait::learned`]; `None` for those that do
    /// not, for which nothing need be compared.
    fn goal(&self) -> Option<Goal> {
        None
    }

    /// Whether [`Wait::backlog`] can change a decision. Nothing is counted for policies that do not
    /// look: a count is two writes a request to memory that all threads share.
    fn looks_at_backlog(&self) -> bool {
        true
    }

    /// Tells `hear` every check of this request in the order in which [`WaitPolicy::choose`] makes
    /// them, those behind the one that decides included.
    fn explain(&self, wait: &Wait<'_>, hear: &mut dyn FnMut(Check)) {
        hear(Check { looked: Looked::Policy, decision: Some(self.choose(wait)) });
    }
}

impl<P: WaitPolicy + ?Sized> WaitPolicy for &P {
    fn name(&self) -> &str {
        (**self).name()
    }
    fn choose(&self, wait: &Wait<'_>) -> Decision {
        (**self).choose(wait)
    }
    fn always_inline(&self, profile: Option<&Profile>) -> Option<(Mode, Reason)> {
        (**self).always_inline(profile)
    }
    fn leaves(&self, wait: &Wait<'_>) -> Option<Reason> {
        (**self).leaves(wait)
    }
    fn goal(&self) -> Option<Goal> {
        (**self).goal()
    }
    fn looks_at_backlog(&self) -> bool {
        (**self).looks_at_backlog()
    }
    fn explain(&self, wait: &Wait<'_>, hear: &mut dyn FnMut(Check)) {
        (**self).explain(wait, hear);
    }
}

/// Names of the policies that come with Dwell, the default first.
#[doc(hidden)]
pub const NAMES: [&str; 7] =
    ["adaptive", "block", "spin", "hybrid", "smartcon", "predictive", "its"];

/// A policy by its name, with its default parameters.
#[doc(hidden)]
pub fn by_name(name: &str) -> Option<&'static dyn WaitPolicy> {
    const SMARTCON: SmartCon =
        SmartCon { cpu_threshold: None, queue_limit: None, signal: CpuSignal::Others };
    static ADAPTIVE: Adaptive = Adaptive { prior: SMARTCON, goal: Goal::Balanced };
    Some(match name {
        "adaptive" => &ADAPTIVE,
        "block" => &Block,
        "spin" => &Spin,
        "hybrid" => &Hybrid,
        "smartcon" => &const { SMARTCON },
        "predictive" => &Predictive,
        "its" => &Its,
        _ => return None,
    })
}

/// Blocks.
pub fn block(wait: &Wait<'_>, reason: Reason) -> Decision {
    Decision::new(wait.routes.to_block(wait.call), Mode::Block, wait.predicted_ns(), reason)
}

/// Blocks the way that a probe found best: as [`block`] does, or, for a lone request that is
/// small enough and where nobody else wants the CPU, on a ring.
pub fn leave(wait: &Wait<'_>, reason: Reason) -> Decision {
    let mut decision = block(wait, reason);
    if wait.blocks_on_ring() && wait.routes.has(Route::Interrupt) && !wait.load.others_above() {
        decision.route = Route::Interrupt;
    }
    decision
}

/// Blocks on the queue, whose server sleeps and is woken by that: a synchronous call would leave it
/// asleep, and every request after this one would find it so.
fn wake(wait: &Wait<'_>, reason: Reason) -> Decision {
    let mut decision = block(wait, reason);
    if wait.routes.has(Route::Interrupt) {
        decision.route = Route::Interrupt;
    }
    decision
}

/// Why a decision leaves its request to the synchronous call, if it does.
fn left(decision: Decision) -> Option<Reason> {
    let is_left = (decision.route, decision.mode) == (Route::Inline, Mode::Block);
    is_left.then_some(decision.reason)
}

/// Spins, or blocks with [`Reason::NoQueue`] where only synchronous calls are possible.
pub fn spin(wait: &Wait<'_>, reason: Reason) -> Decision {
    match wait.routes.to_spin() {
        Some(route) => Decision::new(route, Mode::Spin, wait.predicted_ns(), reason),
        None => block(wait, Reason::NoQueue),
    }
}
