// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which charts a report shows of one setting, and how rows become their points.

use crate::{
    chart::{
        Axis, Bar, BarGroup, Bars, DotRow, Dots, Lines, Look, Mark, Panel, Point, Scale, Series,
    },
    result::{DEFAULT_POLICY, Metric, Ratio, RoundResult, Row, Run, Setting, in_order},
    stats::{Paired, Summary},
    units,
};

/// The charts of one setting: what is gained and what it costs, then absolute numbers. Those of
/// bars may be as long as a page.
pub(super) fn all(run: &Run, setting: &Setting, rows: &[&Row]) -> Vec<(String, bool)> {
    let plots = Plots { run, setting, rows };
    if setting.requests().is_none() && in_order(rows.iter().map(|row| row.size_bytes)).len() < 2 {
        // Without a size to draw over, bars; latencies only of work whose requests are timed.
        let is_timed = plots.most(|r| r.p50_ns as f64) > 0.0;
        let latencies = is_timed.then(|| plots.latencies());
        let first = [plots.operations(), plots.cpu()].into_iter();
        let bars = first.chain(latencies).chain([plots.switches()]);
        return bars.map(|bars| (bars.svg(), false)).collect();
    }
    vec![
        (plots.ratio(Metric::Throughput, "Throughput").svg(), false),
        (plots.ratio(Metric::CpuPerRequest, "CPU time per request").svg(), false),
        (plots.throughput().svg(), false),
        (plots.latency().svg(), false),
        (plots.switches().svg(), true),
        (plots.cpu().svg(), true),
    ]
}

/// Latency by request size of one wait mode, as a probe measured it.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Name of the mode.
    pub mode: String,
    /// Request size in bytes; median, lower and upper end of the latency in nanoseconds.
    pub points: Vec<(u64, f64, f64, f64)>,
}

/// A probe's curves with the size threshold that follows from them.
pub fn probe_curves(device: &str, curves: &[Curve], size_threshold_bytes: Option<u64>) -> Lines {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let (divisor, unit) = units::time_unit(points().map(|p| p.1).fold(0.0, f64::max));
    let looks = Look::of_all(curves.iter().map(|curve| curve.mode.as_str()));
    let series: Vec<Series> = curves
        .iter()
        .zip(looks)
        .map(|(curve, (name, look))| Series {
            name: name.into(),
            look,
            points: curve
                .points
                .iter()
                .map(|&(size_bytes, ns, low, high)| Point {
                    x: size_bytes as f64,
                    y: ns / divisor,
                    low: low / divisor,
                    high: high / divisor,
                    stroke: None,
                })
                .collect(),
        })
        .collect();
    let values = points().flat_map(|p| [p.1, p.2, p.3]).map(|ns| ns / divisor);
    Lines {
        title: format!("Latency by size: {device}"),
        subtitle: "medians; bars: spread of the samples".into(),
        x: Axis::sizes("Request size", points().map(|p| p.0)),
        y: Axis::covering(&format!("Latency ({unit}, log)"), Scale::Log, values),
        series,
        marks: size_threshold_bytes.map(threshold_mark).into_iter().collect(),
    }
}

fn threshold_mark(bytes: u64) -> Mark {
    Mark::X(bytes as f64, format!("size threshold {}", units::bytes(bytes)))
}

struct Plots<'a> {
    run: &'a Run,
    setting: &'a Setting,
    rows: &'a [&'a Row],
}

impl Plots<'_> {
    fn throughput(&self) -> Lines {
        let most = self.most(|r| r.throughput());
        let (divisor, unit) = units::throughput_unit(most);
        let point = |row: &Row| {
            let Summary { median, min, max, .. } = row.summary(|r| r.throughput() / divisor)?;
            Some(Point { x: size(row), y: median, low: min, high: max, stroke: None })
        };
        let note = "medians, bars from slowest to fastest round";
        self.lines(
            "Throughput by size",
            note,
            &format!("Throughput ({unit}, log)"),
            Scale::Log,
            point,
        )
    }

    fn ratio(&self, metric: Metric, what: &str) -> Lines {
        let point = |row: &Row| {
            let paired = self.run.ratio(row, metric)?.paired;
            let (y, low, high) = (paired.median, paired.low, paired.high);
            Some(Point { x: size(row), y, low, high, stroke: None })
        };
        let of_row = |row: &&Row| self.run.ratio(row, metric).map(|r| &r.baseline);
        let baseline = self.rows.iter().find_map(of_row).map_or("baseline", String::as_str);
        let title = format!("{what} against {baseline}");
        let axis = format!("Ratio to {baseline} (×)");
        let note = "bars: 95 % interval of the paired ratio";
        let mut chart = self.lines(&title, note, &axis, Scale::Linear, point);
        chart.y = Axis::covering(
            &axis,
            Scale::Linear,
            chart.series.iter().flat_map(|s| &s.points).flat_map(|p| [p.y, p.high]).chain([1.0]),
        );
        chart.marks.push(Mark::Y(1.0, format!("same as {baseline}")));
        chart
    }

    fn latency(&self) -> Lines {
        let (divisor, unit) = units::time_unit(self.most(|r| r.p50_ns as f64));
        let point = |row: &Row| {
            let at = |get: fn(&RoundResult) -> u64| row.median(|r| get(r) as f64) / divisor;
            let (p50, p99, p999) = (at(|r| r.p50_ns), at(|r| r.p99_ns), at(|r| r.p999_ns));
            Some(Point { x: size(row), y: p50, low: p50, high: p999, stroke: Some(p99) })
        };
        let note = "marker p50, thick stroke p99, end of the bar p99.9";
        self.lines(
            "Latency percentiles",
            note,
            &format!("Latency ({unit}, log)"),
            Scale::Log,
            point,
        )
    }

    fn operations(&self) -> Bars {
        let bar = |row: &Row| {
            let median = row.median(RoundResult::operations_per_second);
            Bar { label: row.policy.clone(), parts: vec![median], text: units::per_second(median) }
        };
        self.bars("Operations", "Operations per second", &["operations"], bar)
    }

    /// Latencies of requests as bars: up to the median, and from there to the 99th percentile.
    fn latencies(&self) -> Bars {
        let (divisor, unit) = units::time_unit(self.most(|r| r.p50_ns as f64));
        let bar = |row: &Row| {
            let at = |get: fn(&RoundResult) -> u64| row.median(|r| get(r) as f64) / divisor;
            let (p50, p99, p999) = (at(|r| r.p50_ns), at(|r| r.p99_ns), at(|r| r.p999_ns));
            let text = [p50, p99, p999].map(units::figure).join(" / ");
            Bar { label: row.policy.clone(), parts: vec![p50, p99 - p50], text }
        };
        let axis = format!("Latency of requests ({unit}): p50 / p99 / p99.9");
        self.bars("Latency percentiles", &axis, &["to p50", "to p99"], bar)
    }

    fn switches(&self) -> Bars {
        let bar = |row: &Row| {
            let each = |get: fn(&RoundResult) -> u64| {
                row.median(|r| get(r) as f64 * 1000.0 / r.requests as f64)
            };
            let parts = vec![each(|r| r.voluntary_switches), each(|r| r.involuntary_switches)];
            let text = parts.iter().copied().map(units::figure).collect::<Vec<_>>().join(" + ");
            Bar { label: row.policy.clone(), parts, text }
        };
        let parts = ["voluntary", "involuntary"];
        self.bars("Context switches", "Context switches per 1000 requests", &parts, bar)
    }

    fn cpu(&self) -> Bars {
        let bar = |row: &Row| {
            let split = row.cpu_split();
            let parts = [split.user, split.system, split.spin].map(|part| part * 100.0);
            let text = parts.map(|part| format!("{part:.0}")).join(" / ") + " %";
            Bar { label: row.policy.clone(), parts: parts.into(), text }
        };
        let axis = "CPU time (% of one CPU)";
        self.bars("Where the CPU time goes", axis, &["user", "system", "spin"], bar)
    }

    fn lines(
        &self,
        title: &str,
        note: &str,
        y_label: &str,
        y_scale: Scale,
        point: impl Fn(&Row) -> Option<Point>,
    ) -> Lines {
        let looks = Look::of_all(self.run.rows.iter().map(|row| row.policy.as_str()));
        let here = in_order(self.rows.iter().map(|row| row.policy.as_str()));
        let series: Vec<Series> = looks
            .into_iter()
            .filter(|(name, _)| here.contains(name))
            .map(|(name, look)| {
                let rows = self.rows.iter().filter(|row| row.policy == name);
                Series { name: name.into(), look, points: rows.filter_map(|r| point(r)).collect() }
            })
            .filter(|series| !series.points.is_empty())
            .collect();
        let values = series.iter().flat_map(|s| &s.points).flat_map(|p| [p.y, p.low, p.high]);
        let y = Axis::covering(y_label, y_scale, values);
        let x = Axis::sizes("Request size", self.rows.iter().map(|row| row.size_bytes));
        let threshold = self.run.devices.iter().find(|d| d.name == self.setting.device);
        let marks = threshold.and_then(|device| device.size_threshold_bytes).map(threshold_mark);
        let shown =
            |mark: &Mark| matches!(mark, Mark::X(v, _) if (x.range.0..=x.range.1).contains(v));
        let marks = marks.into_iter().filter(shown).collect();
        let subtitle = format!("{}; {note}", self.setting);
        Lines { title: title.into(), subtitle, x, y, series, marks }
    }

    fn bars(&self, title: &str, axis: &str, parts: &[&str], bar: impl Fn(&Row) -> Bar) -> Bars {
        let sizes = in_order(self.rows.iter().map(|row| row.size_bytes));
        let group = |size_bytes| BarGroup {
            label: size_label(size_bytes),
            bars: self.rows.iter().filter(|r| r.size_bytes == size_bytes).map(|r| bar(r)).collect(),
        };
        Bars {
            title: title.into(),
            subtitle: format!("{}; medians of the rounds", self.setting),
            axis_label: axis.into(),
            parts: parts.iter().map(|part| part.to_string()).collect(),
            groups: sizes.into_iter().map(group).collect(),
        }
    }

    fn most(&self, quantity: impl Fn(&RoundResult) -> f64) -> f64 {
        let medians = self.rows.iter().map(|row| row.median(&quantity));
        medians.filter(|m| m.is_finite()).fold(0.0, f64::max)
    }
}

/// A size as a row's or a group's name; nothing where the work has none.
pub(super) fn size_label(size_bytes: u64) -> String {
    if size_bytes == 0 { String::new() } else { units::bytes(size_bytes) }
}

/// How the named workloads of each device compare, one chart per device: ratios of operations per
/// second with their intervals.
pub(super) fn overviews(run: &Run) -> Vec<String> {
    let named =
        |ratio: &&Ratio| ratio.metric == Metric::Operations && ratio.setting.requests().is_none();
    let named: Vec<&Ratio> = run.ratios.iter().filter(named).collect();
    let of_device = |device: &String| {
        let here = named.iter().filter(|ratio| ratio.setting.device == *device);
        let row = |ratio: &&Ratio| {
            let Paired { median, low, high, .. } = ratio.paired;
            let size = size_label(ratio.size_bytes);
            let parts = [ratio.setting.workload(), size, ratio.policy.clone()];
            let label = parts.into_iter().filter(|part| !part.is_empty());
            DotRow {
                label: label.collect::<Vec<_>>().join(", "),
                measured: Some((median, low, high)),
                target: None,
                paper: None,
                text: format!("{} [{low:.2}, {high:.2}]", units::ratio(median)),
            }
        };
        let rows: Vec<DotRow> = here.clone().map(row).collect();
        let base = in_order(here.map(|ratio| ratio.baseline.as_str())).join(", ");
        Dots {
            title: format!("Operations per second against {base}"),
            subtitle: format!("{device}; bars: 95 % interval of the paired ratio"),
            dots: "measured, with interval".into(),
            panels: vec![Panel { axis_label: format!("Ratio to {base} (×)"), rows, mark: None }],
        }
        .svg()
    };
    in_order(named.iter().map(|ratio| &ratio.setting.device)).into_iter().map(of_device).collect()
}

/// More rows than a reader takes in at one look.
const MANY: usize = 24;
const LONGEST_LABEL: usize = 56;

/// The picture beside the verdict: what the default policy does to throughput in each case.
pub(super) fn opening(run: &Run) -> Option<String> {
    let asked = |ratio: &&Ratio| {
        ratio.metric == Metric::Throughput
            && ratio.policy == DEFAULT_POLICY
            && ratio.setting.requests().is_some()
    };
    let ratios: Vec<&Ratio> = run.ratios.iter().filter(asked).collect();
    let first = ratios.first().filter(|_| ratios.len() <= MANY)?;
    let base = &first.baseline;
    let kind = |ratio: &Ratio| (ratio.setting.load, ratio.setting.workload());
    let alike = ratios.iter().all(|ratio| kind(ratio) == kind(first));
    let label = |ratio: &Ratio| match alike {
        true => format!("{}, {}", ratio.setting.device, size_label(ratio.size_bytes)),
        false => format!("{}, {}", ratio.setting, size_label(ratio.size_bytes)),
    };
    // Longer ones would run into the figures at the end of their line.
    if ratios.iter().any(|ratio| label(ratio).chars().count() > LONGEST_LABEL) {
        return None;
    }
    let row = |ratio: &&Ratio| {
        let Paired { median, low, high, .. } = ratio.paired;
        DotRow {
            label: label(ratio),
            measured: Some((median, low, high)),
            target: None,
            paper: None,
            text: format!("{} [{low:.2}–{high:.2}]", units::ratio(median)),
        }
    };
    let rows = ratios.iter().map(row).collect();
    let dots = Dots {
        title: format!("Throughput of {DEFAULT_POLICY} against {base}"),
        subtitle: format!("bars: 95 % interval of the paired ratio; dashed: as fast as {base}"),
        dots: format!("{DEFAULT_POLICY}, with interval"),
        panels: vec![Panel { axis_label: format!("Ratio to {base} (×)"), rows, mark: Some(1.0) }],
    };
    Some(dots.svg())
}

fn size(row: &Row) -> f64 {
    row.size_bytes as f64
}
