// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device class and size threshold, derived from measured curves.

use dwell_policy::{DeviceClass, Ns};

use crate::profile::{Curve, CurvePoint, QueuedPoint};

/// A gain below this share of the blocking latency is negligible (SmartCon §4.1 names no number).
pub const NEGLIGIBLE_GAIN: f64 = 0.10;
/// A spin may hold the CPU for at most this many times what it is worth.
pub const SPIN_PER_SWITCH: f64 = 1.5;
/// Largest size threshold that is set without being asked for, in bytes: SmartCon's own (§7.1).
/// Beyond it a spin holds the CPU for long, at more CPU time per byte than blocking.
pub const LARGEST_THRESHOLD_BYTES: u64 = 64 << 10;

/// What a judgement is bound by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Direct cost of the two switches of a blocked request, in nanoseconds: others' time, which
    /// the request's own latency does not show.
    pub switches_ns: Ns,
    /// Largest size threshold, in bytes.
    pub largest_threshold_bytes: u64,
}

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

/// Judges a device by the curves of its best blocking and its best spinning way. `inline` is the
/// synchronous call, where there is one.
pub fn judge(
    inline: Option<&Curve>,
    block: &Curve,
    spin: Option<&Curve>,
    bounds: Bounds,
) -> Judgement {
    let first = |curve: &Curve| curve.points.first().copied();
    let spin_first = spin.and_then(first);
    if let Some(call) = inline.and_then(first)
        && call.voluntary_switches_per_request < STAYS_ON_CPU
        && spin_first.is_none_or(|spin| call.mean_ns <= spin.mean_ns)
    {
        let because = format!(
            "a synchronous {} KiB read stays on the CPU ({:.2} switches a request) and takes {:.1} µs",
            call.size_bytes / 1024,
            call.voluntary_switches_per_request,
            call.mean_ns as f64 / 1e3,
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
    let (block_ns, spin_ns) = (block_first.mean_ns, spin_first.mean_ns);
    let switches_ns = bounds.switches_ns as f64;
    if !saves_something(block_ns, spin_ns) || !worth_its_time(block_ns, spin_ns, switches_ns) {
        let because = too_little(block_ns, spin_ns);
        return Judgement { class: DeviceClass::Mainstream, size_threshold_bytes: 0, because };
    }
    let last = |holds: &dyn Fn(Ns, Ns) -> bool| {
        let sizes = block.points.iter().zip(&spin.points);
        let last = sizes.take_while(|(block, spin)| holds(block.mean_ns, spin.mean_ns)).last();
        last.map_or(block_first.size_bytes, |(block, _)| block.size_bytes)
    };
    let worth = last(&|block_ns, spin_ns| {
        saves_something(block_ns, spin_ns) && worth_its_time(block_ns, spin_ns, switches_ns)
    });
    let because = format!(
        "spinning saves {:.0} % at {} KiB ({:.1} against {:.1} µs); it is worth its time up to {} KiB, \
         and saves {:.0} % or more up to {} KiB",
        (1.0 - spin_first.mean_ns as f64 / block_first.mean_ns.max(1) as f64) * 100.0,
        block_first.size_bytes / 1024,
        spin_first.mean_ns as f64 / 1e3,
        block_first.mean_ns as f64 / 1e3,
        worth / 1024,
        NEGLIGIBLE_GAIN * 100.0,
        last(&saves_something) / 1024,
    );
    let size_threshold_bytes = worth.min(bounds.largest_threshold_bytes);
    Judgement { class: DeviceClass::Fast, size_threshold_bytes, because }
}

/// Largest size at which a lone request blocks better on a ring than in a synchronous call: faster by
/// more than next to nothing, and at no more CPU time; 0 where none does.
pub fn judge_ring(inline: &Curve, ring: &Curve) -> u64 {
    let better = |(inline, ring): &(&CurvePoint, &CurvePoint)| {
        saves_something(inline.mean_ns, ring.mean_ns)
            && ring.cpu_ns_per_request <= inline.cpu_ns_per_request
    };
    let sizes = inline.points.iter().zip(&ring.points);
    sizes.take_while(better).last().map_or(0, |(inline, _)| inline.size_bytes)
}

/// Size threshold of requests of which a thread keeps several in flight. One wait serves several of
/// them, blocked or not, so spinning must be the faster, and take hardly a greater share of a CPU per
/// request than it saves in time.
pub fn judge_queued(points: &[QueuedPoint], bounds: Bounds) -> u64 {
    let pays = |point: &&QueuedPoint| {
        let QueuedPoint { block, spin, .. } = point;
        let gain = block.ns_per_request as f64 / spin.ns_per_request.max(1) as f64;
        saves_something(block.ns_per_request, spin.ns_per_request)
            && spin.cpu_ns_per_request <= SPIN_PER_SWITCH * gain * block.cpu_ns_per_request
    };
    let last = points.iter().take_while(pays).last();
    last.map_or(0, |point| point.size_bytes.min(bounds.largest_threshold_bytes))
}

/// Whether the gain is not negligible: SmartCon §4.1's rule.
fn saves_something(block_ns: Ns, spin_ns: Ns) -> bool {
    block_ns.saturating_sub(spin_ns) as f64 >= NEGLIGIBLE_GAIN * block_ns as f64
}

/// Whether the spin holds the CPU for no longer than leaving it is worth: what the switches add to
/// the request, and the switches themselves. It is the forerunner's rule, with some slack. Without
/// it a disk whose blocking is somewhat slower would keep a core busy for the disk's own time.
fn worth_its_time(block_ns: Ns, spin_ns: Ns, switches_ns: f64) -> bool {
    let cost_ns = block_ns.saturating_sub(spin_ns) as f64 + switches_ns;
    spin_ns as f64 <= SPIN_PER_SWITCH * cost_ns
}

/// How far apart one request in ten and nine in ten lie where blocking counts as having two speeds.
const TWO_SPEEDS: Ns = 4;

/// A remark about blocking that is sometimes fast and sometimes slow: which, depends on where the
/// kernel runs what completes the request, and whether that CPU sleeps.
pub fn two_speeds(block: &Curve) -> Option<String> {
    let first = block.points.first()?;
    (first.p90_ns > first.p10_ns * TWO_SPEEDS).then(|| {
        format!(
            "blocking has two speeds here: of {} KiB requests one in ten took {:.1} µs or less, one in ten \
             {:.1} µs or more; the device is judged by the means",
            first.size_bytes / 1024,
            first.p10_ns as f64 / 1e3,
            first.p90_ns as f64 / 1e3,
        )
    })
}

/// Why spinning does not pay at the smallest size.
fn too_little(block_ns: Ns, spin_ns: Ns) -> String {
    let us = |ns: f64| ns / 1e3;
    let (block_ns, spin_ns) = (block_ns as f64, spin_ns as f64);
    let against = format!("{:.1} µs against {:.1} µs blocking", us(spin_ns), us(block_ns));
    let saved_ns = block_ns - spin_ns;
    if saved_ns < NEGLIGIBLE_GAIN * block_ns {
        return format!("spinning gains too little: {against}");
    }
    format!(
        "spinning is not worth its time: {against}, so a spin of {:.1} µs would save {:.1} µs",
        us(spin_ns),
        us(saved_ns)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::QueuedCost;

    #[test]
    fn a_ring_must_be_faster_and_take_no_more_cpu() {
        let inline = curve(1.0, &[(4, 20_000, 8e3), (8, 22_000, 9e3), (16, 24_000, 1e4)]);
        let ring = |points: &[_]| judge_ring(&inline, &curve(1.0, points));
        assert_eq!(ring(&[(4, 11_000, 5e3), (8, 14_000, 7e3), (16, 23_000, 9e3)]), 8 << 10);
        assert_eq!(ring(&[(4, 19_000, 5e3), (8, 14_000, 7e3), (16, 14_000, 9e3)]), 0);
        assert_eq!(ring(&[(4, 11_000, 2e4), (8, 14_000, 7e3), (16, 14_000, 9e3)]), 0);
    }

    fn queued(points: &[(u64, u64, u64)]) -> Vec<QueuedPoint> {
        let cost = |ns_per_request, cpu_ns| QueuedCost {
            ns_per_request,
            cpu_ns_per_request: cpu_ns as f64,
            voluntary_switches_per_request: 0.5,
        };
        let point = |&(kib, block_ns, spin_ns): &(u64, u64, u64)| QueuedPoint {
            size_bytes: kib << 10,
            depth: 8,
            block: cost(block_ns, 5_000),
            spin: cost(spin_ns, spin_ns),
        };
        points.iter().map(point).collect()
    }

    #[test]
    fn several_in_flight_are_judged_by_themselves() {
        let threshold = |points: &[_]| judge_queued(&queued(points), BOUNDS);
        let sizes = [(4, 12_000, 6_000), (16, 16_000, 7_000), (64, 30_000, 26_000)];
        assert_eq!(threshold(&sizes), 16 << 10, "the largest takes too much CPU time");
        assert_eq!(threshold(&[(4, 6_000, 5_600)]), 0, "it gains too little");
        assert_eq!(threshold(&[(4, 6_000, 5_600), (16, 16_000, 7_000)]), 0, "a later gain");
        assert_eq!(threshold(&[]), 0, "nothing was measured");
    }

    fn curve(switches: f64, points: &[(u64, u64, f64)]) -> Curve {
        let point = |&(kib, median_ns, cpu_ns_per_request): &(u64, u64, f64)| CurvePoint {
            size_bytes: kib << 10,
            median_ns,
            mean_ns: median_ns,
            p10_ns: median_ns,
            p90_ns: median_ns,
            voluntary_switches_per_request: switches,
            cpu_ns_per_request,
        };
        Curve { mode: String::new(), points: points.iter().map(point).collect() }
    }

    const BOUNDS: Bounds = Bounds { switches_ns: 4_000, largest_threshold_bytes: 64 << 10 };

    #[test]
    fn a_copy_in_the_caller_is_very_fast() {
        let call = curve(0.0, &[(4, 2_200, 2_200.0)]);
        let spin = curve(0.0, &[(4, 21_000, 21_000.0)]);
        let judged = judge(Some(&call), &call, Some(&spin), BOUNDS);
        assert_eq!(judged.class, DeviceClass::VeryFast);
    }

    #[test]
    fn the_threshold_is_the_last_size_that_is_worth_its_time() {
        let block = curve(1.0, &[(4, 35_000, 9e3), (8, 40_000, 2e4), (16, 45_000, 3e4)]);
        let spin = curve(0.0, &[(4, 16_000, 16e3), (8, 22_000, 22e3), (16, 39_000, 39e3)]);
        let judged = judge(Some(&block), &block, Some(&spin), BOUNDS);
        assert_eq!((judged.class, judged.size_threshold_bytes), (DeviceClass::Fast, 8 << 10));
    }

    #[test]
    fn a_larger_threshold_is_set_only_if_asked_for() {
        let block = curve(1.0, &[(4, 70_000, 9e3), (64, 90_000, 2e4), (128, 110_000, 3e4)]);
        let spin = curve(0.0, &[(4, 25_000, 25e3), (64, 41_000, 41e3), (128, 57_000, 57e3)]);
        let threshold = |largest_threshold_bytes| {
            let bounds = Bounds { largest_threshold_bytes, ..BOUNDS };
            judge(Some(&block), &block, Some(&spin), bounds).size_threshold_bytes
        };
        assert_eq!((threshold(64 << 10), threshold(1 << 20)), (64 << 10, 128 << 10));
    }

    #[test]
    fn a_disk_whose_switch_is_short_beside_its_latency_is_mainstream() {
        let block = curve(1.0, &[(4, 73_000, 36e3)]);
        let spin = curve(0.0, &[(4, 50_000, 50e3)]);
        let judged = judge(Some(&block), &block, Some(&spin), BOUNDS);
        assert_eq!(judged.class, DeviceClass::Mainstream);
        assert!(judged.because.contains("not worth its time"), "{}", judged.because);
    }

    #[test]
    fn a_fast_drive_whose_switch_costs_half_its_latency_is_fast() {
        let block = curve(1.0, &[(4, 14_800, 4e3)]);
        let spin = curve(0.0, &[(4, 10_000, 10e3)]);
        assert_eq!(judge(Some(&block), &block, Some(&spin), BOUNDS).class, DeviceClass::Fast);
    }

    #[test]
    fn a_gain_that_returns_at_a_larger_size_does_not_raise_the_threshold() {
        let block = curve(1.0, &[(4, 30_000, 9e3), (8, 30_000, 9e3), (16, 60_000, 9e3)]);
        let spin = curve(0.0, &[(4, 15_000, 15e3), (8, 30_000, 30e3), (16, 20_000, 20e3)]);
        let judged = judge(Some(&block), &block, Some(&spin), BOUNDS);
        assert_eq!(judged.size_threshold_bytes, 4 << 10);
    }

    #[test]
    fn blocking_at_two_speeds_is_remarked() {
        let mut block = curve(1.0, &[(4, 30_000, 9e3)]);
        assert_eq!(two_speeds(&block), None);
        (block.points[0].p10_ns, block.points[0].p90_ns) = (6_500, 71_000);
        let remark = two_speeds(&block).unwrap();
        assert!(
            remark.contains("6.5 µs or less") && remark.contains("71.0 µs or more"),
            "{remark}"
        );
    }

    #[test]
    fn without_a_ring_nothing_is_fast() {
        let block = curve(1.0, &[(4, 30_000, 9e3)]);
        assert_eq!(judge(Some(&block), &block, None, BOUNDS).class, DeviceClass::Mainstream);
    }
}
