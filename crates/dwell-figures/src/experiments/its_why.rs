// SPDX-License-Identifier: MIT OR Apache-2.0
//! I9: what decides between Sync_Prefetch and ITS, one choice changed at a time.

use anyhow::Result;
use dwell_sim::PolicyKind;
use dwell_sim::report::Report;
use dwell_sim::summary::{Measure, Spread};

use super::lab::skip_all;
use super::{Lab, Progress, its};
use crate::figure::FigureResult;
use dwell_bench::simulator::{Simulated, Study};

/// Seeds of every choice.
const SEEDS: u64 = 5;

/// The parameter changed, and the name of its row. The first is the study as it is.
const CHOICES: [(&str, &str); 10] = [
    ("", "as in the study"),
    ("preexecute_cache_percent=25", "pre-execute cache a quarter of the last level"),
    ("preexecute_cache_percent=7", "pre-execute cache one way of sixteen"),
    ("preexecute_cache_split=own", "pre-execute cache of its own"),
    ("its_preexecute=false", "no pre-execution, no pre-execute cache"),
    ("its_prefetch=false", "no prefetch by ITS"),
    ("its_sacrifice=false", "no self-sacrificing"),
    ("preexecute_miss=wait", "pre-execution waits for each miss"),
    ("sync_prefetch_by=virtual", "Sync_Prefetch by virtual address"),
    ("prefetch_pages=32", "ITS prefetches 32 pages"),
];

/// I9.
pub(super) fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let traces = match its::traces(lab, progress) {
        Ok(traces) => traces,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let batches =
        ["No", "1", "2", "3"].map(|name| traces.join(format!("{name}_Data_Intensive.toml")));
    let mut ask = its::ask(lab, batches.into(), &traces, SEEDS);
    ask.policies = vec![PolicyKind::SyncPrefetch, PolicyKind::Its];
    for (at, (set, name)) in CHOICES.into_iter().enumerate() {
        let part = |share: f64| (at as f64 + share) / CHOICES.len() as f64;
        ask.sets = if set.is_empty() { vec![] } else { vec![set.into()] };
        let study = its::simulate(&ask, &mut |what, share| {
            progress(&format!("{name}: {what}"), part(share))
        })?;
        for (end, most) in [("least", false), ("most", true)] {
            let found = its::extreme(&study, PolicyKind::SyncPrefetch, Measure::IdleNs, most);
            if let Some(found) = found {
                result.measured(&format!("{name}, {end}"), found)?;
            }
        }
        if set.is_empty() {
            inside(result, &study)?;
        }
    }
    Ok(None)
}

/// Where the study's own idle time is, and what pre-execution makes of its time.
fn inside(result: &mut FigureResult, study: &Study) -> Result<()> {
    type Part = fn(&Report) -> f64;
    let without_misses: Part = |report| (report.idle.fault_wait_ns + report.idle.switch_ns) as f64;
    let only_misses: Part = |report| report.idle.cache_miss_ns as f64;
    for (what, of) in
        [("waits for faults and switches", without_misses), ("cache misses", only_misses)]
    {
        let ratios = study
            .compared()
            .filter_map(|batch| batch.ratio(PolicyKind::SyncPrefetch, PolicyKind::Its, of));
        ends(result, &format!("idle time of {what} alone"), ratios)?;
    }
    let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    let filled = |report: &Report| {
        let ahead = report.preexecution;
        percent(ahead.filled_ns, ahead.offered_ns)
    };
    let stalled = |report: &Report| {
        let ahead = report.preexecution;
        percent(ahead.stalled_ns, ahead.filled_ns)
    };
    let used = |report: &Report| 100.0 * report.preexecution.accuracy();
    let saved = |report: &Report| percent(report.preexecution.lines_used, report.accesses.dram);
    ends(result, "part of an episode that pre-execution fills", each(study, filled))?;
    ends(result, "part of pre-execution that stalls", each(study, stalled))?;
    ends(result, "part of the lines it brings that are used", each(study, used))?;
    ends(result, "lines used, of the misses that are left", each(study, saved))
}

/// Something of ITS in each batch, over its seeds.
fn each(study: &Study, of: impl Fn(&Report) -> f64) -> impl Iterator<Item = Spread> {
    let spread = |batch: &Simulated| {
        let its = batch.reports.iter().filter(|report| report.policy == PolicyKind::Its);
        Spread::of(&its.map(&of).collect::<Vec<_>>())
    };
    study.compared().map(spread).collect::<Vec<_>>().into_iter()
}

/// The batches in which something is least and most.
fn ends(
    result: &mut FigureResult,
    what: &str,
    batches: impl Iterator<Item = Spread>,
) -> Result<()> {
    let mut batches: Vec<Spread> = batches.collect();
    batches.sort_by(|a, b| a.mean.total_cmp(&b.mean));
    for (end, found) in [("least", batches.first()), ("most", batches.last())] {
        if let Some(found) = found {
            result.measured(&format!("{what}, {end}"), *found)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell_sim::Params;

    #[test]
    fn every_choice_is_a_machine_and_differs_from_the_study() {
        for (set, name) in &CHOICES[1..] {
            let mut params = Params::default();
            params.set(set).unwrap();
            params.check().unwrap();
            assert_ne!(params, Params::default(), "{name}");
        }
    }
}
