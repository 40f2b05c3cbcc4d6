// SPDX-License-Identifier: MIT OR Apache-2.0
//! S19: spinning with and without the processor's spin hint.

use anyhow::Result;
use dwell::DeviceClass;

use super::lab::{put, row, skip_all, subtitle, unless_class};
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::chart::{Axis, Lines, Look, Point, Scale, Series};
use dwell_bench::result::{Metric, RoundResult, pair};
use dwell_bench::stand::Kind;
use dwell_bench::stats::Summary;

const SIZES_KIB: [u64; 2] = [4, 8];
const WITH: &str = "spin";
const WITHOUT: &str = "spin:pause=off";

/// S19.
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
    // Each batch is one window of the papers' monitor.
    let plan = lab.plan(&[WITH, WITHOUT], &SIZES_KIB.map(|kib| kib << 10), (100, 100));
    let run = lab.run(&plan, &[subject], (0.0, 1.0), progress)?;
    let mut series = Vec::new();
    for kib in SIZES_KIB {
        let with = row(&run, Kind::Loop, kib << 10, WITH)?;
        let without = row(&run, Kind::Loop, kib << 10, WITHOUT)?;
        let speed = pair(without, with, Metric::Throughput);
        put(result, &format!("{kib} KiB: speed"), speed, odd.clone())?;
        let cpu = pair(without, with, Metric::CpuPerRequest);
        put(result, &format!("{kib} KiB: CPU per request"), cpu, odd.clone())?;
        for (row, name) in [(with, "with PAUSE"), (without, "without PAUSE")] {
            let windows: Vec<f64> = row.rounds.iter().map(|r| used_percent(lab, r)).collect();
            // Between the quartiles lies half of all windows.
            let summary = Summary::of(windows.iter().copied());
            let spread = summary.map(|s| Measured::exact(s.upper_quartile - s.lower_quartile));
            let note = summary.map(|s| {
                let (count, median) = (s.count, s.median);
                format!("between quartiles of {count} windows, seen in steps of 10 ms; median {median:.0} %")
            });
            put(result, &format!("{kib} KiB: spread of CPU use, {name}"), spread, note)?;
            if kib == SIZES_KIB[0] {
                series.push((name.to_owned(), windows));
            }
        }
    }
    Ok(Some(chart(result, &series)))
}

/// CPU time that the whole machine used in a round, in percent of what its CPUs have.
fn used_percent(lab: &Lab, round: &RoundResult) -> f64 {
    let used_ns = round.user_ns + round.system_ns + round.other_cpu_ns;
    used_ns as f64 * 100.0 / (round.wall_ns as f64 * lab.cpus() as f64)
}

fn chart(result: &FigureResult, curves: &[(String, Vec<f64>)]) -> String {
    let looks = Look::of_all(curves.iter().map(|(name, _)| name.as_str()));
    let longest = curves.iter().map(|(_, windows)| windows.len()).max().unwrap_or(0) as f64;
    let point =
        |(i, &y): (usize, &f64)| Point { x: i as f64 + 1.0, y, low: y, high: y, stroke: None };
    let series: Vec<Series> = curves
        .iter()
        .zip(looks)
        .map(|((name, windows), (_, look))| Series {
            name: name.clone(),
            look,
            points: windows.iter().enumerate().map(point).collect(),
        })
        .collect();
    let values = series.iter().flat_map(|series| &series.points).map(|point| point.y);
    Lines {
        title: "CPU use of a spinning reader, loop on tmpfs, 4 KiB".into(),
        subtitle: subtitle(result, "windows of 100 ms, contenders in turn"),
        x: Axis::covering("Window", Scale::Linear, [longest]),
        y: Axis::covering("CPU use of the machine (% of its CPUs)", Scale::Linear, values),
        series,
        marks: vec![],
    }
    .svg()
}
