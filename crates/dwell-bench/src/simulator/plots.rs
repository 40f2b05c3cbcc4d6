// SPDX-License-Identifier: MIT OR Apache-2.0
//! The paper's figures redrawn: idle time, faults, misses, finish times, and the motivation.

use dwell_sim::PolicyKind;
use dwell_sim::report::Report;
use dwell_sim::summary::{Measure, Spread};

use super::{Simulated, Study, as_ratio, printed};
use crate::chart::{
    Axis, Bar, BarGroup, Bars, DotRow, Dots, Lines, Look, Panel, Point, Scale, Series,
};
use crate::units;

/// How the paper writes a policy.
pub fn name(policy: PolicyKind) -> &'static str {
    match policy {
        PolicyKind::Async => "Async",
        PolicyKind::Sync => "Sync",
        PolicyKind::SyncRunahead => "Sync_Runahead",
        PolicyKind::SyncPrefetch => "Sync_Prefetch",
        PolicyKind::Its => "ITS",
    }
}

/// Figure 4a: idle time by cause, in units of ITS's.
pub fn idle(study: &Study) -> String {
    let groups = study.compared().map(|batch| {
        let its = batch.mean(PolicyKind::Its, |report| report.idle.total_ns() as f64);
        let unit = if its > 0.0 { its } else { 1.0 };
        let bar = |policy: PolicyKind| {
            let part = |of: fn(&Report) -> u64| batch.mean(policy, |r| of(r) as f64) / unit;
            let parts = vec![
                part(|report| report.idle.cache_miss_ns),
                part(|report| report.idle.fault_wait_ns),
                part(|report| report.idle.switch_ns),
            ];
            let text = format!("{:.2}", parts.iter().sum::<f64>());
            Bar { label: name(policy).into(), parts, text }
        };
        let bars = batch.policies().into_iter().map(bar).collect();
        BarGroup { label: batch.name.clone(), bars }
    });
    Bars {
        title: "Figure 4a: total CPU idle time".into(),
        subtitle: "mean over the seeds ÷ that of ITS in the same batch, by cause".into(),
        axis_label: "Idle time ÷ ITS (×)".into(),
        parts: ["cache misses", "page faults", "switches"].map(String::from).into(),
        groups: groups.collect(),
    }
    .svg()
}

/// Figures 4b and 4c, 5a and 5b: one value per policy and batch.
pub fn values(study: &Study, measure: Measure) -> String {
    let (title, axis, divisor) = match measure {
        Measure::IdleNs => ("Idle time", "Idle time (ms)", 1e6),
        Measure::WaitsNs => ("Idle time without switches", "Idle time (ms)", 1e6),
        Measure::MajorFaults => {
            ("Figure 4b: page faults", "Major page faults (hundred thousands)", 1e5)
        }
        Measure::LlcMisses => {
            ("Figure 4c: cache misses", "Misses of the last-level cache (millions)", 1e6)
        }
        Measure::TopFinishNs => {
            ("Figure 5a: finish time, higher priorities", "Mean finish time (ms)", 1e6)
        }
        Measure::BottomFinishNs => {
            ("Figure 5b: finish time, lower priorities", "Mean finish time (ms)", 1e6)
        }
    };
    let groups = study.compared().map(|batch| {
        let bar = |policy: PolicyKind| {
            let value = batch.mean(policy, |report| measure.of(report)) / divisor;
            Bar { label: name(policy).into(), parts: vec![value], text: units::figure(value) }
        };
        let bars = batch.policies().into_iter().map(bar).collect();
        BarGroup { label: batch.name.clone(), bars }
    });
    Bars {
        title: title.into(),
        subtitle: "mean over the seeds".into(),
        axis_label: axis.into(),
        parts: vec![],
        groups: groups.collect(),
    }
    .svg()
}

/// A measure of each policy against ITS, beside the paper's band over its batches.
pub fn against_its(study: &Study, measure: Measure, title: &str) -> String {
    let row = |batch: &Simulated, policy: PolicyKind| {
        let ratio = batch.against_its(policy, measure)?;
        let (mean, (low, high)) = (ratio.mean, ratio.interval());
        let printed = printed(measure, policy)
            .map(|(least, most)| (as_ratio(least), as_ratio(most.unwrap_or(least))));
        Some(DotRow {
            label: format!("{}, {}", name(policy), batch.name),
            measured: Some((mean, low, high)),
            target: None,
            paper: printed,
            text: format!("{mean:.2}× [{low:.2}–{high:.2}]"),
        })
    };
    let others = PolicyKind::ALL.into_iter().filter(|policy| *policy != PolicyKind::Its);
    let rows: Vec<DotRow> = others
        .flat_map(|policy| study.compared().filter_map(move |batch| row(batch, policy)))
        .collect();
    Dots {
        title: title.into(),
        subtitle: "right of 1: ITS has less; the paper's: least and most over its four batches"
            .into(),
        dots: "measured: mean over the seeds and its 95 % interval".into(),
        panels: vec![Panel { axis_label: "Policy ÷ ITS (×)".into(), rows, mark: Some(1.0) }],
    }
    .svg()
}

/// Idle time and the part of it that is synchronous waiting for storage, by number of processes,
/// normalised to the smallest batch of the series.
pub fn growth(series: &str, batches: &[&Simulated]) -> String {
    let policy = batches.first().and_then(|batch| batch.policies().first().copied());
    let policy = policy.unwrap_or(PolicyKind::Sync);
    let total = |report: &Report| report.idle.total_ns() as f64;
    let first = batches.first().map_or(1.0, |batch| batch.mean(policy, total)).max(1.0);
    let lines = [
        ("all idle time", 0, total as fn(&Report) -> f64),
        ("waiting for storage", 3, |report: &Report| report.idle.fault_wait_ns as f64),
        ("waiting for memory", 2, |report: &Report| report.idle.cache_miss_ns as f64),
    ];
    let point = |batch: &Simulated, of: fn(&Report) -> f64| {
        let values: Vec<f64> = batch.reports.iter().map(|report| of(report) / first).collect();
        let spread = Spread::of(&values);
        let (low, high) = spread.interval();
        Point { x: batch.programs.len() as f64, y: spread.mean, low, high, stroke: None }
    };
    let series_of = lines.map(|(name, look, of)| Series {
        name: name.into(),
        look: Look(look),
        points: batches.iter().map(|batch| point(batch, of)).collect(),
    });
    let counts: Vec<usize> = batches.iter().map(|batch| batch.programs.len()).collect();
    let (least, most) = (counts.first().unwrap_or(&1), counts.last().unwrap_or(&1));
    let highest = series_of.iter().flat_map(|s| &s.points).map(|point| point.high);
    Lines {
        title: format!("Motivation: idle time of {} by number of processes", name(policy)),
        subtitle: format!("series {series}; ÷ all idle time of its smallest batch"),
        x: Axis {
            label: "Processes".into(),
            scale: Scale::Linear,
            range: (*least as f64 - 0.5, *most as f64 + 0.5),
            ticks: counts.iter().map(|&count| (count as f64, count.to_string())).collect(),
        },
        y: Axis::covering("Idle time (×)", Scale::Linear, highest.collect::<Vec<_>>()),
        series: series_of.into(),
        marks: Vec::new(),
    }
    .svg()
}

/// All charts of a study, in the order of the paper's figures.
pub fn all(study: &Study) -> Vec<String> {
    let mut charts = Vec::new();
    if study.compared().next().is_some() {
        charts = vec![
            idle(study),
            against_its(study, Measure::IdleNs, "Idle time against ITS"),
            values(study, Measure::MajorFaults),
            values(study, Measure::LlcMisses),
            values(study, Measure::TopFinishNs),
            against_its(study, Measure::TopFinishNs, "Finish time of the higher priorities"),
            values(study, Measure::BottomFinishNs),
            against_its(study, Measure::BottomFinishNs, "Finish time of the lower priorities"),
        ];
    }
    charts.extend(study.series().iter().map(|(name, batches)| growth(name, batches)));
    charts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_figure_is_drawn_from_what_was_simulated() {
        let charts = all(&super::super::tests::study());
        assert_eq!(charts.len(), 9);
        for chart in &charts {
            assert!(chart.starts_with("<svg") && !chart.contains("NaN"), "{chart}");
        }
        for (chart, says) in charts.iter().zip(["4a", "against", "4b", "4c", "5a"]) {
            assert!(chart.contains(says), "{says}");
        }
    }
}
