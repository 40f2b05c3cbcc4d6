// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a policy that compares arms is told, as by the learner of a real device.

use dwell_policy::switchback::{Seen, Step, Switchback};
use dwell_policy::{Arm, Arms, Decision, Goal, Learned, Ns, Wait};

/// The search that a request belongs to, and the step in force when it began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    search: usize,
    step: Option<Step>,
    offered: Arms,
}

/// One search while others leave a CPU idle, and one while they do not.
pub(super) struct Learner {
    searches: [Switchback; 2],
    heard: [Seen; 2],
}

impl Learner {
    pub fn new(goal: Goal) -> Learner {
        let idle = |crowded| Switchback::idle(goal, crowded);
        Learner { searches: [idle(false), idle(true)], heard: [Seen::default(); 2] }
    }

    /// The search for a request and its step in force; `None` where there is nothing to choose.
    pub fn ask(&self, wait: &Wait<'_>) -> Option<Asked> {
        let crowded = wait.load.others_above();
        let offered = Arms::of(wait, 1);
        let search = &self.searches[usize::from(crowded)];
        let step = search.is_begun().then(|| search.now());
        offered.is_choice().then_some(Asked { search: crowded.into(), step, offered })
    }

    /// Hears of a request that `decision` was made for, and that is over now.
    pub fn hear(&mut self, asked: Asked, decision: &Decision, began: Ns, cpu_ns: Ns, now: Ns) {
        let Asked { search: at, step, offered } = asked;
        let arm = Arm::of(decision);
        let (search, heard) = (&mut self.searches[at], &mut self.heard[at]);
        let Some(step) = step else {
            if !search.is_begun() && offered.has(arm) {
                search.begin(now, arm, offered);
            }
            return;
        };
        let in_force = search.now();
        if (step.from, step.arm) == (in_force.from, in_force.arm)
            && arm == step.arm
            && began >= step.from
        {
            let latency_ns = now - began;
            let slow_ns = latency_ns.saturating_sub(step.slow);
            heard.add(Seen { requests: 1, latency_ns, slow_ns, metered: 1, cpu_ns });
        }
        if now >= in_force.until {
            search.step(now, std::mem::take(heard), true);
        }
    }
}

impl Asked {
    pub fn learned(self) -> Option<Learned> {
        self.step.map(|step| Learned { arm: step.arm, trial: step.trial })
    }
}
