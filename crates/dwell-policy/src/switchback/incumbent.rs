// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the incumbent costs, and whether that has changed.

use super::rival::Rival;
use super::{CALM_NS, LONGEST_CALM_NS, LOOK_NS, MEMORY, MS, Phase, Switchback};
use crate::Ns;

/// What a trial left behind is over once the incumbent costs as much as before again, but for so
/// much, or its looks' usual spread; or after so long, and then its cost has changed.
const RECOVERED: f64 = 0.1;
const RECOVERED_OF_SPREAD: f64 = 2.0;
const RECOVERY_NS: Ns = 3_000 * MS;
/// What a trial left behind fades: so many looks are closer to the level than as many before them,
/// or the cost has changed.
const FADING_LOOKS: u32 = 5;
const FADES: f64 = 0.8;
/// A change that is answered at once, soon after another too.
const MUCH_DEARER: f64 = 1.5;

impl Switchback {
    /// Looks whether the incumbent costs as much as before again. What it cost meanwhile is a cost
    /// of the trial.
    pub(super) fn recovered(&mut self, now: Ns, mean: f64, enough: bool) {
        let Phase::Recovery { arm, began, looks, early, late } = &mut self.phase else { return };
        let arm = *arm;
        let took_ns = self.active.saturating_sub(*began);
        let slack = RECOVERED.max(self.drift.spread * RECOVERED_OF_SPREAD);
        let as_before = (mean / self.level - 1.0).abs() <= slack;
        let rival = &mut self.rivals[arm as usize];
        if enough && self.level > 0.0 && !as_before {
            let all = self.seen.requests as f64 * LOOK_NS as f64 / (LOOK_NS / 4) as f64;
            rival.told.regret_ns += ((mean - self.level) * all).max(0.0);
            *looks += 1;
            *late += (mean / self.level - 1.0) / f64::from(FADING_LOOKS);
            let mut fades = true;
            if looks.is_multiple_of(FADING_LOOKS) {
                fades = *early == 0.0 || *late / *early < FADES;
                (*early, *late) = (*late, 0.0);
            }
            if fades && took_ns < RECOVERY_NS {
                self.start(now, LOOK_NS * 3 / 4, LOOK_NS / 4);
                return;
            }
            self.changed(mean);
        } else if took_ns > LOOK_NS && !rival.is_promising() {
            // It leaves something behind, so it is tried less often.
            rival.due = rival.due.saturating_add(rival.rarely(took_ns));
        }
        self.go_on(now, false);
    }

    /// Notes what the incumbent costs, and whether that or its CPU time has changed.
    pub(super) fn look(&mut self, mean: f64) {
        let cpu_time = self.seen.cpu_time();
        if self.level == 0.0 {
            self.level = mean;
        }
        if self.cpu_level == 0.0 {
            self.cpu_level = cpu_time;
        }
        // One that blocks shows by its latency who shares its CPU.
        let tells = self.incumbent.spins() && self.cpu_level > 0.0 && cpu_time > 0.0;
        let costs_otherwise = self.drift.hear(self.level, mean);
        let takes_otherwise = tells && self.cpu_drift.hear(self.cpu_level, cpu_time);
        if costs_otherwise || takes_otherwise {
            // Where only its CPU time has changed, its cost is known.
            let of_cost = if costs_otherwise { self.drift.since() } else { None };
            let (cost, looks) = of_cost.unwrap_or((self.level, self.looks));
            let of_cpu_time = self.cpu_drift.since();
            self.changed(cost);
            self.looks = looks;
            self.cpu_level = of_cpu_time.map_or(cpu_time, |(cpu_time, _)| cpu_time);
            return;
        }
        self.looks = (self.looks + 1.0).min(MEMORY);
        // A level that followed what is off it would hide a change.
        let is_made = self.looks >= MEMORY / 2.0;
        if self.drift.is_at_rest() || !is_made {
            self.level += (mean - self.level) / self.looks;
        }
        if tells && (self.cpu_drift.is_at_rest() || !is_made) {
            self.cpu_level += (cpu_time - self.cpu_level) / self.looks;
        }
    }

    /// Forgets what the incumbent cost: it is another, or costs something else now.
    pub(super) fn forget_level(&mut self, level: f64) {
        self.drift.forget();
        self.cpu_drift.forget();
        (self.looks, self.level, self.cpu_level) = (0.0, level, 0.0);
    }

    /// The incumbent costs something else now, and so may all others.
    pub(super) fn changed(&mut self, mean: f64) {
        // Blocking that became so much dearer may be in a state in which spinning gains.
        let is_much_dearer = mean > self.level * MUCH_DEARER && !self.incumbent.spins();
        let since = self.active.saturating_sub(self.calm_until.saturating_sub(self.calm_ns));
        self.forget_level(mean);
        if self.active >= self.calm_until || is_much_dearer && since >= CALM_NS {
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
        } else {
            self.rivals.iter_mut().for_each(Rival::doubt);
        }
    }

    /// Whether the last trials of all others found them dearer.
    fn is_settled(&self) -> bool {
        self.others().all(|(_, rival)| rival.dearer)
    }
}
