// SPDX-License-Identifier: MIT OR Apache-2.0
//! S13: spinning whatever the load, beside ten number crunchers.

use anyhow::Result;
use dwell::DeviceClass;

use super::lab::{put, row, skip_all, unless_class};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use crate::result::{Load, Metric, pair};
use crate::stand::Kind;

/// S13.
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
    // Time slices are milliseconds long: a batch must hold many of them.
    let mut plan = lab.plan(&["block", "smartcon", "spin", "raw-get-events"], &[4096], (25, 600));
    plan.loads = vec![Load::Cpu];
    let run = lab.run(&plan, &[subject], (0.0, 1.0), progress)?;
    let of = |policy| row(&run, Kind::Loop, 4096, policy);
    for (case, ours, base) in [
        ("ten number crunchers: spin, no deadline ÷ smartcon", "raw-get-events", "smartcon"),
        ("ten number crunchers: spin, no deadline ÷ block", "raw-get-events", "block"),
        ("ten number crunchers: spin with a deadline ÷ smartcon", "spin", "smartcon"),
        ("ten number crunchers: smartcon ÷ block", "smartcon", "block"),
    ] {
        let ratio = pair(of(ours)?, of(base)?, Metric::Throughput);
        put(result, case, ratio, odd.clone())?;
    }
    Ok(None)
}
