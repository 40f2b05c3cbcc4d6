// SPDX-License-Identifier: MIT OR Apache-2.0
//! S4: the size threshold that a probe finds, and what it costs to find it.

use std::sync::Arc;
use std::time::Instant;

use anyhow::Result;
use dwell::buffer::Aligned;
use dwell::parameters::DeviceParameters;
use dwell::policy::SmartCon;
use dwell::{DeviceClass, Mode};
use dwell_host::probe::Probe;
use dwell_host::profile::DeviceProfile;

use super::lab::{put, skip_all, subtitle};
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::contender::Contender;
use dwell_bench::report::{Curve, probe_curves};
use dwell_bench::result::Direction;
use dwell_bench::stand::Kind;
use dwell_bench::stats::Summary;
use dwell_bench::subject::Subject;

/// Requests whose decisions are counted.
const COUNTED: u64 = 256;

/// S4.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let subject = match lab.subject(Kind::Loop)? {
        Ok(subject) => subject,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    // A thorough probe also measures the switches; a short one takes them as known.
    let (times, probe) = match lab.is_thorough() {
        true => (3, Probe::new(&subject.address)),
        false => (1, lab.probing().of(&subject.address)),
    };
    let (mut profiles, mut seconds) = (Vec::new(), Vec::new());
    for time in 0..times {
        let started = Instant::now();
        let mut step =
            |what: &str, share: f64| progress(what, (time as f64 + share) / times as f64);
        profiles.push(probe.run(&mut step)?);
        seconds.push(started.elapsed().as_secs_f64());
    }
    let classes: Vec<&str> = profiles.iter().map(|p| p.decision.class.as_str()).collect();
    let is_fast = |profile: &&DeviceProfile| profile.decision.class == DeviceClass::Fast;
    let thresholds =
        profiles.iter().filter(is_fast).map(|p| p.decision.size_threshold_bytes as f64 / 1024.0);
    let kib =
        Summary::of(thresholds).map(|s| Measured { value: s.median, low: s.min, high: s.max });
    let because = profiles[0].notes.first().map_or(String::new(), |note| format!("; {note}"));
    let found = format!("probes in a row found it {}{because}", classes.join(", "));
    put(result, "size threshold of loop on tmpfs", kib, Some(found))?;
    let short = (!lab.is_thorough()).then(|| "a short probe with known switch costs".to_owned());
    put(result, "time that the probe takes", Summary::of(seconds), short)?;

    let cases = ["exactly the threshold: requests spun for", "one block more: requests spun for"];
    match profiles.iter().find(is_fast) {
        None => super::lab::skip(result, &cases, "no probe found the device fast in this run")?,
        Some(profile) => {
            let threshold = profile.decision.size_threshold_bytes;
            for (case, size) in cases.into_iter().zip([threshold, threshold + subject.block_bytes])
            {
                let spun = spun_percent(&subject, &profile.parameters(), size)?;
                put(result, case, Some(Measured::exact(spun)), Some(format!("{size} bytes")))?;
            }
        }
    }
    let profile = profiles.iter().find(is_fast).unwrap_or(&profiles[0]);
    Ok(Some(chart(result, profile)))
}

/// Share of requests of one size that smartcon spins for on an idle machine, in percent. No
/// monitor is asked: the size alone is to decide.
fn spun_percent(subject: &Subject, parameters: &DeviceParameters, size_bytes: u64) -> Result<f64> {
    let mut contender =
        Contender::under(Arc::new(SmartCon::default()), subject, *parameters, None)?;
    let mut buffer = Aligned::new(size_bytes as usize);
    for _ in 0..COUNTED {
        contender.request(Direction::Read, &mut buffer, 0)?;
    }
    let spun = contender
        .stats()
        .rows
        .iter()
        .filter(|row| row.mode == Mode::Spin)
        .fold(0, |sum, row| sum + row.requests);
    Ok(spun as f64 * 100.0 / COUNTED as f64)
}

fn chart(result: &FigureResult, profile: &DeviceProfile) -> String {
    let curve = |curve: &dwell_host::profile::Curve| Curve {
        mode: curve.mode.clone(),
        points: curve
            .points
            .iter()
            .map(|p| (p.size_bytes, p.median_ns as f64, p.p10_ns as f64, p.p90_ns as f64))
            .collect(),
    };
    let curves: Vec<Curve> = profile.curves.iter().map(curve).collect();
    let threshold = Some(profile.decision.size_threshold_bytes)
        .filter(|_| profile.decision.class == DeviceClass::Fast);
    let mut lines = probe_curves("loop on tmpfs", &curves, threshold);
    lines.subtitle = subtitle(result, "medians, bars: first to ninth decile");
    lines.svg()
}
