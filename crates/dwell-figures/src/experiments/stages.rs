// SPDX-License-Identifier: MIT OR Apache-2.0
//! G0: where the time of one fault goes, stage by stage, by the clock of the thread that handles
//! it.

use anyhow::Result;

use super::lab::{put, skip, skip_all};
use super::pager::{cases_of, entry, file_bytes, race, test_file};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::pager::{DEVICE, Order, PAGE_BYTES, STAGES, Visits, Work, regions};
use dwell_bench::result::{RoundResult, Row};
use dwell_bench::stand::Kind;
use dwell_bench::stats::Middle;

/// The region whose faults note their stages.
const STAGED: &str = "region-stages";

/// G0.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    if let Err(why) = regions() {
        return skip_all(result, &why).map(|()| None);
    }
    const KINDS: [Kind; 3] = [Kind::Loop, Kind::Zram, Kind::Emulated];
    for (at, kind) in KINDS.into_iter().enumerate() {
        let name = kind.as_str();
        let bytes = file_bytes(lab);
        let test_file = match test_file(lab, kind, bytes)? {
            Ok(test_file) => test_file,
            Err(why) => {
                skip(result, &cases_of(result, name), &why)?;
                continue;
            }
        };
        let visits = if lab.is_hasty() { 200 } else { test_file.bytes / PAGE_BYTES as u64 };
        let visits = Visits { order: Order::Shuffled, visits, whole: false, turns: 0, timed: true };
        let entries = vec![entry(lab, &test_file, Work::Visits(visits), &[STAGED, DEVICE])?];
        let part = (at as f64 / KINDS.len() as f64, (at + 1) as f64 / KINDS.len() as f64);
        let run = race(lab, &test_file, entries, 9, part, progress)?;
        let rounds = |method: &str| run.rows.iter().find(|row| row.policy == method);
        let middle = |row: Option<&Row>, ns: &dyn Fn(&RoundResult) -> Option<u64>| {
            Middle::of(row?.rounds.iter().filter_map(|round| Some(ns(round)? as f64 / 1e3)))
        };
        for stage in STAGES {
            let ns = |round: &RoundResult| round.paging.get(&format!("{stage}_ns")).copied();
            let case = format!("{name}: {stage}");
            put(result, &case, middle(rounds(STAGED), &ns), None)?;
        }
        let case = format!("{name}: the device alone");
        put(result, &case, middle(rounds(DEVICE), &|round| Some(round.p50_ns)), None)?;
    }
    Ok(None)
}
