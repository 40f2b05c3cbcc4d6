// SPDX-License-Identifier: MIT OR Apache-2.0
//! Charts as SVG text: what is drawn, not how a page holds it.
//!
//! A chart carries its own light and dark colours and needs nothing from outside, so the same text
//! stands alone as a file or inline in a page. Series differ by colour, marker and dash, bars by
//! colour, hatching and order: nothing depends on colour alone.

mod bars;
mod canvas;
mod dots;
mod lines;

pub use bars::{Bar, BarGroup, Bars};
pub use canvas::FONTS;
pub use dots::{DotRow, Dots, Panel};
pub use lines::{Lines, Mark, Point, Series};

use crate::units;

/// How an axis maps values to places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences are equally far apart.
    Linear,
    /// Equal ratios are equally far apart; values are positive.
    Log,
}

/// One axis of a chart, in the unit that its label names.
#[derive(Clone, Debug, PartialEq)]
pub struct Axis {
    /// Title with the unit.
    pub label: String,
    /// Mapping.
    pub scale: Scale,
    /// First and last value shown.
    pub range: (f64, f64),
    /// Labelled values.
    pub ticks: Vec<(f64, String)>,
}

impl Axis {
    /// A logarithmic axis of request sizes in bytes, labelled at the sizes that were measured.
    pub fn sizes(label: &str, sizes: impl IntoIterator<Item = u64>) -> Self {
        let mut sizes: Vec<u64> = sizes.into_iter().filter(|&size| size > 0).collect();
        sizes.sort_unstable();
        sizes.dedup();
        let (first, last) = (*sizes.first().unwrap_or(&1), *sizes.last().unwrap_or(&2));
        let every = sizes.len().div_ceil(10).max(1);
        let ticks = sizes.iter().step_by(every).map(|&size| (size as f64, units::bytes(size)));
        let margin = 1.4;
        Axis {
            label: label.into(),
            scale: Scale::Log,
            range: (first as f64 / margin, last as f64 * margin),
            ticks: ticks.collect(),
        }
    }

    /// An axis over `values` with round ticks. A linear one starts at zero; a logarithmic one
    /// leaves out what is not positive.
    pub fn covering(label: &str, scale: Scale, values: impl IntoIterator<Item = f64>) -> Self {
        let usable = |v: &f64| v.is_finite() && (scale == Scale::Linear || *v > 0.0);
        let (least, most) = values
            .into_iter()
            .filter(usable)
            .fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        let (range, ticks) = match scale {
            _ if least > most => ((0.5, 2.0), vec![1.0]),
            Scale::Linear => linear_ticks(if most > 0.0 { most } else { 1.0 }),
            Scale::Log => log_ticks(least, most),
        };
        let ticks = ticks.into_iter().map(|tick| (tick, units::tick(tick))).collect();
        Axis { label: label.into(), scale, range, ticks }
    }

    /// Where a value lies between the first (0) and the last (1) shown.
    fn place(&self, value: f64) -> f64 {
        let map = |v: f64| match self.scale {
            Scale::Linear => v,
            Scale::Log => v.max(f64::MIN_POSITIVE).ln(),
        };
        let (first, last) = (map(self.range.0), map(self.range.1));
        ((map(value) - first) / (last - first)).clamp(0.0, 1.0)
    }
}

/// Range from zero and about five round ticks.
fn linear_ticks(most: f64) -> ((f64, f64), Vec<f64>) {
    let raw = most / 4.5;
    let magnitude = 10f64.powf(raw.log10().floor());
    let step = [1.0, 2.0, 2.5, 5.0, 10.0]
        .map(|factor| factor * magnitude)
        .into_iter()
        .find(|&step| step >= raw)
        .unwrap_or(raw);
    let count = (most * 1.02 / step).ceil().max(1.0);
    ((0.0, count * step), (0..=count as u32).map(|i| f64::from(i) * step).collect())
}

/// Range and ticks at 1, 2, 5 per decade, or at powers of ten when there are many decades.
fn log_ticks(least: f64, most: f64) -> ((f64, f64), Vec<f64>) {
    let range = (least / 1.15, most * 1.15);
    let decades = (range.1 / range.0).log10();
    let factors: &[f64] = match decades {
        d if d < 0.45 => {
            &[1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0]
        }
        d if d < 0.8 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
        d if d < 2.5 => &[1.0, 2.0, 5.0],
        d if d < 4.0 => &[1.0, 3.0],
        _ => &[1.0],
    };
    let decade = |exponent: i32| factors.iter().map(move |f| f * 10f64.powi(exponent));
    let exponents = range.0.log10().floor() as i32..=range.1.log10().ceil() as i32;
    let inside: Vec<f64> =
        exponents.flat_map(decade).filter(|tick| (range.0..=range.1).contains(tick)).collect();
    (range, if inside.is_empty() { vec![least] } else { inside })
}

/// Charts one below the other, as one.
pub fn stacked(charts: &[String]) -> String {
    let height = |svg: &str| {
        let after = svg.split_once(" height=\"").map_or("", |(_, after)| after);
        after.split('"').next().and_then(|height| height.parse::<f64>().ok()).unwrap_or(0.0)
    };
    let mut y = 0.0;
    let mut body = String::new();
    for chart in charts {
        body += &chart.replacen("<svg", &format!("<svg y=\"{y:.0}\""), 1);
        y += height(chart);
    }
    let width = lines::WIDTH;
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width:.0}\" height=\"{y:.0}\" \
         viewBox=\"0 0 {width:.0} {y:.0}\">\n{body}</svg>\n"
    )
}

/// How one series looks, wherever it appears: a place in the list of colours, markers and dashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Look(pub usize);

impl Look {
    /// The look of each name. Dwell's policies always look the same; other names take what is left
    /// in order of appearance.
    pub fn of_all<'a>(names: impl IntoIterator<Item = &'a str>) -> Vec<(&'a str, Look)> {
        let policies = dwell_policy::policy::NAMES;
        let mut next = policies.len();
        let mut looks: Vec<(&str, Look)> = Vec::new();
        for name in names {
            if looks.iter().any(|(seen, _)| *seen == name) {
                continue;
            }
            let known = policies.iter().position(|policy| *policy == name);
            let place = known.unwrap_or_else(|| {
                next += 1;
                next - 1
            });
            looks.push((name, Look(place)));
        }
        looks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linear_axes_start_at_zero_and_cover() {
        for most in [0.003, 0.9, 1.0, 47.0, 100.0, 123_456.0] {
            let axis = Axis::covering("x", Scale::Linear, [most, most / 3.0]);
            assert_eq!(axis.range.0, 0.0);
            assert!(axis.range.1 >= most && axis.range.1 <= most * 2.0, "{axis:?}");
            assert!((3..=8).contains(&axis.ticks.len()), "{axis:?}");
        }
    }

    #[test]
    fn log_axes_cover_and_label_inside() {
        for (least, most) in [(1.0, 1.0), (0.9, 1.2), (3.0, 700.0), (0.01, 1e6)] {
            let axis = Axis::covering("x", Scale::Log, [least, most, 0.0, -1.0]);
            assert!(axis.range.0 < least && axis.range.1 > most);
            assert!((1..=10).contains(&axis.ticks.len()), "{axis:?}");
        }
    }

    #[test]
    fn axes_of_nothing_do_not_panic() {
        assert_eq!(Axis::covering("x", Scale::Log, []).ticks.len(), 1);
        assert!(Axis::covering("x", Scale::Linear, [0.0]).place(0.0).is_finite());
        assert!(Axis::sizes("x", []).ticks.is_empty());
    }

    #[test]
    fn stacked_charts_stand_below_each_other() {
        let bars = |title: &str| Bars {
            title: title.into(),
            subtitle: String::new(),
            axis_label: "x".into(),
            parts: vec![],
            groups: vec![],
        };
        let charts = ["upper", "lower"].map(|title| bars(title).svg());
        let both = stacked(&charts);
        let one = charts[0].split(" height=\"").nth(1).unwrap().split('"').next().unwrap();
        assert!(both.contains("<svg y=\"0\"") && both.contains(&format!("<svg y=\"{one}\"")));
        assert!(both.contains("upper") && both.contains("lower"));
        assert!(both.starts_with("<svg xmlns") && both.ends_with("</svg>\n"));
    }

    #[test]
    fn places_are_monotonic() {
        let axis = Axis::sizes("size", [4096, 8192, 65536]);
        let places = [4096.0, 8192.0, 65536.0].map(|size| axis.place(size));
        assert!(places[0] > 0.0 && places[0] < places[1] && places[1] < places[2]);
        assert!(places[2] < 1.0);
    }

    #[test]
    fn policies_keep_their_look_and_strangers_get_another() {
        let looks = Look::of_all(["uring loop", "smartcon", "smartcon", "block", "peer"]);
        let [first, second] = [0, 1].map(|stranger| Look(dwell::policy::NAMES.len() + stranger));
        assert_eq!(
            looks,
            [("uring loop", first), ("smartcon", Look(4)), ("block", Look(1)), ("peer", second)]
        );
    }
}
