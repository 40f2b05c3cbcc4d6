// SPDX-License-Identifier: MIT OR Apache-2.0
//! S18: what readers beside the measurement leave of its caches, when it gives the CPU away and
//! when it keeps it.

use anyhow::Result;
use dwell::DeviceClass;

use super::lab::{both, cpu_text, skip, skip_all, unless_class};
use super::sampled::{THROUGHPUT, enter, step, width};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::counters::Counters;
use dwell_bench::result::Load;
use dwell_bench::stand::Kind;
use dwell_bench::trial::{Number, Question};

const SIZES_KIB: [u64; 4] = [4, 16, 128, 512];

/// What misses, in the words of the cases and of [`dwell_bench::counters`].
const EVENTS: [(&str, &str); 5] = [
    ("iTLB", "itlb_misses"),
    ("dTLB", "dtlb_misses"),
    ("L1D", "l1d_read_misses"),
    ("L1I", "l1i_misses"),
    ("last-level", "last_level_misses"),
];

/// S18.
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
    let (known, remark) = match Counters::open() {
        Ok(counters) => (counters.names(), counters.remark().map(str::to_owned)),
        Err(why) => (Vec::new(), Some(why.to_string())),
    };
    let (there, lacking): (Vec<_>, Vec<_>) =
        EVENTS.into_iter().partition(|(_, event)| known.contains(event));
    let counted = there.iter().map(|(_, event)| Number::Counter(event));
    let numbers: Vec<Number> = [THROUGHPUT].into_iter().chain(counted).collect();
    let load = Load::Readers;
    for (at, kib) in SIZES_KIB.into_iter().enumerate() {
        let misses = |(what, _): &(&str, &str)| format!("{kib} KiB: {what} misses per request");
        let none = remark.as_deref().unwrap_or("not supported: this processor does not count it");
        skip(result, &lacking.iter().map(misses).collect::<Vec<_>>(), none)?;
        let mut cases = vec![format!("{kib} KiB: throughput")];
        cases.extend(there.iter().map(misses));
        let width = width(result, &cases[0], load);
        let question = lab.question((Kind::Loop, &subject), &["smartcon"], width);
        let question = Question {
            size_bytes: kib << 10,
            load,
            numbers: &numbers,
            part: lab.part(Kind::Loop, load),
            ..question
        };
        let mut step = step(progress, &cases[0], at, SIZES_KIB.len());
        let asked = lab.sample(result, &cases, || lab.ask(&question, &lab.means(), &mut step))?;
        let Some(asked) = asked else { continue };
        for (number, case) in cases.iter().enumerate() {
            let cpu = || cpu_text(&asked.rows[2], &asked.rows[0]);
            let remark = if number > 0 { remark.clone() } else { cpu() };
            enter(result, case, &asked.sampled, (2, 0, number), both(odd.clone(), remark))?;
        }
        lab.keep(result)?;
    }
    Ok(None)
}
