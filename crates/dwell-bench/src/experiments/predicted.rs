// SPDX-License-Identifier: MIT OR Apache-2.0
//! W1: what `sim wait` predicts from a probe that smartcon gains over block, against what is measured afterwards.

use anyhow::{Context, Result};
use dwell_sim::wait::{Scenario, WaitReport};
use serde::Serialize;

use super::lab::{put, ratio_text, row, skip};
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use crate::result::{Load, Metric, pair};
use crate::stand::Kind;
use crate::stats::Paired;
use crate::subject::Subject;
use crate::waits::{self, mean};

const DEVICES: [(Kind, &str); 3] =
    [(Kind::Loop, "loop on tmpfs"), (Kind::Zram, "zram"), (Kind::Disk, "virtio disk")];
const LOADS: [(Load, &str); 2] = [(Load::Idle, "idle"), (Load::Cpu, "busy")];
const SIZES_KIB: [u64; 4] = [4, 16, 64, 256];
/// Number crunchers of the load.
const CRUNCHERS: u32 = 10;
const FILE: &str = "target/w1-predicted.json";

fn case(device: &str, load: &str, kib: u64) -> String {
    format!("{device}, {load}, {kib} KiB")
}

/// One prediction, as it is written before anything is measured.
#[derive(Serialize)]
struct Prediction {
    case: String,
    gain: f64,
    scenario: Scenario,
}

/// W1.
pub(super) fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let mut subjects = Vec::new();
    for (at, (kind, device)) in DEVICES.into_iter().enumerate() {
        progress("making and probing devices", 0.05 * at as f64);
        match lab.subject(kind)? {
            Ok(subject) => subjects.push((kind, device, subject)),
            Err(why) => {
                let cases =
                    LOADS.iter().flat_map(|(_, load)| SIZES_KIB.map(|kib| case(device, load, kib)));
                skip(result, &cases.collect::<Vec<_>>(), &why)?;
            }
        }
    }
    progress("predicting", 0.15);
    let predictions = predict(lab, &subjects)?;
    let path = lab.directory.join(FILE);
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).context("making a directory for predictions")?;
    }
    crate::result::write(&path, &(serde_json::to_string_pretty(&predictions)? + "\n"))?;
    let parts = (subjects.len() * LOADS.len()).max(1) as f64;
    for (i, (kind, device, subject)) in subjects.iter().enumerate() {
        for (j, (load, word)) in LOADS.into_iter().enumerate() {
            let part = (i * LOADS.len() + j) as f64;
            let part = (0.2 + 0.8 * part / parts, 0.2 + 0.8 * (part + 1.0) / parts);
            let measured = beside(lab, (*kind, subject), load, part, progress)?;
            for (kib, ratio) in measured {
                let case = case(device, word, kib);
                let predicted = predictions.iter().find(|known| known.case == case);
                let predicted = predicted.context("a case was not predicted")?.gain;
                let remark = ratio.map(|ratio| {
                    let measured = ratio_text(&ratio);
                    format!("predicted {predicted:.2}×, measured {measured}")
                });
                put(result, &case, ratio.map(|ratio| deviation(predicted, &ratio)), remark)?;
            }
        }
    }
    Ok(None)
}

/// By how many percent a prediction is off, and how little and how much that could be.
fn deviation(predicted: f64, measured: &Paired) -> Measured {
    let off = |measured: f64| 100.0 * (predicted / measured - 1.0).abs();
    let (low, high) = (off(measured.low), off(measured.high));
    let within = (measured.low..=measured.high).contains(&predicted);
    let value = off(measured.median);
    Measured {
        value,
        low: if within { 0.0 } else { low.min(high).min(value) },
        high: low.max(high).max(value),
    }
}

fn predict(lab: &Lab, subjects: &[(Kind, &str, Subject)]) -> Result<Vec<Prediction>> {
    let policies = ["block", "smartcon"]
        .map(|name| dwell::policies::by_name(name).with_context(|| format!("{name} is no policy")));
    let policies = policies.into_iter().collect::<Result<Vec<_>>>()?;
    let mut predictions = Vec::new();
    for (_, device, subject) in subjects {
        let Some(profile) = &subject.profile else { continue };
        for (load, word) in LOADS {
            let base = Scenario {
                cores: lab.cpus() as u32,
                hogs: if load == Load::Cpu { CRUNCHERS } else { 0 },
                duration_ms: if lab.is_hasty() { 20 } else { 2_000 },
                ..Scenario::default()
            };
            for kib in SIZES_KIB {
                let scenario = waits::of_probed(profile, kib << 10, &base);
                let outcome = waits::compare(&scenario, &policies, 3);
                let speed = |at: usize| mean(&outcome.reports[at], WaitReport::per_second);
                let gain = speed(1) / speed(0).max(f64::MIN_POSITIVE);
                predictions.push(Prediction { case: case(device, word, kib), gain, scenario });
            }
        }
    }
    Ok(predictions)
}

/// smartcon ÷ block of one device beside one load, by size in KiB.
fn beside(
    lab: &Lab,
    (kind, subject): (Kind, &Subject),
    load: Load,
    part: (f64, f64),
    progress: &mut Progress<'_>,
) -> Result<Vec<(u64, Option<Paired>)>> {
    let full = if load == Load::Idle { (11, 100) } else { (11, 400) };
    let mut plan = lab.plan(&["block", "smartcon"], &SIZES_KIB.map(|kib| kib << 10), full);
    plan.loads = vec![load];
    plan.means.crunchers = CRUNCHERS as usize;
    let run = lab.run(&plan, std::slice::from_ref(subject), part, progress)?;
    let ratio = |kib: u64| -> Result<(u64, Option<Paired>)> {
        let of = |policy| row(&run, kind, kib << 10, policy);
        Ok((kib, pair(of("smartcon")?, of("block")?, Metric::Throughput)))
    };
    SIZES_KIB.into_iter().map(ratio).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_within_the_interval_may_be_right() {
        let measured = Paired { median: 2.0, low: 1.5, high: 2.5, rounds: 9 };
        let near = deviation(2.2, &measured);
        assert!((near.value - 10.0).abs() < 1e-9 && near.low == 0.0 && near.high > 40.0);
        let far = deviation(1.0, &measured);
        assert_eq!(far.value, 50.0);
        assert!(far.low > 33.0 && far.low < far.value && far.high >= far.value);
    }
}
