// SPDX-License-Identifier: MIT OR Apache-2.0
//! I1 to I8: idle time, faults, misses and finish times of simulated batches of recorded programs.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::rc::Rc;
use std::sync::Mutex;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use dwell_sim::summary::{Measure, Spread};
use dwell_sim::{PolicyKind, Report};

use super::lab::skip_all;
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::simulator::{Ask, Simulated, Study, plots};

const OTHERS: [PolicyKind; 4] =
    [PolicyKind::Async, PolicyKind::Sync, PolicyKind::SyncRunahead, PolicyKind::SyncPrefetch];
/// Seeds of every batch of the study.
const SEEDS: u64 = 30;
/// Fewer do not say how far a number scatters.
const FEWEST_SEEDS: u64 = 3;

impl From<Spread> for Measured {
    /// Mean over the seeds with its 95 % interval.
    fn from(spread: Spread) -> Self {
        let (low, high) = spread.interval();
        Measured { value: spread.mean, low, high }
    }
}

/// Where the recorded workloads and their batches are, recorded now if they are not; or why not.
pub(super) fn traces(lab: &Lab, progress: &mut Progress<'_>) -> Result<PathBuf, String> {
    let traces = lab.traces.clone().unwrap_or_else(|| lab.directory.join("target/traces"));
    if !traces.join("3_Data_Intensive.toml").is_file() {
        progress("recording the workloads", 0.0);
        record(lab.dwell.as_deref(), &traces).map_err(|why| format!("no traces: {why:#}"))?;
    }
    Ok(traces)
}

/// The batches of the paper, simulated once for all figures; or why not.
fn study(lab: &mut Lab, progress: &mut Progress<'_>) -> Result<Result<Rc<Study>, String>> {
    if let Some(study) = &lab.study {
        return Ok(Ok(study.clone()));
    }
    let traces = match traces(lab, progress) {
        Ok(traces) => traces,
        Err(why) => return Ok(Err(why)),
    };
    let study = simulate(&ask(lab, vec![traces.clone()], &traces, SEEDS), progress)?;
    let study = Rc::new(study);
    lab.study = Some(study.clone());
    Ok(Ok(study))
}

/// How many seeds of at most `seeds`, and how many instructions of each program, at an effort.
/// Seeds go first: a program that ends early does not do what it does later.
fn extent(seeds: u64, effort: f64) -> (u64, u64) {
    let affordable = seeds as f64 * effort;
    let limit = match affordable / FEWEST_SEEDS as f64 {
        share if share < 1.0 => (1e9 * share).round() as u64,
        _ => u64::MAX,
    };
    ((affordable as u64).clamp(FEWEST_SEEDS, seeds), limit)
}

/// The simulations of some batches beside `traces`. Reports are kept there, so a study that was
/// stopped goes on.
pub(super) fn ask(lab: &Lab, batches: Vec<PathBuf>, traces: &Path, seeds: u64) -> Ask {
    let (seeds, limit) = extent(seeds, lab.effort);
    Ask {
        batches,
        policies: vec![],
        seeds,
        limit,
        partial: false,
        sets: vec![],
        keep: Some(traces.join("runs")),
    }
}

/// Runs the simulations on other threads, because who hears of the progress stays on this one.
pub(super) fn simulate(ask: &Ask, progress: &mut Progress<'_>) -> Result<Study> {
    let told = Mutex::new((String::new(), 0.0));
    let never = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            Study::simulate(
                ask,
                &|batch, phase, share| {
                    if let Ok(mut told) = told.lock() {
                        *told = (format!("{batch}: {phase}"), share);
                    }
                },
                &never,
            )
        });
        let mut share = 0.0;
        while !running.is_finished() {
            std::thread::sleep(std::time::Duration::from_millis(50));
            let Ok(told) = told.lock() else { break };
            if told.1 > share {
                share = told.1;
                progress(&told.0, share);
            }
        }
        match running.join() {
            Ok(study) => study,
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

fn record(dwell: Option<&Path>, traces: &Path) -> Result<()> {
    let dwell = dwell.context("there is no command to record them")?;
    let mut command = Command::new(dwell);
    let recorded = command.args(["lab", "trace", "workloads", "--out"]).arg(traces).output()?;
    let said = String::from_utf8_lossy(&recorded.stderr);
    ensure!(recorded.status.success(), "{}", said.lines().last().unwrap_or("recording failed"));
    let batch = traces.join("3_Data_Intensive.toml");
    ensure!(batch.is_file(), "{}", said.lines().last().unwrap_or("programs are missing"));
    Ok(())
}

/// The batch in which a measure of `policy` ÷ ITS is least or most.
pub(super) fn extreme(
    study: &Study,
    policy: PolicyKind,
    measure: Measure,
    most: bool,
) -> Option<Spread> {
    let ratios = study.compared().filter_map(|batch| batch.against_its(policy, measure));
    let by_mean = |a: &Spread, b: &Spread| a.mean.total_cmp(&b.mean);
    if most { ratios.max_by(by_mean) } else { ratios.min_by(by_mean) }
}

/// Any of I1 to I8.
pub(super) fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let study = match study(lab, progress)? {
        Ok(study) => study,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    match result.id.as_str() {
        "I1" => idle(result, &study, true)?,
        "I2" => idle(result, &study, false)?,
        "I3" => {
            for policy in OTHERS {
                for (word, most) in [("least", false), ("most", true)] {
                    let case = format!("{} ÷ ITS, {word}", plots::name(policy));
                    if let Some(found) = extreme(&study, policy, Measure::TopFinishNs, most) {
                        result.measured(&case, found)?;
                    }
                }
            }
        }
        "I4" => extremes(result, &study, Measure::BottomFinishNs, true)?,
        "I5" => extremes(result, &study, Measure::BottomFinishNs, false)?,
        "I6" => faults(result, &study)?,
        "I7" => misses(result, &study)?,
        _ => growth(result, &study)?,
    }
    let chart = match result.id.as_str() {
        "I1" | "I2" => plots::idle(&study),
        "I3" => plots::values(&study, Measure::TopFinishNs),
        "I4" | "I5" => plots::values(&study, Measure::BottomFinishNs),
        "I6" => plots::values(&study, Measure::MajorFaults),
        "I7" => plots::values(&study, Measure::LlcMisses),
        _ => study.series().first().map_or(result.svg(), |(name, of)| plots::growth(name, of)),
    };
    Ok(Some(chart))
}

fn extremes(result: &mut FigureResult, study: &Study, measure: Measure, most: bool) -> Result<()> {
    for policy in OTHERS {
        let case = format!("{} ÷ ITS", plots::name(policy));
        if let Some(found) = extreme(study, policy, measure, most) {
            result.measured(&case, found)?;
        }
    }
    Ok(())
}

/// Idle time, with context switches and without.
fn idle(result: &mut FigureResult, study: &Study, most: bool) -> Result<()> {
    extremes(result, study, Measure::IdleNs, most)?;
    for policy in OTHERS {
        let case = format!("{} ÷ ITS, without switches", plots::name(policy));
        if let Some(found) = extreme(study, policy, Measure::WaitsNs, most) {
            result.measured(&case, found)?;
        }
    }
    Ok(())
}

/// Faults that ask the device for a page, as in the paper; the same with those that find their page
/// on its way; and how many there are of each, for every one under ITS.
fn faults(result: &mut FigureResult, study: &Study) -> Result<()> {
    let all = |report: &Report| (report.faults.major() + report.faults.late) as f64;
    for batch in study.compared() {
        for policy in [PolicyKind::Async, PolicyKind::Sync] {
            let case = format!("{} ÷ ITS, {}", plots::name(policy), batch.name);
            if !result.rows.iter().any(|row| row.case == case) {
                continue;
            }
            if let Some(found) = batch.against_its(policy, Measure::MajorFaults) {
                result.measured(&case, found)?;
                let of = |policy| {
                    let part = |of: fn(&Report) -> u64| batch.mean(policy, |r| of(r) as f64);
                    let name = plots::name(policy);
                    let first = part(|report| report.faults.first);
                    let again = part(|report| report.faults.again);
                    let late = part(|report| report.faults.late);
                    format!("{name} {first:.0} first, {again:.0} again, {late:.0} late")
                };
                result.note(&case, &format!("{}; {}", of(policy), of(PolicyKind::Its)))?;
            }
            if let Some(found) = batch.ratio(policy, PolicyKind::Its, all) {
                result.measured(&format!("{case}, late ones too"), found)?;
            }
        }
    }
    Ok(())
}

fn misses(result: &mut FigureResult, study: &Study) -> Result<()> {
    let runahead = PolicyKind::SyncRunahead;
    for (case, measure, most) in [
        ("cache misses, least", Measure::LlcMisses, false),
        ("cache misses, most", Measure::LlcMisses, true),
        ("idle time, least", Measure::IdleNs, false),
    ] {
        if let Some(found) = extreme(study, runahead, measure, most) {
            result.measured(case, found)?;
        }
    }
    let finish = |report: &Report| {
        report.processes.iter().map(|process| process.finish_ns as f64).sum::<f64>()
    };
    let ratios = study.compared().filter_map(|b| b.ratio(runahead, PolicyKind::Its, finish));
    if let Some(found) = ratios.min_by(|a, b| a.mean.total_cmp(&b.mean)) {
        result.measured("finish time of all processes, least", found)?;
    }
    Ok(())
}

fn growth(result: &mut FigureResult, study: &Study) -> Result<()> {
    let series = study.series();
    let Some((_, batches)) = series.first() else { return Ok(()) };
    let share = |report: &Report| {
        100.0 * report.idle.fault_wait_ns as f64 / report.idle.total_ns().max(1) as f64
    };
    for batch in batches {
        let case = format!("storage's part of the idle time, {} processes", batch.programs.len());
        let shares: Vec<f64> = batch.reports.iter().map(share).collect();
        if result.rows.iter().any(|row| row.case == case) {
            result.measured(&case, Spread::of(&shares))?;
        }
    }
    let idle = |batch: &Simulated| -> Vec<f64> {
        batch.reports.iter().map(|report| report.idle.total_ns() as f64).collect()
    };
    if let (Some(first), Some(last)) = (batches.first(), batches.last()) {
        let ratios: Vec<f64> =
            idle(last).iter().zip(idle(first)).map(|(last, first)| last / first.max(1.0)).collect();
        result.measured("idle time of 5 processes ÷ of 2", Spread::of(&ratios))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn less_time_takes_seeds_first_and_then_instructions() {
        assert_eq!(extent(30, 1.0), (30, u64::MAX));
        assert_eq!(extent(30, 0.5), (15, u64::MAX));
        assert_eq!(extent(30, 0.1), (3, u64::MAX));
        assert_eq!(extent(30, 0.05), (3, 500_000_000));
        assert_eq!(extent(5, 0.06), (3, 100_000_000));
    }
}
