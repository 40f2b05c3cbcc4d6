// SPDX-License-Identifier: MIT OR Apache-2.0
//! Line charts: one line per series with bars for the spread, and marked values.

use super::{
    Axis, Look,
    canvas::{Anchor, Canvas, GRID, MUTED, TEXT, draw, text_width},
};

/// Width of every chart, in CSS pixels.
pub(super) const WIDTH: f64 = 640.0;
const PLOT_HEIGHT: f64 = 270.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 18.0;
const MARK_DASH: (f64, f64) = (3.0, 3.0);
/// Series are drawn this far beside each other, so that their bars can be told apart.
const DODGE: f64 = 7.0;

/// A value with its spread, in the axes' units.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Place on the x axis.
    pub x: f64,
    /// The value.
    pub y: f64,
    /// Lower end of its bar.
    pub low: f64,
    /// Upper end of its bar.
    pub high: f64,
    /// A value marked on the bar by a stroke.
    pub stroke: Option<f64>,
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// Name in the legend.
    pub name: String,
    /// How it looks.
    pub look: Look,
    /// Its points; those without a finite value are left out.
    pub points: Vec<Point>,
}

/// A value that the reader should see.
#[derive(Clone, Debug, PartialEq)]
pub enum Mark {
    /// A place on the x axis, labelled there.
    X(f64, String),
    /// A value on the y axis, labelled in the legend.
    Y(f64, String),
}

/// A line chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Lines {
    /// The chart's title, above it: the quantity shown.
    pub title: String,
    /// Under which conditions, and what the bars mean.
    pub subtitle: String,
    /// Horizontal axis.
    pub x: Axis,
    /// Vertical axis.
    pub y: Axis,
    /// The lines.
    pub series: Vec<Series>,
    /// Marked values.
    pub marks: Vec<Mark>,
}

impl Lines {
    /// The chart as SVG.
    pub fn svg(&self) -> String {
        let in_legend = self.marks.iter().filter_map(|mark| match mark {
            Mark::Y(_, name) => Some(name),
            Mark::X(..) => None,
        });
        let names = self.series.iter().map(|s| &s.name).chain(in_legend.clone());
        let keys: Vec<_> = names.map(|name| (name.as_str(), 30.0)).collect();
        let (places, legend_end) = flow(&keys);
        let labelled_above = self.marks.iter().any(|mark| matches!(mark, Mark::X(..)));
        let top = legend_end + if labelled_above { 12.0 } else { 0.0 };
        let height = top + PLOT_HEIGHT + 52.0;
        draw(WIDTH, height, &format!("{}. {}", self.title, self.subtitle), |canvas| {
            head(canvas, &self.title, &self.subtitle);
            for (i, (&(x, y), (name, _))) in places.iter().zip(&keys).enumerate() {
                let key = [(x, y), (x + 24.0, y)];
                match self.series.get(i) {
                    Some(series) => {
                        canvas.series_line(&key, series.look);
                        canvas.marker((x + 12.0, y), series.look);
                    }
                    None => canvas.dashes(&key, MARK_DASH, TEXT, 1.2),
                }
                canvas.text(name, (x + 30.0, y), 12.0, TEXT, Anchor::Start);
            }
            self.axes(canvas, top);
            self.marks(canvas, top);
            let middle = (self.series.len() as f64 - 1.0) / 2.0;
            // Where there is only one place on the x axis there is room for more.
            let one_place = self.x.ticks.len() < 2;
            let room = if one_place { WIDTH / 2.0 } else { self.room_of_a_place() };
            let most = if one_place { f64::INFINITY } else { DODGE };
            let dodge = (room / (middle * 2.0 + 2.0)).min(most);
            for (i, series) in self.series.iter().enumerate() {
                self.one(canvas, top, series, (i as f64 - middle) * dodge);
            }
        })
    }

    fn place_x(&self, x: f64) -> f64 {
        LEFT + self.x.place(x) * (WIDTH - LEFT - RIGHT)
    }

    /// Width of the narrowest strip around a tick that belongs to no other and stays in the plot.
    fn room_of_a_place(&self) -> f64 {
        let places: Vec<f64> = self.x.ticks.iter().map(|(value, _)| self.place_x(*value)).collect();
        let apart = places.windows(2).map(|pair| (pair[1] - pair[0]).abs());
        let inside = places.iter().map(|x| 2.0 * (x - LEFT).min(WIDTH - RIGHT - x));
        apart.chain(inside).fold(WIDTH, f64::min)
    }

    fn place_y(&self, top: f64, y: f64) -> f64 {
        top + PLOT_HEIGHT * (1.0 - self.y.place(y))
    }

    fn axes(&self, canvas: &Canvas<'_>, top: f64) {
        let (bottom, right) = (top + PLOT_HEIGHT, WIDTH - RIGHT);
        for (value, label) in &self.y.ticks {
            let y = self.place_y(top, *value);
            canvas.line(&[(LEFT, y), (right, y)], GRID, 0.9);
            canvas.text(label, (LEFT - 8.0, y), 11.5, MUTED, Anchor::End);
        }
        for (value, label) in &self.x.ticks {
            let x = self.place_x(*value);
            canvas.line(&[(x, bottom), (x, bottom + 4.0)], MUTED, 1.0);
            canvas.text(label, (x, bottom + 14.0), 11.5, MUTED, Anchor::Middle);
        }
        canvas.line(&[(LEFT, bottom), (right, bottom)], MUTED, 1.0);
        let middle = (LEFT + right) / 2.0;
        canvas.text(&self.x.label, (middle, bottom + 36.0), 12.0, TEXT, Anchor::Middle);
        canvas.upward_text(&self.y.label, (15.0, top + PLOT_HEIGHT / 2.0), 12.0, TEXT);
    }

    fn marks(&self, canvas: &Canvas<'_>, top: f64) {
        let (bottom, right) = (top + PLOT_HEIGHT, WIDTH - RIGHT);
        for mark in &self.marks {
            match mark {
                Mark::X(value, label) => {
                    let x = self.place_x(*value);
                    canvas.dashes(&[(x, top - 2.0), (x, bottom)], MARK_DASH, TEXT, 1.2);
                    let half = text_width(label, 11.5) / 2.0;
                    let x = x.clamp(half + 16.0, right - half);
                    canvas.text(label, (x, top - 9.0), 11.5, TEXT, Anchor::Middle);
                }
                Mark::Y(value, _) => {
                    let y = self.place_y(top, *value);
                    canvas.dashes(&[(LEFT, y), (right, y)], MARK_DASH, TEXT, 1.2);
                }
            }
        }
    }

    fn one(&self, canvas: &Canvas<'_>, top: f64, series: &Series, dodge: f64) {
        let mut points: Vec<&Point> = series.points.iter().filter(|p| p.y.is_finite()).collect();
        points.sort_by(|a, b| a.x.total_cmp(&b.x));
        let ink = series.look.ink();
        let at = |point: &Point, y: f64| (self.place_x(point.x) + dodge, self.place_y(top, y));
        let path: Vec<_> = points.iter().map(|p| at(p, p.y)).collect();
        if path.len() > 1 {
            canvas.series_line(&path, series.look);
        }
        for point in points {
            let ends = [point.low, point.high].map(|end| at(point, end));
            if point.low.is_finite() && point.high.is_finite() && ends[0] != ends[1] {
                canvas.line(&ends, ink, 1.2);
                for (x, y) in ends.into_iter().filter(|end| *end != at(point, point.y)) {
                    canvas.line(&[(x - 2.8, y), (x + 2.8, y)], ink, 1.2);
                }
            }
            if let Some((x, y)) = point.stroke.map(|stroke| at(point, stroke)) {
                canvas.line(&[(x - 4.0, y), (x + 4.0, y)], ink, 2.2);
            }
            canvas.marker(at(point, point.y), series.look);
        }
    }
}

/// Title and subtitle, as on every chart.
pub(super) fn head(canvas: &Canvas<'_>, title: &str, subtitle: &str) {
    // Rather small than cut off. Bold letters are a tenth wider.
    let fitting = |text: &str, size: f64| size * ((WIDTH - 32.0) / text_width(text, size)).min(1.0);
    let title = beginning(title, |text| fitting(text, 15.0 * 1.1) >= 12.0 * 1.1);
    canvas.bold(title, (16.0, 20.0), fitting(title, 15.0 * 1.1) / 1.1, Anchor::Start);
    canvas.text(subtitle, (16.0, 40.0), fitting(subtitle, 11.5), MUTED, Anchor::Start);
}

/// As much of a title as fits, to the end of a clause; the label of the chart has it whole.
fn beginning(title: &str, fits: impl Fn(&str) -> bool) -> &str {
    let ends = [", ", "; ", ": "].into_iter().flat_map(|end| title.match_indices(end));
    let ends = ends.map(|(at, _)| &title[..at]).chain([title]);
    let is_whole = |text: &&str| text.matches('(').count() == text.matches(')').count();
    ends.filter(is_whole).filter(|text| fits(text)).max_by_key(|text| text.len()).unwrap_or(title)
}

/// Places of legend entries, each a key of the given width and its name, in as many lines as they
/// need; and where the plot below may begin.
pub(super) fn flow(entries: &[(&str, f64)]) -> (Vec<(f64, f64)>, f64) {
    let (mut x, mut y) = (16.0, 62.0);
    let places = entries.iter().map(|(name, key)| {
        let width = key + text_width(name, 12.0);
        if x > 16.0 && x + width > WIDTH - 16.0 {
            (x, y) = (16.0, y + 19.0);
        }
        let place = (x, y);
        x += width + 16.0;
        place
    });
    let places = places.collect();
    (places, y + 22.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chart::Scale;

    #[test]
    fn a_title_that_is_too_long_ends_with_a_clause() {
        let title = "R2: Time until right: from the first request, or from a change";
        for (most, expected) in [(80, 62), (50, 44), (30, 20), (1, 62)] {
            assert_eq!(beginning(title, |text| text.len() <= most), &title[..expected]);
        }
        // Not within a parenthesis.
        let title = "U1: fio (psync, direct), wrapped";
        assert_eq!(beginning(title, |text| text.len() <= 20), "U1");
    }

    fn chart(points: Vec<Point>) -> Lines {
        Lines {
            title: "Latency by size".into(),
            subtitle: "loop, idle".into(),
            x: Axis::sizes("Request size", [4096, 65536]),
            y: Axis::covering("Latency (µs)", Scale::Log, [10.0, 50.0]),
            series: vec![Series { name: "spin".into(), look: Look(1), points }],
            marks: vec![Mark::X(65536.0, "threshold 64 KiB".into()), Mark::Y(20.0, "y".into())],
        }
    }

    #[test]
    fn titles_ticks_units_legend_and_marks_are_written() {
        let point = Point { x: 4096.0, y: 17.0, low: 15.0, high: 30.0, stroke: Some(20.0) };
        let svg = chart(vec![point, Point { x: 65536.0, ..point }]).svg();
        for text in ["Latency by size", "Request size", "Latency (µs)", "spin", "64 KiB"] {
            assert!(svg.contains(text), "{text} is missing");
        }
    }

    #[test]
    fn gaps_and_single_points_do_not_panic() {
        let point = Point { x: 4096.0, y: f64::NAN, low: f64::NAN, high: 1.0, stroke: None };
        assert!(!chart(vec![point]).svg().contains("NaN"));
        assert!(!chart(vec![]).svg().contains("NaN"));
    }

    #[test]
    fn a_long_legend_flows_over_several_lines() {
        let (places, top) = flow(&[("a name of about thirty letters", 30.0); 6]);
        assert!(places[5].1 > places[0].1 && top > places[5].1);
        assert!(places.iter().all(|(x, _)| *x < WIDTH / 1.5));
    }
}
