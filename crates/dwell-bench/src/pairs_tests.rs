// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ratios are sampled of contenders whose speed is known.

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
fn an_interval_that_stays_wide_ends_at_its_limit_and_says_so() {
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
