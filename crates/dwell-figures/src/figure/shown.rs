// SPDX-License-Identifier: MIT OR Apache-2.0
//! A result as a chart and as a table.

use std::fmt::Write as _;

use dwell_bench::chart::{DotRow, Dots, Panel};
use dwell_bench::pairs::Sampling;
use dwell_bench::result::in_order;
use dwell_bench::stats::Paired;
use dwell_bench::units;

use super::{Agreement, FULL_ROW_S, FigureResult, FigureRow};

impl FigureResult {
    /// The result as a chart: one line per case that is not still to be measured, one
    /// axis per unit. An estimate stands beside what was measured after it.
    pub fn svg(&self) -> String {
        let of = |case: &str| self.rows.iter().find(|row| row.case == case && !row.is_blank());
        let estimate = |row: &FigureRow| of(&format!("{}{ESTIMATED}", row.case));
        let dot = |row: &FigureRow| DotRow {
            label: row.case.clone(),
            measured: row.measured.map(|v| (v, row.low.unwrap_or(v), row.high.unwrap_or(v))),
            target: row.target,
            paper: row.paper_range,
            text: match estimate(row) {
                Some(estimate) => {
                    let estimated = with_unit(estimate.measured, &estimate.unit);
                    format!("{}  estimated {estimated}", in_chart(row))
                }
                None => in_chart(row),
            },
        };
        let none = self.rows.iter().all(FigureRow::is_blank);
        let is_beside_another =
            |row: &FigureRow| row.case.strip_suffix(ESTIMATED).and_then(of).is_some();
        let is_shown = |row: &&FigureRow| none || !row.is_blank() && !is_beside_another(row);
        let panel = |unit: &String| Panel {
            axis_label: match unit.as_str() {
                "×" => "Ratio (×)".into(),
                unit => format!("Value ({unit})"),
            },
            rows: (self.rows.iter().filter(is_shown))
                .filter(|row| row.unit == *unit)
                .map(dot)
                .collect(),
            mark: None,
        };
        let machine = &self.machine;
        Dots {
            title: format!("{}: {}", self.id, self.what),
            subtitle: format!("{}, {} CPUs, {}", machine.cpu_model, machine.cpus, machine.date),
            dots: "measured, with interval".into(),
            panels: in_order(self.rows.iter().filter(is_shown).map(|row| &row.unit))
                .into_iter()
                .map(panel)
                .collect(),
        }
        .svg()
    }

    /// The result as a Markdown table, without the rows that are still to be measured and the
    /// columns in which no row has anything.
    pub fn markdown(&self) -> String {
        let rows = || self.rows.iter().filter(|row| !row.is_blank());
        let text = match rows().any(|row| row.sides.is_some()) {
            true => table(&BY_SIDE, &rows().flat_map(sides).collect::<Vec<_>>()),
            false => table(&COLUMNS, &rows().map(cells).collect::<Vec<_>>()),
        };
        let effort = match self.effort {
            1.0 => String::new(),
            effort => format!(", with `--max-time {:.0}s`", effort * FULL_ROW_S),
        };
        let Self { id, inputs, rules, .. } = self;
        // The date has a line of its own: names of processors are long.
        let machine = self.machine.line();
        let (machine, date) = machine.rsplit_once(", ").unwrap_or((&machine, ""));
        let later = match self.rows.iter().filter(|row| row.is_blank()).count() {
            0 => String::new(),
            rows => format!("\n{rows} of {} rows are not measured yet.\n", self.rows.len()),
        };
        let since = self.stale().map_or(String::new(), |why| format!("The {why}.\n"));
        text + &later
            + &format!(
                "\n{machine},\n{date}. `make figure ID={id}`{effort}. Code {inputs}, rules {rules}.\n{since}"
            )
    }
}

/// A Markdown table; empty without rows.
fn table<const N: usize>(heads: &[&str; N], rows: &[[String; N]]) -> String {
    let is_shown = |column: usize| column == 0 || rows.iter().any(|row| row[column] != NOTHING);
    let line = |cells: &[String; N]| {
        let shown = cells.iter().enumerate().filter(|(column, _)| is_shown(*column));
        shown.fold(String::from("|"), |line, (_, cell)| {
            format!("{line} {} |", cell.replace('|', "\\|"))
        })
    };
    if rows.is_empty() {
        return String::new();
    }
    let rule = "|---".repeat((0..N).filter(|column| is_shown(*column)).count());
    let mut text = format!("{}\n{rule}|\n", line(&heads.map(String::from)));
    rows.iter().for_each(|row| text += &(line(row) + "\n"));
    text
}

impl FigureRow {
    /// Its case, what the paper and the target say, and what was measured, in words.
    pub(super) fn expected_and_found(&self) -> [String; 4] {
        let [case, paper, target, ..] = cells(self);
        let note = self.note.as_ref().map_or(String::new(), |note| format!("; {note}"));
        [case, paper, target, with_interval(self) + &note]
    }
}

/// What a case ends with that is an estimate of the case of that name.
pub const ESTIMATED: &str = ": estimated";

/// What stands in a cell for nothing.
const NOTHING: &str = "–";
const COLUMNS: [&str; 8] =
    ["case", "paper", "target", "measured", "interval", "control", "verdict", "beside the paper"];

const BY_SIDE: [&str; 7] = ["job", "how", "p50", "p99", "per second", "cores", "speed"];

/// The rows of one case whose sides are shown, first the one that ours is held against.
fn sides(row: &FigureRow) -> Vec<[String; BY_SIDE.len()]> {
    let nothing = || String::from(NOTHING);
    let Some(sides) = &row.sides else {
        let why = row.note.clone().unwrap_or_else(nothing);
        let [p50, p99, per_second, cores] = std::array::from_fn(|_| nothing());
        return vec![[row.case.clone(), why, p50, p99, per_second, cores, nothing()]];
    };
    let verdict = row.verdict.map_or(String::new(), |verdict| format!(", {verdict}"));
    let notes = row.note.iter().map(|note| format!("; {note}")).collect::<String>();
    let speeds = [nothing(), with_interval(row) + &verdict + &notes];
    let cases = [row.case.clone(), String::new()];
    let sides = sides.iter().zip(cases).zip(speeds).map(|((side, case), speed)| {
        let time = |ns: Option<f64>| ns.map_or_else(nothing, units::time_ns);
        let per_second = units::figure(side.per_second);
        let cores = format!("{:.2}", side.cores);
        [case, side.name.clone(), time(side.p50_ns), time(side.p99_ns), per_second, cores, speed]
    });
    sides.collect()
}

/// A row of the table.
fn cells(row: &FigureRow) -> [String; COLUMNS.len()] {
    let target = row.target.map(|target| with_unit_text(&target.to_string(), &row.unit));
    let interval = match (row.low, row.high) {
        (Some(low), Some(high)) if low != high => {
            let (low, high) = (value(low, &row.unit), value(high, &row.unit));
            with_unit_text(&format!("{low}–{high}"), &row.unit)
        }
        _ => NOTHING.into(),
    };
    let or_nothing = |text: String| if text.is_empty() { NOTHING.into() } else { text };
    [
        row.case.clone(),
        or_nothing(row.paper.clone()),
        target.unwrap_or_else(|| NOTHING.into()),
        with_unit(row.measured, &row.unit),
        interval,
        control(row),
        or_nothing(outcome(row)),
        beside_the_paper(row),
    ]
}

fn outcome(row: &FigureRow) -> String {
    let verdict = row.verdict.map(|verdict| verdict.to_string());
    let parts = [verdict, row.note.clone()];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// What the baseline beside itself gave, and the blocks that were measured.
fn control(row: &FigureRow) -> String {
    let Some(Sampling { control, blocks, noisy, left_state, .. }) = &row.sampling else {
        return NOTHING.into();
    };
    let Paired { median, low, high, .. } = control;
    let mut text = format!("{median:.3} [{low:.3}–{high:.3}], {blocks} blocks");
    for (count, why) in [(noisy, "not quiet"), (left_state, "out of state")] {
        if *count > 0 {
            let _ = write!(text, ", {count} more {why}");
        }
    }
    text
}

fn beside_the_paper(row: &FigureRow) -> String {
    match (row.agreement, &row.differs) {
        (None, _) => NOTHING.into(),
        (Some(agreement @ (Agreement::Agrees | Agreement::Inconclusive)), _) => {
            agreement.to_string()
        }
        (Some(agreement), Some(why)) => format!("{agreement}: {why}"),
        (Some(agreement), None) => format!("{agreement}; not explained"),
    }
}

/// What stands beside a case in a chart, where there is room for few words: the remark only where
/// there is no value, and no more than its beginning.
fn in_chart(row: &FigureRow) -> String {
    const ROOM: usize = 32;
    if row.measured.is_some() {
        let verdict = row.verdict.map_or("", |verdict| verdict.as_str());
        return format!("{}  {verdict}", with_interval(row)).trim().into();
    }
    let note = row.note.as_deref().unwrap_or("not measured");
    match note.char_indices().nth(ROOM) {
        Some((end, _)) => format!("{}…", &note[..end]),
        None => note.into(),
    }
}

fn with_interval(row: &FigureRow) -> String {
    let measured = with_unit(row.measured, &row.unit);
    match (row.low, row.high) {
        (Some(low), Some(high)) if low != high => {
            format!("{measured} [{}–{}]", value(low, &row.unit), value(high, &row.unit))
        }
        _ => measured,
    }
}

/// Ratios are compared with targets given to two digits: show as many.
fn value(value: f64, unit: &str) -> String {
    if unit == "×" { format!("{value:.2}") } else { units::figure(value) }
}

fn with_unit(measured: Option<f64>, unit: &str) -> String {
    measured.map_or("–".into(), |number| with_unit_text(&value(number, unit), unit))
}

fn with_unit_text(text: &str, unit: &str) -> String {
    if unit == "×" { format!("{text}×") } else { format!("{text} {unit}") }
}
