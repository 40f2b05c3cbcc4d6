// SPDX-License-Identifier: MIT OR Apache-2.0
//! A device's profile as a person reads it.

use comfy_table::Cell;
use dwell_bench::units;
use dwell_host::profile::{Curve, CurvePoint, DeviceProfile, Polling};

use crate::chart;
use crate::show::{self, Screen, Tone, finished};

/// Label column of the facts above the tables.
const LABEL: usize = 16;

/// What it means that a device is contested.
pub const CONTESTED: &str = "blocking has two states: in the worst the device is fast, in the best \
    mainstream; smartcon takes it for fast, adaptive measures";

/// Everything that a profile says.
pub fn profile(screen: &Screen, profile: &DeviceProfile) -> String {
    let mut text = facts(screen, profile);
    let (writes, reads): (Vec<&Curve>, Vec<&Curve>) =
        profile.curves.iter().partition(|curve| curve.mode.ends_with("-write"));
    for (what, curves) in [("Reads", reads), ("Writes", writes)] {
        if curves.iter().all(|curve| curve.points.is_empty()) {
            continue;
        }
        text += &heading(screen, &format!("{what}: median latency, µs"));
        text += &latencies(screen, &curves);
        text += &heading(screen, &format!("{what}: CPU time of the waiting thread, µs a request"));
        text += &cpu_times(screen, &curves);
        text.push('\n');
        text += &chart::dots(screen, &curves);
    }
    text += &heading(screen, "Context switches");
    text += &switches(screen, profile);
    text
}

fn heading(screen: &Screen, text: &str) -> String {
    format!("\n{}\n", screen.paint(Tone::Strong, text))
}

fn fact(screen: &Screen, label: &str, text: &str) -> String {
    screen.labelled(&format!("{label:<LABEL$}"), text)
}

fn facts(screen: &Screen, profile: &DeviceProfile) -> String {
    let decision = &profile.decision;
    let model = profile.model.as_deref().map_or_else(String::new, |model| format!(", {model}"));
    let size = match profile.size_bytes {
        0 => String::new(),
        bytes => format!(", {}", units::bytes(bytes)),
    };
    let mut text = format!(
        "{}{model}{size}\n",
        screen.paint(Tone::Strong, &show::one_line(&profile.kernel_name))
    );
    let mut add = |label: &str, fact_text: &str| text += &fact(screen, label, fact_text);
    add("class", &screen.paint(Tone::Strong, profile.class()));
    add("size threshold", &show::threshold(decision.size_threshold_bytes));
    let mut notes = profile.notes.iter();
    if let Some(because) = notes.next() {
        add("because", &show::one_line(because));
    }
    if profile.contested {
        add("contested", CONTESTED);
    }
    let states = |curve: Option<&Curve>| curve?.points.first()?.states;
    if let (Some(block), Some(spin)) = (states(profile.blocking()), states(profile.spinning())) {
        let us = |ns: u64| units::time_ns(ns as f64);
        let text = format!(
            "at best blocking takes {} and spinning {}, at worst {} and {}",
            us(block.best_ns),
            us(spin.best_ns),
            us(block.worst_ns),
            us(spin.worst_ns)
        );
        add("states", &text);
    }
    if decision.ring_threshold_bytes > 0 {
        let each = |mode: &str| profile.curve(mode).and_then(|curve| curve.points.first());
        let mut text = format!(
            "sent first and waited for then, what blocks is faster up to {}",
            show::threshold(decision.ring_threshold_bytes)
        );
        if let (Some(ring), Some(call)) = (each("interrupt-block"), each("inline")) {
            let us = |point: &CurvePoint| units::time_ns(point.states().worst_ns as f64);
            text += &format!(
                ": {} for {} against {} by a call",
                us(ring),
                units::bytes(ring.size_bytes),
                us(call)
            );
        }
        add("on a ring", &text);
    }
    if let Some(point) = profile.async_submission.first() {
        let us = |ns: u64| units::time_ns(ns as f64);
        let text = format!(
            "size threshold {}: with {} of {} in flight, spinning takes {} a request, blocking {}",
            show::threshold(decision.async_threshold_bytes),
            point.depth,
            units::bytes(point.size_bytes),
            us(point.spin.ns_per_request),
            us(point.block.ns_per_request),
        );
        add("several at once", &text);
    }
    let mut expected = format!("{} for 4 KiB", units::time_ns(decision.latency_ns as f64));
    if decision.latency_ps_per_byte > 0 {
        let per_kib_ns = decision.latency_ps_per_byte as f64 * 1.024;
        expected += &format!(", and {} for each further KiB", units::time_ns(per_kib_ns));
    }
    add("latency", &expected);
    add("polling", &polling(&profile.polling));
    add("spin method", profile.spin_method.as_str());
    if profile.worker_ns_per_request > 0 {
        let per_kib_ns = profile.worker_ps_per_byte as f64 * 1.024;
        add(
            "kernel workers",
            &format!(
                "{} of CPU time for a 4 KiB request, and {} for each further KiB",
                units::time_ns(profile.worker_ns_per_request as f64),
                units::time_ns(per_kib_ns)
            ),
        );
    }
    add("identity", &show::one_line(&profile.device_id));
    add(
        "measured",
        &format!(
            "{} by dwell {}, Linux {}, scheduler {}",
            profile.measured_utc(),
            profile.dwell_version,
            profile.kernel_release,
            profile.scheduler
        ),
    );
    for note in notes {
        let label = format!("{:<LABEL$}", "! note");
        text += &screen.labelled_in(Tone::Warning, &label, &show::one_line(note));
    }
    text
}

fn polling(polling: &Polling) -> String {
    match polling {
        Polling::Real => "real: no interrupts".to_owned(),
        Polling::Fake { interrupts_per_request } => format!(
            "not real: {} interrupts a request came all the same",
            units::figure(*interrupts_per_request)
        ),
        Polling::Unsupported { why } => format!("none: {}", show::one_line(why)),
    }
}

/// Head of a column: the mode on one line, its second word on another, so that many fit.
fn head(curve: &Curve) -> String {
    curve.mode.trim_end_matches("-write").replace('-', "\n")
}

fn by_size(
    screen: &Screen,
    curves: &[&Curve],
    cells: impl Fn(&[Option<&CurvePoint>]) -> Vec<Cell>,
) -> String {
    let mut sizes: Vec<u64> =
        curves.iter().flat_map(|curve| &curve.points).map(|point| point.size_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let heads: Vec<String> =
        std::iter::once("size".to_owned()).chain(curves.iter().map(|c| head(c))).collect();
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    let right: Vec<usize> = (0..heads.len()).collect();
    let mut table = screen.table(&heads, &right);
    for size in sizes {
        let points: Vec<_> = curves
            .iter()
            .map(|curve| curve.points.iter().find(|point| point.size_bytes == size))
            .collect();
        table.add_row(std::iter::once(Cell::new(units::bytes(size))).chain(cells(&points)));
    }
    finished(&table)
}

/// Medians; a star marks the lowest of a row.
fn latencies(screen: &Screen, curves: &[&Curve]) -> String {
    by_size(screen, curves, |points| {
        let least = points.iter().flatten().map(|point| point.median_ns).min();
        points
            .iter()
            .map(|point| match point {
                Some(point) if Some(point.median_ns) == least && points.len() > 1 => {
                    let figure = units::figure(point.median_ns as f64 / 1e3);
                    screen.cell(Tone::Strong, format!("* {figure}"))
                }
                Some(point) => Cell::new(units::figure(point.median_ns as f64 / 1e3)),
                None => Cell::new("–"),
            })
            .collect()
    })
}

fn cpu_times(screen: &Screen, curves: &[&Curve]) -> String {
    by_size(screen, curves, |points| {
        let cell = |point: &Option<&CurvePoint>| match point {
            Some(point) => Cell::new(units::figure(point.cpu_ns_per_request / 1e3)),
            None => Cell::new("–"),
        };
        points.iter().map(cell).collect()
    })
}

fn switches(screen: &Screen, profile: &DeviceProfile) -> String {
    let switches = &profile.switches;
    let time = |ns: u64| units::time_ns(ns as f64);
    let mut text = fact(
        screen,
        "self switch",
        &format!("{} to block with nothing else to run, and come back", time(switches.self_ns)),
    );
    text += &fact(
        screen,
        "on this device",
        &format!(
            "policies take a switch to cost {}, and among competitors {} more to reload what \
             they evicted",
            time(profile.decision.switch_ns),
            time(profile.decision.reload_ns)
        ),
    );
    let mut rows: Vec<(&str, Vec<String>, Vec<String>)> = Vec::new();
    let (heads, costs) =
        switches.direct.iter().map(|cost| (cost.processes.to_string(), time(cost.ns))).unzip();
    rows.push(("direct switch, by processes", heads, costs));
    let (heads, costs) = switches
        .indirect
        .iter()
        .map(|cost| (units::bytes(cost.working_set_bytes), time(cost.ns)))
        .unzip();
    rows.push(("with a working set of", heads, costs));
    let (heads, costs) =
        profile.sleeps.iter().map(|s| (time(s.asked_ns), time(s.overshoot_ns))).unzip();
    rows.push(("overshoot of a timed sleep of", heads, costs));
    for (what, heads, costs) in rows {
        if !heads.is_empty() {
            text += &format!("{}\n", screen.paint(Tone::Quiet, what));
            text += &pairs(screen, &heads, &costs);
        }
    }
    text
}

/// Two lines of figures below each other, in as many blocks as the width asks for.
fn pairs(screen: &Screen, heads: &[String], values: &[String]) -> String {
    let widest = heads.iter().chain(values).map(|text| text.chars().count()).max().unwrap_or(1) + 2;
    let per_block = ((screen.width() - 2) / widest).max(1);
    let mut text = String::new();
    for (heads, values) in heads.chunks(per_block).zip(values.chunks(per_block)) {
        let line = |cells: &[String]| -> String {
            cells.iter().map(|cell| format!("{cell:>widest$}")).collect()
        };
        text += &format!("{}\n{}\n", screen.paint(Tone::Quiet, &line(heads)), line(values));
    }
    text
}
