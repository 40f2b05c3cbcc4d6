// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a trial is judged, and whether an arm that took over keeps its place.

use super::rival::{FIRST_NS, MARGIN, Rival, TRIALS};
use super::{MEMORY, MISLED_NS, MS, Phase, RECHECKS, Switchback};
use crate::Ns;
use crate::arm::Arm;

/// What a trial is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trial {
    /// To see whether trials are worthwhile: the incumbent's cost has changed.
    Recheck,
    Short,
    /// The arm settles first.
    Long,
}

/// One trial that found an arm so much dearer is enough.
const TWICE: f64 = 2.0;
/// An arm that took over settles for so long, and then shows for as long what it costs.
const PROBATION_NS: Ns = 500 * MS;
/// In a process that begins with it, none has left anything behind.
pub(super) const PROBATION_FROM_START_NS: Ns = 125 * MS;
/// How long what an arm cost as incumbent counts for more than what its trials promise.
const REMEMBERED_NS: Ns = 300_000 * MS;

impl Switchback {
    pub(super) fn note_trial(&mut self, now: Ns, arm: Arm, before: f64) {
        let mean = self.seen.cost(self.cpu_price);
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
    pub(super) fn judge(&mut self, now: Ns, arm: Arm, ratio: f64, kind: Trial) {
        let (level, spread) = (self.level, self.drift.spread);
        let rival = &mut self.rivals[arm as usize];
        rival.doubted = false;
        if kind == Trial::Recheck {
            self.recheck_at = self.active + self.calm_ns / RECHECKS;
            if ratio > 1.0 - MARGIN {
                rival.took_ns = 0;
                self.recover(now, arm);
                return;
            }
            *rival = Rival::new(self.active, rival.told, 0);
        }
        rival.note(ratio);
        let (middle, open) = rival.evidence(spread);
        let several = rival.tried > 1 || kind == Trial::Long;
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
            Some(best) => self.take_over(now, best, PROBATION_NS),
            None => self.recover(now, arm),
        }
    }

    /// Whether no other arm that blocks, or none that spins, cost less. Such arms settle alike, so
    /// that one of them tells of all.
    pub(super) fn is_first_of_kind(&self, arm: Arm) -> bool {
        let cost_ns = self.rivals[arm as usize].told.cost_ns;
        let alike = self.others().filter(|(other, _)| other.spins() == arm.spins());
        let known = alike.map(|(_, rival)| rival.told.cost_ns).filter(|cost_ns| *cost_ns > 0.0);
        known.fold(f64::INFINITY, f64::min) >= cost_ns
    }

    /// The arm that promises most, once no other is about to be tried.
    pub(super) fn best_promise(&self) -> Option<Arm> {
        if self.others().any(|(_, rival)| rival.promise == 0.0 && rival.due <= self.active) {
            return None;
        }
        let promising = self.others().filter(|(_, rival)| rival.promise > 0.0);
        promising.min_by(|a, b| a.1.promise.total_cmp(&b.1.promise)).map(|(arm, _)| arm)
    }

    pub(super) fn take_over(&mut self, now: Ns, arm: Arm, probation_ns: Ns) {
        self.phase = Phase::Probation { from: self.incumbent, was: self.level };
        let promised = self.rivals[arm as usize].promise;
        self.rivals[self.incumbent as usize].told.cost_ns = self.told(self.incumbent).cost_ns;
        self.incumbent = arm;
        self.switches = self.switches.saturating_add(1);
        self.forget_level(0.0);
        for rival in &mut self.rivals {
            (rival.tried, rival.took_ns, rival.promise) = (0, 0, 0.0);
            rival.own = false;
        }
        let rival = &mut self.rivals[arm as usize];
        // The process may end before it is believed.
        (rival.promise, rival.doubted) = (promised, false);
        self.start(now, probation_ns, probation_ns);
    }

    /// The arm that took over has settled and costs `mean`; the one before it cost `was`.
    pub(super) fn believe(&mut self, now: Ns, from: Arm, was: f64, mean: f64, enough: bool) {
        let arm = self.incumbent as usize;
        if enough && mean > was * (1.0 - MARGIN / 2.0) {
            let rival = &mut self.rivals[arm];
            (rival.kept, rival.kept_until) = (mean, self.active + REMEMBERED_NS);
            rival.told.cost_ns = self.seen.cost(self.cpu_price);
            rival.rest(self.active, 4);
            self.recheck_at = self.active + MISLED_NS;
            rival.dearer = true;
            (self.incumbent, self.level) = (from, was);
            self.switches = self.switches.saturating_add(1);
        } else {
            self.rivals[arm].promise = 0.0;
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
