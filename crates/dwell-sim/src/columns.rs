// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reports as columns, one row per simulation: what CSV, Parquet and Arrow hold alike.

use crate::Report;

/// The cells of a column.
#[derive(Clone, Debug, PartialEq)]
pub enum Cells {
    /// Words.
    Texts(Vec<String>),
    /// Whole numbers.
    Counts(Vec<u64>),
    /// Numbers.
    Numbers(Vec<f64>),
}

/// A column by its name. Times are virtual nanoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Column {
    /// Its name; a name that ends in `_ns` or `_bytes` has that unit.
    pub name: String,
    /// One cell per report.
    pub cells: Cells,
}

impl Cells {
    /// The cell of a row as text; `None` past the end.
    pub fn text(&self, row: usize) -> Option<String> {
        match self {
            Cells::Texts(texts) => texts.get(row).cloned(),
            Cells::Counts(counts) => counts.get(row).map(u64::to_string),
            Cells::Numbers(numbers) => numbers.get(row).map(f64::to_string),
        }
    }
}

/// A column of words.
pub fn texts(name: impl Into<String>, cells: impl Iterator<Item = String>) -> Column {
    Column { name: name.into(), cells: Cells::Texts(cells.collect()) }
}

/// A column of whole numbers.
pub fn counts(name: impl Into<String>, cells: impl Iterator<Item = u64>) -> Column {
    Column { name: name.into(), cells: Cells::Counts(cells.collect()) }
}

/// A column of numbers.
pub fn numbers(name: impl Into<String>, cells: impl Iterator<Item = f64>) -> Column {
    Column { name: name.into(), cells: Cells::Numbers(cells.collect()) }
}

/// What the simulations found, one row each.
pub fn of_runs(reports: &[Report]) -> Vec<Column> {
    let count = |name, of: fn(&Report) -> u64| counts(name, reports.iter().map(of));
    let number = |name, of: fn(&Report) -> f64| numbers(name, reports.iter().map(of));
    vec![
        texts("batch", reports.iter().map(|one| one.batch.clone())),
        texts("policy", reports.iter().map(|one| one.policy.to_string())),
        count("seed", |one| one.seed),
        count("dram_bytes", |one| one.dram_bytes),
        count("elapsed_ns", |one| one.elapsed_ns),
        count("idle_ns", |one| one.idle.total_ns()),
        count("idle_cache_miss_ns", |one| one.idle.cache_miss_ns),
        count("idle_fault_wait_ns", |one| one.idle.fault_wait_ns),
        count("idle_switch_ns", |one| one.idle.switch_ns),
        count("run_ns", |one| one.time.run_ns),
        count("cache_hit_ns", |one| one.time.cache_hit_ns),
        count("tlb_walk_ns", |one| one.time.tlb_walk_ns),
        count("kernel_ns", |one| one.time.kernel_ns),
        count("spin_ns", |one| one.time.spin_ns),
        count("stolen_ns", |one| one.time.stolen_ns),
        count("nobody_ready_ns", |one| one.time.nobody_ready_ns),
        count("switch_ns", |one| one.time.switch_ns),
        count("major_faults", |one| one.faults.major()),
        count("first_faults", |one| one.faults.first),
        count("again_faults", |one| one.faults.again),
        count("late_faults", |one| one.faults.late),
        count("minor_faults", |one| one.faults.prefetched + one.faults.zero),
        count("llc_misses", |one| one.accesses.dram),
        count("tlb_misses", |one| one.accesses.tlb_misses),
        count("instructions", |one| one.instructions),
        count("switches", |one| one.switches),
        number("top_half_finish_ns", Report::top_half_finish_ns),
        number("bottom_half_finish_ns", Report::bottom_half_finish_ns),
        count("prefetched", |one| one.prefetches.issued),
        number("prefetch_accuracy", |one| one.prefetches.accuracy()),
        count("preexecuted_instructions", |one| one.preexecution.instructions),
        count("preexecution_offered_ns", |one| one.preexecution.offered_ns),
        count("preexecution_filled_ns", |one| one.preexecution.filled_ns),
        count("preexecuted_lines", |one| one.preexecution.lines),
        number("preexecute_accuracy", |one| one.preexecution.accuracy()),
    ]
}

/// The processes of the simulations, one row each.
pub fn of_processes(reports: &[Report]) -> Vec<Column> {
    let all = || reports.iter().flat_map(|run| run.processes.iter().map(move |one| (run, one)));
    vec![
        texts("batch", all().map(|(run, _)| run.batch.clone())),
        texts("policy", all().map(|(run, _)| run.policy.to_string())),
        counts("seed", all().map(|(run, _)| run.seed)),
        texts("process", all().map(|(_, one)| one.name.clone())),
        numbers("nice", all().map(|(_, one)| f64::from(one.nice))),
        counts("finish_ns", all().map(|(_, one)| one.finish_ns)),
        counts("instructions", all().map(|(_, one)| one.instructions)),
        counts("major_faults", all().map(|(_, one)| one.major_faults)),
        counts("llc_misses", all().map(|(_, one)| one.llc_misses)),
    ]
}

/// Columns as CSV with a line of names.
pub fn csv(columns: &[Column]) -> String {
    let line = |cells: Vec<String>| cells.join(",") + "\n";
    let mut text = line(columns.iter().map(|column| quoted(&column.name)).collect());
    for row in 0.. {
        let cells: Option<Vec<String>> =
            columns.iter().map(|column| column.cells.text(row).map(|cell| quoted(&cell))).collect();
        match cells {
            Some(cells) if !cells.is_empty() => text += &line(cells),
            _ => return text,
        }
    }
    text
}

fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_a_comma_is_quoted_and_columns_make_lines() {
        let columns = [
            texts("name", ["a,\"b\"".to_owned(), "plain".to_owned()].into_iter()),
            counts("n", [1, 2].into_iter()),
        ];
        assert_eq!(csv(&columns), "name,n\n\"a,\"\"b\"\"\",1\nplain,2\n");
        assert_eq!(csv(&of_runs(&[])).lines().count(), 1);
    }
}
