// SPDX-License-Identifier: MIT OR Apache-2.0
//! S11: the papers' main workload, a file read from end to end, on every device beside every load.

use anyhow::Result;
use dwell::DeviceClass;

use super::lab::{both, cpu_text, load_name, put, ratio_text, row, skip, subtitle, unless_class};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::chart::{self, Axis, Lines, Look, Mark, Point, Scale, Series};
use dwell_bench::loads;
use dwell_bench::result::{Load, Metric, Pattern, pair};
use dwell_bench::stand::Kind;
use dwell_bench::stats::Paired;
use dwell_bench::subject::Subject;

const SIZES_KIB: [u64; 5] = [4, 16, 64, 128, 256];
const LOADS: [Load; 3] = [Load::Idle, Load::Cpu, Load::Io];

fn case(kind: Kind, load: Load, kib: u64) -> String {
    format!("{}, {}, {kib} KiB", kind.as_str(), load_name(load))
}

/// The class that the probe is expected to find.
const fn class(kind: Kind) -> DeviceClass {
    match kind {
        Kind::Loop | Kind::Emulated => DeviceClass::Fast,
        Kind::Zram => DeviceClass::VeryFast,
        Kind::Disk => DeviceClass::Mainstream,
    }
}

/// Ratios by size in KiB, of one load.
type Curve = (Load, Vec<(u64, Paired)>);

/// S11.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let mut charts = Vec::new();
    let parts = (Kind::ALL.len() * LOADS.len()) as f64;
    for (i, kind) in Kind::ALL.into_iter().enumerate() {
        progress("making a test device", (i * LOADS.len()) as f64 / parts);
        let subject = match lab.subject(kind)? {
            Ok(subject) => subject,
            Err(why) => {
                for load in LOADS {
                    skip(result, &SIZES_KIB.map(|kib| case(kind, load, kib)), &why)?;
                }
                continue;
            }
        };
        let mut curves = Vec::new();
        for (j, load) in LOADS.into_iter().enumerate() {
            let part = (i * LOADS.len() + j) as f64;
            let part = (part / parts, (part + 1.0) / parts);
            curves.push((load, beside(lab, result, (kind, &subject), load, part, progress)?));
        }
        charts.push(chart(result, &subject, &curves));
    }
    Ok((!charts.is_empty()).then(|| chart::stacked(&charts)))
}

/// One device beside one load: fills its cases and returns what could be measured.
fn beside(
    lab: &Lab,
    result: &mut FigureResult,
    (kind, subject): (Kind, &Subject),
    load: Load,
    part: (f64, f64),
    progress: &mut Progress<'_>,
) -> Result<Vec<(u64, Paired)>> {
    if let Some(why) = loads::unfit(load, subject) {
        skip(result, &SIZES_KIB.map(|kib| case(kind, load, kib)), &why)?;
        return Ok(vec![]);
    }
    let (sizes_kib, left_out): (Vec<u64>, Vec<u64>) =
        SIZES_KIB.into_iter().partition(|kib| !lab.is_hasty() || *kib == SIZES_KIB[0]);
    for kib in left_out {
        skip(result, &[case(kind, load, kib)], "left out: too little time")?;
    }
    // What always spinning would do is told where smartcon is held to a target.
    let contrast = kind == Kind::Loop && load == Load::Io;
    let contenders =
        if contrast { &["block", "smartcon", "spin"][..] } else { &["block", "smartcon"] };
    let sizes: Vec<u64> = sizes_kib.iter().map(|kib| kib << 10).collect();
    // Beside others a batch must hold many time slices.
    let full = if load == Load::Idle { (15, 100) } else { (11, 400) };
    let mut plan = lab.plan(contenders, &sizes, full);
    plan.patterns = vec![Pattern::Seq];
    plan.loads = vec![load];
    let run = lab.run(&plan, std::slice::from_ref(subject), part, progress)?;
    let mut curve = Vec::new();
    for kib in sizes_kib {
        let of = |policy| row(&run, kind, kib << 10, policy);
        let (ours, block) = (of("smartcon")?, of("block")?);
        let ratio = pair(ours, block, Metric::Throughput);
        let spin = match contrast {
            true => pair(of("spin")?, block, Metric::Throughput),
            false => None,
        };
        let spin = spin.map(|spin| format!("always spinning ÷ block: {}", ratio_text(&spin)));
        let remark = both(unless_class(subject, class(kind)), both(cpu_text(ours, block), spin));
        put(result, &case(kind, load, kib), ratio, remark)?;
        curve.extend(ratio.map(|ratio| (kib, ratio)));
    }
    Ok(curve)
}

fn chart(result: &FigureResult, subject: &Subject, curves: &[Curve]) -> String {
    let looks = Look::of_all(curves.iter().map(|(load, _)| load_name(*load)));
    let point = |(kib, ratio): &(u64, Paired)| Point {
        x: (kib << 10) as f64,
        y: ratio.median,
        low: ratio.low,
        high: ratio.high,
        stroke: None,
    };
    let series: Vec<Series> = curves
        .iter()
        .zip(looks)
        .filter(|((_, points), _)| !points.is_empty())
        .map(|((_, points), (name, look))| Series {
            name: name.into(),
            look,
            points: points.iter().map(point).collect(),
        })
        .collect();
    let values = series.iter().flat_map(|s| &s.points).flat_map(|p| [p.low, p.high]);
    Lines {
        title: format!("Sequential read, {}: smartcon ÷ block", subject.name),
        subtitle: subtitle(result, "medians, bars: 95 % intervals"),
        x: Axis::sizes("Request size", SIZES_KIB.map(|kib| kib << 10)),
        y: Axis::covering("Throughput ÷ block (×, log)", Scale::Log, values.chain([1.0])),
        series,
        marks: vec![Mark::Y(1.0, "as fast as block".into())],
    }
    .svg()
}
