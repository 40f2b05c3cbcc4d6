// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was seen, as a person reads it: sentences first, then the table.

use dwell_advise::{Remedy, Total};
use dwell_bench::advised::Report;
use dwell_bench::units;

use crate::show::{self, Screen, Tone, finished};

/// Rows of the table; the rest is in the JSON.
const ROWS: usize = 16;

/// Sentences, table, what tracing cost.
pub fn text(report: &Report) -> String {
    let screen = Screen::stdout();
    let mut text = String::from("\n");
    for advice in &report.advice {
        let tone = match advice.remedy {
            Remedy::Nothing => Tone::Quiet,
            Remedy::Spin => Tone::Good,
            _ => Tone::Warning,
        };
        text += &screen.labelled_in(tone, "→ ", &show::one_line(&advice.text));
    }
    if let Some(confirmed) = &report.confirmed {
        text += &screen.labelled_in(Tone::Strong, "→ ", &confirmed.sentence());
    }
    if !report.totals.is_empty() {
        text += &format!("\n{}", table(&screen, report));
    }
    text += &format!("\n{}\n", screen.paint(Tone::Quiet, &report.aside()));
    for note in &report.seen.notes {
        text += &screen.labelled_in(Tone::Warning, "! ", note);
    }
    text
}

fn table(screen: &Screen, report: &Report) -> String {
    let totals = &report.totals;
    let heads = [
        "device",
        "operation",
        "issued by",
        "waits",
        "mean",
        "p99",
        "of time",
        "queue",
        "device",
        "kernel",
        "waking",
        "busy CPU",
        "in flight",
    ];
    let mut table = screen.table(&heads, &[3, 4, 5, 6, 7, 8, 9, 10, 11, 12]);
    let in_flight = |of: &Total| report.seen.in_flight(&of.device, Some(of.operation));
    for total in totals.iter().take(ROWS) {
        let all = total.parts.total_ns().max(1) as f64;
        let part = |ns: u64| match 100.0 * ns as f64 / all {
            share if share < 0.5 => "–".to_owned(),
            share => format!("{share:.0} %"),
        };
        let parts = total.parts;
        table.add_row([
            total.device.clone(),
            total.operation.name().to_owned(),
            total.issued.name().to_owned(),
            units::count(total.count),
            units::time_ns(total.mean_ns() as f64),
            format!("< {}", units::time_ns(total.quantile_ns(0.99) as f64)),
            units::percent(total.share),
            part(parts.queue_ns),
            part(parts.device_ns),
            part(parts.kernel_ns),
            part(parts.wake_ns),
            part(parts.busy_ns),
            in_flight(total).map_or("–".to_owned(), units::figure),
        ]);
    }
    let more = match totals.len().saturating_sub(ROWS) {
        0 => String::new(),
        more => format!("and {more} more kinds of waits, in --json\n"),
    };
    finished(&table) + &more
}
