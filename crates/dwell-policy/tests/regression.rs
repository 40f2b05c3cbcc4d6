// SPDX-License-Identifier: MIT OR Apache-2.0
//! When steered requests are said to take longer than those held back, on devices in virtual time.

use dwell_policy::Kind;
use dwell_policy::regression::Regression;

/// Numbers from 0 to 1.
struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// Spans until a device turns itself off whose steered requests take `ratio` times as long, half of
/// the spans being steered; `None` if it does not within `spans`.
fn spans_until_off(seed: u64, ratio: f64, spans: u64) -> Option<u64> {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    let mut regression = Regression::new();
    let small = Regression::class(Kind::Read, 4096).unwrap();
    let large = Regression::class(Kind::Write, 65_536).unwrap();
    for span in 0..spans {
        let steered = random.next() < 0.5;
        // Spans differ by a fifth, and one in twenty is three times as long: what else ran.
        let noise = 0.8 + 0.4 * random.next();
        let noise = if random.next() < 0.05 { 3.0 * noise } else { noise };
        for (class, latency_ns) in [(small, 40_000.0), (large, 200_000.0)] {
            let ratio = if steered { ratio } else { 1.0 };
            let requests = 32 + (random.next() * 1000.0) as u64;
            let took_ns = requests as f64 * latency_ns * noise * ratio;
            regression.add(steered, class, requests, took_ns as u64);
        }
        if regression.excess().is_some() {
            return Some(span);
        }
    }
    None
}

#[test]
fn a_device_on_which_steering_changes_nothing_or_helps_stays_on() {
    for ratio in [1.0, 0.7] {
        let off = (0..300).filter(|seed| spans_until_off(*seed, ratio, 1000).is_some()).count();
        assert!(off <= 3, "{off} of 300 at {ratio}");
    }
}

#[test]
fn a_device_that_steering_makes_slower_turns_itself_off() {
    for (ratio, most) in [(1.5, 200), (3.0, 60)] {
        let off = (0..100).filter_map(|seed| spans_until_off(seed, ratio, most)).count();
        assert!(off >= 95, "{off} of 100 at {ratio}");
    }
}

#[test]
fn without_both_populations_and_enough_of_each_nothing_is_said() {
    let class = Regression::class(Kind::Read, 4096).unwrap();
    let mut regression = Regression::new();
    for _ in 0..100 {
        regression.add(true, class, 1000, 1_000_000_000);
        // Too few requests, and of another size.
        regression.add(false, class, Regression::LEAST_REQUESTS - 1, 1);
        regression.add(false, class + 1, 1000, 1_000);
    }
    assert_eq!(regression.excess(), None);
    for _ in 0..Regression::LEAST_SPANS {
        regression.add(false, class, 1000, 500_000_000);
    }
    assert_eq!(regression.excess(), Some(1.0));
    assert_eq!(Regression::class(Kind::Sync, 0), None);
}
