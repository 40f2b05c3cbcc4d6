// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ratios sampled until their interval is narrow enough.
//!
//! Contenders follow each other there and back (A B B A), so that a drift of the machine falls on
//! both alike. The baseline takes part twice: its ratio to itself is the control, which shows what
//! the method finds where there is nothing to find. Turns are grouped into blocks of at least a
//! second; a block in which something else ran is measured again. Intervals come from a bootstrap
//! over whole blocks, because neighbours in time resemble each other. Sampling ends on the width of
//! the intervals or at a limit, and never on what they say.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};

use crate::quiet::{self, Noise, Window};
use crate::stats::{Middle, Paired};

/// Fewest blocks that an interval is taken from.
const LEAST_BLOCKS: usize = 8;
/// After so many turns without a number the trial has none.
const USELESS: usize = 16;

/// When to stop.
#[derive(Clone, Copy, Debug)]
pub struct Until {
    /// Half the width of each interval, as a share of the ratio: 0.03 is ±3 %.
    pub width: f64,
    /// Longest time, after which the intervals are as they are.
    pub limit: Duration,
    /// Length of a block.
    pub block: Duration,
    /// Fewest blocks that an interval is taken from.
    pub least: usize,
}

impl Until {
    /// For intervals of this half-width: ten minutes at most, blocks as long as noise needs.
    pub fn within(width: f64) -> Self {
        let limit = Duration::from_secs(600);
        Until { width, limit, block: quiet::SHORTEST, least: LEAST_BLOCKS }
    }

    /// The same with a part of the time: a hundredth and less only sees that all works, in blocks
    /// that are too short to tell whether the machine is quiet.
    pub fn with_effort(self, effort: f64, hasty: bool) -> Self {
        let limit = self.limit.mul_f64(effort);
        match hasty {
            true => Until { limit, block: Duration::ZERO, least: 1, ..self },
            false => Until { limit, ..self },
        }
    }

    /// Whether blocks are long enough to see what else runs.
    pub fn watches(&self) -> bool {
        self.block >= quiet::SHORTEST
    }
}

/// Why nothing was sampled: the machine was not quiet, or not in its state, until the limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Restless(String);

impl Restless {
    pub(crate) fn new(why: String) -> Self {
        Restless(why)
    }
}

impl std::fmt::Display for Restless {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Restless {}

/// Contenders that the sampler measures part by part.
pub trait Trial {
    /// One measured part of a contender: positive numbers, always as many, such as its throughput
    /// and its CPU time per request. What it did before it settled does not count.
    fn part(&mut self, contender: usize) -> Result<Vec<f64>>;

    /// Begins a window; what [`Trial::noise`] says is that of the time since.
    fn begin(&mut self) {}

    /// What else ran since the window began.
    fn noise(&mut self) -> Noise {
        Noise::default()
    }

    /// Whether the machine is still in the state that was asked for.
    fn in_state(&mut self) -> bool {
        true
    }

    /// A block has ended, and counts or does not.
    fn end(&mut self, _counts: bool) {}
}

/// What a part did: the numbers that are compared, and what else to keep of it.
type Part<'a, T> = dyn FnMut(usize) -> Result<(Vec<f64>, T)> + 'a;

/// A trial whose parts are calls of a function. What else runs is watched where blocks are long
/// enough.
pub struct Parts<'a, T> {
    part: Box<Part<'a, T>>,
    holds: Box<dyn FnMut() -> bool + 'a>,
    watches: bool,
    window: Option<Window>,
    /// What each contender did, the baseline and its second self first, in blocks that count.
    pub kept: Vec<Vec<T>>,
    counted: Vec<usize>,
}

impl<'a, T> Parts<'a, T> {
    /// Parts of so many contenders beside the baseline and its second self.
    pub fn new(
        contenders: usize,
        until: Until,
        part: impl FnMut(usize) -> Result<(Vec<f64>, T)> + 'a,
    ) -> Self {
        let all = contenders + 2;
        Parts {
            part: Box::new(part),
            holds: Box::new(|| true),
            watches: until.watches(),
            window: None,
            kept: (0..all).map(|_| Vec::new()).collect(),
            counted: vec![0; all],
        }
    }

    /// The same while the machine is in a state.
    pub fn in_state(self, holds: impl FnMut() -> bool + 'a) -> Self {
        Parts { holds: Box::new(holds), ..self }
    }
}

impl<T> Trial for Parts<'_, T> {
    fn part(&mut self, contender: usize) -> Result<Vec<f64>> {
        let (numbers, keep) = (self.part)(contender)?;
        self.kept[contender].push(keep);
        Ok(numbers)
    }

    fn begin(&mut self) {
        self.window = Window::begin().filter(|_| self.watches);
    }

    fn noise(&mut self) -> Noise {
        self.window.map_or(Noise::default(), |window| window.noise())
    }

    fn in_state(&mut self) -> bool {
        (self.holds)()
    }

    fn end(&mut self, counts: bool) {
        for (kept, counted) in self.kept.iter_mut().zip(&mut self.counted) {
            match counts {
                true => *counted = kept.len(),
                false => kept.truncate(*counted),
            }
        }
    }
}

/// How a row was sampled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sampling {
    /// The baseline beside itself: what the method finds where there is nothing to find.
    pub control: Paired,
    /// Half the width that was asked for, as a share.
    pub width: f64,
    /// Longest time, in seconds.
    pub limit_s: f64,
    /// Whether the row and its control are as narrow as was asked for.
    pub narrow: bool,
    /// Blocks that count.
    pub blocks: usize,
    /// Blocks measured again because something else ran.
    pub noisy: usize,
    /// Blocks measured again because the machine had left its state.
    pub left_state: usize,
}

impl Sampling {
    /// Why the row decides nothing, however its interval lies.
    pub fn doubt(&self) -> Option<String> {
        let Sampling { control, width, limit_s, .. } = self;
        let percent = format!("{:.1}", width * 100.0);
        let percent = percent.trim_end_matches(".0");
        if !self.narrow {
            return Some(format!("ended at its limit of {limit_s} s, wider than ±{percent} %"));
        }
        let itself = control.low <= 1.0 + width && control.high >= 1.0 - width;
        (!itself).then(|| format!("the baseline differs from itself by more than {percent} %"))
    }
}

/// Ratios of all contenders to the baseline, for each number that a part gives.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampled {
    /// The baseline beside itself.
    pub control: Vec<Paired>,
    /// The others, in their order.
    pub ratios: Vec<Vec<Paired>>,
    /// Blocks that count.
    pub blocks: usize,
    /// Blocks measured again because something else ran.
    pub noisy: usize,
    /// Blocks measured again because the machine had left its state.
    pub left_state: usize,
    /// Whether all intervals are as narrow as was asked for.
    pub narrow: bool,
    width: f64,
    limit_s: f64,
    /// Of each block, the log ratios of each turn: control first.
    logs: Vec<Vec<Vec<f64>>>,
}

impl Sampled {
    /// One contender's number beside another's, as the trial knows them, and how it was sampled.
    pub fn row(&self, ours: usize, base: usize, number: usize) -> Option<(Paired, Sampling)> {
        let numbers = self.control.len();
        let log = |turn: &[f64], contender: usize| match contender {
            0 => 0.0,
            contender => turn[(contender - 1) * numbers + number],
        };
        let ratio = middle(&self.logs, |turn| log(turn, ours) - log(turn, base))?;
        let control = *self.control.get(number).filter(|control| control.rounds > 0)?;
        let narrow = [&ratio, &control].into_iter().all(|of| half_width(of) <= self.width);
        let Sampled { width, limit_s, blocks, noisy, left_state, .. } = *self;
        Some((ratio, Sampling { control, width, limit_s, narrow, blocks, noisy, left_state }))
    }
}

/// Samples `contenders` beside a baseline. The trial knows the baseline as 0, its second self as 1
/// and the contenders from 2 on.
///
/// # Errors
/// Those of the trial; no block that counts.
pub fn sample(
    contenders: usize,
    until: Until,
    trial: &mut dyn Trial,
    progress: &mut dyn FnMut(f64),
) -> Result<Sampled> {
    let began = Instant::now();
    // Of each block, the log ratios of each turn: control first.
    let mut blocks: Vec<Vec<Vec<f64>>> = Vec::new();
    let (mut noisy, mut left_state) = (0, 0);
    let least = until.least.max(1);
    let mut look_at = least;
    loop {
        let spent = began.elapsed();
        progress((spent.as_secs_f64() / until.limit.as_secs_f64()).min(1.0));
        let late = spent >= until.limit && blocks.len() >= least;
        if late || blocks.len() >= look_at {
            look_at = blocks.len() + 1 + blocks.len() / 8;
            let ratios = ratios(&blocks);
            let known = ratios.iter().filter(|ratio| ratio.rounds > 0);
            let narrow = known.map(half_width).all(|half| half <= until.width);
            if narrow || late {
                let each = ratios.len() / (contenders + 1);
                let mut of = ratios.chunks(each).map(<[Paired]>::to_vec);
                let control = of.next().context("a part gave no number")?;
                let ratios = of.collect();
                let (blocks, logs) = (blocks.len(), blocks);
                let (width, limit_s) = (until.width, until.limit.as_secs_f64());
                return Ok(Sampled {
                    control,
                    ratios,
                    blocks,
                    noisy,
                    left_state,
                    narrow,
                    width,
                    limit_s,
                    logs,
                });
            }
        }
        if spent >= until.limit && noisy + left_state > blocks.len() {
            let (counted, seconds) = (blocks.len(), spent.as_secs());
            return Err(Restless(format!(
                "{counted} of {least} blocks counted in {seconds} s ({noisy} were not quiet, \
                 {left_state} out of state): measure when nothing else runs"
            ))
            .into());
        }
        trial.begin();
        let block = block(contenders, until.block, trial)?;
        let in_state = trial.in_state();
        let quiet = in_state && trial.noise().is_quiet();
        trial.end(quiet);
        match (in_state, quiet) {
            (false, _) => left_state += 1,
            (true, false) => noisy += 1,
            (true, true) => blocks.push(block),
        }
    }
}

/// Turns there and back for so long: of each, the logarithms of all ratios, contender by contender.
fn block(contenders: usize, length: Duration, trial: &mut dyn Trial) -> Result<Vec<Vec<f64>>> {
    let began = Instant::now();
    let mut turns = Vec::new();
    let mut useless = 0;
    let all = contenders + 2;
    while turns.is_empty() || began.elapsed() < length {
        let mut logs = vec![Vec::new(); all];
        for at in (0..all).chain((0..all).rev()) {
            let part = trial.part(at)?;
            logs[at].resize(part.len(), 0.0);
            let add = |(log, value): (&mut f64, f64)| *log += value.ln() / 2.0;
            logs[at].iter_mut().zip(part).for_each(add);
        }
        let base = |of: &Vec<f64>| -> Vec<f64> {
            of.iter().zip(&logs[0]).map(|(log, base)| log - base).collect()
        };
        let turn: Vec<f64> = logs[1..].iter().flat_map(base).collect();
        if turn.iter().any(|log| log.is_finite()) {
            turns.push(turn);
        } else {
            useless += 1;
            ensure!(
                useless < USELESS || !turns.is_empty(),
                "parts give zero where a ratio is wanted"
            );
        }
    }
    Ok(turns)
}

fn half_width(ratio: &Paired) -> f64 {
    (ratio.high / ratio.low).ln() / 2.0
}

/// The ratio of each contender with its interval; one of no rounds where there is none.
fn ratios(blocks: &[Vec<Vec<f64>>]) -> Vec<Paired> {
    let count = blocks.first().and_then(|block| block.first()).map_or(0, Vec::len);
    let none = Paired { median: f64::NAN, low: f64::NAN, high: f64::NAN, rounds: 0 };
    (0..count).map(|at| middle(blocks, |turn| turn[at]).unwrap_or(none)).collect()
}

/// The ratio whose logarithm `of` finds in a turn; `None` where no turn has one.
fn middle(blocks: &[Vec<Vec<f64>>], of: impl Fn(&[f64]) -> f64) -> Option<Paired> {
    let of_block = |block: &Vec<Vec<f64>>| -> Vec<f64> {
        block.iter().map(|turn| of(turn)).filter(|log| log.is_finite()).collect()
    };
    let logs: Vec<Vec<f64>> =
        blocks.iter().map(of_block).filter(|block| !block.is_empty()).collect();
    let logs: Vec<&[f64]> = logs.iter().map(Vec::as_slice).collect();
    let Middle { value, low, high } = Middle::of_blocks(&logs)?;
    let rounds = logs.iter().map(|block| block.len()).sum();
    Some(Paired { median: value.exp(), low: low.exp(), high: high.exp(), rounds })
}

#[cfg(test)]
#[path = "pairs_tests.rs"]
mod tests;
