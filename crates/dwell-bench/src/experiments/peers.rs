// SPDX-License-Identifier: MIT OR Apache-2.0
//! P1: Dwell against hand-written loops and other runtimes by queue depth.

use anyhow::{Context, Result};
use dwell::DeviceClass;

use super::lab::{both, put, skip_all, subtitle, unless_class};
use super::{Lab, Progress};
use crate::chart::{DotRow, Dots, Panel};
use crate::contender::{HAND_WRITTEN, is_peer};
use crate::figure::{FigureResult, Measured};
use crate::program::{PREFIX, Peers};
use crate::result::{Metric, Row, Run, pair};
use crate::stand::Kind;
use crate::stats::Summary;

const SIZE_BYTES: u64 = 4096;
const DEPTHS: [u32; 4] = [1, 4, 16, 32];
const OURS: &str = "smartcon";
/// Shown beside it, not held to anything.
const OUR_OTHERS: [&str; 2] = ["block", "spin"];

fn iops(depth: u32) -> String {
    format!("queue depth {depth}: IOPS ÷ best peer's")
}
fn cpu(depth: u32) -> String {
    format!("queue depth {depth}: CPU per request ÷ that peer's")
}
fn ahead(depth: u32) -> String {
    format!("queue depth {depth}: peers ahead in both")
}

/// P1.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let subject = match lab.subject(Kind::Loop)? {
        Ok(subject) => subject,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let others = Peers::find(None).and_then(|peers| peers.list());
    let missing = others.as_ref().err().map(|_| "hand-written loops only: make peers".to_owned());
    let odd = both(unless_class(&subject, DeviceClass::Fast), missing);
    let mut names: Vec<String> = [OURS].into_iter().chain(OUR_OTHERS).map(String::from).collect();
    // The device has no poll queues.
    names.extend(HAND_WRITTEN.into_iter().filter(|name| *name != "raw-iopoll").map(String::from));
    names.extend(others.unwrap_or_default().iter().map(|name| format!("{PREFIX}{name}")));
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut plan = lab.plan(&names, &[SIZE_BYTES], (11, 100));
    plan.depths = DEPTHS.into();
    let run = lab.run(&plan, &[subject], (0.0, 1.0), progress)?;
    for depth in DEPTHS {
        judge(result, &run, depth, odd.clone())?;
    }
    Ok(Some(chart(result, &run)))
}

fn at(run: &Run, depth: u32) -> impl Iterator<Item = &Row> {
    run.rows.iter().filter(move |row| row.setting.requests().is_some_and(|r| r.depth == depth))
}

/// All cases of one depth. The best peer is the one with the best median: taking the best of each
/// round anew would hold Dwell against many draws of noise.
fn judge(result: &mut FigureResult, run: &Run, depth: u32, odd: Option<String>) -> Result<()> {
    let ours = at(run, depth).find(|row| row.policy == OURS).context("smartcon is missing")?;
    let peers = || at(run, depth).filter(|row| is_rival(&row.policy));
    let speed = |row: &Row| row.median(|round| round.requests_per_second());
    let best = peers().max_by(|a, b| speed(a).total_cmp(&speed(b))).context("there is no peer")?;
    let ratio = |metric| pair(ours, best, metric);
    put(result, &iops(depth), ratio(Metric::Throughput), both(odd.clone(), Some(name(best))))?;
    put(result, &cpu(depth), ratio(Metric::CpuPerRequest), odd.clone())?;
    let beyond = |row: &&Row| {
        let faster = pair(row, ours, Metric::Throughput).is_some_and(|ratio| ratio.low > 1.0);
        faster && pair(row, ours, Metric::CpuPerRequest).is_some_and(|ratio| ratio.high < 1.0)
    };
    let ahead_in_both: Vec<String> = peers().filter(beyond).map(name).collect();
    let count = Measured::exact(ahead_in_both.len() as f64);
    let who = (!ahead_in_both.is_empty()).then(|| ahead_in_both.join(", "));
    put(result, &ahead(depth), Some(count), both(odd, who))
}

fn is_rival(policy: &str) -> bool {
    HAND_WRITTEN.contains(&policy) || is_peer(policy)
}

fn name(row: &Row) -> String {
    row.policy.trim_start_matches(PREFIX).to_owned()
}

/// One panel per depth, fastest first: seventeen lines in one picture cannot be told apart.
fn chart(result: &FigureResult, run: &Run) -> String {
    let panel = |depth: u32| {
        let speed = |row: &Row| row.summary(|round| round.requests_per_second() / 1e3);
        let mut rows: Vec<_> = at(run, depth).filter_map(|row| Some((row, speed(row)?))).collect();
        rows.sort_by(|(_, a), (_, b)| b.median.total_cmp(&a.median));
        let dot = |(row, speed): (&Row, Summary)| DotRow {
            label: if row.policy == OURS { format!("{OURS} (ours)") } else { name(row) },
            ours: Some((speed.median, speed.min, speed.max)),
            target: None,
            theirs: None,
            text: format!(
                "{:.1} k/s, {:.1} µs of CPU each",
                speed.median,
                row.median(|round| round.cpu_ns_per_request() / 1e3)
            ),
        };
        Panel {
            axis_label: format!("Requests at queue depth {depth} (1000 per second, log)"),
            rows: rows.into_iter().map(dot).collect(),
            mark: None,
        }
    };
    Dots {
        title: "Requests per second and CPU time of each, by queue depth".into(),
        subtitle: subtitle(result, "4 KiB random reads"),
        dots: "median; bar: slowest to fastest round".into(),
        panels: DEPTHS.map(panel).into(),
    }
    .svg()
}
