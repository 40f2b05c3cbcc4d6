// SPDX-License-Identifier: MIT OR Apache-2.0
//! Text for a person: tables, wrapped paragraphs, and colours where they are wanted.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::OnceLock;

use comfy_table::{Cell, CellAlignment, ContentArrangement, Table};

use crate::places;

/// Narrowest screen that is laid out for.
const NARROWEST: usize = 60;

/// What a piece of text means; colour is never the only sign of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// What the reader looks for.
    Strong,
    /// Aside.
    Quiet,
    /// As it should be.
    Good,
    /// Worth a look.
    Warning,
    /// Not to be had.
    Bad,
    /// One of several things to be told apart, by number.
    Kind(usize),
}

/// Whether text has colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

static COLOR: OnceLock<Color> = OnceLock::new();

/// Follows the option from here on.
pub fn color(when: Color) {
    // The command line is read once.
    let _ = COLOR.set(when);
}

/// The place where text goes: how wide it is, and whether it shows colours.
#[derive(Clone, Copy, Debug)]
pub struct Screen {
    width: Option<usize>,
    colour: bool,
}

impl Screen {
    /// Standard output.
    pub fn stdout() -> Screen {
        Screen::of(io::stdout().is_terminal())
    }

    /// Standard error.
    pub fn stderr() -> Screen {
        Screen::of(io::stderr().is_terminal())
    }

    fn of(terminal: bool) -> Screen {
        let width = Table::new().width().filter(|_| terminal);
        let width = width.map(|width| usize::from(width).max(NARROWEST));
        let colour = match COLOR.get().unwrap_or(&Color::Auto) {
            Color::Auto => terminal && !places::no_colour(),
            when => *when == Color::Always,
        };
        Screen { width, colour }
    }

    /// Its width in columns; what is no terminal has room for 100.
    pub fn width(&self) -> usize {
        self.width.unwrap_or(100)
    }

    /// `text` in its tone.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        let code = match tone {
            _ if !self.colour => return text.to_owned(),
            Tone::Strong => "1",
            Tone::Quiet => "2",
            Tone::Good => "32",
            Tone::Warning => "33",
            Tone::Bad => "31",
            Tone::Kind(number) => ["36", "33", "32", "35", "34"][number % 5],
        };
        format!("\x1b[{code}m{text}\x1b[0m")
    }

    /// `text` in lines that fit, each after the first indented as far as the first is by `label`.
    pub fn labelled(&self, label: &str, text: &str) -> String {
        self.labelled_in(Tone::Quiet, label, text)
    }

    /// As [`Screen::labelled`], the label in a tone.
    pub fn labelled_in(&self, tone: Tone, label: &str, text: &str) -> String {
        let indent = label.chars().count();
        let width = self.width.unwrap_or(usize::MAX).max(indent + 20) - indent;
        let mut lines = wrap(text, width).into_iter();
        let mut shown = format!("{}{}\n", self.paint(tone, label), lines.next().unwrap());
        for line in lines {
            shown += &format!("{:indent$}{line}\n", "");
        }
        shown
    }

    /// An empty table with these column heads; `right` holds the columns of figures.
    pub fn table(&self, heads: &[&str], right: &[usize]) -> Table {
        let mut table = Table::new();
        table.load_preset("     ──            ");
        table.set_header(heads.iter().map(Cell::new));
        if let Some(width) = self.width {
            table.set_width(width.try_into().unwrap_or(u16::MAX));
            table.set_content_arrangement(ContentArrangement::Dynamic);
        }
        for (number, column) in table.column_iter_mut().enumerate() {
            column.set_padding((0, 2));
            if right.contains(&number) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        table
    }

    /// A cell of a table in its tone.
    pub fn cell(&self, tone: Tone, text: impl ToString) -> Cell {
        let cell = Cell::new(text);
        use comfy_table::{Attribute, Color};
        match tone {
            _ if !self.colour => cell,
            Tone::Strong => cell.add_attribute(Attribute::Bold),
            Tone::Quiet => cell.add_attribute(Attribute::Dim),
            Tone::Good => cell.fg(Color::DarkGreen),
            Tone::Warning => cell.fg(Color::DarkYellow),
            Tone::Bad => cell.fg(Color::DarkRed),
            Tone::Kind(_) => cell.fg(Color::DarkCyan),
        }
    }
}

/// A finished table, with the line ends of every other text here.
pub fn finished(table: &Table) -> String {
    table.trim_fmt() + "\n"
}

/// Writes to standard output; whoever reads it may stop at any time.
pub fn out(text: &str) -> io::Result<()> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// JSON, indented, with a line end.
pub fn json(value: &impl serde::Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(value)? + "\n")
}

/// A text without line ends or control characters, which a path may contain.
pub fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() })
        .collect()
}

/// A text in lines of at most `width` characters, broken at blanks; one line at least.
pub fn wrap(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        let line = lines.last_mut().expect("there is always a line");
        if line.is_empty() {
            line.push_str(word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.push(' ');
            line.push_str(word);
        } else {
            lines.push(word.to_owned());
        }
    }
    lines
}

/// A size threshold as people read it: very large means that it never binds.
pub fn threshold(bytes: u64) -> String {
    match bytes {
        0 => "none".to_owned(),
        bytes if bytes > 1 << 50 => "no limit".to_owned(),
        bytes => dwell_bench::units::bytes(bytes),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_at_blanks_and_keep_every_word() {
        let text = "one two three four five";
        let lines = wrap(text, 9);
        assert_eq!(lines, ["one two", "three", "four five"]);
        assert_eq!(wrap("", 9), [""]);
        assert_eq!(wrap("unbreakable word", 4), ["unbreakable", "word"]);
    }

    #[test]
    fn a_path_cannot_break_an_error_into_lines_or_colours() {
        assert_eq!(one_line("a\nb\x1b[31m"), "a\\nb\\u{1b}[31m");
        assert_eq!(one_line("µ ✓"), "µ ✓");
    }

    #[test]
    fn without_colours_nothing_but_the_text_is_shown() {
        let plain = Screen { width: Some(80), colour: false };
        assert_eq!(plain.paint(Tone::Bad, "x"), "x");
        assert_eq!(plain.labelled("note  ", "a"), "note  a\n");
    }
}
