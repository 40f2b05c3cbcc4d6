// SPDX-License-Identifier: MIT OR Apache-2.0
//! A run as CSV: one line per row and round.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Map, Value};

use crate::labels::Labels;
use crate::result::{Row, Run, write};

/// The run as CSV. Columns name the row (as the JSON does), the round from 1 on, and every quantity
/// of the round with its unit; a quantity of named parts has a column for each, as
/// `decisions.PART`.
pub fn csv(run: &Run) -> Result<String> {
    let mut lines: Vec<(&Row, usize, Map<String, Value>)> = Vec::new();
    for row in &run.rows {
        for (i, round) in row.rounds.iter().enumerate() {
            lines.push((row, i + 1, flat(serde_json::to_value(round)?)));
        }
    }
    let names: BTreeSet<&String> = lines.iter().flat_map(|(.., cells)| cells.keys()).collect();
    let mut csv = csv::Writer::from_writer(Vec::new());
    let headings = Labels::headings().chain(["round".to_owned()]);
    csv.write_record(headings.chain(names.iter().map(|name| name.to_string())))?;
    for (row, round, cells) in &lines {
        let cells = names.iter().map(|name| match cells.get(*name) {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
        });
        csv.write_record(Labels::of(row).cells().chain([round.to_string()]).chain(cells))?;
    }
    let bytes = csv.into_inner().map_err(|error| error.into_error())?;
    String::from_utf8(bytes).context("a name that is no text")
}

/// Writes the run as CSV.
pub fn save(run: &Run, path: &Path) -> Result<()> {
    write(path, &csv(run)?)
}

/// A round's quantities by name, those of maps as `map.name`.
fn flat(round: Value) -> Map<String, Value> {
    let mut cells = Map::new();
    let Value::Object(fields) = round else { return cells };
    for (name, value) in fields {
        match value {
            Value::Object(parts) => {
                cells.extend(parts.into_iter().map(|(part, v)| (format!("{name}.{part}"), v)));
            }
            value => {
                cells.insert(name, value);
            }
        }
    }
    cells
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::RoundResult;
    use crate::sample;

    #[test]
    fn one_line_per_row_and_round_with_every_quantity_of_the_round() {
        let mut run = sample::run();
        run.rows[0].setting.device = "a \"quoted\", name".into();
        let text = csv(&run).unwrap();
        let mut reader = csv::Reader::from_reader(text.as_bytes());
        let head = reader.headers().unwrap().clone();
        let at = |name: &str| head.iter().position(|cell| cell == name).unwrap();
        let records: Vec<_> = reader.records().map(Result::unwrap).collect();
        assert_eq!(records.len(), run.rows.iter().map(|row| row.rounds.len()).sum::<usize>());
        let (first, round) = (&records[0], &run.rows[0].rounds[0]);
        assert_eq!(&first[at("device")], "a \"quoted\", name");
        assert_eq!(&first[at("p99_ns")], round.p99_ns.to_string());
        assert_eq!(&first[at("scheduler")], "");
        assert_eq!((&first[at("contender")], &first[at("round")]), ("block", "1"));
        let Value::Object(fields) = serde_json::to_value(RoundResult::default()).unwrap() else {
            panic!("a round is an object");
        };
        for name in fields.keys() {
            let part = format!("{name}.");
            let maps = ["decisions", "counters"].contains(&name.as_str());
            assert!(
                head.iter().any(|cell| cell == name || cell.starts_with(&part)) || maps,
                "{name} has no column"
            );
        }
        assert!(head.iter().any(|name| name.starts_with("decisions.")), "{head:?}");
    }

    #[test]
    fn a_run_without_rows_is_a_line_of_headings() {
        let mut run = sample::run();
        run.rows.clear();
        assert_eq!(csv(&run).unwrap().lines().count(), 1);
    }
}
