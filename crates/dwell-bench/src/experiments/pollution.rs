// SPDX-License-Identifier: MIT OR Apache-2.0
//! S18: what readers beside the measurement leave of its caches, when it gives the CPU away and
//! when it keeps it.

use anyhow::Result;
use dwell::DeviceClass;

use super::lab::{both, put, row, skip, skip_all, unless_class};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use crate::result::{Load, Metric, Row, pair, pair_by};
use crate::stand::Kind;

const SIZES_KIB: [u64; 4] = [4, 16, 128, 512];

/// What misses, in the words of the cases and of [`crate::counters`].
const EVENTS: [(&str, &str); 5] = [
    ("iTLB", "itlb_misses"),
    ("dTLB", "dtlb_misses"),
    ("L1D", "l1d_read_misses"),
    ("L1I", "l1i_misses"),
    ("last-level", "last_level_misses"),
];

/// S18.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let subject = match lab.subject(Kind::Loop)? {
        Ok(subject) => subject,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let odd = unless_class(&subject, DeviceClass::Fast);
    let mut plan = lab.plan(&["block", "smartcon"], &SIZES_KIB.map(|kib| kib << 10), (21, 300));
    plan.loads = vec![Load::Readers];
    plan.keep.counters = true;
    let run = lab.run(&plan, &[subject], (0.0, 1.0), progress)?;
    let remark = run.notes.iter().find_map(|note| note.strip_prefix("counters: "));
    for kib in SIZES_KIB {
        let [ours, base] =
            ["smartcon", "block"].map(|policy| row(&run, Kind::Loop, kib << 10, policy));
        let (ours, base) = (ours?, base?);
        let case = format!("{kib} KiB: throughput");
        put(result, &case, pair(ours, base, Metric::Throughput), odd.clone())?;
        for (what, event) in EVENTS {
            let case = format!("{kib} KiB: {what} misses per request");
            let counted = |row: &Row| row.rounds.iter().any(|r| r.counters.contains_key(event));
            if !counted(ours) || !counted(base) {
                let why = remark.unwrap_or("not supported: this processor does not count it");
                skip(result, &[case], why)?;
                continue;
            }
            let misses = pair_by(ours, base, |round| match round.counters.get(event) {
                Some(count) => count / round.requests as f64,
                None => f64::NAN,
            });
            put(result, &case, misses, both(odd.clone(), remark.map(str::to_owned)))?;
        }
    }
    Ok(None)
}
