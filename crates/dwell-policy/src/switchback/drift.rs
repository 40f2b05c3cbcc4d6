// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a quantity of the incumbent's has changed for good: a cumulative-sum test.

use super::MEMORY;

/// The level has changed when looks were off by so much in sum, beyond a slack each; by more where
/// looks scatter more.
const CHANGED: f64 = 0.6;
const SLACK: f64 = 0.08;
const CHANGED_OF_SPREAD: f64 = 8.0;
const SLACK_OF_SPREAD: f64 = 1.5;

/// How far a quantity of the incumbent's lately was off its level, in sum, upwards and downwards,
/// and how far it is off on average.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drift {
    up: f64,
    down: f64,
    pub spread: f64,
}

impl Drift {
    pub const NONE: Drift = Drift { up: 0.0, down: 0.0, spread: SLACK };

    /// Hears of one more look, and says whether the level has changed.
    pub fn hear(&mut self, level: f64, mean: f64) -> bool {
        // Half as dear is as far off as twice as dear.
        let off = if mean < level { 1.0 - level / mean } else { mean / level - 1.0 };
        let slack = SLACK.max(self.spread * SLACK_OF_SPREAD);
        self.up = (self.up + off - slack).max(0.0);
        self.down = (self.down - off - slack).max(0.0);
        // A change is not scatter.
        self.spread += (off.abs().min(2.0 * slack) - self.spread) / MEMORY;
        self.up.max(self.down) > CHANGED.max(self.spread * CHANGED_OF_SPREAD)
    }

    pub fn forget(&mut self) {
        (self.up, self.down) = (0.0, 0.0);
    }
}
