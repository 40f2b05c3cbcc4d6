// SPDX-License-Identifier: MIT OR Apache-2.0
//! One progress bar on stderr; silent where stderr is no terminal.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Shows how far a long piece of work is.
pub struct Bar(ProgressBar);

const STEPS: u64 = 1000;

impl Bar {
    /// A bar that begins with saying `what`.
    pub fn new(what: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(STEPS), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{bar:24} {percent:>3} % {elapsed:>4}  {wide_msg}");
        bar.set_style(style.expect("a constant template"));
        bar.set_message(what.to_owned());
        Bar(bar)
    }

    /// The share that is done, 0–1.
    pub fn at(&self, share: f64) {
        self.0.set_position((share * STEPS as f64) as u64);
    }

    /// What is being done now.
    pub fn say(&self, what: &str) {
        self.0.set_message(what.to_owned());
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}
