// SPDX-License-Identifier: MIT OR Apache-2.0
//! Quantities of all rounds together, where one round is too short to count them in.

use crate::figure::Measured;
use dwell_bench::result::{RoundResult, Row};
use dwell_bench::stats::SplitMix;

/// How many times the rounds are drawn again for a bootstrap interval.
const RESAMPLES: usize = 2000;
/// Fixed, so that the same rounds always give the same interval.
const SEED: u64 = 0x7375_6d73;

/// What a rate is of, and per what.
#[derive(Clone, Copy)]
pub struct Rate<Q, P> {
    pub quantity: Q,
    pub per: P,
}

impl<Q: Fn(&RoundResult) -> f64, P: Fn(&RoundResult) -> f64> Rate<Q, P> {
    /// The rate of one contender, with its interval over rounds.
    pub fn of(&self, row: &Row) -> Option<Measured> {
        interval(row.rounds.len(), |drawn| self.over(row, drawn))
    }

    /// The rate of one ÷ that of another, in the same rounds.
    pub fn ratio(&self, ours: &Row, base: &Row) -> Option<Measured> {
        let rounds = ours.rounds.len().min(base.rounds.len());
        interval(rounds, |drawn| self.over(ours, drawn) / self.over(base, drawn))
    }

    fn over(&self, row: &Row, rounds: &[usize]) -> f64 {
        let sum = |of: &dyn Fn(&RoundResult) -> f64| -> f64 {
            rounds.iter().map(|&at| of(&row.rounds[at])).sum()
        };
        sum(&self.quantity) / sum(&self.per)
    }
}

/// The value over all rounds, and where 95 % of it lies over rounds drawn again; `None` where it is
/// no number.
fn interval(rounds: usize, of: impl Fn(&[usize]) -> f64) -> Option<Measured> {
    let mut drawn: Vec<usize> = (0..rounds).collect();
    let value = Some(of(&drawn)).filter(|value| value.is_finite())?;
    let mut random = SplitMix(SEED);
    let mut values: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            drawn.iter_mut().for_each(|at| *at = random.below(rounds));
            of(&drawn)
        })
        .filter(|value| !value.is_nan())
        .collect();
    values.sort_by(f64::total_cmp);
    let at = |share: f64| values[(share * (values.len() - 1) as f64).round() as usize];
    let (low, high) = (at(0.025), at(0.975));
    Some(Measured { value, low, high }).filter(|_| high.is_finite())
}

/// Share of a contender's requests that were spun for, from none to all.
pub fn spun(row: &Row) -> f64 {
    let all: u64 = row.rounds.iter().map(|round| round.requests).sum();
    row.rounds.iter().map(spun_for).sum::<f64>() / all.max(1) as f64
}

/// Requests of a round that were spun for.
pub fn spun_for(round: &RoundResult) -> f64 {
    let spins = |how: &str| how.contains(" spin") && !how.starts_with("inline");
    let spun = round.decisions.iter().filter(|(how, _)| spins(how)).map(|(_, count)| count);
    spun.sum::<u64>() as f64
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_bench::result::{Load, Requests, Setting};

    fn row(counts: &[(u64, u64)]) -> Row {
        let round = |&(requests, iowait_ns)| RoundResult {
            requests,
            iowait_ns,
            decisions: [("pays: ring spin".to_owned(), requests / 2)].into(),
            ..RoundResult::default()
        };
        let work = dwell_bench::result::Work::Requests(Requests::random_reads());
        let setting = Setting { device: "loop".into(), load: Load::Idle, scheduler: None, work };
        let rounds = counts.iter().map(round).collect();
        Row { setting, size_bytes: 1, policy: "block".into(), rounds, emulated: None }
    }

    #[test]
    fn rounds_that_count_nothing_count_together() {
        let rate = Rate {
            quantity: |round: &RoundResult| round.iowait_ns as f64,
            per: |round: &RoundResult| round.requests as f64,
        };
        let (ours, base) =
            (row(&[(10, 0), (10, 20), (10, 10)]), row(&[(10, 40), (10, 20), (0, 0)]));
        assert_eq!(rate.of(&ours).unwrap().value, 1.0);
        let ratio = rate.ratio(&ours, &base).unwrap();
        assert!((ratio.value - 1.0 / 3.0).abs() < 1e-9);
        assert!(ratio.low <= ratio.value && ratio.value <= ratio.high, "{ratio:?}");
        assert!(rate.ratio(&ours, &row(&[(10, 0); 3])).is_none(), "a ratio to nothing");
        assert!(rate.of(&row(&[])).is_none());
    }

    #[test]
    fn requests_that_were_spun_for_are_told_from_others() {
        assert_eq!(spun(&row(&[(10, 0), (10, 0)])), 0.5);
        assert_eq!(spun(&row(&[])), 0.0);
    }
}
