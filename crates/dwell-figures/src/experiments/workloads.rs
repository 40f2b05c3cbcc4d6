// SPDX-License-Identifier: MIT OR Apache-2.0
//! S14 and S15: servers, mail and block-wise reading, on files.

use anyhow::Result;

use super::lab::{cpu_text, put, skip};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::result::{Metric, RoundResult, Row, pair};
use dwell_bench::stand::Kind;
use dwell_bench::stats::Paired;
use dwell_bench::workload::spec::FileSystemKind;
use dwell_bench::workload::{Variant, race, shipped};

const KINDS: [Kind; 3] = [Kind::Loop, Kind::Zram, Kind::Disk];
const CONTENDERS: [&str; 2] = ["block", "smartcon"];

/// What of a workload is compared.
#[derive(Clone, Copy)]
enum Compared {
    Operations,
    Creations,
    Throughput,
}

impl Compared {
    fn of(self, ours: &Row, base: &Row) -> Option<Paired> {
        let creations = |round: &RoundResult| {
            let created = round.operations.get("create").copied().unwrap_or(0);
            created as f64 / round.wall_ns as f64
        };
        match self {
            Compared::Operations => pair(ours, base, Metric::Operations),
            Compared::Throughput => pair(ours, base, Metric::Throughput),
            Compared::Creations => {
                let rounds = ours.rounds.iter().zip(&base.rounds);
                Paired::of(rounds.map(|(o, b)| (creations(o), creations(b))))
            }
        }
    }
}

/// A workload, and the cases that it answers on each device: their names without the device.
struct Part {
    variant: Variant,
    cases: Vec<(String, Compared)>,
}

/// A shipped workload that has no lists.
fn plain(name: &str, case: &str, compared: Compared) -> Result<Part> {
    let variant = shipped(name)?.variants()?.remove(0);
    Ok(Part { variant, cases: vec![(case.into(), compared)] })
}

fn postmark(file_bytes: u64, read_bias: u32, cases: Vec<(String, Compared)>) -> Result<Part> {
    let mut file = shipped("postmark")?;
    file.set(&format!("file_bytes={file_bytes}"))?;
    file.set(&format!("read_bias={read_bias}"))?;
    Ok(Part { variant: file.variants()?.remove(0), cases })
}

/// S14.
pub fn servers(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let names = [
        "fileserver",
        "fileserver-light",
        "varmail",
        "varmail-light",
        "single-stream-read",
        "multi-stream-read",
    ];
    let mut parts = names
        .map(|name| plain(name, name, Compared::Operations))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let creations = |size: &str| (format!("postmark creations, {size}"), Compared::Creations);
    let biased = |bias| (format!("postmark, read bias {bias}"), Compared::Operations);
    parts.push(postmark(10_000, 0, vec![biased(0)])?);
    parts.push(postmark(10_000, 5, vec![biased(5), creations("files to 9.77 KiB")])?);
    parts.push(postmark(10_000, 10, vec![biased(10)])?);
    parts.push(postmark(32_768, 5, vec![creations("files to 32 KiB")])?);
    parts.push(postmark(131_072, 5, vec![creations("files to 128 KiB")])?);
    measure(lab, result, &parts, (7, 400), progress)
}

/// S15.
pub fn blocks(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let parts = [("bonnie-read", "read"), ("bonnie-rewrite", "rewrite"), ("bonnie-write", "write")]
        .map(|(name, case)| plain(name, case, Compared::Throughput))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    measure(lab, result, &parts, (21, 300), progress)
}

fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    parts: &[Part],
    full: (usize, u64),
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let plan = lab.workload_plan(&CONTENDERS, full);
    let total = (plan.steps(parts.len() * KINDS.len()) + KINDS.len() as u64) as f64;
    let mut done = 0.0;
    let mut step = |what: &str| {
        progress(what, done / total);
        done += 1.0;
    };
    for kind in KINDS {
        let named = |case: &str| format!("{case}, {}", kind.as_str());
        step(&format!("making and probing {}", kind.as_str()));
        let place = match lab.place(kind, FileSystemKind::Ext4)? {
            Ok(place) => place,
            Err(why) => {
                let cases = parts.iter().flat_map(|part| &part.cases);
                let cases: Vec<String> = cases.map(|(case, _)| named(case)).collect();
                skip(result, &cases, &why)?;
                (0..plan.steps(parts.len())).for_each(|_| step(&why));
                continue;
            }
        };
        let class = place.parameters.profile.map(|profile| profile.class.to_string());
        for part in parts {
            let rows = race(&plan, &part.variant, &place, &lab.monitor, &mut step)?;
            let [base, ours] = &rows[..] else { anyhow::bail!("a contender is missing") };
            for (case, compared) in &part.cases {
                let workload = ours.setting.workload();
                let scale = workload.rsplit(", ").next().filter(|end| end.starts_with("scale"));
                let cpu = cpu_text(ours, base);
                let remark = [class.as_deref(), scale, cpu.as_deref()].into_iter().flatten();
                let remark = remark.collect::<Vec<_>>().join(", ");
                put(result, &named(case), compared.of(ours, base), Some(remark))?;
            }
        }
    }
    Ok(None)
}
