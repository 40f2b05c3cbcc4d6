// SPDX-License-Identifier: MIT OR Apache-2.0
//! Rows that are sampled until their intervals are narrow, and kept one by one.

use std::time::Duration;

use anyhow::Result;

use super::lab::both;
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured, Target};
use dwell_bench::fixture::State;
use dwell_bench::loads::Means;
use dwell_bench::pairs::{Restless, Sampled, Until};
use dwell_bench::result::{Load, Metric, Requests};
use dwell_bench::stand::Kind;
use dwell_bench::stats::Paired;
use dwell_bench::subject::Subject;
use dwell_bench::trial::{self, Asked, Number, Question};

/// Half the width of an interval that is to tell whether something costs nothing: a third of the
/// share within which it may differ.
pub const EQUIVALENCE: f64 = 0.007;
/// Half the width of other intervals.
const USUAL: f64 = 0.03;
/// The same beside a load.
const BESIDE_LOAD: f64 = 0.05;
/// Share of a row's time in which the best of many is looked for.
const SCOUTING: f64 = 0.25;

pub const THROUGHPUT: Number = Number::Metric(Metric::Throughput);
pub const CPU: Number = Number::Metric(Metric::CpuPerRequest);

/// How narrow the interval of a case has to be.
pub fn width(result: &FigureResult, case: &str, load: Load) -> f64 {
    let target = result.rows.iter().find(|row| row.case == case).and_then(|row| row.target);
    match (load, target) {
        (Load::Idle, Some(Target::CostsNothing(_))) => EQUIVALENCE,
        (Load::Idle, _) => USUAL,
        _ => BESIDE_LOAD,
    }
}

/// A policy that learns does so for so long, at full effort, before it is measured: figure R2 shows
/// how it gets there.
const LEARN: Duration = Duration::from_secs(60);

/// How long a policy learns, at most a fifth of the time that there is, and what remains.
pub fn learning(until: Until) -> (Duration, Until) {
    let learn = LEARN.min(until.limit / 5);
    (learn, Until { limit: until.limit - learn, ..until })
}

/// A question about policies of which one learns.
pub fn once_learned(question: Question<'_>) -> Question<'_> {
    let (learn, until) = learning(question.until);
    Question { until, learn, ..question }
}

impl Lab {
    /// When to stop sampling an interval of this half-width.
    pub fn until(&self, width: f64) -> Until {
        Until::within(width).with_effort(self.effort.min(1.0), self.is_hasty())
    }

    /// Length of one measured part on a device.
    pub fn part(&self, kind: Kind, load: Load) -> Duration {
        match self.is_hasty() {
            true => Duration::from_millis(2),
            false => trial::part(kind, load),
        }
    }

    /// Whether any of these cases is to be measured now: it is lacking, and asked for.
    pub fn wants<S: AsRef<str>>(&self, result: &FigureResult, cases: &[S]) -> bool {
        let mut cases = cases.iter().map(AsRef::as_ref);
        cases.any(|case| self.asks_for(case) && result.lacks(case))
    }

    /// Whether a case is among those that are to be measured: their names contain [`Lab::only`]
    /// from the beginning of a word.
    pub fn asks_for(&self, case: &str) -> bool {
        let Some(only) = &self.only else { return true };
        let begins = |at: usize| !case[..at].ends_with(|before: char| before.is_alphanumeric());
        case.match_indices(only.as_str()).any(|(at, _)| begins(at))
    }

    /// Random reads of 4 KiB by `contenders` beside `block`, on an idle machine as it is.
    pub fn question<'a>(
        &self,
        (kind, subject): (Kind, &'a Subject),
        contenders: &'a [&'a str],
        width: f64,
    ) -> Question<'a> {
        Question {
            subject,
            baseline: "block",
            contenders,
            requests: Requests::random_reads(),
            size_bytes: 4096,
            load: Load::Idle,
            state: State::Free,
            numbers: &[THROUGHPUT],
            part: self.part(kind, Load::Idle),
            until: self.until(width),
            learn: Duration::ZERO,
        }
    }

    /// The answer to a question.
    ///
    /// # Errors
    /// Those of [`trial::ask`].
    pub fn ask(
        &self,
        question: &Question<'_>,
        means: &Means,
        progress: &mut Step<'_, '_>,
    ) -> Result<Result<Asked, String>> {
        trial::ask(question, &self.monitor, means, &mut |share| progress.show(share))
    }

    /// What loads are made of.
    pub fn means(&self) -> Means {
        Means {
            hidden: self.hidden.clone(),
            stressors: 10,
            bystanders: 1,
            directory: self.directory.clone(),
        }
    }

    /// Samples what gives these cases, unless none of them is wanted. Where it cannot be, the cases
    /// say why.
    ///
    /// # Errors
    /// Those of `sample`, but for a machine that is never quiet.
    pub fn sample<T, S: AsRef<str>>(
        &self,
        result: &mut FigureResult,
        cases: &[S],
        sample: impl FnOnce() -> Result<Result<T, String>>,
    ) -> Result<Option<T>> {
        if !self.wants(result, cases) {
            return Ok(None);
        }
        let mut cases = cases.iter().map(AsRef::as_ref);
        match sample() {
            Ok(Ok(sampled)) => return Ok(Some(sampled)),
            Ok(Err(why)) => cases.try_for_each(|case| result.note(case, &why))?,
            Err(why) if why.is::<Restless>() => {
                let lacking: Vec<&str> = cases.filter(|case| result.lacks(case)).collect();
                lacking.into_iter().try_for_each(|case| result.postpone(case, &why.to_string()))?;
            }
            Err(why) => return Err(why),
        }
        self.keep(result)?;
        Ok(None)
    }

    /// Keeps what is measured so far.
    pub fn keep(&self, result: &FigureResult) -> Result<()> {
        (self.keep)(result)
    }

    /// Finds the fastest of a question's contenders in a part of its time: their places there, and
    /// all that was seen. The baseline is ours.
    ///
    /// # Errors
    /// Those of [`Lab::ask`].
    pub fn scout(
        &self,
        question: &Question<'_>,
        means: &Means,
        progress: &mut Step<'_, '_>,
    ) -> Result<Result<(usize, Asked), String>> {
        let until =
            Until { width: 1.0, limit: question.until.limit.mul_f64(SCOUTING), ..question.until };
        progress.within = (0.0, SCOUTING);
        let asked = self.ask(&Question { until, ..*question }, means, progress);
        progress.within = (SCOUTING, 1.0);
        let asked = match asked? {
            Ok(asked) => asked,
            Err(why) => return Ok(Err(why)),
        };
        let speed = |at: &usize| asked.sampled.ratios[*at][0].median;
        let all = 0..question.contenders.len();
        let best = all.max_by(|a, b| speed(a).total_cmp(&speed(b))).unwrap_or(0);
        Ok(Ok((best, asked)))
    }

    /// The time limit that remains for a question after scouting.
    pub fn after_scouting(&self, until: Until) -> Until {
        Until { limit: until.limit.mul_f64(1.0 - SCOUTING), ..until }
    }
}

/// Enters one contender's number beside another's.
pub fn enter(
    result: &mut FigureResult,
    case: &str,
    sampled: &Sampled,
    (ours, base, number): (usize, usize, usize),
    remark: Option<String>,
) -> Result<()> {
    enter_as(result, case, sampled, (ours, base, number), remark, |ratio| (*ratio).into())
}

/// The same with what a ratio is in the case's unit.
pub fn enter_as(
    result: &mut FigureResult,
    case: &str,
    sampled: &Sampled,
    (ours, base, number): (usize, usize, usize),
    remark: Option<String>,
    of: impl FnOnce(&Paired) -> Measured,
) -> Result<()> {
    let Some((ratio, sampling)) = sampled.row(ours, base, number) else {
        return result.note(case, "no turn gave a value");
    };
    result.sampled(case, of(&ratio), sampling)?;
    let doubt = result.rows.iter().find(|row| row.case == case).and_then(|row| row.note.clone());
    match both(doubt, remark) {
        Some(note) => result.note(case, &note),
        None => Ok(()),
    }
}

/// A part of an experiment, whose progress is a part of the whole.
pub struct Step<'p, 'f> {
    /// Hears of it.
    pub progress: &'p mut Progress<'f>,
    /// The name of the step, for the progress line.
    pub what: String,
    /// Its place among so many.
    at: (usize, usize),
    /// Where in it the question is that is asked.
    within: (f64, f64),
}

impl Step<'_, '_> {
    /// So much of it is done, 0–1.
    pub fn show(&mut self, share: f64) {
        let ((at, of), (from, to)) = (self.at, self.within);
        let share = from + (to - from) * share.clamp(0.0, 1.0);
        (self.progress)(&self.what, (at as f64 + share) / of as f64);
    }
}

/// A step.
pub fn step<'p, 'f>(
    progress: &'p mut Progress<'f>,
    what: &str,
    at: usize,
    of: usize,
) -> Step<'p, 'f> {
    Step { progress, what: what.into(), at: (at, of), within: (0.0, 1.0) }
}
