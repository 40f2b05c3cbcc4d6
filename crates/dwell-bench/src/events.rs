// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the CPU counted during the rounds of rows, for tables and reports.

use crate::result::{Row, in_order};
use crate::units;

/// Names of the events that any of the rows counted; often none.
pub(crate) fn names<'r>(rows: &[&'r Row]) -> Vec<&'r str> {
    let rounds = rows.iter().flat_map(|row| &row.rounds);
    in_order(rounds.flat_map(|round| round.counters.keys().map(String::as_str)))
}

/// Median over a row's rounds of an event's count per 1000 requests, as text.
pub(crate) fn per_thousand(row: &Row, name: &str) -> String {
    units::figure(row.median(|round| match round.counters.get(name) {
        Some(count) if round.requests > 0 => count * 1000.0 / round.requests as f64,
        _ => f64::NAN,
    }))
}
