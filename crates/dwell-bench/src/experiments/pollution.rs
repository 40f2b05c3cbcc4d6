// SPDX-License-Identifier: MIT OR Apache-2.0
//! S18: what readers beside the measurement leave of its caches, when it gives the CPU away and
//! when it keeps it.

use anyhow::Result;
use dwell::DeviceClass;

use super::lab::{put, row, skip, skip_all, unless_class};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use crate::result::{Load, Metric, pair};
use crate::stand::Kind;

const SIZES_KIB: [u64; 4] = [4, 16, 128, 512];

const EVENTS: [&str; 5] = ["iTLB", "dTLB", "L1D", "L1I", "last-level"];

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
    let run = lab.run(&plan, &[subject], (0.0, 1.0), progress)?;
    for kib in SIZES_KIB {
        let [ours, base] =
            ["smartcon", "block"].map(|policy| row(&run, Kind::Loop, kib << 10, policy));
        let (ours, base) = (ours?, base?);
        let case = format!("{kib} KiB: throughput");
        put(result, &case, pair(ours, base, Metric::Throughput), odd.clone())?;
        for event in EVENTS {
            let case = format!("{kib} KiB: {event} misses per request");
            skip(result, &[case], "not supported: this bench reads no event counters yet")?;
        }
    }
    Ok(None)
}
