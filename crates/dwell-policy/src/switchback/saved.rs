// SPDX-License-Identifier: MIT OR Apache-2.0
//! A search as words, which the next process begins with.

use super::rival::{FIRST_NS, LAST_NS};
use super::{MEMORY, MS, Switchback, Told};
use crate::Ns;
use crate::arm::{ARMS, Arm, Arms};

const SAVED_OF_ARM: usize = 7;
/// Nobody makes requests for longer: ten years.
const MOST_ACTIVE_NS: Ns = 10 * 365 * 86_400 * 1_000 * MS;
/// Words in which a search is saved.
pub const SAVED_WORDS: usize = 4 + ARMS * SAVED_OF_ARM;

impl Switchback {
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
            let Told { trials, tried, cost_ns, cpu_ns, regret_ns, .. } = rival.told;
            saved.copy_from_slice(&[
                rival.due,
                rival.patience_ns,
                u64::from(trials) | u64::from(rival.sequences) << 32,
                tried,
                cost_ns.to_bits(),
                regret_ns.to_bits(),
                cpu_ns.to_bits(),
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
                cpu_ns: cost(saved[6]).unwrap_or(0.0),
                due_in_ns: 0,
            };
        }
        true
    }
}
