// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dot charts: each case on a line of its own with its interval, its target and the paper's value.

use super::{
    Axis, Look, Scale,
    canvas::{Anchor, BAND, Canvas, GRID, MUTED, TEXT, draw, text_width},
    lines::{WIDTH, flow, head},
};
use crate::verdict::{Better, Target};

const ROW: f64 = 42.0;
const LEFT: f64 = 20.0;
const TARGET_NAME: &str = "target, open towards what meets it";
const PAPER_NAME: &str = "the paper's";
const MEASURED: Look = Look(3);

/// One case.
#[derive(Clone, Debug, PartialEq)]
pub struct DotRow {
    /// The case.
    pub label: String,
    /// Measured value with its interval: (value, low, high).
    pub measured: Option<(f64, f64, f64)>,
    /// What it is held to.
    pub target: Option<Target>,
    /// What the paper found, as a range.
    pub paper: Option<(f64, f64)>,
    /// The outcome in words, written at the right.
    pub text: String,
}

/// Cases in the same unit.
#[derive(Clone, Debug, PartialEq)]
pub struct Panel {
    /// Title of the axis, with the unit.
    pub axis_label: String,
    /// The cases, from the top down.
    pub rows: Vec<DotRow>,
    /// A value that all cases are seen against.
    pub mark: Option<f64>,
}

/// A dot chart.
#[derive(Clone, Debug, PartialEq)]
pub struct Dots {
    /// The chart's title, above it: the quantity shown.
    pub title: String,
    /// Under which conditions.
    pub subtitle: String,
    /// What a dot and its bar are, for the legend.
    pub dots: String,
    /// One panel per unit.
    pub panels: Vec<Panel>,
}

impl Panel {
    /// Logarithmic, as most values are ratios; linear from zero where one is not positive.
    fn axis(&self) -> Axis {
        let rows = self.rows.iter().flat_map(DotRow::values);
        let values: Vec<f64> = rows.chain(self.mark).collect();
        let positive = values.iter().all(|v| *v > 0.0);
        let scale = if positive { Scale::Log } else { Scale::Linear };
        Axis::covering(&self.axis_label, scale, values)
    }

    fn height(&self) -> f64 {
        self.rows.len() as f64 * ROW + 52.0
    }
}

impl DotRow {
    fn values(&self) -> impl Iterator<Item = f64> {
        let measured = self.measured.map(|(value, low, high)| [value, low, high]);
        let paper = self.paper.map(|(low, high)| [low, high]);
        let target = self.target.map(Target::bound);
        measured.into_iter().flatten().chain(paper.into_iter().flatten()).chain(target)
    }

    fn draw(&self, canvas: &Canvas<'_>, y: f64, place: impl Fn(f64) -> f64) {
        canvas.text(&self.label, (LEFT, y + 11.0), 12.0, TEXT, Anchor::Start);
        canvas.text(&self.text, (WIDTH - LEFT, y + 11.0), 12.0, TEXT, Anchor::End);
        let y = y + 28.0;
        canvas.line(&[(LEFT, y), (WIDTH - LEFT, y)], GRID, 0.9);
        if let Some((low, high)) = self.paper {
            paper_key(canvas, place(low), place(high), y);
        }
        if let Some(target) = self.target {
            target_key(canvas, place(target.bound()), y, target);
        }
        if let Some((value, low, high)) = self.measured {
            let (low, high) = (place(low), place(high));
            canvas.line(&[(low, y), (high, y)], MEASURED.ink(), 2.0);
            canvas.marker((place(value), y), MEASURED);
            for end in [low, high] {
                canvas.line(&[(end, y - 6.5), (end, y + 6.5)], MEASURED.ink(), 1.4);
            }
        }
    }
}

/// The target: a stroke with a tip towards the side that satisfies it.
fn target_key(canvas: &Canvas<'_>, x: f64, y: f64, target: Target) {
    let tip = if target.better() == Better::Higher { 5.0 } else { -5.0 };
    canvas.line(&[(x, y - 9.0), (x, y + 9.0)], TEXT, 1.6);
    for edge in [-9.0, 9.0] {
        canvas.line(&[(x, y + edge), (x + tip, y + edge)], TEXT, 1.6);
    }
}

/// The paper's value: a hollow bar.
fn paper_key(canvas: &Canvas<'_>, low: f64, high: f64, y: f64) {
    let (low, high) = (low - 3.0, high + 3.0);
    canvas.rect((low, y - 6.0), (high, y + 6.0), BAND);
    let corners =
        [(low, y - 6.0), (high, y - 6.0), (high, y + 6.0), (low, y + 6.0), (low, y - 6.0)];
    canvas.line(&corners, MUTED, 1.2);
}

impl Dots {
    /// The chart as SVG.
    pub fn svg(&self) -> String {
        let rows = || self.panels.iter().flat_map(|panel| &panel.rows);
        let mut names = vec![self.dots.as_str()];
        if rows().any(|row| row.target.is_some()) {
            names.push(TARGET_NAME);
        }
        if rows().any(|row| row.paper.is_some()) {
            names.push(PAPER_NAME);
        }
        let (places, top) = flow(&names.iter().map(|name| (*name, 30.0)).collect::<Vec<_>>());
        let height = top + self.panels.iter().map(Panel::height).sum::<f64>();
        draw(WIDTH, height, &format!("{}. {}", self.title, self.subtitle), |canvas| {
            head(canvas, &self.title, &self.subtitle);
            for (name, &(x, y)) in names.iter().zip(&places) {
                match *name {
                    TARGET_NAME => target_key(canvas, x + 12.0, y, Target::AtLeast(0.0)),
                    PAPER_NAME => paper_key(canvas, x + 4.0, x + 20.0, y),
                    _ => {
                        canvas.line(&[(x, y), (x + 24.0, y)], MEASURED.ink(), 2.0);
                        canvas.marker((x + 12.0, y), MEASURED);
                    }
                }
                canvas.text(name, (x + 30.0, y), 12.0, TEXT, Anchor::Start);
            }
            let mut top = top;
            for panel in &self.panels {
                panel.draw(canvas, top);
                top += panel.height();
            }
        })
    }
}

impl Panel {
    fn draw(&self, canvas: &Canvas<'_>, top: f64) {
        let axis = self.axis();
        let (left, right) = (LEFT + 8.0, WIDTH - LEFT - 8.0);
        let place = |value: f64| left + axis.place(value) * (right - left);
        let bottom = top + self.rows.len() as f64 * ROW;
        for (i, row) in self.rows.iter().enumerate() {
            let y = top + i as f64 * ROW;
            if let Some(x) = self.mark.map(place) {
                // Below the row's words.
                canvas.dashes(&[(x, y + 19.0), (x, y + ROW)], (3.0, 3.0), MUTED, 1.2);
            }
            row.draw(canvas, y, place);
        }
        canvas.line(&[(LEFT, bottom), (WIDTH - LEFT, bottom)], MUTED, 1.0);
        let mut free_from = 0.0;
        for (value, label) in &axis.ticks {
            let (x, half) = (place(*value), text_width(label, 11.5) / 2.0);
            canvas.line(&[(x, bottom), (x, bottom + 4.0)], MUTED, 1.0);
            if x - half > free_from {
                canvas.text(label, (x, bottom + 14.0), 11.5, MUTED, Anchor::Middle);
                free_from = x + half + 4.0;
            }
        }
        canvas.text(&axis.label, (WIDTH / 2.0, bottom + 34.0), 12.0, TEXT, Anchor::Middle);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_needs_a_linear_axis_and_missing_values_are_fine() {
        let row = |measured: Option<f64>| DotRow {
            label: "case".into(),
            measured: measured.map(|v| (v, v * 0.9, v * 1.1)),
            target: Some(Target::AtMost(2.0)),
            paper: Some((1.0, 3.0)),
            text: "short".into(),
        };
        let panel = |rows| Panel { axis_label: "ratio (×)".into(), rows, mark: Some(1.0) };
        assert_eq!(panel(vec![row(Some(500.0))]).axis().scale, Scale::Log);
        assert_eq!(panel(vec![row(Some(3.0)), row(None)]).axis().scale, Scale::Log);
        assert_eq!(panel(vec![row(Some(0.0)), row(Some(99.0))]).axis().scale, Scale::Linear);
        let panels = vec![panel(vec![row(Some(3.0)), row(None)]), panel(vec![])];
        let (title, dots) = ("M1".into(), "measured".into());
        let svg = Dots { title, subtitle: "all".into(), dots, panels }.svg();
        assert!(svg.contains("case") && svg.contains("ratio (×)") && !svg.contains("NaN"));
    }
}
