// SPDX-License-Identifier: MIT OR Apache-2.0
//! A3: a file read whole, in two orders, and under another I/O scheduler.

use anyhow::{Context, Result};

use super::lab::{put, ratio_text, skip_all};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::result::{Metric, Row, pair};
use dwell_bench::stand::Kind;
use dwell_bench::workload::spec::FileSystemKind;
use dwell_bench::workload::{race, shipped};

/// Ours under `none`, block under each of these.
const SCHEDULERS: [&str; 3] = ["none", "mq-deadline", "bfq"];
const OURS: [&str; 2] = ["predictive", "smartcon"];

/// A3.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    progress("making and probing loop", 0.0);
    let place = match lab.place(Kind::Loop, FileSystemKind::Ext2)? {
        Ok(place) => place,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let there = place.schedulers();
    let (has, lacks): (Vec<&str>, Vec<&str>) =
        SCHEDULERS.into_iter().partition(|name| there.iter().any(|known| known == name));
    let contenders = [&vec!["block"; has.len()][..], &OURS[..]].concat();
    let mut plan = lab.workload_plan(&contenders, (21, 300));
    plan.schedulers =
        has.iter().chain(&["none"; OURS.len()]).map(|name| name.to_string()).collect();
    let orders = [("random", "whole-random"), ("sequential", "whole-sequential")];
    let total = plan.steps(orders.len()) as f64;
    let mut done = 0.0;
    for (order, workload) in orders {
        let variant = shipped(workload)?.variants()?.remove(0);
        let rows = race(&plan, &variant, &place, &lab.monitor, &mut |what| {
            progress(what, done / total);
            done += 1.0;
        })?;
        let row = |policy: &str, scheduler: &str| -> Result<&Row> {
            let is_it = |row: &&Row| {
                row.policy == policy && row.setting.scheduler.as_deref() == Some(scheduler)
            };
            rows.iter().find(is_it).with_context(|| format!("{policy} was not measured"))
        };
        let [predictive, smartcon] = OURS.map(|policy| row(policy, "none"));
        let (predictive, smartcon) = (predictive?, smartcon?);
        for scheduler in &has {
            let block = row("block", scheduler)?;
            let other = pair(smartcon, block, Metric::Throughput);
            let remark = other.map(|ratio| format!("smartcon: {}", ratio_text(&ratio)));
            let ratio = pair(predictive, block, Metric::Throughput);
            put(result, &case(order, scheduler), ratio, remark)?;
        }
        for scheduler in &lacks {
            result.note(&case(order, scheduler), "the kernel does not have this scheduler")?;
        }
    }
    Ok(None)
}

fn case(order: &str, scheduler: &str) -> String {
    format!("{order}: none ÷ block under {scheduler}")
}
