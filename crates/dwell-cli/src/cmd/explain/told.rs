// SPDX-License-Identifier: MIT OR Apache-2.0
//! An explanation as JSON.

use dwell::clock;
use dwell::learner::LearnerSummary;
use dwell_policy::policy::Check;
use dwell_policy::{Arm, Decision};
use serde::Serialize;

#[derive(Serialize)]
pub(super) struct Told {
    pub path: String,
    pub policy: String,
    pub goal: Option<String>,
    pub decision: Decided,
    pub checks: Vec<Checked>,
    /// Each mode that is compared, with what is known of it.
    pub modes: Vec<Known>,
    pub notes: Vec<Note>,
}

/// Something that changes what the decision means.
#[derive(Serialize)]
pub(super) struct Note {
    pub about: &'static str,
    pub text: String,
}

#[derive(Serialize)]
pub(super) struct Decided {
    route: &'static str,
    mode: &'static str,
    reason: String,
    because: &'static str,
    /// 0 while it is unknown.
    expected_ns: u64,
}

impl Decided {
    pub fn of(decision: &Decision, because: &'static str) -> Self {
        Decided {
            route: decision.route.as_str(),
            mode: decision.mode.as_str(),
            reason: decision.reason.to_string(),
            because,
            expected_ns: decision.expected_ns,
        }
    }
}

#[derive(Serialize)]
pub(super) struct Checked {
    check: String,
    found: String,
    allowed: String,
    /// The mode that it decides for; the first one that does is what is taken.
    decides: Option<&'static str>,
}

impl Checked {
    pub fn of(check: &Check, [name, found, allowed]: [String; 3]) -> Self {
        let decides = check.decision.map(|decision| decision.mode.as_str());
        Checked { check: name, found, allowed, decides }
    }
}

#[derive(Serialize)]
pub(super) struct Known {
    mode: &'static str,
    serves: bool,
    /// 0 while they are unknown.
    cost_ns: f64,
    cpu_ns: f64,
    trials: u32,
    /// Since the last trial.
    tried_ago_ns: Option<u64>,
    /// Time in which requests are made until it is tried again.
    due_in_ns: u64,
    trials_cost_ns: f64,
}

impl Known {
    pub fn all(known: &LearnerSummary) -> Vec<Self> {
        let now = clock::now();
        let arms = Arm::ALL.into_iter().zip(&known.arms);
        arms.filter(|(arm, _)| known.offered.has(*arm))
            .map(|(arm, told)| Known {
                mode: arm.as_str(),
                serves: arm == known.incumbent,
                cost_ns: told.cost_ns,
                cpu_ns: told.cpu_ns,
                trials: told.trials,
                tried_ago_ns: (told.tried > 0).then(|| now.saturating_sub(told.tried)),
                due_in_ns: told.due_in_ns,
                trials_cost_ns: told.regret_ns,
            })
            .collect()
    }
}
