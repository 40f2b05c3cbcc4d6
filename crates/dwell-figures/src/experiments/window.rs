// SPDX-License-Identifier: MIT OR Apache-2.0
//! S6: how noisy and how late the signal is by the length of the window, and what reading it costs.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::Result;
use dwell::clock;
use dwell::monitor::{Config, LoadReader, SystemMonitor};

use super::lab::{put, skip};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::loads::Loads;
use dwell_bench::stats::Summary;

const WINDOWS_MS: [u32; 5] = [50, 100, 200, 500, 1000];
/// A load that was started is seen by then, or not at all.
const PATIENCE: Duration = Duration::from_secs(5);

fn noise(window_ms: u32) -> String {
    format!("window of {window_ms} ms: noise of the signal")
}

fn delay(window_ms: u32) -> String {
    format!("window of {window_ms} ms: a started load is seen after")
}

/// Fills the cases about windows and about reading the load.
pub fn measure(lab: &Lab, result: &mut FigureResult, progress: &mut Progress<'_>) -> Result<()> {
    progress("reading the load", 0.0);
    put(result, "reading the load", Summary::of(reading(lab)), None)?;

    // Long windows take long to tell anything.
    let longest_ms = if lab.is_hasty() { 200 } else { 1000 };
    let (windows_ms, left_out): (Vec<u32>, Vec<u32>) =
        WINDOWS_MS.into_iter().partition(|&window_ms| window_ms <= longest_ms);
    for window_ms in left_out {
        skip(result, &[noise(window_ms), delay(window_ms)], "left out: too little time")?;
    }
    let start = |window_ms: u32| {
        let window = Duration::from_millis(window_ms.into());
        SystemMonitor::start(Config { window, ..Config::default() })
    };
    let monitors = windows_ms.iter().copied().map(start).collect::<std::io::Result<Vec<_>>>()?;
    let readers: Vec<LoadReader> = monitors.iter().map(SystemMonitor::reader).collect();
    progress("noise of the signal beside one CPU stressor", 0.02);
    for (&window_ms, values) in windows_ms.iter().zip(steady(lab, &windows_ms, &readers)?) {
        let mean = values.iter().sum::<f64>() / values.len().max(1) as f64;
        let what = format!("standard deviation of {} windows; mean {mean:.0} %", values.len());
        put(result, &noise(window_ms), deviation(&values).map(Exact), Some(what))?;
    }
    let mut seen_ms = vec![Vec::new(); windows_ms.len()];
    let times = if lab.is_thorough() { lab.times(5) } else { 1 };
    for time in 0..times {
        progress("until a started load is seen", 0.2 + 0.2 * time as f64 / times as f64);
        for (all, ms) in seen_ms.iter_mut().zip(until_seen(lab, &readers)?) {
            all.extend(ms);
        }
    }
    for (&window_ms, all) in windows_ms.iter().zip(seen_ms) {
        match Summary::of(all) {
            Some(ms) => result.measured(&delay(window_ms), ms)?,
            None => result.note(&delay(window_ms), "others were above the threshold all along")?,
        }
    }
    Ok(())
}

/// A value without spread.
struct Exact(f64);

impl From<Exact> for crate::figure::Measured {
    fn from(exact: Exact) -> Self {
        Self::exact(exact.0)
    }
}

/// Nanoseconds to read the load, by batch.
fn reading(lab: &Lab) -> Vec<f64> {
    const READS: u32 = 100_000;
    let reader = lab.monitor.reader();
    let batch = |_| {
        let started = clock::now();
        (0..READS).for_each(|_| {
            black_box(reader.load());
        });
        (clock::now() - started) as f64 / f64::from(READS)
    };
    (0..lab.times(101)).map(batch).collect()
}

/// What each window says of the others' share under a steady load, in percent.
fn steady(lab: &Lab, windows_ms: &[u32], readers: &[LoadReader]) -> Result<Vec<Vec<f64>>> {
    let mut stressor = Loads::stressors(1, &lab.hidden)?;
    let longest = Duration::from_millis(windows_ms[windows_ms.len() - 1].into());
    // The first windows also hold the time before; the longest needs two of its own.
    let from = Instant::now() + if lab.is_thorough() { longest * 2 } else { longest };
    let until = from + lab.span(12_000).max(longest * 2);
    let mut next = vec![from; windows_ms.len()];
    let mut values = vec![Vec::new(); readers.len()];
    while Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
        for (i, reader) in readers.iter().enumerate() {
            // A monitor without requests would doze.
            reader.note_request();
            if Instant::now() >= next[i] {
                values[i].push(f64::from(reader.load().others()) * 100.0);
                next[i] += Duration::from_millis(windows_ms[i].into());
            }
        }
    }
    stressor.check()?;
    Ok(values)
}

/// Sample standard deviation.
fn deviation(values: &[f64]) -> Option<f64> {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let squares = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>();
    (values.len() > 1).then(|| (squares / (n - 1.0)).sqrt())
}

/// Milliseconds from the start of a load that fills all CPUs until each monitor puts the others
/// above its threshold; none for one that does so before.
fn until_seen(lab: &Lab, readers: &[LoadReader]) -> Result<Vec<Option<f64>>> {
    let patience = if lab.is_hasty() { PATIENCE / 10 } else { PATIENCE };
    let quiet = Instant::now() + patience;
    let asked = |is_so: &mut dyn FnMut(usize, &LoadReader) -> bool| {
        readers.iter().enumerate().fold(true, |all, (i, reader)| {
            reader.note_request();
            is_so(i, reader) && all
        })
    };
    while Instant::now() < quiet && !asked(&mut |_, reader| !reader.load().others_above()) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let above_before: Vec<bool> = readers.iter().map(|r| r.load().others_above()).collect();
    let mut stressors = Loads::stressors(lab.cpus() * 2, &lab.hidden)?;
    let started = Instant::now();
    let mut seen: Vec<Option<f64>> = vec![None; readers.len()];
    loop {
        let all = asked(&mut |i, reader| {
            if seen[i].is_none() && reader.load().others_above() {
                seen[i] = Some(started.elapsed().as_secs_f64() * 1e3);
            }
            seen[i].is_some()
        });
        if all || started.elapsed() > patience {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    stressors.check()?;
    let fresh = |(seen, before): (Option<f64>, bool)| seen.filter(|_| !before);
    Ok(seen.into_iter().zip(above_before).map(fresh).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviation_of_known_values() {
        assert_eq!(
            deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]),
            Some((32.0f64 / 7.0).sqrt())
        );
        assert_eq!(deviation(&[1.0]), None);
        assert_eq!(deviation(&[]), None);
    }
}
