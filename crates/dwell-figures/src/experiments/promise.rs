// SPDX-License-Identifier: MIT OR Apache-2.0
//! How well estimates hold: pairs of what was estimated and what was measured after it, both as
//! ratios.

use anyhow::Result;

use crate::figure::{FigureResult, Measured};

/// A gain or loss below this has no sign.
const TELLING: f64 = 0.05;

/// What was estimated and measured in pairs of cases of which both are known.
pub fn pairs(result: &FigureResult, cases: &[[String; 2]]) -> Vec<(f64, f64)> {
    let value = |case: &str| result.rows.iter().find(|row| row.case == case)?.measured;
    let both = |[estimated, measured]: &[String; 2]| Some((value(estimated)?, value(measured)?));
    cases.iter().filter_map(both).collect()
}

/// Enters rank agreement, median error and the number of wrong signs.
pub fn judge(
    result: &mut FigureResult,
    pairs: &[(f64, f64)],
    [ranks, error_of, wrong_of]: [&str; 3],
) -> Result<()> {
    result.measured(ranks, Measured::exact(rank_agreement(pairs)))?;
    result.measured(wrong_of, Measured::exact(wrong(pairs) as f64))?;
    match error(pairs) {
        Some(error) => result.measured(error_of, Measured::exact(100.0 * error)),
        None => result.note(error_of, "nothing gains or loses more than 5 %"),
    }
}

/// Kendall's tau: concordant less discordant pairs of cells, as a share of those that differ in
/// both.
fn rank_agreement(pairs: &[(f64, f64)]) -> f64 {
    let (mut sum, mut all) = (0.0, 0.0);
    for (i, one) in pairs.iter().enumerate() {
        for other in &pairs[..i] {
            let agree = (one.0 - other.0) * (one.1 - other.1);
            if agree != 0.0 {
                sum += agree.signum();
                all += 1.0;
            }
        }
    }
    if all == 0.0 { 0.0 } else { sum / all }
}

/// Median of the estimates' errors, as shares of the gains that tell something.
fn error(pairs: &[(f64, f64)]) -> Option<f64> {
    let telling = pairs.iter().filter(|(_, measured)| (measured - 1.0).abs() > TELLING);
    let mut errors: Vec<f64> = telling
        .map(|(estimated, measured)| ((estimated - measured) / (measured - 1.0)).abs())
        .collect();
    errors.sort_by(f64::total_cmp);
    errors.get(errors.len() / 2).copied()
}

/// Cells in which one says gain and the other loss, by more than what tells.
fn wrong(pairs: &[(f64, f64)]) -> usize {
    let sign = |ratio: f64| match ratio - 1.0 {
        gain if gain > TELLING => 1,
        gain if gain < -TELLING => -1,
        _ => 0,
    };
    pairs.iter().filter(|(estimated, measured)| sign(*estimated) * sign(*measured) < 0).count()
}

/// The largest change, as a share, where the estimate says that there is nothing to gain.
pub fn most_for_nothing(pairs: &[(f64, f64)], nothing: f64) -> Option<f64> {
    let of_nothing = pairs.iter().filter(|(estimated, _)| *estimated < nothing);
    of_nothing.map(|(_, measured)| (measured - 1.0).abs()).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agreement_runs_from_reversed_to_the_same_order() {
        assert_eq!(rank_agreement(&[(1.0, 1.0), (1.2, 1.1), (1.5, 1.4)]), 1.0);
        assert_eq!(rank_agreement(&[(1.0, 1.4), (1.2, 1.1), (1.5, 1.0)]), -1.0);
    }

    #[test]
    fn errors_are_shares_of_gains_that_tell_something() {
        let pairs = [(1.3, 1.2), (1.0, 1.01), (1.2, 1.2)];
        assert!((error(&pairs).unwrap() - 0.5).abs() < 1e-9);
        assert_eq!(error(&pairs[1..2]), None);
    }

    #[test]
    fn only_a_gain_for_a_loss_is_the_wrong_sign() {
        assert_eq!(wrong(&[(1.2, 0.9), (1.2, 1.0), (1.0, 0.9), (0.9, 1.2)]), 2);
    }

    #[test]
    fn a_change_counts_where_nothing_was_promised() {
        let pairs = [(1.0, 0.99), (1.02, 1.05), (1.3, 0.5)];
        assert!((most_for_nothing(&pairs, 1.03).unwrap() - 0.05).abs() < 1e-9);
        assert_eq!(most_for_nothing(&pairs[2..], 1.03), None);
    }
}
