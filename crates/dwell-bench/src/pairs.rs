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
        let percent = width * 100.0;
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
mod tests {
    use super::*;
    use crate::stats::SplitMix;

    /// Contenders of known speed on a machine that drifts and shakes.
    struct Known {
        speeds: Vec<f64>,
        drift: f64,
        shake: f64,
        random: SplitMix,
        parts: u32,
        order: Vec<usize>,
        noise: Vec<Noise>,
        states: Vec<bool>,
    }

    impl Known {
        fn new(speeds: &[f64], shake: f64) -> Self {
            Known {
                speeds: speeds.into(),
                drift: 0.0,
                shake,
                random: SplitMix(5),
                parts: 0,
                order: vec![],
                noise: vec![],
                states: vec![],
            }
        }
    }

    impl Trial for Known {
        fn part(&mut self, contender: usize) -> Result<Vec<f64>> {
            self.parts += 1;
            self.order.push(contender);
            let shake = (self.random.below(2001) as f64 / 1000.0 - 1.0) * self.shake;
            let value = self.speeds[contender] * (shake + self.drift * f64::from(self.parts)).exp();
            Ok(vec![value, 1.0 / value])
        }

        fn noise(&mut self) -> Noise {
            self.noise.pop().unwrap_or_default()
        }

        fn in_state(&mut self) -> bool {
            self.states.pop().unwrap_or(true)
        }
    }

    fn until(width: f64, limit_ms: u64) -> Until {
        let limit = Duration::from_millis(limit_ms);
        Until { width, limit, block: Duration::ZERO, least: LEAST_BLOCKS }
    }

    #[test]
    fn turns_go_there_and_back_so_drift_cancels() {
        let mut trial = Known { drift: 0.01, ..Known::new(&[2.0, 2.0, 3.0], 0.0) };
        let sampled = sample(1, until(0.01, 60_000), &mut trial, &mut |_| ()).unwrap();
        assert_eq!(trial.order[..6], [0, 1, 2, 2, 1, 0]);
        let [speed, time] = sampled.ratios[0][..] else { panic!("two numbers each") };
        assert!((speed.median - 1.5).abs() < 1e-9, "{sampled:?}");
        assert!((time.median * 1.5 - 1.0).abs() < 1e-9, "{sampled:?}");
        assert!((sampled.control[0].median - 1.0).abs() < 1e-9);
        assert!(sampled.narrow && sampled.blocks == LEAST_BLOCKS);
    }

    #[test]
    fn sampling_ends_when_every_interval_is_narrow() {
        let blocks = |width| {
            let mut trial = Known::new(&[1.0, 1.0, 1.2], 0.1);
            let sampled = sample(1, until(width, 60_000), &mut trial, &mut |_| ()).unwrap();
            assert!(sampled.narrow);
            for ratio in sampled.control.iter().chain(&sampled.ratios[0]) {
                assert!(half_width(ratio) <= width, "{ratio:?}");
            }
            let speed = sampled.ratios[0][0];
            assert!(speed.low < 1.2 && speed.high > 1.2, "{sampled:?}");
            sampled.blocks
        };
        assert!(blocks(0.05) < blocks(0.02));
    }

    #[test]
    fn what_stays_wide_ends_at_its_limit_and_says_so() {
        let mut trial = Known::new(&[1.0, 1.0, 1.2], 0.5);
        let sampled = sample(1, until(1e-6, 50), &mut trial, &mut |_| ()).unwrap();
        assert!(!sampled.narrow);
        assert!(sampled.row(2, 0, 0).unwrap().1.doubt().unwrap().contains("ended at its limit"));
    }

    #[test]
    fn blocks_beside_noise_or_out_of_state_are_measured_again_and_counted() {
        let loud = Noise { others: 0.2, stolen: 0.0 };
        let quiet = Noise::default();
        let mut trial = Known {
            noise: vec![quiet, loud, loud],
            states: vec![true, false],
            ..Known::new(&[1.0, 1.0, 1.2], 0.0)
        };
        let sampled = sample(1, until(0.01, 60_000), &mut trial, &mut |_| ()).unwrap();
        assert_eq!((sampled.blocks, sampled.noisy, sampled.left_state), (LEAST_BLOCKS, 2, 1));
        let (_, sampling) = sampled.row(2, 0, 0).unwrap();
        assert_eq!((sampling.noisy, sampling.left_state), (2, 1));
    }

    #[test]
    fn a_machine_that_is_never_quiet_is_an_error_that_says_so() {
        struct Loud;
        impl Trial for Loud {
            fn part(&mut self, _: usize) -> Result<Vec<f64>> {
                Ok(vec![1.0])
            }
            fn noise(&mut self) -> Noise {
                Noise { others: 1.0, stolen: 0.0 }
            }
        }
        let error = sample(1, until(0.1, 20), &mut Loud, &mut |_| ()).unwrap_err();
        assert!(error.is::<Restless>());
        let error = error.to_string();
        assert!(error.contains("not quiet") && error.contains("when nothing else runs"), "{error}");
    }

    #[test]
    fn any_two_contenders_can_be_compared_and_the_row_knows_how_it_was_sampled() {
        let mut trial = Known::new(&[2.0, 2.0, 3.0, 6.0], 0.0);
        let sampled = sample(2, until(0.02, 60_000), &mut trial, &mut |_| ()).unwrap();
        let (ratio, sampling) = sampled.row(3, 2, 0).unwrap();
        assert!((ratio.median - 2.0).abs() < 1e-9, "{ratio:?}");
        let (inverse, _) = sampled.row(0, 3, 0).unwrap();
        assert!((inverse.median * 3.0 - 1.0).abs() < 1e-9, "{inverse:?}");
        assert_eq!(sampled.row(2, 0, 1).unwrap().0, sampled.ratios[0][1]);
        assert_eq!((sampling.control, sampling.blocks), (sampled.control[0], sampled.blocks));
        assert_eq!(sampling.doubt(), None);
        let wide = Sampling { narrow: false, ..sampling.clone() };
        assert!(wide.doubt().unwrap().contains("limit of 60 s"));
        let odd = Paired { median: 1.1, low: 1.09, high: 1.11, rounds: 9 };
        let odd = Sampling { control: odd, ..sampling };
        assert!(odd.doubt().unwrap().contains("differs from itself"));
    }

    #[test]
    fn a_number_that_is_zero_has_no_ratio_and_spoils_no_other() {
        let until = until(0.02, 60_000);
        let part = |at| Ok((vec![if at == 2 { 3.0 } else { 1.0 }, 0.0], ()));
        let sampled = sample(1, until, &mut Parts::new(1, until, part), &mut |_| ()).unwrap();
        assert!((sampled.row(2, 0, 0).unwrap().0.median - 3.0).abs() < 1e-9);
        assert_eq!(sampled.row(2, 0, 1), None);
        let mut turn = 0;
        let now_and_then = move |at| {
            turn += 1;
            Ok((vec![1.0, if at == 2 && turn % 5 == 0 { 0.0 } else { 1.0 }], ()))
        };
        let mut parts = Parts::new(1, until, now_and_then);
        let sampled = sample(1, until, &mut parts, &mut |_| ()).unwrap();
        assert_eq!(sampled.row(2, 0, 1).unwrap().0.median, 1.0, "blocks without it do not count");
        let mut zero = Parts::new(1, until, |_| Ok((vec![0.0], ())));
        let error = sample(1, until, &mut zero, &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains("zero"), "{error}");
    }

    #[test]
    fn parts_of_blocks_that_do_not_count_are_not_kept() {
        let mut calls = 0;
        let mut parts = Parts::new(0, until(0.1, 1), |_| {
            calls += 1;
            Ok((vec![1.0], calls))
        });
        for counts in [true, false, true] {
            parts.begin();
            (0..2).for_each(|at| drop(parts.part(at).unwrap()));
            parts.end(counts);
        }
        assert_eq!(parts.kept, [vec![1, 5], vec![2, 6]]);
    }

    #[test]
    fn the_interval_of_nothing_holds_one_as_often_as_it_says() {
        let holds = |seed| {
            let mut trial = Known { random: SplitMix(seed), ..Known::new(&[1.0, 1.0, 1.0], 0.1) };
            let sampled = sample(1, until(0.04, 60_000), &mut trial, &mut |_| ()).unwrap();
            sampled.ratios[0][0].low <= 1.0 && sampled.ratios[0][0].high >= 1.0
        };
        let held = (0..60).filter(|&seed| holds(seed)).count();
        assert!(held >= 52, "{held} of 60");
    }
}
