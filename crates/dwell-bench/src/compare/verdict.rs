// SPDX-License-Identifier: MIT OR Apache-2.0
//! What measured rounds say of a variant: faster, slower, or neither that they could tell.

use serde::{Deserialize, Serialize};

use crate::stats::{Paired, sign_test};
use crate::units;

/// A verdict is wrong this often at most where there is no difference.
const DOUBT: f64 = 0.05;

/// How a variant's wall-clock time compares with the untouched command's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It takes less.
    Faster,
    /// It takes more.
    Slower,
    /// These rounds cannot tell.
    Inconclusive,
}

impl Verdict {
    /// The word used in tables.
    pub const fn as_str(self) -> &'static str {
        match self {
            Verdict::Faster => "faster",
            Verdict::Slower => "slower",
            Verdict::Inconclusive => "inconclusive",
        }
    }

    /// From the ratio of speeds and the rounds in which the variant was ahead and behind.
    ///
    /// Two witnesses must agree: the whole interval lies on one side, and so many rounds do that
    /// chance would rarely bring it about. With few rounds a bootstrap interval is too short, and
    /// with fewer than six no outcome is rare enough.
    pub fn of(speed: &Paired, ahead: usize, behind: usize) -> Self {
        match speed {
            _ if sign_test(ahead, behind) > DOUBT => Verdict::Inconclusive,
            speed if speed.low > 1.0 && ahead > behind => Verdict::Faster,
            speed if speed.high < 1.0 && behind > ahead => Verdict::Slower,
            _ => Verdict::Inconclusive,
        }
    }
}

impl std::fmt::Display for Verdict {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(self.as_str())
    }
}

/// How a variant's wall-clock time compares.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// In one word.
    pub verdict: Verdict,
    /// Rounds in which it took less time than the untouched command.
    pub rounds_faster: usize,
    /// Rounds in which it took more.
    pub rounds_slower: usize,
    /// In one sentence.
    pub text: String,
}

/// The verdict with its reasons.
pub(super) fn find(speed: &Paired, ahead: usize, behind: usize, cpu: Option<&Paired>) -> Finding {
    let verdict = Verdict::of(speed, ahead, behind);
    let with_interval = |ratio: &Paired| {
        format!("{} [{:.2}–{:.2}]", units::ratio(ratio.median), ratio.low, ratio.high)
    };
    let rounds = speed.rounds;
    let mut text = format!("{verdict}: {} as fast as untouched", with_interval(speed));
    text += &match verdict {
        Verdict::Faster => format!(", ahead in {ahead} of {rounds} rounds"),
        Verdict::Slower => format!(", behind in {behind} of {rounds} rounds"),
        Verdict::Inconclusive if rounds < 6 => {
            let plural = if rounds == 1 { "" } else { "s" };
            format!("; {rounds} round{plural} cannot tell, six can (--rounds)")
        }
        Verdict::Inconclusive => {
            format!(", ahead in {ahead} and behind in {behind} of {rounds} rounds")
        }
    };
    if let Some(cpu) = cpu {
        text += &format!("; CPU time {}", with_interval(cpu));
    }
    Finding { verdict, rounds_faster: ahead, rounds_slower: behind, text }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The verdict on runs that took so long, each beside one of 100 ms.
    fn verdict(took_ms: &[f64]) -> Verdict {
        let speed = Paired::of(took_ms.iter().map(|ms| (100.0, *ms))).unwrap();
        let ahead = took_ms.iter().filter(|ms| **ms < 100.0).count();
        let behind = took_ms.iter().filter(|ms| **ms > 100.0).count();
        Verdict::of(&speed, ahead, behind)
    }

    #[test]
    fn a_clear_difference_is_said() {
        assert_eq!(verdict(&[70.0, 71.0, 69.0, 75.0, 66.0, 70.0]), Verdict::Faster);
        assert_eq!(verdict(&[130.0, 104.0, 119.0, 105.0, 106.0, 170.0]), Verdict::Slower);
    }

    #[test]
    fn a_small_difference_that_every_round_shows_is_one() {
        let took: Vec<f64> = (0..10).map(|i| 99.0 + 0.05 * f64::from(i)).collect();
        assert_eq!(verdict(&took), Verdict::Faster);
    }

    #[test]
    fn noise_is_none() {
        assert_eq!(verdict(&[90.0, 112.0, 95.0, 104.0, 99.0, 108.0, 97.0]), Verdict::Inconclusive);
        assert_eq!(verdict(&[100.0; 20]), Verdict::Inconclusive);
        // A bootstrap interval alone would call this faster.
        let seven = [90.0, 91.0, 92.0, 93.0, 94.0, 95.0, 101.0];
        let speed = Paired::of(seven.iter().map(|ms| (100.0, *ms))).unwrap();
        assert!(speed.low > 1.0, "{speed:?}");
        assert_eq!(verdict(&seven), Verdict::Inconclusive);
    }

    #[test]
    fn few_rounds_never_tell_however_large_the_difference() {
        for rounds in 1..6 {
            assert_eq!(verdict(&vec![10.0; rounds]), Verdict::Inconclusive);
        }
        let speed = Paired::of([(100.0, 10.0)]).unwrap();
        let text = find(&speed, 1, 0, None).text;
        assert!(text.contains("1 round cannot tell"), "{text}");
    }

    #[test]
    fn noise_is_rarely_called_a_difference() {
        let mut random = crate::stats::SplitMix(11);
        let mut wrong = 0;
        for _ in 0..300 {
            let took: Vec<f64> =
                (0..10).map(|_| 90.0 + random.below(20_001) as f64 / 1e3).collect();
            wrong += usize::from(verdict(&took) != Verdict::Inconclusive);
        }
        assert!(wrong <= 15, "{wrong} of 300");
    }

    #[test]
    fn the_sentence_has_both_ratios() {
        let speed = Paired::of([(100.0, 50.0); 7]).unwrap();
        let finding = find(&speed, 7, 0, Some(&speed));
        let says = "faster: 2.00× [2.00–2.00] as fast as untouched, ahead in 7 of 7 rounds; \
                    CPU time 2.00× [2.00–2.00]";
        assert_eq!(finding.text, says);
    }
}
