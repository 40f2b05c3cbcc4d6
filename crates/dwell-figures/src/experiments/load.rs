// SPDX-License-Identifier: MIT OR Apache-2.0
//! S13: spinning whatever the load, beside ten CPU stressors: how fast, at what CPU time, and what
//! they lose.

use anyhow::Result;
use dwell::DeviceClass;

use super::lab::{both, cpu_text, put, row, skip_all, unless_class};
use super::sums::Rate;
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::result::{Load, Metric, RoundResult, pair};
use dwell_bench::stand::Kind;

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
    let mut plan = lab.plan(&["block", "smartcon", "spin", "raw-get-events"], &[4096], (15, 1500));
    plan.loads = vec![Load::Cpu];
    let run = lab.run(&plan, &[subject], (0.0, 1.0), progress)?;
    let of = |policy| row(&run, Kind::Loop, 4096, policy);
    for (case, ours, base) in [
        ("ten CPU stressors: spin, no deadline ÷ smartcon", "raw-get-events", "smartcon"),
        ("ten CPU stressors: spin, no deadline ÷ block", "raw-get-events", "block"),
        ("ten CPU stressors: spin with a deadline ÷ smartcon", "spin", "smartcon"),
        ("ten CPU stressors: smartcon ÷ block", "smartcon", "block"),
    ] {
        let (ours, base) = (of(ours)?, of(base)?);
        let remark = both(odd.clone(), cpu_text(ours, base));
        put(result, case, pair(ours, base, Metric::Throughput), remark)?;
    }
    let cpu = |round: &RoundResult| (round.user_ns + round.system_ns) as f64;
    let wall = |round: &RoundResult| round.wall_ns as f64;
    let yielded = Rate { quantity: |round: &RoundResult| round.requests as f64, per: cpu };
    let theirs = Rate { quantity: |round: &RoundResult| round.stressor_ns as f64, per: wall };
    let share = Rate { quantity: move |round: &RoundResult| 100.0 * cpu(round), per: wall };
    let block = of("block")?;
    for policy in ["smartcon", "spin"] {
        let ours = of(policy)?;
        let case = format!("stressors: requests per CPU second, {policy} ÷ block");
        put(result, &case, yielded.ratio(ours, block), odd.clone())?;
        let case = format!("stressors: their CPU time, {policy} ÷ block");
        put(result, &case, theirs.ratio(ours, block), odd.clone())?;
    }
    for policy in ["block", "smartcon", "spin"] {
        let case = format!("stressors: CPU share of the reader, {policy}");
        put(result, &case, share.of(of(policy)?), odd.clone())?;
    }
    Ok(None)
}
