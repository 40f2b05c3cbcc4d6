// SPDX-License-Identifier: MIT OR Apache-2.0
//! S12: how often the reader leaves the CPU, of its own will and not, beside every load.

use anyhow::Result;
use dwell::DeviceClass;

use super::lab::{both, load_name, put, row, skip_all, subtitle, unless_class};
use super::{Lab, Progress};
use crate::chart::{Bar, BarGroup, Bars};
use crate::figure::{FigureResult, Measured};
use crate::result::{Load, Pattern, RoundResult, Row};
use crate::stand::Kind;
use crate::units;

const SIZE_BYTES: u64 = 4096;
/// Fewer switches per 1000 requests than this are no base for a ratio.
const LEAST_PER_THOUSAND: f64 = 1.0;
const LOADS: [Load; 3] = [Load::Idle, Load::Cpu, Load::Io];
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
        let part = (i as f64 / 3.0, (i as f64 + 1.0) / 3.0);
        let run = lab.run(&plan, std::slice::from_ref(&subject), part, progress)?;
        let block = row(&run, Kind::Loop, SIZE_BYTES, "block")?;
        let ours = row(&run, Kind::Loop, SIZE_BYTES, "smartcon")?;
        for (kind, switches) in KINDS {
            let [base, ours] = [block, ours].map(|row| per_thousand(row, switches));
            let figures = [base, ours].map(units::figure);
            let note = format!("per 1000 requests: block {}, smartcon {}", figures[0], figures[1]);
            // Rounds without any switch are no exception, so all rounds are taken together. A ratio to
            // next to nothing says nothing.
            let ratio = (base >= LEAST_PER_THOUSAND).then_some(ours / base);
            let case = format!("{}: {kind}", load_name(load));
            put(result, &case, ratio.map(Measured::exact), both(odd.clone(), Some(note)))?;
        }
        let bars = [block, ours].map(bar).into();
        groups.push(BarGroup { label: load_name(load).into(), bars });
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

fn per_thousand(row: &Row, switches: Count) -> f64 {
    let requests = row.rounds.iter().map(|round| round.requests).sum::<u64>();
    row.rounds.iter().map(switches).sum::<u64>() as f64 * 1000.0 / requests as f64
}

fn bar(row: &Row) -> Bar {
    let parts = KINDS.map(|(_, switches)| per_thousand(row, switches));
    let text = parts.map(units::figure).join(" / ");
    Bar { label: row.policy.clone(), parts: parts.into(), text }
}
