// SPDX-License-Identifier: MIT OR Apache-2.0
//! S8: what spinning costs the CPU, by request size.

use anyhow::Result;

use super::lab::{both, put, subtitle};
use super::sampled::{CPU, enter, step, width};
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::chart::{Bar, BarGroup, Bars};
use dwell_bench::result::{Load, Row};
use dwell_bench::stand::Kind;
use dwell_bench::trial::Question;
use dwell_bench::units;

const SIZES_KIB: [u64; 6] = [4, 16, 64, 128, 256, 512];

/// S8.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let Some((subject, odd)) = lab.fast_loop(result, progress)? else { return Ok(None) };
    let mut groups = Vec::new();
    for (at, kib) in SIZES_KIB.into_iter().enumerate() {
        let cost = format!("{kib} KiB: CPU per request, spin ÷ block");
        let iowait = format!("{kib} KiB: iowait in the CPU time of block");
        let width = width(result, &cost, Load::Idle);
        let question = lab.question((Kind::Loop, &subject), &["spin"], width);
        let question = Question { size_bytes: kib << 10, numbers: &[CPU], ..question };
        let mut step = step(progress, &cost, at, SIZES_KIB.len());
        let cases = [&cost, &iowait];
        let asked = lab.sample(result, &cases, || lab.ask(&question, &lab.means(), &mut step))?;
        let Some(asked) = asked else { continue };
        enter(result, &cost, &asked.sampled, (2, 0, 0), odd.clone())?;
        let [block, _, spin] = &asked.rows[..] else { anyhow::bail!("a contender is missing") };
        let whose = "iowait of the whole machine, all parts together".to_owned();
        put(result, &iowait, iowait_percent(block), both(odd.clone(), Some(whose)))?;
        groups
            .push(BarGroup { label: units::bytes(kib << 10), bars: [block, spin].map(bar).into() });
        lab.keep(result)?;
    }
    // A figure that goes on after a stop has its rows, but not how their time was spent.
    if groups.len() < SIZES_KIB.len() {
        return Ok(None);
    }
    let chart = Bars {
        title: "CPU use of blocking and of spinning, loop on tmpfs".into(),
        subtitle: subtitle(result, "medians of parts, random reads"),
        axis_label: "Time (% of one CPU)".into(),
        parts: ["user and kernel", "iowait", "spinning"].map(String::from).into(),
        groups,
    };
    Ok(Some(chart.svg()))
}

/// Sum of a quantity over all rounds of a row.
fn sum(row: &Row, quantity: impl Fn(&dwell_bench::result::RoundResult) -> u64) -> f64 {
    row.rounds.iter().map(quantity).sum::<u64>() as f64
}

/// Share of waiting for storage in what the kernel books on the CPUs for a row, in percent. The
/// rounds together: one alone is too short for steps of 10 ms.
fn iowait_percent(row: &Row) -> Option<Measured> {
    let iowait_ns = sum(row, |round| round.iowait_ns);
    let used_ns = sum(row, |round| round.user_ns + round.system_ns);
    let share = iowait_ns * 100.0 / (iowait_ns + used_ns);
    share.is_finite().then(|| Measured::exact(share))
}

fn bar(row: &Row) -> Bar {
    let split = row.cpu_split();
    let iowait = sum(row, |round| round.iowait_ns) / sum(row, |round| round.wall_ns);
    let parts = [split.user + split.system, iowait, split.spin].map(|share| share * 100.0);
    let text = parts.map(|part| format!("{part:.0}")).join(" / ") + " %";
    Bar { label: row.policy.clone(), parts: parts.into(), text }
}
