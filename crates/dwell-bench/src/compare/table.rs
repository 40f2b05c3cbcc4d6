// SPDX-License-Identifier: MIT OR Apache-2.0
//! A comparison as text for a terminal of 100 columns or more.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};

use super::outcome::{Comparison, Measured, Metric, Results, UNTOUCHED, Variant};
use super::words::line;
use crate::stats::Paired;
use crate::units;

const HEAD: [&str; 8] = [
    "variant",
    "wall time",
    "CPU time\nuser + system",
    "switches\nvol + invol",
    "major\nfaults",
    "speed ÷\nuntouched",
    "CPU ÷\nuntouched",
    "verdict",
];

/// The comparison as text: what it says in words, then one row per variant.
pub fn table(comparison: &Comparison) -> String {
    let mut text = String::new();
    for variant in comparison.others() {
        if let Some(finding) = &variant.finding {
            text += &format!("{}: {}\n", variant.name, finding.text);
        }
    }
    if !text.is_empty() {
        text += "\n";
    }
    text += &(comparison.machine.line() + "\n");
    text += &format!("\n{}\n", one_line(&line(&comparison.program)));
    let rounds = comparison.untouched().map_or(0, |base| base.rounds.len());
    let plural = if rounds == 1 { "" } else { "s" };
    text += &format!("medians of {rounds} round{plural}, beneath them the quartiles\n\n");
    let mut table = Table::new();
    table.load_preset("     ──            ");
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(HEAD.map(Cell::new));
    for variant in &comparison.variants {
        table.add_row(row(comparison, variant).map(Cell::new));
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if !matches!(i, 0 | 7) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    text += &table.trim_fmt();
    text += "\n\n";
    for variant in comparison.others() {
        if let Some((seen, decided)) = variant.coverage() {
            text += &format!(
                "coverage: {}: {} of the bytes moved were seen, {} decided about\n",
                variant.name,
                units::percent(seen),
                units::percent(decided)
            );
        }
    }
    if comparison.others().all(|variant| variant.results == Results::Same) {
        text += "results: the same in all runs\n";
    }
    if let Some(why) = &comparison.ended {
        text += &format!("\nended early: {}\n", one_line(why));
    }
    text
}

fn row(comparison: &Comparison, variant: &Variant) -> [String; 8] {
    let count = |get: fn(&Measured) -> u64| {
        variant.summary(|run| get(run) as f64).map_or("–".into(), |s| short(s.median))
    };
    let cpu_ns = variant.median(|run| run.cpu_ns() as f64);
    let (divisor, unit) = units::time_unit(cpu_ns);
    let [user, system] = [|run: &Measured| run.user_ns, |run: &Measured| run.system_ns]
        .map(|part| units::figure(variant.median(|run| part(run) as f64) / divisor));
    let cpu = format!("{}\n{user} + {system} {unit}", units::time_ns(cpu_ns));
    let ratio = |metric| comparison.ratio(&variant.name, metric).map_or("".into(), with_interval);
    let verdict = match &variant.finding {
        Some(finding) => finding.verdict.to_string(),
        None if variant.name == UNTOUCHED => "–".into(),
        None => String::new(),
    };
    let verdict = match variant.results {
        Results::Differ => format!("{verdict}\nresults differ"),
        _ => verdict,
    };
    [
        variant.name.clone(),
        spread(variant),
        cpu,
        format!(
            "{}\n+ {}",
            count(|run| run.voluntary_switches),
            count(|run| run.involuntary_switches)
        ),
        count(|run| run.major_faults),
        ratio(Metric::Speed),
        ratio(Metric::Cpu),
        verdict,
    ]
}

/// Wall-clock time: the median, and the quartiles in the same unit.
fn spread(variant: &Variant) -> String {
    let Some(summary) = variant.summary(|run| run.wall_ns as f64) else { return "–".into() };
    let (divisor, _) = units::time_unit(summary.median);
    let [low, high] =
        [summary.lower_quartile, summary.upper_quartile].map(|ns| units::figure(ns / divisor));
    format!("{}\n{low}–{high}", units::time_ns(summary.median))
}

fn with_interval(ratio: &Paired) -> String {
    format!("{}\n{:.2}–{:.2}", units::ratio(ratio.median), ratio.low, ratio.high)
}

/// A count in few letters.
pub(super) fn short(count: f64) -> String {
    match count {
        c if c < 9_999.5 => units::tick(c),
        c if c < 999.5e3 => format!("{} k", units::figure(c / 1e3)),
        c => format!("{} M", units::figure(c / 1e6)),
    }
}

/// Fit for one line of a terminal.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn fits_a_hundred_columns_and_says_all_verdicts() {
        let comparison = sample::comparison();
        let text = table(&comparison);
        let behind_sentences = || text.lines().skip_while(|line| !line.is_empty());
        assert!(behind_sentences().take(14).all(|line| line.chars().count() <= 100), "\n{text}");
        for part in ["untouched", "faster", "slower", "inconclusive", "×", " ms", "k"] {
            assert!(text.contains(part), "{part} is missing\n{text}");
        }
        assert!(text.contains("results: the same in all runs"));
    }

    #[test]
    fn different_results_and_an_early_end_are_said() {
        let mut comparison = sample::comparison();
        comparison.variants[1].rounds[0].results_sum = "other".into();
        comparison.ended = Some("interrupted".into());
        comparison.conclude();
        let text = table(&comparison);
        assert!(text.contains("results differ") && !text.contains("the same in all"), "{text}");
        assert!(text.contains("ended early: interrupted"));
    }

    #[test]
    fn without_rounds_there_is_no_figure_and_no_panic() {
        let mut comparison = sample::comparison();
        comparison.variants.iter_mut().for_each(|variant| variant.rounds.clear());
        comparison.conclude();
        assert!(table(&comparison).contains('–'));
        comparison.variants.clear();
        comparison.conclude();
        assert!(table(&comparison).contains("Invented CPU"));
    }
}
