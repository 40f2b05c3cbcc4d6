// SPDX-License-Identifier: MIT OR Apache-2.0
//! A4: how soon one reader is answered beside nine arithmetic processes.

use anyhow::Result;
use dwell::DeviceClass;

use super::lab::{put, row, skip, unless_class};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::result::{Load, pair_by};
use dwell_bench::stand::Kind;

const SIZE_BYTES: u64 = 4096;
const POLICIES: [&str; 2] = ["smartcon", "predictive"];

/// A4.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let kinds = [
        (Kind::Loop, "loop on tmpfs", DeviceClass::Fast),
        (Kind::Disk, "disk", DeviceClass::Mainstream),
    ];
    for (i, (kind, name, class)) in kinds.into_iter().enumerate() {
        let case = |policy: &str| format!("{name}: {policy}");
        progress("making a test device", i as f64 / 2.0);
        let subject = match lab.subject(kind)? {
            Ok(subject) => subject,
            Err(why) => {
                skip(result, &POLICIES.map(case), &why)?;
                continue;
            }
        };
        let odd = unless_class(&subject, class);
        let mut plan = lab.plan(&["block", "smartcon", "predictive"], &[SIZE_BYTES], (25, 600));
        plan.loads = vec![Load::Arithmetic];
        let part = (i as f64 / 2.0, (i as f64 + 1.0) / 2.0);
        let run = lab.run(&plan, &[subject], part, progress)?;
        let block = row(&run, kind, SIZE_BYTES, "block")?;
        for policy in POLICIES {
            let ours = row(&run, kind, SIZE_BYTES, policy)?;
            let ratio = pair_by(ours, block, |round| round.mean_ns as f64);
            put(result, &case(policy), ratio, odd.clone())?;
        }
    }
    Ok(None)
}
