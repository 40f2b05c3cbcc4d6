// SPDX-License-Identifier: MIT OR Apache-2.0
//! W1: what `sim wait` predicts from a probe that smartcon gains over block, against what is
//! measured afterwards.

use anyhow::{Context, Result};
use dwell_sim::wait::{Scenario, WaitReport};
use serde::Serialize;

use super::lab::{ratio_text, skip};
use super::sampled::{enter_as, step, width};
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::fixture::State;
use dwell_bench::loads::Means;
use dwell_bench::result::Load;
use dwell_bench::stand::Kind;
use dwell_bench::stats::Paired;
use dwell_bench::subject::Subject;
use dwell_bench::trial::Question;
use dwell_bench::waits::{self, mean};

/// Devices, and where the kernel's workers run while one is probed and measured. The latency of a
/// request depends on that state, so each prediction is of one.
const DEVICES: [(Kind, State, &str); 4] = [
    (Kind::Loop, State::Apart, "loop on tmpfs, apart"),
    (Kind::Loop, State::Together, "loop on tmpfs, together"),
    (Kind::Zram, State::Free, "zram"),
    (Kind::Disk, State::Free, "virtio disk"),
];
const LOADS: [(Load, &str); 2] = [(Load::Idle, "idle"), (Load::Cpu, "busy")];
const SIZES_KIB: [u64; 4] = [4, 16, 64, 256];
/// Number CPU stressors of the load.
const STRESSORS: u32 = 10;
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
    for (at, (kind, state, device)) in DEVICES.into_iter().enumerate() {
        progress("making and probing devices", 0.15 * at as f64 / DEVICES.len() as f64);
        match probed(lab, kind, state, device)? {
            Ok(probed) => subjects.push(probed),
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
    dwell_bench::result::write(&path, &(serde_json::to_string_pretty(&predictions)? + "\n"))?;
    let questions = subjects.len() * LOADS.len() * SIZES_KIB.len();
    // What came before is a fifth of it.
    let before = questions.div_ceil(4);
    let mut at = before;
    for Probed { kind, state, device, subject } in &subjects {
        for (load, word) in LOADS {
            for kib in SIZES_KIB {
                let case = case(device, word, kib);
                let predicted = predictions.iter().find(|known| known.case == case);
                let predicted = predicted.context("a case was not predicted")?.gain;
                let width = width(result, &case, load);
                let question = lab.question((*kind, subject), &["smartcon"], width);
                let part = lab.part(*kind, load);
                let (state, size_bytes) = (*state, kib << 10);
                let question = Question { load, state, size_bytes, part, ..question };
                let means = Means { stressors: STRESSORS as usize, ..lab.means() };
                let mut step = step(progress, &case, at, before + questions);
                at += 1;
                let asked =
                    lab.sample(result, &[&case], || lab.ask(&question, &means, &mut step))?;
                let Some(asked) = asked else { continue };
                let measured = asked.sampled.row(2, 0, 0).map(|(ratio, _)| ratio_text(&ratio));
                let measured = measured.unwrap_or_default();
                let remark = format!("predicted {predicted:.2}×, measured {measured}");
                enter_as(result, &case, &asked.sampled, (2, 0, 0), Some(remark), |ratio| {
                    deviation(predicted, ratio)
                })?;
                lab.keep(result)?;
            }
        }
    }
    Ok(None)
}

/// A device as a probe saw it in one state.
struct Probed {
    kind: Kind,
    state: State,
    device: &'static str,
    subject: Subject,
}

/// Makes a device and a state, and probes the one in the other; or says why that cannot be had.
fn probed(
    lab: &mut Lab,
    kind: Kind,
    state: State,
    device: &'static str,
) -> Result<Result<Probed, String>> {
    let subject = match lab.subject(kind)? {
        Ok(subject) => subject,
        Err(why) => return Ok(Err(why)),
    };
    if state == State::Free {
        // It was probed so.
        return Ok(Ok(Probed { kind, state, device, subject }));
    }
    let _made = match state.make() {
        Ok(made) => made,
        Err(why) => return Ok(Err(why.to_string())),
    };
    let profile = lab
        .probing()
        .of(&subject.address)
        .run(&mut |_, _| {})
        .with_context(|| format!("probing {device}"))?;
    let subject = Subject { parameters: profile.parameters(), profile: Some(profile), ..subject };
    Ok(Ok(Probed { kind, state, device, subject }))
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

fn predict(lab: &Lab, subjects: &[Probed]) -> Result<Vec<Prediction>> {
    let policies = ["block", "smartcon"]
        .map(|name| dwell::policies::by_name(name).with_context(|| format!("{name} is no policy")));
    let policies = policies.into_iter().collect::<Result<Vec<_>>>()?;
    let mut predictions = Vec::new();
    for Probed { device, subject, .. } in subjects {
        let Some(profile) = &subject.profile else { continue };
        for (load, word) in LOADS {
            let base = Scenario {
                cores: lab.cpus() as u32,
                stressors: if load == Load::Cpu { STRESSORS } else { 0 },
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
