// SPDX-License-Identifier: MIT OR Apache-2.0
//! A search as words, which the next process begins with.

use super::rival::{FIRST_NS, LAST_NS, Rival, TRIALS};
use super::trials::PROBATION_FROM_START_NS;
use super::{MEMORY, MS, Phase, Switchback, Told};
use crate::Ns;
use crate::arm::{ARMS, Arm, Arms};

const SAVED_OF_ARM: usize = 11;
/// Nobody makes requests for longer: ten years.
const MOST_ACTIVE_NS: Ns = 10 * 365 * 86_400 * 1_000 * MS;
/// Words in which a search is saved.
pub const SAVED_WORDS: usize = 4 + ARMS * SAVED_OF_ARM;

fn two(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

/// Whatever is in the words, no cost may be absurd.
fn cost(bits: u64) -> Option<f64> {
    Some(f64::from_bits(bits)).filter(|cost| (0.0..1e12).contains(cost))
}

fn halves(word: u64) -> (u32, u32) {
    (word as u32, (word >> 32) as u32)
}

impl Switchback {
    /// What the next process may begin with: all but the step in force. Many processes end before
    /// one of them has found anything.
    pub fn save(&self) -> [u64; SAVED_WORDS] {
        let mut words = [0; SAVED_WORDS];
        let (incumbent, level) = match self.phase {
            Phase::Probation { from, was } => (from, was),
            _ => (self.incumbent, self.level),
        };
        words[..4].copy_from_slice(&[
            incumbent as u64 + 1,
            self.active,
            level.to_bits(),
            self.switches.into(),
        ]);
        for (rival, saved) in self.rivals.iter().zip(words[4..].chunks_exact_mut(SAVED_OF_ARM)) {
            let Told { trials, tried, cost_ns, cpu_ns, regret_ns, .. } = rival.told;
            saved.copy_from_slice(&[
                rival.due,
                rival.patience_ns,
                two(trials, rival.sequences),
                tried,
                cost_ns.to_bits(),
                regret_ns.to_bits(),
                cpu_ns.to_bits(),
                two(rival.sum.to_bits(), rival.tried),
                two(rival.low.to_bits(), rival.high.to_bits()),
                rival.took_ns,
                rival.promise.to_bits(),
            ]);
        }
        words
    }

    /// Begins with what another process found; trials were on the same clock. `false` where these
    /// words say nothing, or nothing that can be used here.
    pub fn restore(&mut self, now: Ns, words: &[u64; SAVED_WORDS], offered: Arms) -> bool {
        let &[incumbent, active, level, switches, ..] = words;
        let arm = incumbent.checked_sub(1).and_then(|arm| Arm::ALL.get(arm as usize)).copied();
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
            rival.recall(now, saved);
        }
        self.cpu_level = self.rivals[incumbent as usize].told.cpu_ns;
        if let Some(best) = self.best_promise().filter(|_| level > 0.0) {
            self.take_over(now, best, PROBATION_FROM_START_NS);
        }
        true
    }

    /// Hears what another process has found of the same incumbent's rivals, as far as this one has
    /// tried them itself: no two need try the same again and again.
    pub fn hear_of(&mut self, now: Ns, words: &[u64; SAVED_WORDS]) {
        let &[incumbent, active, ..] = words;
        if incumbent != self.incumbent as u64 + 1 || self.is_trying() {
            return;
        }
        let arms = Arm::ALL.into_iter().zip(&mut self.rivals);
        for ((arm, rival), saved) in arms.zip(words[4..].chunks_exact(SAVED_OF_ARM)) {
            if arm != self.incumbent && rival.own && saved[3].min(now) > rival.told.tried {
                let due_in_ns = saved[0].saturating_sub(active).min(LAST_NS);
                rival.due = rival.due.max(self.active + due_in_ns);
                let Told { trials, regret_ns, .. } = rival.told;
                rival.recall(now, saved);
                // The other may take back what it promises, and would not say so here.
                rival.promise = 0.0;
                rival.told = Told { trials, regret_ns, ..rival.told };
            }
        }
    }
}

impl Rival {
    /// Takes over what was saved of an arm's trials.
    fn recall(&mut self, now: Ns, saved: &[u64]) {
        let (trials, sequences) = halves(saved[2]);
        self.patience_ns = saved[1].clamp(FIRST_NS, LAST_NS);
        let ((sum, tried), (low, high)) = (halves(saved[7]), halves(saved[8]));
        let ratios = [sum, low, high].map(f32::from_bits);
        if tried < TRIALS && ratios.iter().all(|ratio| ratio.is_finite()) {
            (self.tried, self.took_ns) = (tried, saved[9]);
            [self.sum, self.low, self.high] = ratios;
        }
        self.promise = cost(saved[10]).unwrap_or(0.0);
        self.sequences = sequences;
        self.told = Told {
            trials,
            tried: saved[3].min(now),
            cost_ns: cost(saved[4]).unwrap_or(0.0),
            regret_ns: cost(saved[5]).unwrap_or(0.0),
            cpu_ns: cost(saved[6]).unwrap_or(0.0),
            due_in_ns: 0,
        };
    }
}
