// SPDX-License-Identifier: MIT OR Apache-2.0
//! S1, S2 and A2: what a context switch costs by itself, and with a working set to reload.

use anyhow::Result;
use dwell::clock;
use dwell_host::probe::switch::{self, Access, RING_PROCESSES, WORKING_SETS};

use super::lab::{put, subtitle};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::chart::{Axis, Lines, Look, Point, Scale, Series};
use dwell_bench::stats::{Paired, Summary};
use dwell_bench::units;

/// Memory that is read for the cost of one uncached read: far more than any cache holds.
const UNCACHED_BYTES: usize = 256 << 20;
/// Working set of A2, in bytes.
const A2_BYTES: usize = 2 << 20;

/// Samples of one quantity at one place on the x axis, in microseconds.
type Samples = Vec<(f64, Vec<f64>)>;

fn us(ns: u64) -> f64 {
    ns as f64 / 1e3
}

/// S1.
pub fn direct(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    progress("laying out memory", 0.0);
    let bytes = if lab.is_hasty() { UNCACHED_BYTES / 16 } else { UNCACHED_BYTES };
    let memory = Access::Random.working_set(bytes);
    let huge = in_huge_pages(&memory);
    let reads = bytes as f64 / 64.0;
    let rounds = lab.times(21);
    let mut ring: Samples = RING_PROCESSES.map(|processes| (processes as f64, vec![])).into();
    let (mut own, mut read_ns) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        for (processes, samples) in &mut ring {
            progress(&format!("a ring of {processes} processes"), round as f64 / rounds as f64);
            samples.push(us(switch::direct(*processes as usize)?));
        }
        own.extend(switch::self_switch().map(us));
        let started = clock::now();
        std::hint::black_box(Access::Random.touch(&memory));
        read_ns.push((clock::now() - started) as f64 / reads);
    }
    for processes in [2, 20] {
        let samples = at(&ring, processes as f64);
        let case = format!("token round a ring of {processes} pipes, per switch");
        put(result, &case, Summary::of(samples.iter().copied()), None)?;
    }
    let case = "self switch: blocking with nothing else to run";
    let alone = own.is_empty().then(|| "needs two CPUs".to_owned());
    put(result, case, Summary::of(own), alone)?;
    let pages = if huge { "huge pages" } else { "ordinary pages: address translation included" };
    let within = format!("within {} in {pages}", units::bytes(bytes as u64));
    let read = Summary::of(read_ns.iter().copied());
    put(result, "one uncached memory read", read, Some(within))?;
    let ratio = Paired::of(at(&ring, 2.0).iter().map(|us| us * 1e3).zip(read_ns));
    put(result, "direct cost ÷ one uncached memory read", ratio, None)?;

    let ticks = RING_PROCESSES.map(|n| (n as f64, n.to_string())).into();
    let x = Axis {
        label: "Processes in the ring".into(),
        scale: Scale::Linear,
        range: (0.0, 22.0),
        ticks,
    };
    let series = [("ring of pipes".to_owned(), ring)];
    Ok(Some(chart(result, "Direct cost of a context switch", x, Scale::Linear, series.into())))
}

/// S2.
pub fn indirect(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let rounds = lab.times(15);
    let sets = if lab.is_hasty() { &WORKING_SETS[..3] } else { &WORKING_SETS[..] };
    let mut curve: Samples = sets.iter().map(|&bytes| (bytes as f64, vec![])).collect();
    for round in 0..rounds {
        for (place, &bytes) in sets.iter().enumerate() {
            let what = format!("a working set of {}", units::bytes(bytes as u64));
            progress(&what, round as f64 / rounds as f64);
            curve[place].1.push(us(switch::indirect(bytes)?));
        }
    }
    let summaries = curve
        .iter()
        .filter_map(|(bytes, samples)| Some((*bytes, Summary::of(samples.iter().copied())?)));
    let largest = summaries.max_by(|a, b| a.1.median.total_cmp(&b.1.median));
    let where_it_is = largest.map(|(bytes, _)| format!("at {}", units::bytes(bytes as u64)));
    let case = "largest over working sets of 32 KiB to 10 MiB";
    put(result, case, largest.map(|(_, summary)| summary), where_it_is)?;
    let series = vec![("summed from end to end".to_owned(), curve)];
    let x = Axis::sizes("Working set of each process", sets.iter().map(|&bytes| bytes as u64));
    Ok(Some(chart(result, "Context switch and reload", x, Scale::Log, series)))
}

/// A2.
pub fn working_set(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let rounds = lab.times(51);
    let [mut none, mut sequential] = [vec![], vec![]];
    for round in 0..rounds {
        progress("switches with and without a working set", round as f64 / rounds as f64);
        none.push(us(switch::direct(2)?));
        sequential.push(us(switch::indirect(A2_BYTES)?));
    }
    for (case, samples) in [("no working set", none), ("working set of 2 MiB", sequential)] {
        put(result, case, Summary::of(samples), None)?;
    }
    Ok(None)
}

/// Asks the kernel to put memory into huge pages, so that a read costs no walk of page tables;
/// whether it did.
fn in_huge_pages(memory: &[u64]) -> bool {
    const HUGE: usize = 2 << 20;
    let start = (memory.as_ptr() as usize).next_multiple_of(HUGE);
    let end = (memory.as_ptr_range().end as usize) & !(HUGE - 1);
    // SAFETY: the range lies within `memory`, and its content stays as it is.
    end > start && unsafe { libc::madvise(start as *mut _, end - start, libc::MADV_COLLAPSE) == 0 }
}

fn at(samples: &Samples, x: f64) -> &[f64] {
    samples.iter().find(|(place, _)| *place == x).map_or(&[], |(_, samples)| samples)
}

fn chart(
    result: &FigureResult,
    title: &str,
    x: Axis,
    y_scale: Scale,
    curves: Vec<(String, Samples)>,
) -> String {
    let looks = Look::of_all(curves.iter().map(|(name, _)| name.as_str()));
    let point = |(x, samples): &(f64, Vec<f64>)| {
        let summary = Summary::of(samples.iter().copied())?;
        let (low, high) = (summary.lower_quartile, summary.upper_quartile);
        Some(Point { x: *x, y: summary.median, low, high, stroke: None })
    };
    let series: Vec<Series> = curves
        .iter()
        .zip(looks)
        .map(|((name, samples), (_, look))| Series {
            name: name.clone(),
            look,
            points: samples.iter().filter_map(point).collect(),
        })
        .collect();
    let values = series.iter().flat_map(|s| &s.points).flat_map(|p| [p.y, p.low, p.high]);
    let log = if y_scale == Scale::Log { ", log" } else { "" };
    let y = Axis::covering(&format!("Time per switch (µs{log})"), y_scale, values);
    Lines {
        title: title.into(),
        subtitle: subtitle(result, "medians, bars: quartiles"),
        x,
        y,
        series,
        marks: vec![],
    }
    .svg()
}
