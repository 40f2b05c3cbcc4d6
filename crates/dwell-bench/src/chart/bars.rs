// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stacked horizontal bars in groups, each bar labelled, so that no legend is needed to tell bars
//! apart.

use super::{
    Axis, Scale,
    canvas::{Anchor, Canvas, GRID, MUTED, TEXT, draw, part, shortened, text_width},
    lines::{WIDTH, flow, head},
};

const BAR: f64 = 12.0;
const PITCH: f64 = 17.0;
const GROUP_GAP: f64 = 9.0;
/// Most letters of a bar's name: the bars need room, too.
const LETTERS: usize = 28;

/// One bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Its name.
    pub label: String,
    /// Lengths of its parts in the axis' unit, from the start outwards.
    pub parts: Vec<f64>,
    /// The figures in words, written after it.
    pub text: String,
}

/// Bars that belong together.
#[derive(Clone, Debug, PartialEq)]
pub struct BarGroup {
    /// What they have in common.
    pub label: String,
    /// The bars.
    pub bars: Vec<Bar>,
}

/// A chart of stacked bars.
#[derive(Clone, Debug, PartialEq)]
pub struct Bars {
    /// The chart's title, above it: the quantity shown.
    pub title: String,
    /// Under which conditions.
    pub subtitle: String,
    /// Title of the axis, with the unit.
    pub axis_label: String,
    /// Names of the parts; at most three.
    pub parts: Vec<String>,
    /// The bars, from the top down.
    pub groups: Vec<BarGroup>,
}

impl Bars {
    /// The chart as SVG.
    pub fn svg(&self) -> String {
        let keys: Vec<_> = self.parts.iter().map(|name| (name.as_str(), 22.0)).collect();
        let (places, top) = flow(&keys);
        let bars = || self.groups.iter().flat_map(|group| &group.bars);
        let widest = |texts: &mut dyn Iterator<Item = &str>, size| {
            texts.map(|text| text_width(text, size)).fold(0.0, f64::max)
        };
        let group_width = widest(&mut self.groups.iter().map(|g| g.label.as_str()), 12.0);
        let labels: Vec<String> = bars().map(|bar| shortened(&bar.label, LETTERS)).collect();
        let label_width = widest(&mut labels.iter().map(String::as_str), 11.5);
        let text_room = widest(&mut bars().map(|b| b.text.as_str()), 10.5);
        let left = 16.0 + group_width + 10.0 + label_width + 8.0;
        let right = WIDTH - 18.0 - text_room;
        let axis = Axis::covering(
            &self.axis_label,
            Scale::Linear,
            bars().map(|bar| bar.parts.iter().filter(|part| part.is_finite()).sum()),
        );
        let rows = bars().count() as f64 * PITCH + self.groups.len() as f64 * GROUP_GAP;
        let bottom = top + rows;
        let place = |value: f64| left + axis.place(value) * (right - left);
        draw(WIDTH, bottom + 52.0, &format!("{}. {}", self.title, self.subtitle), |canvas| {
            head(canvas, &self.title, &self.subtitle);
            for (i, (name, &(x, y))) in self.parts.iter().zip(&places).enumerate() {
                segment(canvas, i, (x, y - 6.0), (x + 16.0, y + 6.0));
                canvas.text(name, (x + 22.0, y), 12.0, TEXT, Anchor::Start);
            }
            for (value, label) in &axis.ticks {
                let x = place(*value);
                canvas.line(&[(x, top), (x, bottom)], GRID, 0.9);
                canvas.text(label, (x, bottom + 13.0), 11.5, MUTED, Anchor::Middle);
            }
            let middle = ((left + right) / 2.0, bottom + 35.0);
            canvas.text(&axis.label, middle, 12.0, TEXT, Anchor::Middle);
            let mut y = top;
            for group in &self.groups {
                y += GROUP_GAP / 2.0;
                canvas.bold(&group.label, (16.0, y + PITCH / 2.0), 12.0, Anchor::Start);
                for bar in &group.bars {
                    let middle = y + PITCH / 2.0;
                    let label = shortened(&bar.label, LETTERS);
                    canvas.text(&label, (left - 8.0, middle), 11.5, TEXT, Anchor::End);
                    let mut from = 0.0;
                    for (i, part) in bar.parts.iter().enumerate().filter(|(_, p)| p.is_finite()) {
                        let ends = (place(from), place(from + part));
                        let y = (middle - BAR / 2.0, middle + BAR / 2.0);
                        if ends.1 - ends.0 > 0.2 {
                            segment(canvas, i, (ends.0, y.0), (ends.1, y.1));
                        }
                        from += part;
                    }
                    let end = (place(from) + 6.0, middle);
                    canvas.text(&bar.text, end, 10.5, MUTED, Anchor::Start);
                    y += PITCH;
                }
                y += GROUP_GAP / 2.0;
            }
            canvas.line(&[(left, top), (left, bottom)], MUTED, 1.0);
        })
    }
}

fn segment(canvas: &Canvas<'_>, place: usize, from: (f64, f64), to: (f64, f64)) {
    match part(place) {
        (ink, false) => canvas.rect(from, to, ink),
        (ink, true) => canvas.hatched(from, to, ink),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_bar_is_labelled_and_grows_the_chart() {
        let bar = |label: &str| Bar {
            label: label.into(),
            parts: vec![10.0, 20.0, f64::NAN],
            text: "10 / 20 / – %".into(),
        };
        let group = BarGroup { label: "4 KiB".into(), bars: vec![bar("block"), bar("spin")] };
        let mut chart = Bars {
            title: "CPU".into(),
            subtitle: String::new(),
            axis_label: "CPU time (% of one CPU)".into(),
            parts: ["user", "system", "spin"].map(String::from).into(),
            groups: vec![group.clone()],
        };
        let one = chart.svg();
        for text in ["4 KiB", "block", "spin", "system", "% of one CPU", "10 / 20"] {
            assert!(one.contains(text), "{text} is missing");
        }
        assert!(!one.contains("NaN"));
        chart.groups.push(group);
        assert!(chart.svg().len() > one.len());
        chart.groups.clear();
        assert!(!chart.svg().contains("NaN"));
    }
}
