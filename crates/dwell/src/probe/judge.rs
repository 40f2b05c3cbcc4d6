// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device class and size threshold, derived from measured curves.

use dwell_policy::DeviceClass;

use crate::profile::{Curve, CurvePoint};

/// A gain below this share of the blocking latency is negligible (SmartCon §4.1 names no number).
pub const NEGLIGIBLE_GAIN: f64 = 0.10;
/// Spinning may burn at most this much more CPU time than it saves of latency. Without this rule a
/// device whose blocking is merely a little slower would keep a core busy for nothing.
pub const CPU_PER_GAIN: f64 = 0.5;
/// A synchronous call that leaves the CPU less often than this, per request, does its work there.
const STAYS_ON_CPU: f64 = 0.1;

/// Class, threshold, and the reasons in words.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// Device class.
    pub class: DeviceClass,
    /// Largest request that still gains from spinning, in bytes; 0 when none does.
    pub size_threshold_bytes: u64,
    /// Why.
    pub because: String,
}

/// What spinning gains at one size: the share of the blocking latency that it saves, if that is
/// not negligible and not bought too dearly; 0 otherwise.
pub fn gain(block: &CurvePoint, spin: &CurvePoint) -> f64 {
    let saved_ns = block.median_ns as f64 - spin.median_ns as f64;
    let share = saved_ns / block.median_ns.max(1) as f64;
    let burnt_ns = spin.cpu_ns_per_request - block.cpu_ns_per_request;
    if share < NEGLIGIBLE_GAIN || burnt_ns > CPU_PER_GAIN * saved_ns { 0.0 } else { share }
}

/// Judges a device by the curves of its best blocking and its best spinning way. `inline` is the
/// synchronous call, where there is one.
pub fn judge(inline: Option<&Curve>, block: &Curve, spin: Option<&Curve>) -> Judgement {
    let first = |curve: &Curve| curve.points.first().copied();
    let spin_first = spin.and_then(first);
    if let Some(call) = inline.and_then(first)
        && call.voluntary_switches_per_request < STAYS_ON_CPU
        && spin_first.is_none_or(|spin| call.median_ns <= spin.median_ns)
    {
        let because = format!(
            "a synchronous {} KiB read stays on the CPU ({:.2} switches a request) and takes {:.1} µs",
            call.size_bytes / 1024,
            call.voluntary_switches_per_request,
            call.median_ns as f64 / 1e3,
        );
        return Judgement {
            class: DeviceClass::VeryFast,
            size_threshold_bytes: u64::MAX >> 1,
            because,
        };
    }
    let Some(spin) = spin else {
        return Judgement {
            class: DeviceClass::Mainstream,
            size_threshold_bytes: 0,
            because: "nothing can be spun for here: only synchronous calls are possible".to_owned(),
        };
    };
    let (Some(block_first), Some(spin_first)) = (first(block), spin_first) else {
        let because = "nothing was measured".to_owned();
        return Judgement { class: DeviceClass::Mainstream, size_threshold_bytes: 0, because };
    };
    let share = gain(&block_first, &spin_first);
    if share == 0.0 {
        let because = too_little(&block_first, &spin_first);
        return Judgement { class: DeviceClass::Mainstream, size_threshold_bytes: 0, because };
    }
    let last = |holds: fn(&CurvePoint, &CurvePoint) -> bool| {
        let sizes = block.points.iter().zip(&spin.points);
        let last = sizes.take_while(|(block, spin)| holds(block, spin)).last();
        last.map_or(block_first.size_bytes, |(block, _)| block.size_bytes)
    };
    let threshold = last(pays_for_itself);
    let because = format!(
        "spinning saves {:.0} % at {} KiB ({:.1} against {:.1} µs); up to {} KiB it takes no longer \
         than it saves, and up to {} KiB it saves {:.0} % or more",
        share * 100.0,
        block_first.size_bytes / 1024,
        spin_first.median_ns as f64 / 1e3,
        block_first.median_ns as f64 / 1e3,
        threshold / 1024,
        last(saves_something) / 1024,
        NEGLIGIBLE_GAIN * 100.0,
    );
    Judgement { class: DeviceClass::Fast, size_threshold_bytes: threshold, because }
}

/// Whether a spin takes no longer than what it saves: the switches (the forerunner's rule). From
/// there on each further byte keeps the CPU for longer than leaving it would cost.
fn pays_for_itself(block: &CurvePoint, spin: &CurvePoint) -> bool {
    spin.median_ns <= block.median_ns.saturating_sub(spin.median_ns)
}

/// Whether the gain is not negligible: SmartCon §4.1's rule.
fn saves_something(block: &CurvePoint, spin: &CurvePoint) -> bool {
    let saved_ns = block.median_ns.saturating_sub(spin.median_ns);
    saved_ns as f64 >= NEGLIGIBLE_GAIN * block.median_ns as f64
}

/// Why spinning does not pay at the smallest size.
fn too_little(block: &CurvePoint, spin: &CurvePoint) -> String {
    let us = |ns: f64| ns / 1e3;
    let (block_ns, spin_ns) = (block.median_ns as f64, spin.median_ns as f64);
    let against = format!("{:.1} µs against {:.1} µs blocking", us(spin_ns), us(block_ns));
    let saved_ns = block_ns - spin_ns;
    if saved_ns < NEGLIGIBLE_GAIN * block_ns {
        return format!("spinning gains too little: {against}");
    }
    let burnt_ns = spin.cpu_ns_per_request - block.cpu_ns_per_request;
    format!(
        "spinning gains too little for its price: {against}, and {:.1} µs more CPU time to save \
         {:.1} µs",
        us(burnt_ns),
        us(saved_ns)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn curve(switches: f64, points: &[(u64, u64, f64)]) -> Curve {
        let point = |&(kib, median_ns, cpu_ns_per_request): &(u64, u64, f64)| CurvePoint {
            size_bytes: kib << 10,
            median_ns,
            p10_ns: median_ns,
            p90_ns: median_ns,
            voluntary_switches_per_request: switches,
            cpu_ns_per_request,
        };
        Curve { mode: String::new(), points: points.iter().map(point).collect() }
    }

    #[test]
    fn a_copy_in_the_caller_is_very_fast() {
        let call = curve(0.0, &[(4, 2_200, 2_200.0)]);
        let spin = curve(0.0, &[(4, 21_000, 21_000.0)]);
        let judged = judge(Some(&call), &call, Some(&spin));
        assert_eq!(judged.class, DeviceClass::VeryFast);
    }

    #[test]
    fn the_threshold_is_the_last_size_whose_spin_takes_no_longer_than_it_saves() {
        let block = curve(1.0, &[(4, 35_000, 9e3), (64, 65_000, 2e4), (128, 90_000, 3e4)]);
        let spin = curve(0.0, &[(4, 16_000, 16e3), (64, 32_000, 32e3), (128, 59_000, 59e3)]);
        let judged = judge(Some(&block), &block, Some(&spin));
        assert_eq!((judged.class, judged.size_threshold_bytes), (DeviceClass::Fast, 64 << 10));
    }

    #[test]
    fn a_small_gain_for_a_whole_core_is_mainstream() {
        let block = curve(1.0, &[(4, 53_000, 10e3)]);
        let spin = curve(0.0, &[(4, 46_000, 46e3)]);
        let judged = judge(Some(&block), &block, Some(&spin));
        assert_eq!(judged.class, DeviceClass::Mainstream);
        assert!(judged.because.contains("price"), "{}", judged.because);
    }

    #[test]
    fn a_gain_that_returns_at_a_larger_size_does_not_raise_the_threshold() {
        let block = curve(1.0, &[(4, 30_000, 9e3), (8, 30_000, 9e3), (16, 60_000, 9e3)]);
        let spin = curve(0.0, &[(4, 15_000, 15e3), (8, 30_000, 30e3), (16, 20_000, 20e3)]);
        assert_eq!(judge(Some(&block), &block, Some(&spin)).size_threshold_bytes, 4 << 10);
    }

    #[test]
    fn without_a_ring_nothing_is_fast() {
        let block = curve(1.0, &[(4, 30_000, 9e3)]);
        assert_eq!(judge(Some(&block), &block, None).class, DeviceClass::Mainstream);
    }
}
