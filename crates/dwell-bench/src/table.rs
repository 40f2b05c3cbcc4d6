// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run as tables for a terminal of 100 columns or more.

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};

use crate::{
    events,
    result::{Configured, Metric, RoundResult, Row, Run, in_order},
    stats::Paired,
    units,
};

/// Narrowest terminal for which the columns are laid out.
pub const MIN_WIDTH: u16 = 100;

/// What the eight columns hold. A figure's unit is in its cell or, where all share one, here.
const HEAD: [&str; 8] = [
    "size",
    "policy",
    "throughput",
    "IOPS",
    "latency\np50/p99/p99.9",
    "switches\nper 1000\nvol/invol",
    "CPU %\nusr sys spin",
    "throughput ÷ base\n[95 % interval]",
];

/// The run as text, one table per setting, followed by notes.
pub fn table(run: &Run, width: u16) -> String {
    let mut text = run.verdict.as_deref().map_or(String::new(), |says| wrapped(says, width));
    if let Some(met) = &run.conditions {
        text += &wrapped(&met.line(&run.machine), width);
    }
    if !text.is_empty() {
        text += "\n";
    }
    text += &wrapped(&run.machine.line(), width);
    for setting in run.settings() {
        let rows: Vec<&Row> = run.rows.iter().filter(|row| row.setting == *setting).collect();
        text += &format!("\n{setting}; medians of {}\n", rounds(&rows));
        text += &one(run, &rows, width.max(MIN_WIDTH));
        text += "\n";
        for row in &rows {
            if let Some(ratio) = run.ratio(row, Metric::BystanderSpeed) {
                let (size, policy) = (units::bytes(row.size_bytes), &row.policy);
                let ratio = with_interval(&ratio.paired);
                text += &format!("speed of bystanders beside {policy}, {size}: {ratio} base\n");
            }
        }
        if let Some(events) = events_of(&rows) {
            text += &format!("\nevents per 1000 requests\n{events}\n");
        }
        if let Some(paging) = paging_of(&rows) {
            text += &format!("\npaging, medians of a round\n{paging}\n");
        }
        for note in in_order(rows.iter().filter_map(|row| row.emulated.as_deref())) {
            text += &wrapped(&format!("emulated device: {note}"), width);
        }
    }
    let base = in_order(run.ratios.iter().map(|ratio| ratio.baseline.as_str()));
    if !base.is_empty() {
        text += &format!("\nbase: {}, in the same round\n", base.join(", "));
    }
    for Configured { name, version, settings } in &run.contenders {
        text += &format!("\n{name} (version {version})\n");
        settings.iter().for_each(|setting| text += &format!("  {setting}\n"));
    }
    if let Some(why) = &run.ended {
        text += &format!("\nended early: {why}\n");
    }
    text
}

/// In lines of so many columns.
pub fn wrapped(text: &str, width: u16) -> String {
    let (mut lines, mut column) = (String::new(), 0);
    for word in text.split(' ') {
        let length = word.chars().count();
        if column > 0 && column + 1 + length > usize::from(width) {
            (lines, column) = (lines + "\n", 0);
        } else if column > 0 {
            (lines, column) = (lines + " ", column + 1);
        }
        (lines, column) = (lines + word, column + length);
    }
    lines + "\n"
}

fn rounds(rows: &[&Row]) -> String {
    let counts = rows.iter().map(|row| row.rounds.len());
    match (counts.clone().min().unwrap_or(0), counts.max().unwrap_or(0)) {
        (1, 1) => "1 round".into(),
        (least, most) if least == most => format!("{most} rounds"),
        (least, most) => format!("{least} to {most} rounds"),
    }
}

fn one(run: &Run, rows: &[&Row], width: u16) -> String {
    let mut table = Table::new();
    table.load_preset("     ──            ");
    table.set_content_arrangement(ContentArrangement::Disabled);
    let named = rows.iter().any(|row| row.setting.requests().is_none());
    let mut head = HEAD;
    if named {
        (head[3], head[7]) = ("operations\nper second", "operations ÷ base\n[95 % interval]");
    }
    table.set_header(head.map(Cell::new));
    let mut above = None;
    for row in rows {
        let new_group = above != Some(row.size_bytes);
        above = Some(row.size_bytes);
        let sized = new_group && row.size_bytes > 0;
        let size = if sized { units::bytes(row.size_bytes) } else { String::new() };
        table.add_row(std::iter::once(size).chain(figures(run, row)).map(Cell::new));
    }
    let padding = if width < 110 { 0 } else { 1 };
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, padding));
        if i != 1 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.trim_fmt()
}

/// Faults and memory, where memory was paged in.
fn paging_of(rows: &[&Row]) -> Option<String> {
    const SHOWN: [(&str, &str); 6] = [
        ("major_faults", "major\nfaults"),
        ("minor_faults", "minor\nfaults"),
        ("read_ahead_used", "read ahead\nand used"),
        ("read_ahead_wasted", "read ahead\nin vain"),
        ("peak_bytes", "peak\nmemory"),
        ("limit_bytes", "limit"),
    ];
    if rows.iter().all(|row| row.rounds.iter().all(|round| round.paging.is_empty())) {
        return None;
    }
    let mut table = Table::new();
    table.load_preset("     ──            ");
    table.set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(std::iter::once("policy").chain(SHOWN.map(|(_, head)| head)));
    for row in rows {
        let count = |name: &str| {
            let value = |round: &RoundResult| {
                round.paging.get(name).map_or(f64::NAN, |&count| count as f64)
            };
            row.summary(value).map_or("–".into(), |summary| match name.ends_with("_bytes") {
                true => units::bytes(summary.median as u64),
                false => format!("{:.0}", summary.median),
            })
        };
        let counts = SHOWN.map(|(name, _)| count(name));
        table.add_row(std::iter::once(row.policy.clone()).chain(counts));
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        if i != 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    Some(table.trim_fmt())
}

/// What the CPU counted, where it did.
fn events_of(rows: &[&Row]) -> Option<String> {
    let names = events::names(rows);
    if names.is_empty() {
        return None;
    }
    let mut table = Table::new();
    table.load_preset("     ──            ");
    table.set_content_arrangement(ContentArrangement::Disabled);
    let heads = names.iter().map(|name| name.replace('_', "\n"));
    table.set_header(["size".into(), "policy".into()].into_iter().chain(heads));
    for row in rows {
        let counts = names.iter().map(|name| events::per_thousand(row, name));
        table.add_row([units::bytes(row.size_bytes), row.policy.clone()].into_iter().chain(counts));
    }
    for (i, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 0));
        if i != 1 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    Some(table.trim_fmt())
}

/// Policy and measured columns of one row.
fn figures(run: &Run, row: &Row) -> [String; 7] {
    let cpu = row.cpu_split();
    let per_thousand = |get: fn(&crate::result::RoundResult) -> u64| {
        short(row.median(|r| get(r) as f64 * 1000.0 / r.requests as f64))
    };
    let (rate, metric) = match row.setting.requests() {
        Some(_) => (row.median(|r| r.requests_per_second()), Metric::Throughput),
        None => (row.median(|r| r.operations_per_second()), Metric::Operations),
    };
    let ratio = run.ratio(row, metric).map(|ratio| ratio.paired);
    [
        row.policy.clone(),
        units::throughput(row.median(|r| r.throughput())),
        units::per_second(rate),
        percentiles(row),
        format!(
            "{}/{}",
            per_thousand(|r| r.voluntary_switches),
            per_thousand(|r| r.involuntary_switches)
        ),
        [cpu.user, cpu.system, cpu.spin].map(|part| format!("{:3.0}", part * 100.0)).join(" "),
        ratio.map_or(String::new(), |ratio| with_interval(&ratio)),
    ]
}

fn with_interval(ratio: &Paired) -> String {
    format!("{} [{:.2}–{:.2}]", units::ratio(ratio.median), ratio.low, ratio.high)
}

/// A count that may be a small fraction, in few letters.
fn short(value: f64) -> String {
    if value > 0.0 && value < 1.0 { format!("{value:.2}") } else { units::figure(value) }
}

/// Three percentiles in the unit that suits the median.
fn percentiles(row: &Row) -> String {
    let all = [
        row.median(|r| r.p50_ns as f64),
        row.median(|r| r.p99_ns as f64),
        row.median(|r| r.p999_ns as f64),
    ];
    if all == [0.0; 3] {
        return "–".into();
    }
    let (divisor, unit) = units::time_unit(all[0]);
    let figures = all.map(|ns| match ns / divisor {
        value if divisor == 1.0 || value >= 99.95 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    });
    format!("{} {unit}", figures.join("/"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn fits_a_hundred_columns_with_one_line_per_row() {
        let mut run = sample::run();
        run.contenders.clear();
        let text = table(&run, 100);
        assert!(text.lines().all(|line| line.chars().count() <= 100), "\n{text}");
        for policy in ["smartcon", "adaptive", "io-uring spin"] {
            let lines = text.lines().filter(|line| line.contains(policy)).count();
            assert_eq!(lines, run.rows.iter().filter(|row| row.policy == policy).count());
        }
    }

    #[test]
    fn figures_have_units_and_emulation_is_said() {
        let text = table(&sample::run(), 120);
        for part in ["MiB/s", "k/s", "µs", "4 KiB", "queue depth 1", "9 rounds", "base: block", "×"]
        {
            assert!(text.contains(part), "{part} is missing\n{text}");
        }
        assert!(text.contains("emulated device: software emulation"));
        assert!(text.contains("io-uring spin (version 1.2.3)\n  one thread\n"), "{text}");
    }

    #[test]
    fn the_verdict_and_the_machine_as_it_was_met_come_first() {
        let text = table(&sample::run(), 100);
        let verdict = text.split("The machine as it was met: quiet").next().unwrap();
        let verdict = verdict.replace('\n', " ");
        assert!(verdict.starts_with("On loop, for random reads, when idle dwell "));
        assert!(verdict.contains("On nvme-emu, which is emulated,"), "{verdict}");
        let machine = text.find("Invented CPU").unwrap();
        assert!(verdict.len() < machine && text.lines().all(|line| !line.ends_with(' ')));
        let mut without = sample::run();
        (without.verdict, without.conditions) = (None, None);
        assert!(table(&without, 100).starts_with("Invented CPU"));
    }

    #[test]
    fn counted_events_are_shown_and_an_early_end_is_said() {
        let mut run = sample::run();
        assert!(!table(&run, 100).contains("per 1000 requests\n"));
        let round = &mut run.rows[0].rounds[0];
        round.counters = [("l1d_read_misses".to_owned(), round.requests as f64 * 2.5)].into();
        run.ended = Some("interrupted".into());
        let text = table(&run, 100);
        assert!(text.contains("events per 1000 requests") && text.contains("2500"), "{text}");
        assert!(text.contains("ended early: interrupted"), "{text}");
    }

    #[test]
    fn a_run_without_rows_or_rounds_is_a_table_without_figures() {
        let mut run = sample::run();
        run.rows.iter_mut().for_each(|row| row.rounds.clear());
        run.ratios.clear();
        assert!(table(&run, 100).contains('–'));
        run.rows.clear();
        assert!(table(&run, 100).contains("Invented CPU"));
    }
}
