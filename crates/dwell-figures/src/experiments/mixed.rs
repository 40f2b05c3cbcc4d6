// SPDX-License-Identifier: MIT OR Apache-2.0
//! M2: a day whose conditions change, against the best fixed policy of each phase.

use anyhow::{Context, Result};
use dwell::DeviceClass;

use super::lab::{both, cpu_text, put, skip_all, subtitle, unless_class};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::chart::{Bar, BarGroup, Bars};
use dwell_bench::day::Day;
use dwell_bench::result::{Metric, Row, Run, pair};
use dwell_bench::stand::Kind;
use dwell_bench::stats::Paired;
use dwell_bench::units;

/// Policies that do the same whatever happens, and the one that is held against them.
const FIXED: [&str; 3] = ["block", "spin", "hybrid"];
const OURS: &str = "adaptive";
/// A phase is so many times as long as that of the day which comes with the bench. A phase of one
/// second is over before any policy can have learned (R2), and tells what learning costs.
const LONGER: f64 = 10.0;

/// M2.
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
    let longer = if lab.is_hasty() { 1.0 } else { LONGER };
    let day = Day::find("mixed")?.scaled(longer * lab.effort.sqrt());
    let mut plan = lab.plan(&[FIXED[0], FIXED[1], FIXED[2], OURS], &[], (6, 0));
    plan.day = Some(day.clone());
    let run = lab.run(&plan, std::slice::from_ref(&subject), (0.0, 1.0), progress)?;
    let mut groups = Vec::new();
    for phase in &day.phases {
        let setting = phase.setting(&subject);
        let of = |policy: &str| -> Result<&Row> {
            let row = run.row(&setting, phase.size_bytes, policy);
            row.with_context(|| format!("{policy} was not measured in {:?}", phase.name))
        };
        let fixed = FIXED.into_iter().map(of).collect::<Result<Vec<_>>>()?;
        let speed = |row: &&&Row| row.median(|round| round.throughput());
        let best = fixed.iter().max_by(|a, b| speed(a).total_cmp(&speed(b)));
        let ours = of(OURS)?;
        let case = format!("{}: {OURS} ÷ best fixed policy", phase.name);
        let ratio = best.and_then(|best| pair(ours, best, Metric::Throughput));
        let which = best.map(|best| format!("best: {}", best.policy));
        let cpu = best.and_then(|best| cpu_text(ours, best));
        put(result, &case, ratio, both(odd.clone(), both(which, cpu)))?;
        let bars = fixed.iter().copied().chain([ours]).map(bar).collect();
        groups.push(BarGroup { label: phase.name.clone(), bars });
    }
    for fixed in FIXED {
        let days = speeds_of_days(&run, OURS).zip(speeds_of_days(&run, fixed));
        put(result, &format!("whole day: {OURS} ÷ {fixed}"), Paired::of(days), odd.clone())?;
    }
    Ok(Some(chart(result, &run, groups)))
}

/// The speed of a policy on each day: the geometric mean of its phases.
fn speeds_of_days<'a>(run: &'a Run, policy: &'a str) -> impl Iterator<Item = f64> + 'a {
    let phases = move || run.rows.iter().filter(move |row| row.policy == policy);
    let days = phases().map(|row| row.rounds.len()).min().unwrap_or(0);
    (0..days).map(move |day| {
        let logs = phases().map(|row| row.rounds[day].throughput().ln());
        (logs.sum::<f64>() / phases().count() as f64).exp()
    })
}

fn bar(row: &Row) -> Bar {
    let thousands = row.median(|round| round.requests_per_second() / 1e3);
    Bar { label: row.policy.clone(), parts: vec![thousands], text: units::figure(thousands) }
}

fn chart(result: &FigureResult, run: &Run, groups: Vec<BarGroup>) -> String {
    let device = run.devices.first().map_or("", |device| &device.name);
    Bars {
        title: format!("A mixed day on {device}: requests per second in each phase"),
        subtitle: subtitle(result, "medians of days"),
        axis_label: "Requests (1000 per second)".into(),
        parts: vec!["requests".into()],
        groups,
    }
    .svg()
}
