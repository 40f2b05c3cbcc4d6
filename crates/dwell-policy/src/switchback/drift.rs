// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a quantity of the incumbent's has changed for good: a cumulative-sum test.

use super::MEMORY;

/// The level has changed when looks were off by so much in sum, beyond a slack each; by more where
/// looks scatter more.
const CHANGED: f64 = 0.6;
const SLACK: f64 = 0.08;
const CHANGED_OF_SPREAD: f64 = 10.0;
const SLACK_OF_SPREAD: f64 = 1.5;

/// Two looks that scatter alike are off each other by the root of two more than off their mean.
const OF_NEIGHBOURS: f64 = 0.71;

/// How far a quantity of the incumbent's lately was off its level, in sum, upwards and downwards,
/// and how far looks scatter on average.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drift {
    up: f64,
    down: f64,
    pub spread: f64,
    /// Looks that the scatter is averaged over where it grows.
    growth: f64,
    /// The look before; 0 where there is none.
    before: f64,
    /// The looks since it was at its level: their number and sum.
    looks: f64,
    sum: f64,
}

impl Drift {
    pub const NONE: Drift = Drift {
        up: 0.0,
        down: 0.0,
        spread: SLACK,
        growth: MEMORY,
        before: 0.0,
        looks: 0.0,
        sum: 0.0,
    };
    /// A quantity that is measured on few requests: it may scatter widely.
    pub const OF_FEW: Drift = Drift { growth: 4.0, ..Drift::NONE };

    /// Hears of one more look, and says whether the level has changed.
    pub fn hear(&mut self, level: f64, mean: f64) -> bool {
        let off = off(level, mean);
        let slack = SLACK.max(self.spread * SLACK_OF_SPREAD);
        self.up = (self.up + off - slack).max(0.0);
        self.down = (self.down - off - slack).max(0.0);
        (self.looks, self.sum) = match self.is_at_rest() {
            true => (0.0, 0.0),
            false => (self.looks + 1.0, self.sum + mean),
        };
        // Looks after a change scatter no more than those before it, but for the first.
        if self.before > 0.0 {
            let apart = self::off(self.before, mean).abs() * OF_NEIGHBOURS;
            let memory = if apart > self.spread { self.growth } else { MEMORY };
            self.spread += (apart.min(2.0 * slack) - self.spread) / memory;
        }
        self.before = mean;
        self.up.max(self.down) > CHANGED.max(self.spread * CHANGED_OF_SPREAD)
    }

    /// Whether looks are at their level.
    pub fn is_at_rest(&self) -> bool {
        self.up == 0.0 && self.down == 0.0
    }

    /// The mean of the looks since they were at their level, and their number, if there are any.
    pub fn since(&self) -> Option<(f64, f64)> {
        (self.looks > 0.0).then(|| (self.sum / self.looks, self.looks))
    }

    pub fn forget(&mut self) {
        *self = Drift { spread: self.spread, growth: self.growth, ..Drift::NONE };
    }
}

/// How far a look is off, as a share: half as dear is as far off as twice as dear.
fn off(level: f64, mean: f64) -> f64 {
    if mean < level { 1.0 - level / mean } else { mean / level - 1.0 }
}
