// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a run says about each contender, where none is the default policy against another one.

use super::{Cell, Finding, LEAST_ROUNDS, series};
use crate::result::{Metric, Ratio, Run, in_order};
use crate::units;

/// The verdict on each contender against `baseline`: in how many cases it gains and loses, with the
/// clearest of each.
pub fn sentence(run: &Run, baseline: &str) -> String {
    let of = |metric| -> Vec<&Ratio> {
        let those = |ratio: &&Ratio| ratio.baseline == baseline && ratio.metric == metric;
        run.ratios.iter().filter(those).collect()
    };
    let operations = of(Metric::Operations);
    let ratios = if operations.is_empty() { of(Metric::Throughput) } else { operations };
    if ratios.is_empty() {
        return format!("This run compares nothing: nothing was measured beside {baseline}.");
    }
    let cases = in_order(ratios.iter().map(|ratio| (&ratio.setting, ratio.size_bytes)));
    let contenders = in_order(ratios.iter().map(|ratio| ratio.policy.as_str()));
    let told = contenders.iter().map(|contender| {
        let own = ratios.iter().filter(|ratio| ratio.policy == *contender);
        let cells: Vec<Cell> = own.map(|ratio| Cell::new(run, ratio)).collect();
        format!("{contender} {}", counts(&cells, cases.len()))
    });
    let told = told.collect::<Vec<_>>().join("; ");
    let head = match cases.len() {
        1 => format!("Against {baseline}"),
        count => format!("Against {baseline}, in {count} cases"),
    };
    let rounds = ratios.iter().map(|ratio| ratio.paired.rounds).min().unwrap_or(0);
    let open = ratios.iter().any(|ratio| Cell::new(run, ratio).finding == Finding::Open);
    let remedy = match (open, rounds < LEAST_ROUNDS, &run.ended) {
        (false, ..) => String::new(),
        (_, true, Some(_)) => " It ended early: let it end.".into(),
        (_, true, None) => format!(" Take {} rounds or more (--rounds).", 7),
        _ => format!(" More rounds (--rounds {}) would tell.", (4 * rounds).min(1000)),
    };
    format!("{head}: {told}.{remedy}")
}

fn counts(cells: &[Cell], cases: usize) -> String {
    let verbs = [
        (Finding::Gains, "gains"),
        (Finding::Loses, "loses"),
        (Finding::Same, "makes no difference"),
        (Finding::Open, "is inconclusive"),
    ];
    let parts = verbs.into_iter().filter_map(|(finding, verb)| {
        let those = || cells.iter().filter(move |cell| cell.finding == finding);
        let clearest = those().max_by(|a, b| a.support().total_cmp(&b.support()))?;
        let count = match (cases, those().count()) {
            (1, _) => String::new(),
            (_, count) => format!(" in {count}"),
        };
        let example = match (finding, cases) {
            (Finding::Same, _) => String::new(),
            (_, 1) => format!(" ({})", clearest.interval()),
            _ => format!(" ({})", named(clearest)),
        };
        Some(format!("{verb}{count}{example}"))
    });
    series(parts.collect::<Vec<_>>().iter().map(String::as_str), " and ")
}

/// A case with its ratio.
fn named(cell: &Cell) -> String {
    let size = match cell.size_bytes {
        0 => String::new(),
        bytes => format!(", {}", units::bytes(bytes)),
    };
    format!("{}: {}, {}{size}", cell.interval(), cell.setting.device, cell.setting.workload())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::Load;
    use crate::result::conclusion::tests::run;

    #[test]
    fn each_contender_has_its_counts_and_its_clearest_case() {
        let one = run(&[("disk", Load::Idle, 1, 4, 1.2, 1.4)]);
        assert_eq!(sentence(&one, "block"), "Against block: adaptive gains (1.30× [1.20–1.40]).");
        let mut two =
            run(&[("disk", Load::Idle, 1, 4, 1.2, 1.4), ("loop", Load::Idle, 1, 4, 0.5, 1.4)]);
        let text = sentence(&two, "block");
        assert!(
            text.starts_with("Against block, in 2 cases: adaptive gains in 1 (1.30×"),
            "{text}"
        );
        assert!(text.contains("and is inconclusive in 1 (0.84×"), "{text}");
        assert!(text.ends_with("More rounds (--rounds 28) would tell."), "{text}");
        two.ratios.iter_mut().for_each(|ratio| ratio.paired.rounds = 2);
        let text = sentence(&two, "block");
        assert!(text.contains("is inconclusive in 2") && text.ends_with("(--rounds)."), "{text}");
        assert!(sentence(&two, "pread").contains("compares nothing"));
    }
}
