// SPDX-License-Identifier: MIT OR Apache-2.0
//! S6: thresholds of the utilisation by others, under loads from none to ten CPU stressors.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use dwell::DeviceClass;
use dwell::monitor::{Config, SystemMonitor};

use super::lab::{both, cpu_text, put, skip, subtitle, unless_class};
use super::{Lab, Progress, window};
use crate::figure::FigureResult;
use dwell_bench::chart::{Axis, Lines, Look, Point, Scale, Series};
use dwell_bench::entrant::Entrant;
use dwell_bench::loads::Loads;
use dwell_bench::result::{Load, Metric, Requests, Row, Setting, pair, pair_by};
use dwell_bench::run::{Course, race};
use dwell_bench::stand::Kind;
use dwell_bench::stats::Paired;
use dwell_bench::subject::Subject;

const THRESHOLDS: [f32; 4] = [0.25, 0.5, 0.75, 1.0];
const LOADS: [usize; 4] = [0, 1, 2, 10];
/// So long a load runs before anything is measured beside it.
const SETTLE: Duration = Duration::from_millis(300);

fn name(stressors: usize) -> String {
    match stressors {
        0 => "idle".into(),
        1 => "1 CPU stressor".into(),
        n => format!("{n} CPU stressors"),
    }
}

fn of_throughput(stressors: usize) -> String {
    format!("{}: default threshold ÷ best tried", name(stressors))
}

fn of_progress(stressors: usize) -> String {
    format!("{}: their CPU time, smartcon ÷ block", name(stressors))
}

const TOTAL: &str = "idle: total utilisation as the signal ÷ default";

/// S6.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    window::measure(lab, result, progress)?;
    let subject = match lab.subject(Kind::Loop)? {
        Ok(subject) => subject,
        Err(why) => {
            let mut cases: Vec<String> = LOADS.map(of_throughput).into();
            cases.extend(LOADS[1..].iter().map(|&n| of_progress(n)));
            cases.push(TOTAL.into());
            return skip(result, &cases, &why).map(|()| None);
        }
    };
    let odd = unless_class(&subject, DeviceClass::Fast);
    let mut curves = Vec::new();
    for (i, stressors) in LOADS.into_iter().enumerate() {
        let from = 0.4 + 0.15 * i as f64;
        let rows = under(lab, &subject, stressors, &mut |what, share| {
            progress(what, from + 0.15 * share);
        })?;
        let [block, default, total, tried @ ..] = &rows[..] else {
            anyhow::bail!("a contender is missing")
        };
        let throughput = |row: &&Row| row.median(|round| round.throughput());
        let best = tried.iter().max_by(|a, b| throughput(a).total_cmp(&throughput(b)));
        let ratio = best.and_then(|best| pair(default, best, Metric::Throughput));
        let which = best.map(|best| format!("best: {}", best.policy));
        let cpu = best.and_then(|best| cpu_text(default, best));
        put(result, &of_throughput(stressors), ratio, both(odd.clone(), both(which, cpu)))?;
        if stressors == 0 {
            put(result, TOTAL, pair(total, default, Metric::Throughput), odd.clone())?;
        } else {
            put(result, &of_progress(stressors), progress_ratio(default, block), odd.clone())?;
        }
        curves.push((name(stressors), tried.to_vec()));
    }
    Ok(Some(chart(result, &curves)))
}

/// CPU time that the CPU stressors got beside `ours` against that beside `base`.
fn progress_ratio(ours: &Row, base: &Row) -> Option<Paired> {
    pair_by(ours, base, |round| round.stressor_ns as f64 / round.wall_ns as f64)
}

/// Rows of block, of smartcon with its default threshold and with the literal signal, and of
/// smartcon with each threshold, beside so many CPU stressors.
fn under(
    lab: &Lab,
    subject: &Subject,
    stressors: usize,
    progress: &mut Progress<'_>,
) -> Result<Vec<Row>> {
    let mut running = Loads::stressors(stressors, &lab.hidden)?;
    std::thread::sleep(SETTLE);
    let mut entrants = ["block", "smartcon", "smartcon:signal=total"]
        .map(|name| Entrant::open(name, subject, &lab.monitor))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    for threshold in THRESHOLDS {
        // The threshold also bounds the spinner limit, so it belongs to the monitor.
        let config = Config { threshold: Some(threshold), ..Config::default() };
        let monitor = Arc::new(SystemMonitor::start(config)?);
        let mut entrant = Entrant::open("smartcon", subject, &monitor)?;
        entrant.name = format!("threshold {threshold}");
        entrants.push(entrant);
    }
    let load = if stressors == 0 { Load::Idle } else { Load::Cpu };
    let setting = Setting::new(subject, load, Requests::random_reads());
    // Beside others a batch must hold many time slices.
    let batch = lab.span(if stressors == 0 { 100 } else { 200 });
    let course =
        Course { subject, setting: &setting, size_bytes: 4096, rounds: lab.times(5), batch };
    let all = (entrants.len() * course.rounds) as f64;
    let mut done = 0.0;
    race(&mut entrants, &course, Some(&mut running), &mut |what| {
        progress(&format!("{}: {what}", name(stressors)), done / all);
        done += 1.0;
    })
}

fn chart(result: &FigureResult, curves: &[(String, Vec<Row>)]) -> String {
    let looks = Look::of_all(curves.iter().map(|(name, _)| name.as_str()));
    let point = |(threshold, row): (f32, &Row)| {
        let summary = row.summary(|round| round.requests_per_second() / 1e3)?;
        let (low, high) = (summary.min, summary.max);
        Some(Point { x: threshold.into(), y: summary.median, low, high, stroke: None })
    };
    let series: Vec<Series> = curves
        .iter()
        .zip(looks)
        .map(|((name, rows), (_, look))| Series {
            name: name.clone(),
            look,
            points: THRESHOLDS.into_iter().zip(rows).filter_map(point).collect(),
        })
        .collect();
    let values = series.iter().flat_map(|s| &s.points).map(|p| p.high);
    Lines {
        title: "smartcon by CPU threshold, loop on tmpfs, 4 KiB".into(),
        subtitle: subtitle(result, "medians, bars: slowest to fastest round"),
        x: Axis {
            label: "CPU threshold (share of all CPUs used by others)".into(),
            scale: Scale::Linear,
            range: (0.15, 1.1),
            ticks: THRESHOLDS.map(|t| (t.into(), t.to_string())).into(),
        },
        y: Axis::covering("Requests (1000 per second)", Scale::Linear, values),
        series,
        marks: vec![],
    }
    .svg()
}
