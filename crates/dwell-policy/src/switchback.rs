// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which arm costs least, found by waiting in each for a while.
//!
//! One arm, the incumbent, serves all requests of a kind and size on a device. Now and then another
//! arm serves them for some milliseconds: a switchback. The first part after a change of arms does
//! not count. An arm that was cheaper by more than chance takes over, on probation: if it is not
//! cheaper once it has settled, the former incumbent comes back. Trials become rarer while nothing
//! changes, and begin anew when the incumbent's own cost shifts.
//!
//! Trials are rationed by the time in which requests were made, the *active* time: a program that
//! pauses would otherwise try with a larger share of its requests than one that does not.
//!
//! Where others want the CPUs, an arm that spins must also take no more CPU time than one that
//! blocks: what it takes, they lose.

mod drift;
mod incumbent;
mod rival;
mod saved;
mod trials;

use crate::arm::{ARMS, Arm, Arms};
use crate::{Goal, Ns};
use drift::Drift;
use rival::Rival;
use trials::Trial;

pub use rival::{MARGIN, Told};
pub use saved::SAVED_WORDS;

/// What requests took that began after [`Step::from`], all served as the step said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Requests that ended.
    pub requests: u64,
    /// Their latency in all, in nanoseconds.
    pub latency_ns: u64,
    /// The part of it that each request took beyond [`Step::slow`], in nanoseconds.
    pub slow_ns: u64,
    /// Those of them whose CPU time was measured.
    pub metered: u64,
    /// The thread's CPU time for those, in nanoseconds.
    pub cpu_ns: u64,
}

impl Seen {
    /// Both together.
    pub fn add(&mut self, other: Seen) {
        self.requests = self.requests.saturating_add(other.requests);
        self.latency_ns = self.latency_ns.saturating_add(other.latency_ns);
        self.slow_ns = self.slow_ns.saturating_add(other.slow_ns);
        self.metered = self.metered.saturating_add(other.metered);
        self.cpu_ns = self.cpu_ns.saturating_add(other.cpu_ns);
    }

    /// Cost of one request: its latency, in which slow time counts twice, and its CPU time at a
    /// price.
    fn cost(&self, cpu_price: f64) -> f64 {
        let latency_ns = self.latency_ns.saturating_add(self.slow_ns);
        mean(latency_ns, self.requests) + cpu_price * self.cpu_time()
    }

    /// CPU time of one request, in nanoseconds.
    fn cpu_time(&self) -> f64 {
        mean(self.cpu_ns, self.metered)
    }
}

fn mean(sum: u64, count: u64) -> f64 {
    sum as f64 / count.max(1) as f64
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// How requests wait.
    pub arm: Arm,
    /// Whether that arm is on trial.
    pub trial: bool,
    /// Requests that begin from then on count.
    pub from: Ns,
    /// When to ask again.
    pub until: Ns,
    /// Latency beyond which a request is slow, in nanoseconds.
    pub slow: Ns,
}

const MS: Ns = 1_000_000;

/// A request is slow beyond so many times what the incumbent's take on average.
const SLOW: f64 = 4.0;

/// How long an arm on trial counts, after as long as half of that which does not.
const LEG_NS: Ns = 10 * MS;
const LEAD_NS: Ns = LEG_NS / 2;
/// Fewer requests tell nothing: what counts is prolonged until there are so many, for so long.
const FEWEST: u64 = 32;
const PATIENCE_NS: Ns = 2_000 * MS;
/// A trial beside others who want the CPUs is not prolonged for as long: its thread may come to its
/// CPU seldom.
const PATIENCE_BESIDE_NS: Ns = 200 * MS;
/// Of an arm that is so much dearer, this few say enough.
const FAR_DEARER: f64 = 4.0;
const FEWEST_OF_FAR_DEARER: u64 = 4;
/// Where CPU time counts, fewer requests of which it was measured tell nothing.
const FEWEST_METERED: u64 = 4;
/// Share by which an arm that spins may take more CPU time than one that blocks, where others want
/// the CPUs: on trial, and as the incumbent. One that takes more costs so much more, for which no
/// latency makes up.
const AS_MUCH: f64 = 0.05;
const AS_MUCH_OF_INCUMBENT: f64 = 0.15;
const TAKES_FROM_OTHERS: f64 = 1_000.0;
/// How often the incumbent is looked at. The last quarter of that time counts.
const LOOK_NS: Ns = 50 * MS;
/// A new incumbent is not tried against before it has served for so long.
const UNTRIED_NS: Ns = 300 * MS;
/// A long trial lets an arm settle first ([`Rival::is_long`]).
const LONG_LEAD_NS: Ns = 1_000 * MS;
const LONG_LEG_NS: Ns = 50 * MS;
/// Arms dearer than this are not let settle: by figure R0, none gains as much by it.
const TOO_DEAR_FOR_LONG: f64 = 2.0;
/// Looks that the incumbent's level is averaged over.
const MEMORY: f64 = 16.0;
/// Fewest looks of which a level is made that others are held against.
const LEAST_LOOKS: f64 = 4.0;
/// Changes that follow a change this soon begin nothing anew: arms are rechecked. Where the same
/// arm served between two that did and was cheaper than all others, it is twice as long from then
/// on, up to the second of these, and trials stay as rare as they were.
const CALM_NS: Ns = 10_000 * MS;
const LONGEST_CALM_NS: Ns = 160_000 * MS;
/// A recheck is one trial of an arm that may have become the cheapest; so many fit into the time
/// above. After one that misled, none comes for so long.
const RECHECKS: Ns = 16;
const MISLED_NS: Ns = 10_000 * MS;

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The incumbent serves.
    Tenure,
    /// Another arm serves, after the incumbent cost `before`.
    Trial { arm: Arm, before: f64, kind: Trial },
    /// The incumbent serves again, since that active time, until the trial has left nothing behind.
    /// Some looks were off by `early` on average, and those since then by `late`.
    Recovery { arm: Arm, began: Ns, looks: u32, early: f64, late: f64 },
    /// A new incumbent settles, and then shows what it costs; the one before it cost `was`.
    Probation { from: Arm, was: f64 },
}

/// The search for the cheapest arm, for one kind and size of request on one device.
#[derive(Clone, Copy, Debug)]
pub struct Switchback {
    cpu_price: f64,
    others_above: bool,
    incumbent: Arm,
    offered: Arms,
    phase: Phase,
    step: Step,
    /// Active time so far, and until when it is counted. What trials wait for is in active time.
    active: Ns,
    counted: Ns,
    /// Active time when this step began, for how long it did not count, what was seen in it so far,
    /// and until when it may be prolonged.
    began: Ns,
    lead_ns: Ns,
    seen: Seen,
    patient_until: Ns,
    /// What the incumbent costs; 0 while that is unknown.
    level: f64,
    /// The CPU time of its requests; 0 while that is unknown. What costs the same in two states of
    /// the machine may still tell them apart by this: a spin that shares its CPU takes less of it.
    cpu_level: f64,
    looks: f64,
    drift: Drift,
    cpu_drift: Drift,
    /// What the incumbent's requests took on average when it was looked at; 0 before.
    usual_ns: f64,
    /// Changes begin nothing anew until then; for how long so after the next, and how often another
    /// arm had become the incumbent at the last.
    calm_until: Ns,
    calm_ns: Ns,
    switches_then: u32,
    switches: u32,
    /// The next recheck comes then at the earliest, in active time.
    recheck_at: Ns,
    rivals: [Rival; ARMS],
}

impl Switchback {
    /// A search that has not begun. It begins in place, because a copy would fill a signal stack.
    /// Its requests are made beside others who want the CPUs, or not.
    pub const fn idle(goal: Goal, others_above: bool) -> Self {
        Switchback {
            cpu_price: goal.cpu_price(),
            others_above,
            incumbent: Arm::Call,
            offered: Arms::NONE,
            phase: Phase::Tenure,
            step: Step { arm: Arm::Call, trial: false, from: 0, until: 0, slow: Ns::MAX },
            active: 0,
            counted: 0,
            began: 0,
            lead_ns: 0,
            seen: Seen { requests: 0, latency_ns: 0, slow_ns: 0, metered: 0, cpu_ns: 0 },
            patient_until: 0,
            level: 0.0,
            cpu_level: 0.0,
            looks: 0.0,
            drift: Drift::NONE,
            cpu_drift: Drift::OF_FEW,
            usual_ns: 0.0,
            calm_until: 0,
            calm_ns: CALM_NS,
            switches_then: 0,
            switches: 0,
            recheck_at: 0,
            rivals: [Rival::new(0, Told::NOTHING, 0); ARMS],
        }
    }

    /// Whether the CPU time of requests counts.
    pub const fn meters(&self) -> bool {
        self.others_above || self.cpu_price > 0.0
    }

    /// Whether it has begun.
    pub fn is_begun(&self) -> bool {
        self.offered != Arms::NONE
    }

    /// Begins with the arm that a prior chose.
    pub fn begin(&mut self, now: Ns, prior: Arm, offered: Arms) {
        (self.incumbent, self.offered) = (prior, offered);
        (self.drift, self.cpu_drift, self.counted) = (Drift::NONE, Drift::OF_FEW, now);
        // Spinning is tried first: where it is cheaper, it is so by most.
        for (arm, rival) in Arm::ALL.into_iter().zip(&mut self.rivals) {
            rival.due = self.active + UNTRIED_NS + Ns::from(arm != Arm::Spin);
        }
        self.start(now, 0, LOOK_NS);
    }

    /// The arm that serves but for trials.
    pub const fn incumbent(&self) -> Arm {
        self.incumbent
    }

    /// The arms that are compared.
    pub const fn offered(&self) -> Arms {
        self.offered
    }

    /// How often another arm became the incumbent.
    pub const fn switches(&self) -> u32 {
        self.switches
    }

    /// Whether something other than a settled incumbent is going on.
    pub const fn is_trying(&self) -> bool {
        !matches!(self.phase, Phase::Tenure)
    }

    /// The incumbent, where all others have been tried against it or against one before it.
    pub fn found(&self) -> Option<Arm> {
        let is_tried = self.others().all(|(_, rival)| rival.sequences > 0);
        (self.is_begun() && is_tried).then_some(self.incumbent)
    }

    /// The arms that are compared with the incumbent.
    fn others(&self) -> impl Iterator<Item = (Arm, &Rival)> {
        let arms = Arm::ALL.into_iter().zip(&self.rivals);
        arms.filter(|(arm, _)| *arm != self.incumbent && self.offered.has(*arm))
    }

    /// The statistics of `arm`.
    pub fn told(&self, arm: Arm) -> Told {
        let rival = &self.rivals[arm as usize];
        match arm == self.incumbent {
            true => Told { cost_ns: self.level / self.factor_of_incumbent(), ..rival.told },
            false => Told { due_in_ns: rival.due.saturating_sub(self.active), ..rival.told },
        }
    }

    /// What goes on now.
    pub const fn now(&self) -> Step {
        self.step
    }

    /// Hears at the end of a step what was seen in it. `may_try` is false while another search
    /// tries something on this device: the two would see each other.
    pub fn step(&mut self, now: Ns, seen: Seen, may_try: bool) -> Step {
        self.seen.add(seen);
        if now < self.step.until {
            return self.step;
        }
        // What comes after its end is a pause.
        self.active += self.step.until.saturating_sub(self.counted);
        self.counted = now;
        if self.is_too_little() && now < self.patient_until {
            self.step.until = now + LEG_NS;
            return self.step;
        }
        let enough = !self.is_too_little();
        if enough && self.seen.metered > 0 {
            self.rivals[self.step.arm as usize].told.note_cpu_time(self.seen.cpu_time());
        }
        let mean = self.cost();
        match self.phase {
            Phase::Tenure => {
                if enough {
                    self.usual_ns = self.seen.latency_ns as f64 / self.seen.requests as f64;
                    self.look(mean);
                }
                self.go_on(now, may_try && enough && self.looks >= LEAST_LOOKS);
            }
            // Nobody asks any more, or so seldom that nothing can be told.
            Phase::Trial { arm, .. } if !enough => {
                self.rivals[arm as usize].rest(self.active, 2);
                self.recover(now, arm);
            }
            Phase::Trial { arm, before, kind } => {
                self.note_trial(now, arm, before);
                self.judge(now, arm, mean / before, kind);
            }
            Phase::Recovery { .. } => self.recovered(now, mean, enough),
            Phase::Probation { from, was } => self.believe(now, from, was, mean, enough),
        }
        self.step
    }

    fn is_too_little(&self) -> bool {
        let is_far_dearer = match self.phase {
            Phase::Trial { before, .. } => {
                self.seen.requests >= FEWEST_OF_FAR_DEARER
                    && self.seen.cost(self.cpu_price) > before * FAR_DEARER
            }
            _ => false,
        };
        let is_unmetered = self.meters() && self.seen.metered < FEWEST_METERED;
        (self.seen.requests < FEWEST || is_unmetered) && !is_far_dearer
    }

    /// What the arm in force costs, by what was seen of it.
    fn cost(&self) -> f64 {
        let factor = match self.phase {
            Phase::Trial { arm, .. } => self.factor(arm, self.seen.cpu_time(), AS_MUCH),
            _ => self.factor_of_incumbent(),
        };
        self.seen.cost(self.cpu_price) * factor
    }

    fn factor_of_incumbent(&self) -> f64 {
        let cpu_ns = self.rivals[self.incumbent as usize].told.cpu_ns;
        self.factor(self.incumbent, cpu_ns, AS_MUCH_OF_INCUMBENT)
    }

    /// What an arm counts for that takes so much CPU time: more where it spins beside others and
    /// takes more than the most sparing arm that blocks.
    fn factor(&self, arm: Arm, cpu_ns: f64, as_much: f64) -> f64 {
        let blocking = Arm::ALL.into_iter().filter(|arm| self.offered.has(*arm) && !arm.spins());
        let known = blocking.map(|arm| self.rivals[arm as usize].told.cpu_ns);
        let least = known.filter(|cpu_ns| *cpu_ns > 0.0).reduce(f64::min);
        let takes_more = least.is_some_and(|least| cpu_ns > least * (1.0 + as_much));
        if self.others_above && arm.spins() && takes_more { TAKES_FROM_OTHERS } else { 1.0 }
    }

    /// Starts a step that counts after `lead_ns`, for `length_ns`.
    fn start(&mut self, now: Ns, lead_ns: Ns, length_ns: Ns) {
        let (arm, trial) = match self.phase {
            Phase::Trial { arm, .. } => (arm, true),
            _ => (self.incumbent, false),
        };
        let from = now.saturating_add(lead_ns);
        let until = from.saturating_add(length_ns);
        let slow = if self.usual_ns > 0.0 { (self.usual_ns * SLOW) as Ns } else { Ns::MAX };
        self.step = Step { arm, trial, from, until, slow };
        (self.began, self.lead_ns) = (self.active, lead_ns);
        let is_capped = trial && self.others_above;
        let patience_ns = if is_capped { PATIENCE_BESIDE_NS } else { PATIENCE_NS };
        self.patient_until = until.saturating_add(patience_ns);
        self.seen = Seen::default();
    }

    /// The incumbent serves on.
    fn resume(&mut self, now: Ns) {
        self.phase = Phase::Tenure;
        self.start(now, LOOK_NS * 3 / 4, LOOK_NS / 4);
    }

    /// The incumbent serves again after a trial of `arm`.
    fn recover(&mut self, now: Ns, arm: Arm) {
        let began = self.active;
        self.phase = Phase::Recovery { arm, began, looks: 0, early: 0.0, late: 0.0 };
        self.start(now, LOOK_NS * 3 / 4, LOOK_NS / 4);
    }

    /// Goes on with the incumbent, rechecks the arm that cost least, or tries the one that is due
    /// longest.
    fn go_on(&mut self, now: Ns, may_try: bool) {
        let is_due = |rival: &Rival| rival.due <= self.active && rival.promise == 0.0;
        let due = self.others().filter(|(_, rival)| is_due(rival));
        let due = due.min_by_key(|(_, rival)| (rival.tried, rival.due));
        let may_recheck = self.recheck_at <= self.active;
        let doubted =
            self.others().filter(|(_, rival)| rival.doubted && !is_due(rival) && may_recheck);
        // The other way of waiting first.
        let spins = self.incumbent.spins();
        let doubted = doubted.min_by(|a, b| {
            let alike = (a.0.spins() == spins).cmp(&(b.0.spins() == spins));
            alike.then(a.1.told.cost_ns.total_cmp(&b.1.told.cost_ns))
        });
        let is_long = |arm: Arm, rival: &Rival| {
            let is_dear = rival.told.cost_ns >= self.level * TOO_DEAR_FOR_LONG;
            let takes_from_others = self.others_above && arm.spins();
            rival.is_long() && !is_dear && !takes_from_others && self.is_first_of_kind(arm)
        };
        let next = match (doubted, due) {
            (Some((arm, _)), _) => Some((arm, Trial::Recheck)),
            (None, Some((arm, rival))) if is_long(arm, rival) => Some((arm, Trial::Long)),
            (None, due) => due.map(|(arm, _)| (arm, Trial::Short)),
        };
        match next.filter(|_| may_try) {
            Some((arm, kind)) => {
                self.phase = Phase::Trial { arm, before: self.level, kind };
                let (lead_ns, leg_ns) = match kind {
                    Trial::Long => (LONG_LEAD_NS, LONG_LEG_NS),
                    Trial::Recheck | Trial::Short => (LEAD_NS, LEG_NS),
                };
                self.start(now, lead_ns, leg_ns);
            }
            None => self.resume(now),
        }
    }
}
