// SPDX-License-Identifier: MIT OR Apache-2.0
//! S7: what a decision costs by the check that ends it.

use std::hint::black_box;

use anyhow::Result;
use dwell::clock;
use dwell::policy::SmartCon;
use dwell_policy::{DeviceClass, Kind, Load, Profile, Wait, WaitPolicy};

use super::lab::put;
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::stats::{SplitMix, Summary};

const PER_BATCH: usize = 20_000;

/// Requests of about the same kind that differ in size, backlog and number, so that neither the
/// compiler nor the branch predictor knows the answers by heart; `change` makes the check fail
/// that is to end the decision.
fn requests<'p>(profile: &'p Profile, change: impl Fn(&mut Wait<'_>)) -> Vec<Wait<'p>> {
    let mut random = SplitMix(7);
    let request = |sequence| {
        let size_bytes = [4096, 16 << 10, 32 << 10][random.below(3)];
        let mut wait = Wait::new(Kind::Read, size_bytes, Some(profile));
        wait.backlog.bytes = [0, 0, 4096, 16 << 10][random.below(4)];
        wait.sequence = sequence;
        change(&mut wait);
        wait
    };
    (0..1021).map(request).collect()
}

/// Nanoseconds per item.
fn batch(items: &[Wait<'_>], mut work: impl FnMut(&Wait<'_>)) -> f64 {
    let started = clock::now();
    for item in items.iter().cycle().take(PER_BATCH) {
        work(black_box(item));
    }
    (clock::now() - started) as f64 / PER_BATCH as f64
}

/// S7.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let fast = Profile { latency_ns: 10_000, ..Profile::default() };
    let mainstream = Profile { class: DeviceClass::Mainstream, ..fast };
    let busy = Load::new(0.9, 0.9, 0.5);
    let cases = [
        ("decision that ends at the class", requests(&mainstream, |_| {})),
        ("decision that ends at the size", requests(&fast, |wait| wait.size_bytes += 64 << 10)),
        (
            "decision that ends at the backlog",
            requests(&fast, |wait| wait.backlog.bytes += 64 << 10),
        ),
        ("decision that ends at the CPU", requests(&fast, |wait| wait.load = busy)),
        ("decision that passes every check", requests(&fast, |_| {})),
    ];
    // A queue limit that never ends a decision, so that its check is among those passed.
    let smartcon = SmartCon { queue_limit: Some(8), ..SmartCon::default() };
    let rounds = lab.times(2001);
    let mut costs = vec![Vec::with_capacity(rounds); cases.len()];
    for round in 0..rounds {
        if round.is_multiple_of(50) {
            progress("decisions", round as f64 / rounds as f64);
        }
        for ((_, items), costs) in cases.iter().zip(&mut costs) {
            let bare_ns = batch(items, |wait| {
                black_box(wait);
            });
            let whole_ns = batch(items, |wait| {
                black_box(smartcon.choose(wait));
            });
            costs.push((whole_ns - bare_ns).max(0.0));
        }
    }
    for ((case, _), costs) in cases.iter().zip(costs) {
        put(result, case, Summary::of(costs), None)?;
    }
    Ok(None)
}
