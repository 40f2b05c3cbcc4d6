// SPDX-License-Identifier: MIT OR Apache-2.0
//! From what a probe learned of a device to a simulated one, and scenarios under many policies.

use std::sync::Arc;

use dwell::{DeviceClass, WaitPolicy};
use dwell_host::profile::{Curve, CurvePoint, DeviceProfile};
use dwell_sim::wait::{Device, Distribution, Scenario, WaitReport, simulate};
use serde::{Deserialize, Serialize};

/// How requests are spun for, the best way first, and how they are blocked on.
const SPUN: [&str; 2] = ["polled-spin", "interrupt-spin"];
const BLOCKED: [&str; 2] = ["inline", "interrupt-block"];

/// A scenario under some policies, with seeds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// What was simulated.
    pub scenario: Scenario,
    /// One per policy and seed, policies in the order in which they were given.
    pub reports: Vec<Vec<WaitReport>>,
}

/// Simulates a scenario under each policy with seeds 1 to `seeds`.
pub fn compare(scenario: &Scenario, policies: &[Arc<dyn WaitPolicy>], seeds: u64) -> Outcome {
    let reports = policies.iter().map(|policy| {
        (1..=seeds.max(1)).map(|seed| simulate(scenario, policy.as_ref(), seed)).collect()
    });
    Outcome { scenario: scenario.clone(), reports: reports.collect() }
}

/// The mean over the seeds of something in the reports of one policy.
pub fn mean(reports: &[WaitReport], of: impl Fn(&WaitReport) -> f64) -> f64 {
    reports.iter().map(of).sum::<f64>() / reports.len().max(1) as f64
}

/// A scenario whose device is one that was probed, for requests of one size: latencies, what
/// blocking adds, and what a kernel worker takes are those of that size.
pub fn of_probed(profile: &DeviceProfile, size_bytes: u64, base: &Scenario) -> Scenario {
    let at = |modes: &[&str]| {
        let of = |mode: &&str| profile.curves.iter().find(|curve| curve.mode == **mode);
        let curve = modes.iter().find_map(of)?;
        Some((curve.mode.as_str(), interpolated(curve, size_bytes)?))
    };
    let (spun, blocked) = (at(&SPUN), at(&BLOCKED));
    let in_caller = profile.decision.class == DeviceClass::VeryFast;
    // Whom the caller serves nobody spins for.
    let own = if in_caller { blocked } else { spun.or(blocked) };
    let mut device = Device {
        parallel: base.device.parallel,
        in_caller,
        polled: spun.is_some_and(|(mode, _)| mode == SPUN[0]),
        sleep_overshoot_ns: profile.decision.sleep_overshoot_ns,
        class: profile.decision.class.as_str().into(),
        size_threshold_bytes: profile.decision.size_threshold_bytes,
        ..Device::default()
    };
    if let Some((_, point)) = own {
        device.latency =
            Distribution::with_mean(point.p10_ns, point.median_ns, point.p90_ns, point.mean_ns);
        if let Some((_, blocked)) = blocked {
            device.block_extra_ns = blocked.mean_ns as i64 - point.mean_ns as i64;
            device.block_cpu_ns = blocked.cpu_ns_per_request as u64;
        }
    }
    device.worker_ns =
        profile.worker_ns_per_request + profile.worker_ps_per_byte * size_bytes / 1000;
    let direct = profile.switches.direct.first().map(|switch| switch.ns);
    Scenario {
        size_bytes,
        switch_ns: direct.unwrap_or(profile.switches.self_ns / 2),
        device,
        ..base.clone()
    }
}

/// A curve at any size: straight lines between its points, its ends beyond them.
fn interpolated(curve: &Curve, size_bytes: u64) -> Option<CurvePoint> {
    let after = curve.points.partition_point(|point| point.size_bytes < size_bytes);
    let next = curve.points.get(after);
    let before = after.checked_sub(1).and_then(|at| curve.points.get(at));
    let (low, high) = match (before, next) {
        (Some(low), Some(high)) => (low, high),
        (None, Some(point)) | (Some(point), None) => return Some(*point),
        (None, None) => return None,
    };
    let span = (high.size_bytes - low.size_bytes) as f64;
    let part = (size_bytes - low.size_bytes) as f64 / span;
    let between = |a: f64, b: f64| a + (b - a) * part;
    let ns = |of: fn(&CurvePoint) -> u64| between(of(low) as f64, of(high) as f64) as u64;
    Some(CurvePoint {
        size_bytes,
        median_ns: ns(|point| point.median_ns),
        mean_ns: ns(|point| point.mean_ns),
        p10_ns: ns(|point| point.p10_ns),
        p90_ns: ns(|point| point.p90_ns),
        states: None,
        voluntary_switches_per_request: between(
            low.voluntary_switches_per_request,
            high.voluntary_switches_per_request,
        ),
        cpu_ns_per_request: between(low.cpu_ns_per_request, high.cpu_ns_per_request),
    })
}

#[cfg(test)]
mod tests {
    use dwell_host::profile::{Polling, SpinMethod, SwitchCosts};

    use super::*;

    fn point(size_bytes: u64, ns: u64) -> CurvePoint {
        CurvePoint {
            size_bytes,
            median_ns: ns,
            mean_ns: ns + ns / 10,
            p10_ns: ns - ns / 10,
            p90_ns: ns + ns / 5,
            states: None,
            voluntary_switches_per_request: 1.0,
            cpu_ns_per_request: 2000.0,
        }
    }

    fn profile() -> DeviceProfile {
        let curve = |mode: &str, extra: u64| Curve {
            mode: mode.into(),
            points: vec![point(4096, 10_000 + extra), point(65_536, 40_000 + extra)],
        };
        DeviceProfile {
            schema: dwell_host::profile::SCHEMA,
            device_id: "loop7".into(),
            kernel_name: "loop7".into(),
            model: None,
            size_bytes: 1 << 28,
            kernel_release: "6.1".into(),
            scheduler: "none".into(),
            measured_unix_s: 0,
            dwell_version: "0".into(),
            decision: dwell_policy::Profile {
                size_threshold_bytes: 32 << 10,
                ..dwell_policy::Profile::default()
            },
            contested: false,
            curves: vec![curve("interrupt-spin", 0), curve("inline", 20_000)],
            async_submission: Vec::new(),
            switches: SwitchCosts::default(),
            sleeps: vec![],
            polling: Polling::Real,
            spin_method: SpinMethod::default(),
            worker_ns_per_request: 1000,
            worker_ps_per_byte: 100,
            notes: vec![],
        }
    }

    #[test]
    fn a_probed_device_is_simulated_at_any_size() {
        let scenario = of_probed(&profile(), 34_816, &Scenario::default());
        let device = &scenario.device;
        assert_eq!(scenario.size_bytes, 34_816);
        assert_eq!(device.block_extra_ns, 22_000);
        assert_eq!(device.block_cpu_ns, 2000);
        assert_eq!(device.worker_ns, 1000 + 3481);
        let mean_ns = device.latency.mean_ns();
        assert!((27_000..28_000).contains(&mean_ns), "{mean_ns}");
        assert_eq!((device.class.as_str(), device.size_threshold_bytes), ("fast", 32 << 10));
        let small = of_probed(&profile(), 512, &Scenario::default());
        assert!((10_800..11_100).contains(&small.device.latency.mean_ns()));
    }

    #[test]
    fn smartcon_gains_up_to_the_threshold_of_the_probe() {
        let policies = ["block", "smartcon"].map(|name| dwell::policies::by_name(name).unwrap());
        let short = Scenario { duration_ms: 100, ..Scenario::default() };
        let gain = |size_bytes| {
            let scenario = of_probed(&profile(), size_bytes, &short);
            let outcome = compare(&scenario, &policies, 2);
            let speed = |at: usize| mean(&outcome.reports[at], WaitReport::per_second);
            speed(1) / speed(0)
        };
        assert!(gain(4096) > 2.0, "{}", gain(4096));
        assert!((gain(65_536) - 1.0).abs() < 0.02, "{}", gain(65_536));
    }
}
