// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which way of waiting costs least, found by waiting in each for a while.
//!
//! One arm, the incumbent, serves all requests of a kind and size on a device. Now and then another
//! arm serves them for some milliseconds: a switchback. The first part after a change of arms does
//! not count. An arm that was cheaper by more than chance takes over, on probation: if it is not
//! cheaper once it has settled, the former incumbent comes back. Trials become rarer while nothing
//! changes, and begin anew when the incumbent's own cost shifts.
//!
//! Trials are rationed by the time in which requests were made, the *active* time: a program that
//! pauses would otherwise try with a larger share of its requests than one that does not.

mod rival;

use crate::arm::{ARMS, Arm, Arms};
use crate::{Goal, Ns};
use rival::{FIRST_NS, LAST_NS, Rival, TRIALS};

pub use rival::Told;

/// What requests took that began after [`Step::from`], all served as the step said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Requests that ended.
    pub requests: u64,
    /// Their latency in all, in nanoseconds.
    pub latency_ns: u64,
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
        self.metered = self.metered.saturating_add(other.metered);
        self.cpu_ns = self.cpu_ns.saturating_add(other.cpu_ns);
    }

    /// Cost of one request: its latency, and its CPU time at a price.
    fn cost(&self, cpu_price: f64) -> f64 {
        let mean = |sum: u64, count: u64| sum as f64 / count.max(1) as f64;
        mean(self.latency_ns, self.requests) + cpu_price * mean(self.cpu_ns, self.metered)
    }
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
}

const MS: Ns = 1_000_000;

const SAVED_OF_ARM: usize = 6;
/// Nobody makes requests for longer: ten years.
const MOST_ACTIVE_NS: Ns = 10 * 365 * 86_400 * 1_000 * MS;
/// Words in which a search is saved.
pub const SAVED_WORDS: usize = 4 + ARMS * SAVED_OF_ARM;

/// Share by which another arm must be cheaper.
const MARGIN: f64 = 0.02;
/// How long an arm on trial counts, after as long as half of that which does not.
const LEG_NS: Ns = 10 * MS;
const LEAD_NS: Ns = LEG_NS / 2;
/// Fewer requests tell nothing: what counts is prolonged until there are so many, for so long.
const FEWEST: u64 = 32;
const PATIENCE_NS: Ns = 2_000 * MS;
/// Of an arm that is so much dearer, this few say enough.
const FAR_DEARER: f64 = 4.0;
const FEWEST_OF_FAR_DEARER: u64 = 4;
/// How often the incumbent is looked at. The last quarter of that time counts.
const LOOK_NS: Ns = 50 * MS;
/// A new incumbent is not tried against before it has served for so long.
const UNTRIED_NS: Ns = 300 * MS;
/// What a trial left behind is over once the incumbent costs as much as before again, but for so
/// much, or its looks' usual spread; or after so long, and then its cost has changed.
const RECOVERED: f64 = 0.1;
const RECOVERED_OF_SPREAD: f64 = 2.0;
const RECOVERY_NS: Ns = 3_000 * MS;
/// An arm that took over settles for so long, and then shows for as long what it costs.
const PROBATION_NS: Ns = 500 * MS;
/// How long what an arm cost as incumbent counts for more than what its trials promise.
const REMEMBERED_NS: Ns = 300_000 * MS;
/// A long trial lets an arm settle first ([`Rival::is_long`]).
const LONG_LEAD_NS: Ns = 1_000 * MS;
const LONG_LEG_NS: Ns = 50 * MS;
/// Arms dearer than this are not let settle.
const TOO_DEAR_FOR_LONG: f64 = 8.0;
/// One trial that found an arm so much dearer is enough.
const TWICE: f64 = 2.0;
/// Looks that the incumbent's level is averaged over.
const MEMORY: f64 = 16.0;
/// Fewest looks of which a level is made that others are held against.
const LEAST_LOOKS: f64 = 4.0;
/// The level has changed when looks were off by so much in sum, beyond a slack each; by more where
/// looks scatter more.
const CHANGED: f64 = 0.6;
const SLACK: f64 = 0.08;
const CHANGED_OF_SPREAD: f64 = 8.0;
const SLACK_OF_SPREAD: f64 = 1.5;
/// Changes that follow a change this soon begin nothing anew. Where the same arm served between two
/// that did and was cheaper than all others, it is twice as long from then on, up to the second of
/// these, and trials stay as rare as they were.
const CALM_NS: Ns = 10_000 * MS;
const LONGEST_CALM_NS: Ns = 160_000 * MS;

#[derive(Clone, Copy, Debug)]
enum Phase {
    /// The incumbent serves.
    Tenure,
    /// Another arm serves, after the incumbent cost `before`; it may settle first.
    Trial { arm: Arm, before: f64, long: bool },
    /// The incumbent serves again, since that active time, until the trial has left nothing behind.
    Recovery { arm: Arm, began: Ns },
    /// A new incumbent settles, and then shows what it costs; the one before it cost `was`.
    Probation { from: Arm, was: f64 },
}

/// The search for the cheapest arm, for one kind and size of request on one device.
#[derive(Clone, Copy, Debug)]
pub struct Switchback {
    cpu_price: f64,
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
    looks: f64,
    up: f64,
    down: f64,
    /// How far looks are off on average.
    spread: f64,
    /// Changes begin nothing anew until then; for how long so after the next, and how often another
    /// arm had become the incumbent at the last.
    calm_until: Ns,
    calm_ns: Ns,
    switches_then: u32,
    switches: u32,
    rivals: [Rival; ARMS],
}

impl Switchback {
    /// A search that has not begun. It begins in place, because a copy would fill a signal stack.
    pub const fn idle(goal: Goal) -> Self {
        Switchback {
            cpu_price: goal.cpu_price(),
            incumbent: Arm::Call,
            offered: Arms::NONE,
            phase: Phase::Tenure,
            step: Step { arm: Arm::Call, trial: false, from: 0, until: 0 },
            active: 0,
            counted: 0,
            began: 0,
            lead_ns: 0,
            seen: Seen { requests: 0, latency_ns: 0, metered: 0, cpu_ns: 0 },
            patient_until: 0,
            level: 0.0,
            looks: 0.0,
            up: 0.0,
            down: 0.0,
            spread: 0.0,
            calm_until: 0,
            calm_ns: CALM_NS,
            switches_then: 0,
            switches: 0,
            rivals: [Rival::new(0, Told::NOTHING, 0); ARMS],
        }
    }

    /// Whether it has begun.
    pub fn is_begun(&self) -> bool {
        self.offered != Arms::NONE
    }

    /// Begins with the arm that a prior chose.
    pub fn begin(&mut self, now: Ns, prior: Arm, offered: Arms) {
        (self.incumbent, self.offered, self.spread) = (prior, offered, SLACK);
        self.counted = now;
        for (at, rival) in self.rivals.iter_mut().enumerate() {
            rival.due = self.active + UNTRIED_NS + at as Ns;
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
        let tried = |arm: &Arm| self.rivals[*arm as usize].sequences > 0;
        let others = Arm::ALL.into_iter().filter(|arm| *arm != self.incumbent);
        let mut others = others.filter(|arm| self.offered.has(*arm));
        (self.is_begun() && others.all(|arm| tried(&arm))).then_some(self.incumbent)
    }

    /// The statistics of `arm`.
    pub fn told(&self, arm: Arm) -> Told {
        let rival = &self.rivals[arm as usize];
        match arm == self.incumbent {
            true => Told { cost_ns: self.level, ..rival.told },
            false => Told { due_in_ns: rival.due.saturating_sub(self.active), ..rival.told },
        }
    }

    /// What the next process may begin with: everything but what is going on.
    pub fn save(&self) -> [u64; SAVED_WORDS] {
        let mut words = [0; SAVED_WORDS];
        words[..4].copy_from_slice(&[
            self.incumbent as u64 + 1,
            self.active,
            self.level.to_bits(),
            self.switches.into(),
        ]);
        for (rival, saved) in self.rivals.iter().zip(words[4..].chunks_exact_mut(SAVED_OF_ARM)) {
            let Told { trials, tried, cost_ns, regret_ns, .. } = rival.told;
            saved.copy_from_slice(&[
                rival.due,
                rival.patience_ns,
                u64::from(trials) | u64::from(rival.sequences) << 32,
                tried,
                cost_ns.to_bits(),
                regret_ns.to_bits(),
            ]);
        }
        words
    }

    /// Begins with what another process found; trials were on the same clock. `false` where these
    /// words say nothing, or nothing that can be used here.
    pub fn restore(&mut self, now: Ns, words: &[u64; SAVED_WORDS], offered: Arms) -> bool {
        let &[incumbent, active, level, switches, ..] = words;
        let arm = incumbent.checked_sub(1).and_then(|arm| Arm::ALL.get(arm as usize)).copied();
        // Whatever is in the words, no cost may be absurd.
        let cost = |bits| Some(f64::from_bits(bits)).filter(|cost| (0.0..1e12).contains(cost));
        let (Some(incumbent), Some(level)) = (arm, cost(level)) else { return false };
        if !offered.has(incumbent) || active > MOST_ACTIVE_NS {
            return false;
        }
        self.active = active;
        self.begin(now, incumbent, offered);
        (self.level, self.switches) = (level, switches as u32);
        self.switches_then = self.switches;
        self.looks = if level > 0.0 { MEMORY / 2.0 } else { 0.0 };
        for (rival, saved) in self.rivals.iter_mut().zip(words[4..].chunks_exact(SAVED_OF_ARM)) {
            rival.due = saved[0].clamp(rival.due, active + LAST_NS);
            rival.patience_ns = saved[1].clamp(FIRST_NS, LAST_NS);
            rival.sequences = (saved[2] >> 32) as u32;
            rival.told = Told {
                trials: saved[2] as u32,
                tried: saved[3].min(now),
                cost_ns: cost(saved[4]).unwrap_or(0.0),
                regret_ns: cost(saved[5]).unwrap_or(0.0),
                due_in_ns: 0,
            };
        }
        true
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
        let mean = self.seen.cost(self.cpu_price);
        let enough = !self.is_too_little();
        match self.phase {
            Phase::Tenure => {
                if enough {
                    self.look(mean);
                }
                self.go_on(now, may_try && enough && self.looks >= LEAST_LOOKS);
            }
            // Nobody asks any more, or so seldom that nothing can be told.
            Phase::Trial { arm, .. } if !enough => {
                self.rivals[arm as usize].rest(self.active, 2);
                self.recover(now, arm);
            }
            Phase::Trial { arm, before, long } => {
                self.note_trial(now, arm, mean, before);
                self.judge(now, arm, mean / before, long);
            }
            Phase::Recovery { arm, began } => self.recovered(now, arm, began, mean, enough),
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
        self.seen.requests < FEWEST && !is_far_dearer
    }

    /// Starts a step that counts after `lead_ns`, for `length_ns`.
    fn start(&mut self, now: Ns, lead_ns: Ns, length_ns: Ns) {
        let (arm, trial) = match self.phase {
            Phase::Trial { arm, .. } => (arm, true),
            _ => (self.incumbent, false),
        };
        let from = now.saturating_add(lead_ns);
        let until = from.saturating_add(length_ns);
        self.step = Step { arm, trial, from, until };
        (self.began, self.lead_ns) = (self.active, lead_ns);
        self.patient_until = until.saturating_add(PATIENCE_NS);
        self.seen = Seen::default();
    }

    /// The incumbent serves on.
    fn resume(&mut self, now: Ns) {
        self.phase = Phase::Tenure;
        self.start(now, LOOK_NS * 3 / 4, LOOK_NS / 4);
    }

    /// The incumbent serves again after a trial of `arm`.
    fn recover(&mut self, now: Ns, arm: Arm) {
        self.phase = Phase::Recovery { arm, began: self.active };
        self.start(now, LOOK_NS * 3 / 4, LOOK_NS / 4);
    }

    /// Looks whether the incumbent costs as much as before again. What it cost meanwhile is a cost
    /// of the trial.
    fn recovered(&mut self, now: Ns, arm: Arm, began: Ns, mean: f64, enough: bool) {
        let took_ns = self.active.saturating_sub(began);
        let slack = RECOVERED.max(self.spread * RECOVERED_OF_SPREAD);
        let as_before = (mean / self.level - 1.0).abs() <= slack;
        let rival = &mut self.rivals[arm as usize];
        if enough && self.level > 0.0 && !as_before {
            let all = self.seen.requests as f64 * LOOK_NS as f64 / (LOOK_NS / 4) as f64;
            rival.told.regret_ns += ((mean - self.level) * all).max(0.0);
            if took_ns < RECOVERY_NS {
                self.start(now, LOOK_NS * 3 / 4, LOOK_NS / 4);
                return;
            }
            self.changed(mean);
        } else if took_ns > LOOK_NS {
            // It leaves something behind, so it is tried less often.
            rival.due = rival.due.saturating_add(rival.rarely(took_ns));
        }
        self.go_on(now, false);
    }

    /// Notes what the incumbent costs, and whether that has changed.
    fn look(&mut self, mean: f64) {
        if self.level == 0.0 {
            self.level = mean;
        }
        // Half as dear is as far off as twice as dear.
        let off = if mean < self.level { 1.0 - self.level / mean } else { mean / self.level - 1.0 };
        let slack = SLACK.max(self.spread * SLACK_OF_SPREAD);
        self.up = (self.up + off - slack).max(0.0);
        self.down = (self.down - off - slack).max(0.0);
        // A change is not scatter.
        self.spread += (off.abs().min(2.0 * slack) - self.spread) / MEMORY;
        if self.up.max(self.down) > CHANGED.max(self.spread * CHANGED_OF_SPREAD) {
            self.changed(mean);
        }
        self.looks = (self.looks + 1.0).min(MEMORY);
        self.level += (mean - self.level) / self.looks;
    }

    /// The incumbent costs something else now, and so may all others.
    fn changed(&mut self, mean: f64) {
        (self.up, self.down, self.looks, self.level) = (0.0, 0.0, 0.0, mean);
        if self.active >= self.calm_until {
            let same = self.switches == self.switches_then && self.is_settled();
            self.calm_ns = if same { (self.calm_ns * 2).min(LONGEST_CALM_NS) } else { CALM_NS };
            self.switches_then = self.switches;
            self.calm_until = self.active + self.calm_ns;
            for rival in &mut self.rivals {
                match same {
                    true => rival.again(self.active),
                    false => *rival = Rival::new(self.active, rival.told, 0),
                }
            }
        }
    }

    /// Whether the last trials of all others found them dearer.
    fn is_settled(&self) -> bool {
        let mut others = Arm::ALL.into_iter().filter(|arm| *arm != self.incumbent);
        others.all(|arm| !self.offered.has(arm) || self.rivals[arm as usize].dearer)
    }

    /// Goes on with the incumbent, or tries the arm that is due longest.
    fn go_on(&mut self, now: Ns, may_try: bool) {
        let before = self.level;
        let rivals = &self.rivals;
        let is_due = |arm: &Arm| {
            let rival = &rivals[*arm as usize];
            let is_open = rival.due <= self.active && rival.promise == 0.0;
            self.offered.has(*arm) && *arm != self.incumbent && is_open
        };
        let least_tried = |arm: &Arm| (rivals[*arm as usize].tried, rivals[*arm as usize].due);
        let due = Arm::ALL.into_iter().filter(is_due).min_by_key(least_tried);
        match due {
            Some(arm) if may_try => {
                let rival = &self.rivals[arm as usize];
                let long = rival.is_long() && rival.told.cost_ns < before * TOO_DEAR_FOR_LONG;
                self.phase = Phase::Trial { arm, before, long };
                let (lead_ns, leg_ns) =
                    if long { (LONG_LEAD_NS, LONG_LEG_NS) } else { (LEAD_NS, LEG_NS) };
                self.start(now, lead_ns, leg_ns);
            }
            _ => self.resume(now),
        }
    }

    fn note_trial(&mut self, now: Ns, arm: Arm, mean: f64, before: f64) {
        let rival = &mut self.rivals[arm as usize];
        let took_ns = self.active.saturating_sub(self.began);
        rival.took_ns = rival.took_ns.saturating_add(took_ns);
        let told = &mut rival.told;
        told.trials = told.trials.saturating_add(1);
        (told.tried, told.cost_ns) = (now, mean);
        // Requests that did not count cost as much.
        let counted_ns = took_ns.saturating_sub(self.lead_ns).max(1);
        let all = self.seen.requests as f64 * took_ns as f64 / counted_ns as f64;
        told.regret_ns += ((mean - before) * all).max(0.0);
    }

    /// Hears how a trial ended.
    fn judge(&mut self, now: Ns, arm: Arm, ratio: f64, long: bool) {
        let (level, spread) = (self.level, self.spread);
        let rival = &mut self.rivals[arm as usize];
        rival.note(ratio);
        let (middle, open) = rival.evidence(spread);
        let several = rival.tried > 1 || long;
        let cheaper = several && middle + open < 1.0 - MARGIN;
        let dearer = (several && middle - open > 1.0 - MARGIN) || middle > TWICE;
        let known_dearer = self.active < rival.kept_until && rival.kept > level * (1.0 - MARGIN);
        if cheaper && !known_dearer {
            rival.promise = middle;
        } else if cheaper || dearer || rival.tried == TRIALS {
            rival.rest(self.active, 2);
            rival.dearer = cheaper || dearer;
        }
        match self.best_promise() {
            Some(best) => self.take_over(now, best),
            None => self.recover(now, arm),
        }
    }

    /// The arm that promises most, once no other is about to be tried.
    fn best_promise(&self) -> Option<Arm> {
        let rivals = || {
            let arms = Arm::ALL.into_iter().filter(|arm| *arm != self.incumbent);
            arms.filter(|arm| self.offered.has(*arm)).map(|arm| (arm, &self.rivals[arm as usize]))
        };
        if rivals().any(|(_, rival)| rival.promise == 0.0 && rival.due <= self.active) {
            return None;
        }
        let promising = rivals().filter(|(_, rival)| rival.promise > 0.0);
        promising.min_by(|a, b| a.1.promise.total_cmp(&b.1.promise)).map(|(arm, _)| arm)
    }

    fn take_over(&mut self, now: Ns, arm: Arm) {
        self.phase = Phase::Probation { from: self.incumbent, was: self.level };
        self.rivals[self.incumbent as usize].told.cost_ns = self.level;
        self.incumbent = arm;
        self.switches = self.switches.saturating_add(1);
        (self.up, self.down, self.looks, self.level) = (0.0, 0.0, 0.0, 0.0);
        for rival in &mut self.rivals {
            (rival.tried, rival.took_ns, rival.promise) = (0, 0, 0.0);
        }
        self.start(now, PROBATION_NS, PROBATION_NS);
    }

    /// The arm that took over has settled and costs `mean`; the one before it cost `was`.
    fn believe(&mut self, now: Ns, from: Arm, was: f64, mean: f64, enough: bool) {
        let arm = self.incumbent as usize;
        if enough && mean > was * (1.0 - MARGIN / 2.0) {
            let rival = &mut self.rivals[arm];
            (rival.kept, rival.kept_until) = (mean, self.active + REMEMBERED_NS);
            rival.told.cost_ns = mean;
            rival.rest(self.active, 4);
            rival.dearer = true;
            (self.incumbent, self.level) = (from, was);
            self.switches = self.switches.saturating_add(1);
        } else {
            self.level = if enough { mean } else { 0.0 };
            let former = &mut self.rivals[from as usize];
            (former.kept, former.kept_until) = (was, self.active);
            (former.patience_ns, former.due) = (FIRST_NS, self.active + FIRST_NS);
        }
        self.looks = if self.level > 0.0 { MEMORY / 2.0 } else { 0.0 };
        match self.incumbent == from {
            true => self.recover(now, Arm::ALL[arm]),
            false => self.resume(now),
        }
    }
}
