// SPDX-License-Identifier: MIT OR Apache-2.0
//! G1: one fault of the pager, beside the device alone and the kernel's mapping.

use anyhow::{Context, Result};

use super::lab::{both, skip, skip_all, subtitle};
use super::pager::{cases_of, entry, file_bytes, missing, test_file};
use super::sampled::{self, step, width};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::chart::{DotRow, Dots, Panel};
use dwell_bench::pager::{
    DEVICE, DEVICE_BLOCK, Method, Order, PAGE_BYTES, Turns, Visits, Work, regions,
};
use dwell_bench::pairs::{self, Parts, Sampled};
use dwell_bench::result::{Load, RoundResult, Row};
use dwell_bench::stand::Kind;
use dwell_bench::stats::Middle;

/// G1.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    const THREADS: [(&str, &str); 3] = [
        ("region-thread-same", "thread on the same CPU"),
        ("region-thread-other", "thread on another CPU, asleep"),
        ("region-thread-spins", "thread on another CPU, spinning"),
    ];
    if let Err(why) = regions() {
        return skip_all(result, &why).map(|()| None);
    }
    let two = lab.cpus() > 1;
    const KINDS: [Kind; 3] = [Kind::Loop, Kind::Zram, Kind::Emulated];
    let mut devices = Vec::new();
    for (at, kind) in KINDS.into_iter().enumerate() {
        let name = kind.as_str();
        let cases = cases_of(result, name);
        if !lab.wants(result, &cases) {
            continue;
        }
        let bytes = file_bytes(lab);
        let test_file = match test_file(lab, kind, bytes)? {
            Ok(test_file) => test_file,
            Err(why) => {
                skip(result, &cases, &why)?;
                continue;
            }
        };
        let visits =
            if lab.is_hasty() { 200 } else { (test_file.bytes / PAGE_BYTES as u64).min(8000) };
        let visits = Visits { order: Order::Shuffled, visits, whole: false, turns: 0, timed: true };
        let mut methods = vec![INLINE, DEVICE, DEVICE_BLOCK];
        methods.extend(THREADS.iter().take_while(|_| two).map(|(method, _)| *method));
        methods.push("mmap-random");
        let entry = entry(lab, &test_file, Work::Visits(visits), &methods)?;
        let until =
            lab.until(width(result, &format!("{name}: inline ÷ the best thread"), Load::Idle));
        let mut turns = Turns::new(&entry, &lab.hidden);
        let methods: Vec<&Method> =
            entry.methods.iter().filter(|method| turns.can(method)).collect();
        let mut step = step(progress, &format!("{name}: faults"), at, KINDS.len());
        let faults = lab.sample(result, &cases, || {
            // The baseline's second self is the second contender.
            let method = |contender: usize| methods[contender.saturating_sub(1)];
            let mut made = vec![0; methods.len() + 1];
            let mut parts = Parts::new(methods.len() - 1, until, |contender| {
                made[contender] += 1;
                let round = turns.one(method(contender), made[contender])?;
                Ok((vec![round.p50_ns as f64], round))
            });
            let others = methods.len() - 1;
            let sampled = pairs::sample(others, until, &mut parts, &mut |share| step.show(share))?;
            let mut kept = std::mem::take(&mut parts.kept);
            // Its second self is the baseline once more.
            kept.remove(1);
            Ok(Ok((sampled, kept)))
        })?;
        let Some((sampled, kept)) = faults else { continue };
        let rows =
            methods.iter().zip(kept).map(|(method, rounds)| turns.row(method, rounds)).collect();
        let faults = Faults { name, sampled, rows };
        faults.enter(result, &THREADS)?;
        devices.push((name, faults.rows));
        lab.keep(result)?;
    }
    // A figure that goes on after a stop has its rows, but not the times of all ways.
    Ok((devices.len() == KINDS.len()).then(|| latencies(result, &devices)))
}

/// The way that the others are held against.
const INLINE: &str = "region-random";

/// What was sampled on one device, the rows in the order of their ways, [`INLINE`] first.
struct Faults<'a> {
    name: &'a str,
    sampled: Sampled,
    rows: Vec<Row>,
}

impl Faults<'_> {
    /// As the sampling knows a way, and its row.
    fn of(&self, method: &str) -> Option<(usize, &Row)> {
        let at = self.rows.iter().position(|row| row.policy == method)?;
        Some((if at == 0 { 0 } else { at + 1 }, &self.rows[at]))
    }

    fn us(round: &RoundResult) -> f64 {
        round.p50_ns as f64 / 1e3
    }

    /// The fastest of some ways.
    fn best<'w>(&self, methods: &[(&'w str, &'w str)]) -> Option<(&'w str, &'w str)> {
        let known = methods
            .iter()
            .filter_map(|method| Some((*method, self.of(method.0)?.1.median(Self::us))));
        known.min_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(method, _)| method)
    }

    fn case(&self, what: &str) -> String {
        format!("{}: {what}", self.name)
    }

    /// The time of a fault by one way, with the control of all.
    fn time(&self, result: &mut FigureResult, what: &str, method: &str) -> Result<()> {
        let case = self.case(what);
        if !result.rows.iter().any(|row| row.case == case) {
            return Ok(());
        }
        let Some((at, row)) = self.of(method) else {
            let why = if method.starts_with("mmap") { &missing() } else { "two CPUs are needed" };
            return skip(result, &[case], why);
        };
        let middle = Middle::of(row.rounds.iter().map(Self::us));
        match middle.zip(self.sampled.row(0, at, 0)) {
            Some((middle, (_, sampling))) => result.sampled(&case, middle, sampling),
            None => skip(result, &[case], "no turn gave a value"),
        }
    }

    fn enter(&self, result: &mut FigureResult, threads: &[(&str, &str)]) -> Result<()> {
        // Whichever wait mode is the shorter one.
        let waits = [(DEVICE, "spun for"), (DEVICE_BLOCK, "blocked for")];
        let (device, waited) = self.best(&waits).context("the device was not measured")?;
        self.time(result, "the device alone", device)?;
        self.time(result, "inline", INLINE)?;
        for (method, what) in threads {
            self.time(result, what, method)?;
        }
        self.time(result, "mmap", "mmap-random")?;
        let case = self.case("inline − the device alone");
        let rows = self.of(INLINE).zip(self.of(device));
        let ((_, inline), (at, alone)) = rows.context("the device was not measured")?;
        let turns = inline.rounds.iter().zip(&alone.rounds);
        let more = Middle::of(turns.map(|(inline, alone)| Self::us(inline) - Self::us(alone)));
        if let Some((more, (_, sampling))) = more.zip(self.sampled.row(0, at, 0)) {
            result.sampled(&case, more, sampling)?;
            let row = result.rows.iter().find(|row| row.case == case);
            let doubt = row.and_then(|row| row.note.clone());
            result.note(&case, &both(doubt, Some(waited.into())).unwrap_or_default())?;
        }
        let case = self.case("inline ÷ the best thread");
        match self.best(threads).and_then(|(method, what)| Some((self.of(method)?, what))) {
            Some(((at, _), what)) => {
                sampled::enter(result, &case, &self.sampled, (0, at, 0), Some(what.into()))
            }
            None => skip(result, &[case], "two CPUs are needed"),
        }
    }
}

/// Medians and 99th percentiles of a fault, a panel per device.
fn latencies(result: &FigureResult, devices: &[(&str, Vec<Row>)]) -> String {
    let panel = |(name, rows): &(&str, Vec<Row>)| {
        let dot = |row: &Row| {
            let us = |ns: u64| ns as f64 / 1e3;
            let median = row.summary(|round| us(round.p50_ns))?;
            let tail = row.median(|round| us(round.p99_ns));
            Some(DotRow {
                label: row.policy.clone(),
                measured: Some((median.median, median.min, median.max)),
                target: None,
                paper: None,
                text: format!("{:.1} µs, 99 %: {tail:.1} µs", median.median),
            })
        };
        Panel {
            axis_label: format!("One fault on {name} (µs, log)"),
            rows: rows.iter().filter_map(dot).collect(),
            mark: None,
        }
    };
    Dots {
        title: "Time of one fault on a page that is in no memory, random order".into(),
        subtitle: subtitle(result, "each page once"),
        dots: "median; bar: fastest to slowest turn".into(),
        panels: devices.iter().map(panel).collect(),
    }
    .svg()
}
