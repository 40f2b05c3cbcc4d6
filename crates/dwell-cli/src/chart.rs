// SPDX-License-Identifier: MIT OR Apache-2.0
//! Latency curves as pictures: dots in a terminal, lines in an SVG file.

use dwell_bench::chart::{Axis, Lines, Look, Mark, Point, Scale, Series};
use dwell_bench::units;
use dwell_host::profile::{Curve, CurvePoint, DeviceProfile};

use crate::show::{Screen, Tone};

/// Lines of a chart in the terminal.
const HEIGHT: usize = 13;

/// The letter of each arm in a chart.
fn letter(mode: &str) -> char {
    match mode.trim_end_matches("-write") {
        "interrupt-spin" => 's',
        "interrupt-block" => 'b',
        "polled-spin" => 'p',
        other => other.chars().next().unwrap_or('?'),
    }
}

/// Median latency over size as letters between two logarithmic axes.
pub fn dots(screen: &Screen, curves: &[&Curve]) -> String {
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let (Some(least), Some(most)) =
        (points().map(|p| p.median_ns.max(1)).min(), points().map(|p| p.median_ns).max())
    else {
        return String::new();
    };
    let (bottom, top) = ((least as f64).ln(), (most.max(least) as f64).ln());
    let row_of = |ns: u64| {
        let share = ((ns.max(1) as f64).ln() - bottom) / (top - bottom).max(f64::MIN_POSITIVE);
        ((1.0 - share.clamp(0.0, 1.0)) * (HEIGHT - 1) as f64).round() as usize
    };
    let mut sizes: Vec<u64> = points().map(|point| point.size_bytes).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let column = ((screen.width().min(110) - 12) / sizes.len().max(1)).clamp(curves.len() + 1, 12);

    let mut text = String::new();
    for row in 0..HEIGHT {
        let share = 1.0 - row as f64 / (HEIGHT - 1) as f64;
        let tick = match row % 3 {
            0 => units::time_ns((bottom + share * (top - bottom)).exp()),
            _ => String::new(),
        };
        let mut line = screen.paint(Tone::Quiet, &format!("{tick:>9} │"));
        for &size in &sizes {
            for (number, curve) in curves.iter().enumerate() {
                let here = |point: &&CurvePoint| {
                    point.size_bytes == size && row_of(point.median_ns) == row
                };
                line += &match curve.points.iter().find(here) {
                    Some(_) => screen.paint(Tone::Kind(number), &letter(&curve.mode).to_string()),
                    None => " ".to_owned(),
                };
            }
            line += &" ".repeat(column - curves.len());
        }
        text += line.trim_end();
        text.push('\n');
    }
    let mut axis = format!("{:>9} └", "");
    let mut labels = format!("{:>9}  ", "");
    for &size in &sizes {
        axis += &"─".repeat(column);
        let label = units::bytes(size).replace(" KiB", "K").replace(" MiB", "M");
        labels += &format!("{label:<column$}");
    }
    text += &screen.paint(Tone::Quiet, &format!("{axis}\n{}\n", labels.trim_end()));
    text += &legend(screen, curves);
    text
}

/// What each letter stands for, in lines that fit.
fn legend(screen: &Screen, curves: &[&Curve]) -> String {
    let indent = " ".repeat(11);
    let (mut text, mut used) = (indent.clone(), indent.len());
    for (number, curve) in curves.iter().enumerate() {
        let name = curve.mode.trim_end_matches("-write");
        if used > indent.len() && used + name.len() + 5 > screen.width() {
            text = format!("{}\n{indent}", text.trim_end());
            used = indent.len();
        }
        let mark = screen.paint(Tone::Kind(number), &letter(&curve.mode).to_string());
        text += &format!("{mark} {name}   ");
        used += name.len() + 5;
    }
    text.trim_end().to_owned() + "\n"
}

/// All curves of a profile as an SVG picture.
pub fn svg(profile: &DeviceProfile) -> String {
    let curves = &profile.curves;
    let points = || curves.iter().flat_map(|curve| &curve.points);
    let us = |ns: u64| ns as f64 / 1e3;
    let x = Axis::sizes("request size", points().map(|point| point.size_bytes));
    let latencies = points().flat_map(|point| [us(point.p10_ns), us(point.p90_ns)]);
    let y = Axis::covering("latency, µs", Scale::Log, latencies);
    let looks = Look::of_all(curves.iter().map(|curve| curve.mode.as_str()));
    let series = curves.iter().zip(looks).map(|(curve, (_, look))| Series {
        name: curve.mode.clone(),
        look,
        points: curve
            .points
            .iter()
            .map(|point| Point {
                x: point.size_bytes as f64,
                y: us(point.median_ns),
                low: us(point.p10_ns),
                high: us(point.p90_ns),
                stroke: None,
            })
            .collect(),
    });
    let threshold_bytes = profile.decision.size_threshold_bytes;
    let inside = points().any(|point| point.size_bytes == threshold_bytes);
    Lines {
        title: format!("{}: latency by size and wait mode", profile.kernel_name),
        subtitle: format!(
            "medians, bars from the 10th to the 90th percentile; {}, Linux {}",
            profile.model.as_deref().unwrap_or(&profile.device_id),
            profile.kernel_release
        ),
        x,
        y,
        series: series.collect(),
        marks: inside
            .then(|| Mark::X(threshold_bytes as f64, "size threshold".into()))
            .into_iter()
            .collect(),
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(mode: &str, points: &[(u64, u64)]) -> Curve {
        let point = |&(size_bytes, median_ns): &(u64, u64)| CurvePoint {
            size_bytes,
            median_ns,
            mean_ns: median_ns,
            p10_ns: median_ns,
            p90_ns: median_ns,
            states: None,
            voluntary_switches_per_request: 0.0,
            cpu_ns_per_request: 0.0,
        };
        Curve { mode: mode.into(), points: points.iter().map(point).collect() }
    }

    #[test]
    fn every_point_has_its_letter_and_the_chart_fits() {
        let screen = Screen::stdout();
        let inline = curve("inline", &[(4096, 30_000), (8192, 40_000)]);
        let spin = curve("interrupt-spin", &[(4096, 20_000), (8192, 40_000)]);
        let text = dots(&screen, &[&inline, &spin]);
        let plot: String = text.lines().take(HEIGHT).collect();
        assert_eq!(plot.matches('i').count(), 2, "{text}");
        assert!(text.contains("s interrupt-spin"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= screen.width()), "{text}");
    }

    #[test]
    fn a_lone_point_and_no_point_are_charts_too() {
        let screen = Screen::stdout();
        assert!(dots(&screen, &[&curve("inline", &[(4096, 1)])]).contains('i'));
        assert_eq!(dots(&screen, &[&curve("inline", &[])]), "");
    }
}
