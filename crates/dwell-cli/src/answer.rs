// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this process ends with, and the one voice in which it says why.

use std::fmt;
use std::io::{self, ErrorKind, Write as _};
use std::process::ExitCode;

use crate::{program, show, signals};

/// What a command line says that no machine and no file could make right.
#[derive(Debug)]
struct Wrong(String);

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Wrong {}

/// An error of the command line itself: the exit status is [`WRONG`].
pub fn wrong(what: impl fmt::Display) -> anyhow::Error {
    // With its causes, where it has some.
    anyhow::Error::new(Wrong(format!("{what:#}")))
}

/// The exit status after a wrong command line.
const WRONG: u8 = 2;

/// What this process ends with, after what is to be said about it.
pub fn answer(done: anyhow::Result<()>) -> ExitCode {
    let Err(error) = done else { return ExitCode::SUCCESS };
    if let Some(usage) = error.downcast_ref::<clap::Error>() {
        return told(usage);
    }
    // The reader of the output has closed it.
    if error.downcast_ref::<io::Error>().is_some_and(|io| io.kind() == ErrorKind::BrokenPipe) {
        return ExitCode::SUCCESS;
    }
    // Where even this cannot be said, the exit status still can.
    let _ = writeln!(io::stderr(), "dwell: {}", show::one_line(&format!("{error:#}")));
    let ended = error.downcast_ref::<signals::Ended>().map(signals::Ended::status);
    let cannot = error.downcast_ref::<program::CannotRun>().map(|cannot| cannot.status);
    let wrong = error.downcast_ref::<Wrong>().map(|_| WRONG);
    ended.or(cannot).or(wrong).map_or(ExitCode::FAILURE, ExitCode::from)
}

/// Help and versions as they are; what is wrong with a command line as this program says what is
/// wrong.
fn told(usage: &clap::Error) -> ExitCode {
    if !usage.use_stderr() {
        let _ = usage.print();
        return ExitCode::SUCCESS;
    }
    let text = usage.render().to_string();
    let text = text.strip_prefix("error: ").map(|what| format!("dwell: {what}")).unwrap_or(text);
    let _ = io::stderr().write_all(in_first_line(&text).as_bytes());
    ExitCode::from(WRONG)
}

/// A message whose first line names what the indented lines after it list.
fn in_first_line(text: &str) -> String {
    let (first, rest) = text.split_once('\n').unwrap_or((text, ""));
    if !first.ends_with(':') {
        return text.to_owned();
    }
    let listed: Vec<&str> = rest.lines().take_while(|line| line.starts_with("  ")).collect();
    let after: Vec<&str> = rest.lines().skip(listed.len()).collect();
    let listed: Vec<&str> = listed.into_iter().map(str::trim).collect();
    format!("{first} {}\n{}\n", listed.join(", "), after.join("\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_first_line_names_what_is_missing() {
        let text = "dwell: were not provided:\n  --out <FILE>\n  <DIR>\n\nUsage: dwell\n";
        assert_eq!(
            in_first_line(text),
            "dwell: were not provided: --out <FILE>, <DIR>\n\nUsage: dwell\n"
        );
        assert_eq!(in_first_line("dwell: wrong\n  x\n"), "dwell: wrong\n  x\n");
    }
}
