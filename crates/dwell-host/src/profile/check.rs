// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a measurement can give, and what it cannot.

use dwell_policy::DeviceClass;

use super::{AsyncCost, Curve, CurvePoint, DeviceProfile, Polling, SCHEMA, States};

/// A field and what is wrong with it.
pub(super) type Wrong = (String, String);

/// No wait that a probe measures takes a minute.
const LONGEST_NS: u64 = 60_000_000_000;
/// No device that a probe waits for needs a millisecond per byte.
const SLOWEST_PS_PER_BYTE: u64 = 1_000_000_000;

fn wrong<T>(field: impl Into<String>, why: impl Into<String>) -> Result<T, Wrong> {
    Err((field.into(), why.into()))
}

fn at_most(field: &str, value: u64, limit: u64) -> Result<(), Wrong> {
    if value > limit { wrong(field, format!("is {value}, above {limit}")) } else { Ok(()) }
}

fn amount(field: String, value: f64) -> Result<(), Wrong> {
    // JSON has no NaN: it would be written as null and never be read again.
    if value.is_finite() && value >= 0.0 {
        Ok(())
    } else {
        wrong(field, format!("is {value}, not a number of 0 or more"))
    }
}

fn rising<T>(field: &str, unit: &str, items: &[T], key: impl Fn(&T) -> u64) -> Result<(), Wrong> {
    for (i, pair) in items.windows(2).enumerate() {
        let (before, after) = (key(&pair[0]), key(&pair[1]));
        if before >= after {
            let field = format!("{field}[{}].{unit}", i + 1);
            return wrong(field, format!("is {after}, not above the {before} before it"));
        }
    }
    match items.first() {
        Some(first) if key(first) == 0 => wrong(format!("{field}[0].{unit}"), "is 0"),
        _ => Ok(()),
    }
}

impl DeviceProfile {
    /// The first field that no measurement could have given.
    ///
    /// A threshold of 0 bytes is allowed: no size is worth spinning for, as on a mainstream
    /// device. So is any large one: every size is, as on a very fast device.
    pub(super) fn check(&self) -> Result<(), Wrong> {
        if self.schema != SCHEMA {
            return wrong("schema", format!("is {}, not {SCHEMA}", self.schema));
        }
        for (field, text) in [
            ("device_id", &self.device_id),
            ("kernel_name", &self.kernel_name),
            ("kernel_release", &self.kernel_release),
            ("scheduler", &self.scheduler),
        ] {
            if text.is_empty() || text.contains(char::is_control) {
                return wrong(field, format!("is {text:?}, not a name"));
            }
        }
        let d = &self.decision;
        at_most("decision.switch_ns", d.switch_ns, LONGEST_NS)?;
        at_most("decision.reload_ns", d.reload_ns, LONGEST_NS)?;
        at_most("decision.sleep_overshoot_ns", d.sleep_overshoot_ns, LONGEST_NS)?;
        at_most("decision.latency_ns", d.latency_ns, LONGEST_NS)?;
        at_most("decision.latency_ps_per_byte", d.latency_ps_per_byte, SLOWEST_PS_PER_BYTE)?;
        if self.contested && d.class != DeviceClass::Fast {
            return wrong("contested", format!("is true of a {} device", d.class));
        }
        at_most("worker_ns_per_request", self.worker_ns_per_request, LONGEST_NS)?;
        at_most("worker_ps_per_byte", self.worker_ps_per_byte, SLOWEST_PS_PER_BYTE)?;

        for (i, curve) in self.curves.iter().enumerate() {
            check_curve(&format!("curves[{i}]"), curve)?;
            if self.curves[..i].iter().any(|other| other.mode == curve.mode) {
                return wrong(format!("curves[{i}].mode"), format!("repeats {:?}", curve.mode));
            }
        }
        rising("async_submission", "size_bytes", &self.async_submission, |point| point.size_bytes)?;
        for (i, point) in self.async_submission.iter().enumerate() {
            for (mode, cost) in [("block", point.block), ("spin", point.spin)] {
                check_cost(&format!("async_submission[{i}].{mode}"), cost)?;
            }
        }
        let switches = &self.switches;
        at_most("switches.self_ns", switches.self_ns, LONGEST_NS)?;
        rising("switches.direct", "processes", &switches.direct, |s| s.processes.into())?;
        rising("switches.indirect", "working_set_bytes", &switches.indirect, |s| {
            s.working_set_bytes
        })?;
        rising("sleeps", "asked_ns", &self.sleeps, |s| s.asked_ns)?;
        if let Polling::Fake { interrupts_per_request } = self.polling {
            amount("polling.interrupts_per_request".into(), interrupts_per_request)?;
        }
        Ok(())
    }
}

fn check_cost(field: &str, cost: AsyncCost) -> Result<(), Wrong> {
    at_most(&format!("{field}.ns_per_request"), cost.ns_per_request, LONGEST_NS)?;
    amount(format!("{field}.cpu_ns_per_request"), cost.cpu_ns_per_request)?;
    amount(format!("{field}.voluntary_switches_per_request"), cost.voluntary_switches_per_request)
}

fn check_curve(field: &str, curve: &Curve) -> Result<(), Wrong> {
    if curve.mode.is_empty() {
        return wrong(format!("{field}.mode"), "is empty");
    }
    let points = format!("{field}.points");
    rising(&points, "size_bytes", &curve.points, |point| point.size_bytes)?;
    for (i, point) in curve.points.iter().enumerate() {
        let CurvePoint { median_ns, p10_ns, p90_ns, .. } = *point;
        if p10_ns > median_ns {
            return wrong(
                format!("{points}[{i}].p10_ns"),
                format!("is {p10_ns}, above the median"),
            );
        }
        if median_ns > p90_ns {
            return wrong(
                format!("{points}[{i}].p90_ns"),
                format!("is {p90_ns}, below the median"),
            );
        }
        at_most(&format!("{points}[{i}].p90_ns"), p90_ns, LONGEST_NS)?;
        let States { best_ns, worst_ns } = point.states();
        if best_ns > worst_ns {
            let why = format!("is {best_ns}, above the worst");
            return wrong(format!("{points}[{i}].states.best_ns"), why);
        }
        at_most(&format!("{points}[{i}].states.worst_ns"), worst_ns, LONGEST_NS)?;
        amount(
            format!("{points}[{i}].voluntary_switches_per_request"),
            point.voluntary_switches_per_request,
        )?;
        amount(format!("{points}[{i}].cpu_ns_per_request"), point.cpu_ns_per_request)?;
    }
    Ok(())
}
