// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one place that draws: shapes, text and series styles in CSS pixels, as SVG.

use std::fmt::Write as _;

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

use super::Look;

/// The SVG backend draws at whole units; this many make one CSS pixel.
const SCALE: f64 = 10.0;

/// Font list of charts and pages: whatever the reader's system has.
pub const FONTS: &str = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Noto Sans', sans-serif";

/// A colour on light paper and the one that replaces it on dark paper.
#[derive(Clone, Copy)]
pub(super) struct Ink {
    light: [u8; 3],
    dark: [u8; 3],
}

const fn ink(light: [u8; 3], dark: [u8; 3]) -> Ink {
    Ink { light, dark }
}

/// Background.
pub(super) const PAPER: Ink = ink([0xff, 0xff, 0xff], [0x17, 0x1a, 0x21]);
/// Text and axes.
pub(super) const TEXT: Ink = ink([0x1c, 0x1f, 0x26], [0xe8, 0xea, 0xee]);
/// Less important text.
pub(super) const MUTED: Ink = ink([0x56, 0x5d, 0x6b], [0xa2, 0xaa, 0xb8]);
/// Grid lines.
pub(super) const GRID: Ink = ink([0xdf, 0xe3, 0xe9], [0x33, 0x39, 0x45]);
/// Bands behind data.
pub(super) const BAND: Ink = ink([0xee, 0xf1, 0xf5], [0x24, 0x29, 0x33]);

/// Colours of series; as far apart in lightness as eight can be.
const SERIES: [Ink; 8] = [
    ink([0x4a, 0x55, 0x68], [0xb4, 0xbe, 0xcc]),
    ink([0xc2, 0x41, 0x0c], [0xfb, 0x92, 0x3c]),
    ink([0x7c, 0x3a, 0xed], [0xb9, 0x9b, 0xff]),
    ink([0x0f, 0x6f, 0xb8], [0x5c, 0xb3, 0xff]),
    ink([0x0b, 0x84, 0x57], [0x3d, 0xd5, 0x98]),
    ink([0xa3, 0x19, 0x5b], [0xf4, 0x72, 0xb6]),
    ink([0x8a, 0x6d, 0x00], [0xe3, 0xb9, 0x3c]),
    ink([0x0e, 0x7c, 0x86], [0x4f, 0xd1, 0xdc]),
];

/// Colours of the parts of a stacked bar, from its start outwards.
const PARTS: [Ink; 3] = [
    ink([0x1f, 0x5f, 0x96], [0x4a, 0x9b, 0xe0]),
    ink([0xa9, 0xb8, 0xc9], [0x60, 0x6c, 0x7c]),
    ink([0xd9, 0x6b, 0x1e], [0xf0, 0x8a, 0x3c]),
];

/// Dash and gap of series lines, in CSS pixels; none is a solid line.
const DASHES: [Option<(f64, f64)>; 4] = [None, Some((7.0, 4.0)), Some((2.0, 3.0)), None];

impl Look {
    pub(super) fn ink(self) -> Ink {
        SERIES[self.0 % SERIES.len()]
    }

    fn dash(self) -> Option<(f64, f64)> {
        match self.0 {
            4.. => [Some((12.0, 3.0)), Some((4.0, 4.0)), Some((1.5, 5.0)), None][self.0 % 4],
            place => DASHES[place],
        }
    }
}

/// Style of the part at `place` in a stacked bar: colour, and whether it is hatched.
pub(super) fn part(place: usize) -> (Ink, bool) {
    (PARTS[place % PARTS.len()], place % 3 == 2)
}

/// CSS that turns everything drawn below `selector` dark.
fn dark_rules(selector: &str) -> String {
    let mut rules = String::new();
    for ink in [PAPER, TEXT, MUTED, GRID, BAND].into_iter().chain(SERIES).chain(PARTS) {
        let (light, dark) = (hex(ink.light), hex(ink.dark));
        for attribute in ["fill", "stroke"] {
            let _ = write!(rules, "{selector} [{attribute}=\"{light}\"]{{{attribute}:{dark}}}");
        }
    }
    rules
}

fn hex([r, g, b]: [u8; 3]) -> String {
    format!("#{r:02X}{g:02X}{b:02X}")
}

impl From<Ink> for RGBColor {
    fn from(ink: Ink) -> Self {
        let [r, g, b] = ink.light;
        RGBColor(r, g, b)
    }
}

/// Which point of a text is put where asked.
#[derive(Clone, Copy)]
pub(super) enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing under way. Coordinates are CSS pixels from the upper left corner.
pub(super) struct Canvas<'a>(DrawingArea<SVGBackend<'a>, Shift>);

/// Draws a chart of the given size: `label` is what a screen reader says.
pub(super) fn draw(width: f64, height: f64, label: &str, paint: impl Fn(&Canvas<'_>)) -> String {
    let mut svg = String::new();
    {
        let size = ((width * SCALE) as u32, (height * SCALE) as u32);
        let canvas = Canvas(SVGBackend::with_string(&mut svg, size).into_drawing_area());
        canvas.rect((0.0, 0.0), (width, height), PAPER);
        paint(&canvas);
        canvas.0.present().expect("drawing into a string does not fail");
    }
    finish(&svg, width, height, label)
}

/// Replaces the backend's opening tag, which knows pixels only, by one that scales, and adds the
/// style sheet.
fn finish(svg: &str, width: f64, height: f64, label: &str) -> String {
    let body = svg.split_once('>').map_or("", |(_, body)| body);
    let label = label.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
    format!(
        "<svg class=\"chart\" xmlns=\"http://www.w3.org/2000/svg\" role=\"img\" \
         aria-label=\"{label}\" width=\"{width:.0}\" height=\"{height:.0}\" \
         viewBox=\"0 0 {:.0} {:.0}\">\n<style>.chart text{{font-family:{FONTS}}}\
         .chart polyline{{stroke-linejoin:round}}\
         @media screen and (prefers-color-scheme:dark){{{}}}</style>{body}",
        width * SCALE,
        height * SCALE,
        dark_rules(".chart"),
    )
}

type XY = (f64, f64);

fn pixel((x, y): XY) -> (i32, i32) {
    ((x * SCALE).round() as i32, (y * SCALE).round() as i32)
}

fn stroke(ink: Ink, width: f64) -> ShapeStyle {
    RGBColor::from(ink).stroke_width((width * SCALE).round() as u32)
}

impl Canvas<'_> {
    /// A solid line through points.
    pub(super) fn line(&self, points: &[XY], ink: Ink, width: f64) {
        let points: Vec<_> = points.iter().copied().map(pixel).collect();
        let _ = self.0.draw(&PathElement::new(points, stroke(ink, width)));
    }

    /// A broken line through points.
    pub(super) fn dashes(&self, points: &[XY], (on, off): (f64, f64), ink: Ink, width: f64) {
        for dash in split_into_dashes(points, on, off) {
            self.line(&dash, ink, width);
        }
    }

    /// The line of a series.
    pub(super) fn series_line(&self, points: &[XY], look: Look) {
        let width = if look.0 == 3 { 2.6 } else { 1.8 };
        match look.dash() {
            None => self.line(points, look.ink(), width),
            Some(dash) => self.dashes(points, dash, look.ink(), width),
        }
    }

    /// A filled rectangle.
    pub(super) fn rect(&self, from: XY, to: XY, ink: Ink) {
        let _ =
            self.0.draw(&Rectangle::new([pixel(from), pixel(to)], RGBColor::from(ink).filled()));
    }

    /// A filled rectangle, hatched in the paper's colour.
    pub(super) fn hatched(&self, (x0, y0): XY, (x1, y1): XY, ink: Ink) {
        self.rect((x0, y0), (x1, y1), ink);
        let height = y1 - y0;
        let mut foot = x0 - height + 3.0;
        while foot < x1 {
            let (from, to) = (foot.max(x0), (foot + height).min(x1));
            self.line(&[(from, y1 - (from - foot)), (to, y1 - (to - foot))], PAPER, 1.1);
            foot += 5.0;
        }
    }

    /// A filled polygon.
    fn polygon(&self, points: &[XY], ink: Ink) {
        let points: Vec<_> = points.iter().copied().map(pixel).collect();
        let _ = self.0.draw(&Polygon::new(points, RGBColor::from(ink).filled()));
    }

    /// A filled circle.
    pub(super) fn disc(&self, at: XY, radius: f64, ink: Ink) {
        let radius = (radius * SCALE).round() as i32;
        let _ = self.0.draw(&Circle::new(pixel(at), radius, RGBColor::from(ink).filled()));
    }

    /// The marker of a series.
    pub(super) fn marker(&self, (x, y): XY, look: Look) {
        let ink = look.ink();
        // Where colours and shapes begin again.
        let hollow = look.0 >= SERIES.len();
        let shape = |r: f64, corners: &[(f64, f64)], ink: Ink| {
            let points: Vec<XY> = corners.iter().map(|(dx, dy)| (x + dx * r, y + dy * r)).collect();
            self.polygon(&points, ink);
        };
        let corners: &[(f64, f64)] = match look.0 % 8 {
            0 | 5 => {
                self.disc((x, y), 5.4, PAPER);
                self.disc((x, y), 4.2, ink);
                if look.0 % 8 == 5 || hollow {
                    self.disc((x, y), 2.2, PAPER);
                }
                return;
            }
            1 => &[(0.0, -1.15), (1.05, 0.75), (-1.05, 0.75)],
            2 => &[(-0.85, -0.85), (0.85, -0.85), (0.85, 0.85), (-0.85, 0.85)],
            3 => &[(0.0, -1.25), (1.25, 0.0), (0.0, 1.25), (-1.25, 0.0)],
            4 => &[(0.0, 1.15), (1.05, -0.75), (-1.05, -0.75)],
            6 => &[(-0.5, -1.2), (0.5, -1.2), (0.5, 1.2), (-0.5, 1.2)],
            _ => &[(-1.2, -0.5), (1.2, -0.5), (1.2, 0.5), (-1.2, 0.5)],
        };
        shape(6.0, corners, PAPER);
        shape(4.6, corners, ink);
        if hollow {
            shape(2.2, corners, PAPER);
        }
    }

    /// Text whose anchor is on the vertical middle.
    pub(super) fn text(&self, text: &str, at: XY, size: f64, ink: Ink, anchor: Anchor) {
        self.styled_text(text, at, FontTransform::None, FontStyle::Normal, size, ink, anchor);
    }

    /// Bold text.
    pub(super) fn bold(&self, text: &str, at: XY, size: f64, anchor: Anchor) {
        self.styled_text(text, at, FontTransform::None, FontStyle::Bold, size, TEXT, anchor);
    }

    /// Text that reads upwards.
    pub(super) fn upward_text(&self, text: &str, at: XY, size: f64, ink: Ink) {
        let (turn, style) = (FontTransform::Rotate270, FontStyle::Normal);
        self.styled_text(text, at, turn, style, size, ink, Anchor::Middle);
    }

    #[allow(clippy::too_many_arguments)]
    fn styled_text(
        &self,
        text: &str,
        at: XY,
        turn: FontTransform,
        style: FontStyle,
        size: f64,
        ink: Ink,
        anchor: Anchor,
    ) {
        let h_pos = match anchor {
            Anchor::Start => HPos::Left,
            Anchor::Middle => HPos::Center,
            Anchor::End => HPos::Right,
        };
        // The backend divides sizes by this.
        let font = FontDesc::new(FontFamily::SansSerif, size * SCALE * 1.24, style).transform(turn);
        let color = RGBColor::from(ink);
        let style = TextStyle::from(font).color(&color).pos(Pos::new(h_pos, VPos::Center));
        let _ = self.0.draw_text(text, &style, pixel(at));
    }
}

/// About how wide a text of this size comes out, in CSS pixels.
pub(super) fn text_width(text: &str, size: f64) -> f64 {
    text.chars().count() as f64 * size * 0.56
}

/// A name of at most `most` letters: of a longer one the beginning and the end.
pub(super) fn shortened(name: &str, most: usize) -> String {
    let letters: Vec<char> = name.chars().collect();
    if letters.len() <= most {
        return name.to_owned();
    }
    let end = letters.len() - most / 2;
    letters[..most - most / 2 - 1].iter().chain(&['…']).chain(&letters[end..]).collect()
}

/// Pieces of a path, each `on` long and `off` apart, going round its corners.
fn split_into_dashes(points: &[XY], on: f64, off: f64) -> Vec<Vec<XY>> {
    let (mut dashes, mut dash) = (Vec::new(), Vec::new());
    let (mut left, mut drawing) = (on, true);
    for pair in points.windows(2) {
        let ((mut x, mut y), (x1, y1)) = (pair[0], pair[1]);
        if drawing {
            dash.push((x, y));
        }
        loop {
            let rest = (x1 - x).hypot(y1 - y);
            if rest <= left {
                left -= rest;
                break;
            }
            (x, y) = (x + (x1 - x) * left / rest, y + (y1 - y) * left / rest);
            dash.push((x, y));
            if drawing {
                dashes.push(std::mem::take(&mut dash));
            }
            drawing = !drawing;
            left = if drawing { on } else { off };
        }
        if drawing {
            dash.push((x1, y1));
        }
    }
    if dash.len() > 1 {
        dashes.push(dash);
    }
    dashes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dashes_cover_their_share_of_a_path_with_corners() {
        let dashes = split_into_dashes(&[(0.0, 0.0), (50.0, 0.0), (50.0, 50.0)], 6.0, 4.0);
        let length: f64 = dashes
            .iter()
            .flat_map(|dash| dash.windows(2))
            .map(|pair| (pair[1].0 - pair[0].0).hypot(pair[1].1 - pair[0].1))
            .sum();
        assert!((length - 60.0).abs() < 1e-6, "{length}");
        assert_eq!(dashes.len(), 10);
    }

    #[test]
    fn a_long_name_keeps_its_ends() {
        assert_eq!(shortened("smartcon", 8), "smartcon");
        assert_eq!(shortened("smartcon:signal=total", 9), "smar…otal");
        assert_eq!(shortened("ÄÖÜäöüßß", 4), "Ä…ßß");
    }

    #[test]
    fn a_chart_scales_names_itself_and_has_dark_colours() {
        let svg = draw(300.0, 200.0, "a < b & \"c\"", |canvas| {
            canvas.text("1 < 2", (10.0, 10.0), 12.0, TEXT, Anchor::Start);
            (0..9).for_each(|place| canvas.marker((50.0, 50.0), Look(place)));
            canvas.hatched((10.0, 10.0), (60.0, 22.0), PARTS[2]);
        });
        assert!(svg.starts_with("<svg class=\"chart\""));
        assert!(svg.contains("aria-label=\"a &lt; b &amp; &quot;c&quot;\""));
        assert!(svg.contains("viewBox=\"0 0 3000 2000\""));
        assert!(svg.contains("1 &lt; 2") && svg.contains("prefers-color-scheme:dark"));
        assert!(svg.trim_end().ends_with("</svg>"));
    }

    #[test]
    fn no_two_colours_are_the_same_on_light_paper() {
        let all = [PAPER, TEXT, MUTED, GRID, BAND].into_iter().chain(SERIES).chain(PARTS);
        let lights: Vec<_> = all.map(|ink| ink.light).collect();
        assert_eq!(crate::result::in_order(lights.clone()).len(), lights.len());
    }
}
