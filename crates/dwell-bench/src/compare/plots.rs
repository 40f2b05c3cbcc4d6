// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which charts the report of a comparison shows, and how runs become their points.

use super::outcome::{Comparison, Measured, Metric, UNTOUCHED};
use super::table::short;
use crate::chart::{
    Axis, Bar, BarGroup, Bars, DotRow, Dots, Lines, Look, Mark, Panel, Point, Scale, Series,
};
use crate::units;

/// All charts, in the order in which they are shown.
pub(super) fn all(comparison: &Comparison) -> Vec<String> {
    vec![
        ratios(comparison).svg(),
        by_round(comparison).svg(),
        cpu(comparison).svg(),
        switches(comparison).svg(),
    ]
}

fn ratios(comparison: &Comparison) -> Dots {
    let panel = |metric, what: &str| {
        let row = |name: &String| {
            let ratio = comparison.ratio(name, metric)?;
            let finding = comparison.variants.iter().find(|v| v.name == *name)?.finding.as_ref();
            let verdict = match metric {
                Metric::Speed => finding.map_or("", |finding| finding.verdict.as_str()),
                _ => "",
            };
            let figures =
                format!("{} [{:.2}–{:.2}]", units::ratio(ratio.median), ratio.low, ratio.high);
            Some(DotRow {
                label: format!("{name}: {what}"),
                measured: Some((ratio.median, ratio.low, ratio.high)),
                target: None,
                paper: None,
                text: format!("{figures}  {verdict}").trim_end().into(),
            })
        };
        let rows = comparison.others().filter_map(|variant| row(&variant.name)).collect();
        Panel { axis_label: format!("{what} ÷ {UNTOUCHED} (×)"), rows, mark: Some(1.0) }
    };
    let mut panels = vec![panel(Metric::Speed, "speed"), panel(Metric::Cpu, "CPU time")];
    if comparison.ratios.iter().any(|ratio| ratio.metric == Metric::Told) {
        panels.insert(0, panel(Metric::Told, "rate told"));
    }
    panels.retain(|panel| !panel.rows.is_empty());
    Dots {
        title: format!("Against the {UNTOUCHED} command"),
        subtitle: "bars: 95 % interval of the paired ratio; dashed: no difference".into(),
        dots: "variant, with interval".into(),
        panels,
    }
}

/// Every single run: drift and outliers show.
fn by_round(comparison: &Comparison) -> Lines {
    let runs = || comparison.variants.iter().flat_map(|variant| &variant.rounds);
    let slowest = runs().map(|run| run.wall_ns as f64).fold(0.0, f64::max);
    let (divisor, unit) = units::time_unit(slowest);
    let point = |(i, run): (usize, &Measured)| {
        let y = run.wall_ns as f64 / divisor;
        Point { x: (i + 1) as f64, y, low: y, high: y, stroke: None }
    };
    let looks = Look::of_all(comparison.variants.iter().map(|variant| variant.name.as_str()));
    let series = comparison.variants.iter().zip(looks).map(|(variant, (name, look))| Series {
        name: name.into(),
        look,
        points: variant.rounds.iter().enumerate().map(point).collect(),
    });
    let rounds = comparison.variants.iter().map(|variant| variant.rounds.len()).max().unwrap_or(0);
    let every = rounds.div_ceil(12).max(1);
    let axis = format!("Wall-clock time ({unit})");
    let base = comparison.untouched().map_or(f64::NAN, |v| v.median(|run| run.wall_ns as f64));
    Lines {
        title: "Wall-clock time of every run".into(),
        subtitle: "rounds in the order in which they ran; the order within each is random".into(),
        x: Axis {
            label: "Round".into(),
            scale: Scale::Linear,
            range: (0.5, rounds as f64 + 0.5),
            ticks: (1..=rounds).step_by(every).map(|i| (i as f64, i.to_string())).collect(),
        },
        y: Axis::covering(&axis, Scale::Linear, runs().map(|run| run.wall_ns as f64 / divisor)),
        series: series.collect(),
        marks: match base.is_finite() {
            true => vec![Mark::Y(base / divisor, format!("median of {UNTOUCHED}"))],
            false => vec![],
        },
    }
}

fn cpu(comparison: &Comparison) -> Bars {
    let medians = comparison.variants.iter().map(|v| v.median(|run| run.cpu_ns() as f64));
    let (divisor, unit) = units::time_unit(medians.filter(|m| m.is_finite()).fold(0.0, f64::max));
    bars(
        comparison,
        "CPU time of the command and its descendants",
        &format!("CPU time ({unit})"),
        &["user", "system"],
        [|run| run.user_ns, |run| run.system_ns],
        |part| units::figure(part / divisor),
        divisor,
    )
}

fn switches(comparison: &Comparison) -> Bars {
    bars(
        comparison,
        "Context switches",
        "Context switches per run",
        &["voluntary", "involuntary"],
        [|run| run.voluntary_switches, |run| run.involuntary_switches],
        short,
        1.0,
    )
}

fn bars(
    comparison: &Comparison,
    title: &str,
    axis: &str,
    parts: &[&str; 2],
    get: [fn(&Measured) -> u64; 2],
    text: impl Fn(f64) -> String,
    divisor: f64,
) -> Bars {
    let bars = comparison.variants.iter().map(|variant| {
        let medians = get.map(|get| variant.median(|run| get(run) as f64));
        let text = medians.map(&text).join(" + ");
        Bar { label: variant.name.clone(), parts: medians.map(|m| m / divisor).into(), text }
    });
    Bars {
        title: title.into(),
        subtitle: "medians of the rounds".into(),
        axis_label: axis.into(),
        parts: parts.map(String::from).into(),
        groups: vec![BarGroup { label: String::new(), bars: bars.collect() }],
    }
}
