// SPDX-License-Identifier: MIT OR Apache-2.0
//! How far a long piece of work is.

use std::io::{IsTerminal as _, Write as _};
use std::sync::OnceLock;
use std::time::{Duration, Instant, SystemTime};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::show;

/// Without a terminal, a new phase is told of only so long after the last.
const BETWEEN: Duration = Duration::from_secs(2);

static QUIET: OnceLock<bool> = OnceLock::new();

/// Follows the option `--quiet` from here on.
pub fn quiet(on: bool) {
    // The command line is read once.
    let _ = QUIET.set(on);
}

/// Whether progress and warnings are to be left out.
pub fn is_quiet() -> bool {
    *QUIET.get().unwrap_or(&false)
}

/// So long nothing is said of the end: too little is known.
const UNSURE: Duration = Duration::from_secs(10);

/// A line on standard error that a quiet command leaves out.
pub fn note(line: &str) {
    if !is_quiet() {
        // Nobody who closed standard error wants to hear of it.
        let _ = writeln!(std::io::stderr(), "{line}");
    }
}

/// A bar on a terminal, otherwise a line now and then; both on standard error.
pub struct Progress {
    name: String,
    bar: Option<ProgressBar>,
    phase: String,
    said: Option<Instant>,
    /// Since when and from which share on it goes as it goes, where it tells when it will end: work
    /// that was done before is passed over at once.
    began: Option<(Instant, f64)>,
}

impl Progress {
    const STEPS: u64 = 1000;

    /// Progress of the work on `name`.
    pub fn of(name: &str) -> Self {
        let name = show::one_line(name);
        let bar = (std::io::stderr().is_terminal() && !is_quiet()).then(|| {
            let bar = ProgressBar::with_draw_target(
                Some(Self::STEPS),
                ProgressDrawTarget::stderr_with_hz(8),
            );
            let style = ProgressStyle::with_template("{prefix}  {bar:24} {percent:>3} %  {msg}");
            bar.set_style(style.expect("the template is well formed").progress_chars("━╸─"));
            bar.set_prefix(name.clone());
            bar
        });
        Progress { name, bar, phase: String::new(), said: None, began: None }
    }

    /// The same, telling when it will end if it goes on as it did.
    pub fn with_end(self) -> Self {
        Progress { began: Some((Instant::now(), 0.0)), ..self }
    }

    fn end(&mut self, share: f64) -> String {
        let Some((began, before)) = self.began else { return String::new() };
        // So much within a second is not work.
        if share - before > 0.05 && began.elapsed() < Duration::from_secs(1) {
            self.began = Some((Instant::now(), share));
            return String::new();
        }
        let (spent, done) = (began.elapsed(), share - before);
        if spent < UNSURE || done < 0.002 {
            return String::new();
        }
        let left = spent.mul_f64(((1.0 - share) / done).clamp(0.0, 1e5));
        let since = (SystemTime::now() + left).duration_since(SystemTime::UNIX_EPOCH);
        let minutes = since.map_or(0, |since| since.as_secs() / 60);
        format!(", ends about {:02}:{:02} UTC", minutes / 60 % 24, minutes % 60)
    }

    /// Which phase runs, and the share of the whole that is done, 0–1.
    pub fn show(&mut self, phase: &str, share: f64) {
        let turned = self.phase != phase;
        if turned {
            phase.clone_into(&mut self.phase);
        }
        let end = self.end(share);
        match &self.bar {
            Some(bar) => {
                if turned || self.began.is_some() {
                    bar.set_message(format!("{}{end}", self.phase));
                }
                bar.set_position((share * Self::STEPS as f64) as u64);
            }
            None if is_quiet() => {}
            // Nobody who closed standard error wants to hear of it.
            None if turned && self.said.is_none_or(|at| at.elapsed() >= BETWEEN) => {
                self.said = Some(Instant::now());
                let _ = writeln!(std::io::stderr(), "{}: {phase}{end}", self.name);
            }
            None => {}
        }
    }

    /// Takes the bar away.
    pub fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
