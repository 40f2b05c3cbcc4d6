// SPDX-License-Identifier: MIT OR Apache-2.0
//! R3: the same device probed again and again: whether it gets the same class each time.

use std::collections::BTreeMap;

use anyhow::Result;
use dwell::DeviceClass;
use dwell_host::profile::DeviceProfile;

use super::lab::skip;
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::stand::Kind;
use dwell_bench::stats::Summary;
use dwell_bench::units;

const KINDS: [Kind; 4] = [Kind::Emulated, Kind::Loop, Kind::Zram, Kind::Disk];
/// Probes of each device.
const TIMES: usize = 20;

/// The rows of a device: how often the class was the most frequent one, and how far thresholds lie
/// apart.
fn cases(kind: Kind) -> [String; 2] {
    ["same class", "size threshold"].map(|what| format!("{}: {what}", kind.as_str()))
}

/// R3.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    for (at, kind) in KINDS.into_iter().enumerate() {
        let cases = cases(kind);
        if !lab.wants(result, &cases) {
            continue;
        }
        let from = at as f64 / KINDS.len() as f64;
        progress(&format!("making {}", kind.as_str()), from);
        let subject = match lab.subject(kind)? {
            Ok(subject) => subject,
            Err(why) => {
                skip(result, &cases, &why)?;
                continue;
            }
        };
        let probing = lab.probing().of(&subject.address);
        let probe = if lab.is_hasty() { probing } else { probing.brief() };
        let times = lab.times(TIMES);
        let mut profiles = Vec::new();
        for time in 0..times {
            let what = format!("{}, probe {} of {times}", kind.as_str(), time + 1);
            progress(&what, from + time as f64 / (times * KINDS.len()) as f64);
            // As `dwell probe` does, which finds the profile that it stored.
            let probe = match profiles.last() {
                Some(earlier) => probe.clone().after(earlier),
                None => probe.clone(),
            };
            profiles.push(probe.run(&mut |_, _| {})?);
        }
        enter(result, &cases, &profiles)?;
        lab.keep(result)?;
    }
    Ok(None)
}

fn enter(result: &mut FigureResult, cases: &[String; 2], profiles: &[DeviceProfile]) -> Result<()> {
    let [same, threshold] = cases;
    let classes = profiles.iter().map(|profile| profile.decision.class.as_str());
    let (share, found) = agreement(classes);
    result.measured(same, Measured::exact(share * 100.0))?;
    let contested = profiles.iter().filter(|profile| profile.contested).count();
    let noisy =
        |profile: &&DeviceProfile| profile.notes.iter().any(|n| n.starts_with("others used"));
    let mut note = format!("{} probes: {found}; contested {contested}", profiles.len());
    match profiles.iter().filter(noisy).count() {
        0 => {}
        count => note += &format!("; {count} of them beside other programs"),
    }
    result.note(same, &note)?;
    let fast = profiles.iter().filter(|profile| profile.decision.class == DeviceClass::Fast);
    let thresholds = fast.map(|profile| profile.decision.size_threshold_bytes as f64 / 1024.0);
    match Summary::of(thresholds) {
        Some(kib) => {
            let spread = Measured { value: kib.median, low: kib.min, high: kib.max };
            result.measured(threshold, spread)?;
            result.note(threshold, "interval: lowest and highest")
        }
        None => result.note(threshold, "no probe found it fast: it has none"),
    }
}

/// Share of the most frequent class, and how often each was found.
fn agreement<'a>(classes: impl Iterator<Item = &'a str>) -> (f64, String) {
    let mut counts = BTreeMap::<&str, usize>::new();
    for class in classes {
        *counts.entry(class).or_default() += 1;
    }
    let all: usize = counts.values().sum();
    let most = counts.values().max().copied().unwrap_or(0);
    let text =
        counts.iter().map(|(class, count)| format!("{class} {}", units::tick(*count as f64)));
    (most as f64 / all.max(1) as f64, text.collect::<Vec<_>>().join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_is_that_of_the_most_frequent_class() {
        let same = agreement(["fast"; 20].into_iter());
        assert_eq!(same, (1.0, "fast 20".into()));
        let (share, text) = agreement(["fast", "mainstream", "fast", "fast"].into_iter());
        assert_eq!((share, text.as_str()), (0.75, "fast 3; mainstream 1"));
    }
}
