// SPDX-License-Identifier: MIT OR Apache-2.0
//! S3: what each device class does with its requests.

use anyhow::Result;
use dwell::DeviceClass;

use super::lab::{both, put, row, skip, unless_class};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::result::{RoundResult, Row};
use dwell_bench::stand::Kind;
use dwell_bench::stats::Summary;

const VERY_FAST: [&str; 2] = [
    "very-fast device: requests that left the CPU",
    "very-fast device: requests served inline, as very fast",
];
const FAST: [&str; 2] = [
    "fast device, small requests: requests spun for",
    "fast device, above the threshold: requests spun for",
];
const MAINSTREAM: &str = "mainstream device: requests spun for";

/// Share of a round's requests whose decision reads like this, in percent.
fn share(round: &RoundResult, is_it: impl Fn(&str) -> bool) -> f64 {
    let matching: u64 =
        round.decisions.iter().filter(|(how, _)| is_it(how)).map(|(_, count)| count).sum();
    matching as f64 * 100.0 / round.requests as f64
}

/// Requests that a thread busy-waited for on a queue.
fn spun(row: &Row) -> Option<Summary> {
    let is_spun = |how: &str| how.contains(" spin") && !how.starts_with("inline");
    row.summary(|round| share(round, is_spun))
}

/// How a row's requests were decided, over all rounds, most frequent first.
fn decisions(row: &Row) -> Option<String> {
    let mut sums = std::collections::BTreeMap::<&str, u64>::new();
    for (how, count) in row.rounds.iter().flat_map(|round| &round.decisions) {
        *sums.entry(how).or_default() += count;
    }
    let all: u64 = sums.values().sum();
    let mut sums: Vec<_> = sums.into_iter().collect();
    sums.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let text = sums.iter().take(3).map(|(how, count)| {
        let percent = *count as f64 * 100.0 / all as f64;
        format!("{how} {} %", dwell_bench::units::tick(percent))
    });
    Some(text.collect::<Vec<_>>().join(", ")).filter(|text| !text.is_empty())
}

/// S3.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    progress("making test devices", 0.0);
    match lab.subject(Kind::Zram)? {
        Err(why) => skip(result, &VERY_FAST, &why)?,
        Ok(subject) => {
            let plan = lab.plan(&["smartcon"], &[4096], (15, 600));
            let odd = unless_class(&subject, DeviceClass::VeryFast);
            let run = lab.run(&plan, &[subject], (0.1, 0.4), progress)?;
            let row = row(&run, Kind::Zram, 4096, "smartcon")?;
            let left = row.summary(|r| r.voluntary_switches as f64 * 100.0 / r.requests as f64);
            put(result, VERY_FAST[0], left, odd.clone())?;
            let inline = row.summary(|r| share(r, |how| how.ends_with(": very-fast")));
            put(result, VERY_FAST[1], inline, both(odd, decisions(row)))?;
        }
    }
    match lab.subject(Kind::Loop)? {
        Err(why) => skip(result, &FAST, &why)?,
        Ok(subject) => {
            let odd = unless_class(&subject, DeviceClass::Fast);
            let threshold = subject.parameters.profile.map_or(0, |p| p.size_threshold_bytes);
            let above = (threshold.min(1 << 20) * 2).max(128 << 10);
            let plan = lab.plan(&["smartcon"], &[4096, above], (15, 600));
            let run = lab.run(&plan, &[subject], (0.4, 0.8), progress)?;
            for (case, size) in FAST.into_iter().zip([4096, above]) {
                let row = row(&run, Kind::Loop, size, "smartcon")?;
                let note = format!("{} KiB: {}", size >> 10, decisions(row).unwrap_or_default());
                put(result, case, spun(row), both(odd.clone(), Some(note)))?;
            }
        }
    }
    match lab.subject(Kind::Disk)? {
        Err(why) => skip(result, &[MAINSTREAM], &why)?,
        Ok(subject) => {
            let odd = unless_class(&subject, DeviceClass::Mainstream);
            let plan = lab.plan(&["smartcon"], &[4096], (15, 600));
            let run = lab.run(&plan, &[subject], (0.8, 1.0), progress)?;
            let row = row(&run, Kind::Disk, 4096, "smartcon")?;
            put(result, MAINSTREAM, spun(row), both(odd, decisions(row)))?;
        }
    }
    Ok(None)
}
