// SPDX-License-Identifier: MIT OR Apache-2.0
//! S12: how often the reader blocks, of its own will and not, beside every load; and beside
//! a CPU load, whether it is the kernel's worker that takes the CPU.

use anyhow::Result;
use dwell::DeviceClass;

use super::lab::{both, load_name, put, row, skip, skip_all, subtitle, unless_class};
use super::sums::Rate;
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::chart::{Bar, BarGroup, Bars};
use dwell_bench::result::{Load, Pattern, RoundResult, Row};
use dwell_bench::stand::Kind;
use dwell_bench::units;

const SIZE_BYTES: u64 = 4096;
/// Fewer switches per 1000 requests than this are no base for a ratio.
const LEAST_PER_THOUSAND: f64 = 1.0;
const LOADS: [Load; 3] = [Load::Idle, Load::Cpu, Load::Io];
/// Parts of the whole: the loads, and devices with a worker and without.
const STEPS: f64 = 5.0;
/// Counts one kind of switch.
type Count = fn(&RoundResult) -> u64;
const KINDS: [(&str, Count); 2] = [
    ("voluntary", |round| round.voluntary_switches),
    ("involuntary", |round| round.involuntary_switches),
];

/// S12.
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
    let mut groups = Vec::new();
    for (i, load) in LOADS.into_iter().enumerate() {
        let full = if load == Load::Idle { (21, 200) } else { (21, 600) };
        let mut plan = lab.plan(&["block", "smartcon"], &[SIZE_BYTES], full);
        plan.patterns = vec![Pattern::Seq];
        plan.loads = vec![load];
        let part = (i as f64 / STEPS, (i as f64 + 1.0) / STEPS);
        let run = lab.run(&plan, std::slice::from_ref(&subject), part, progress)?;
        let block = row(&run, Kind::Loop, SIZE_BYTES, "block")?;
        let ours = row(&run, Kind::Loop, SIZE_BYTES, "smartcon")?;
        for (kind, switches) in KINDS {
            let counts = [block, ours].map(|row| per_thousand(row, switches));
            let figures = counts.map(units::figure);
            let note = format!("per 1000 requests: block {}, smartcon {}", figures[0], figures[1]);
            // Rounds without any switch are no exception, so all rounds are taken together. A ratio
            // to next to nothing says nothing.
            let ratio = rate(switches).ratio(ours, block);
            let ratio = ratio.filter(|_| counts[0] >= LEAST_PER_THOUSAND);
            let case = format!("{}: {kind}", load_name(load));
            put(result, &case, ratio, both(odd.clone(), Some(note)))?;
        }
        let bars = [block, ours].map(bar).into();
        groups.push(BarGroup { label: load_name(load).into(), bars });
    }
    // A loop device's worker needs a CPU too, and takes the spinner's; an emulated device has none.
    for (i, kind) in [Kind::Loop, Kind::Emulated].into_iter().enumerate() {
        let (load, at) = (Load::Cpu, LOADS.len() + i);
        let case = format!("{}, spin: involuntary, {}", load_name(load), kind.as_str());
        let subject = match lab.subject(kind)? {
            Ok(subject) => subject,
            Err(why) => {
                skip(result, &[&case], &why)?;
                continue;
            }
        };
        let mut plan = lab.plan(&["block", "spin"], &[SIZE_BYTES], (21, 600));
        plan.patterns = vec![Pattern::Seq];
        plan.loads = vec![load];
        let part = (at as f64 / STEPS, (at as f64 + 1.0) / STEPS);
        let run = lab.run(&plan, std::slice::from_ref(&subject), part, progress)?;
        let spin = row(&run, kind, SIZE_BYTES, "spin")?;
        let per_request = rate(|round| round.involuntary_switches).of(spin);
        let per_thousand = per_request.map(|Measured { value, low, high }| {
            let [value, low, high] = [value, low, high].map(|rate| rate * 1000.0);
            Measured { value, low, high }
        });
        put(result, &case, per_thousand, None)?;
    }
    let chart = Bars {
        title: "Context switches of a sequential reader, loop on tmpfs, 4 KiB".into(),
        subtitle: subtitle(result, "all rounds together"),
        axis_label: "Switches (per 1000 requests)".into(),
        parts: KINDS.map(|(kind, _)| kind.to_owned()).into(),
        groups,
    };
    Ok(Some(chart.svg()))
}

/// Switches per request.
fn rate(switches: Count) -> Rate<impl Fn(&RoundResult) -> f64, impl Fn(&RoundResult) -> f64> {
    Rate {
        quantity: move |round: &RoundResult| switches(round) as f64,
        per: |round: &RoundResult| round.requests as f64,
    }
}

fn per_thousand(row: &Row, switches: Count) -> f64 {
    let requests = row.rounds.iter().map(|round| round.requests).sum::<u64>();
    row.rounds.iter().map(switches).sum::<u64>() as f64 * 1000.0 / requests as f64
}

fn bar(row: &Row) -> Bar {
    let parts = KINDS.map(|(_, switches)| per_thousand(row, switches));
    let text = parts.map(units::figure).join(" / ");
    Bar { label: row.policy.clone(), parts: parts.into(), text }
}
