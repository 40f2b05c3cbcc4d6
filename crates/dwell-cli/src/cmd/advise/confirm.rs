// SPDX-License-Identifier: MIT OR Apache-2.0
//! The gain, measured: the command untouched, untouched again, and under `dwell run`.

use anyhow::{Context as _, Result};
use dwell_bench::advised::{Confirmed, Report};
use dwell_bench::compare::{self, Metric, Plan, Wrapper};

use super::Args;
use crate::places;
use crate::progress::Progress;
use crate::signals::{Ended, Signals};

const POLICY: &str = "adaptive";

/// Runs the comparison, and keeps what it found beside the estimate.
pub fn confirm(report: &mut Report, args: &Args, signals: &Signals) -> Result<()> {
    super::super::off::refuse("a comparison")?;
    let own = tempfile::tempdir().context("cannot keep the rounds; set TMPDIR")?;
    let directory = args.out.as_ref().map_or(own.path().to_owned(), |dir| dir.join("confirm"));
    let plan = Plan {
        rounds: args.rounds.into(),
        control: true,
        stop: signals.stop.clone(),
        directory,
        ..Plan::new(args.command.clone(), &[POLICY], Wrapper::dwell_run(&places::own_program()?))
    };
    let mut progress = Progress::of("confirm");
    let (mut done, total) = (0.0, plan.runs() as f64);
    let words = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
    let outcome = compare::run(&plan, words, &mut |what| {
        progress.show(what, done / total);
        done += 1.0;
    });
    progress.finish();
    if let Some(signal) = signals.received() {
        return Err(Ended { signal, kept: "the gain was not measured".to_owned() }.into());
    }
    let comparison = outcome?;
    let ratio = |variant| comparison.ratio(variant, Metric::Speed).cloned();
    if let (Some(gain), Some(control)) = (ratio(POLICY), ratio(compare::CONTROL)) {
        report.confirmed = Some(Confirmed::new(report.estimated_gain(), &gain, &control));
    }
    Ok(())
}
