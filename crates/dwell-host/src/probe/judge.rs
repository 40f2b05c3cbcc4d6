// SPDX-License-Identifier: MIT OR Apache-2.0
//! Device class and size threshold, derived from measured curves.

use dwell_policy::{DeviceClass, Ns};

use crate::profile::{AsyncPoint, Curve, CurvePoint, SpinMethod};

/// A gain below this share of the blocking latency is negligible (SmartCon §4.1 names no number).
pub const NEGLIGIBLE_GAIN: f64 = 0.10;
/// A spin may hold the CPU for at most this many times what it is worth.
pub const SPIN_PER_SWITCH: f64 = 1.5;
/// A device keeps the class that an earlier probe found unless the rule for another holds by this
/// factor: a device that lies near the border would have another class with each probe.
pub const CLEARLY: f64 = 1.6;
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
    /// The class that an earlier probe of the device found.
    pub before: Option<DeviceClass>,
}

impl Bounds {
    /// How much easier spinning has it to pay than by the rule alone.
    fn ease(&self) -> f64 {
        match self.before {
            Some(DeviceClass::Fast) => CLEARLY,
            Some(DeviceClass::Mainstream) => 1.0 / CLEARLY,
            Some(DeviceClass::VeryFast) | None => 1.0,
        }
    }
}

/// A synchronous call that blocks less often than this, per request, does its work there.
const STAYS_ON_CPU: f64 = 0.1;

/// Class, threshold, and the reasons in words.
#[derive(Clone, Debug, PartialEq)]
pub struct Judgement {
    /// Device class.
    pub class: DeviceClass,
    /// Largest request that still gains from spinning, in bytes; 0 when none does.
    pub size_threshold_bytes: u64,
    /// Whether the best state would give another class.
    pub contested: bool,
    /// Why.
    pub because: String,
}

/// Judges a device by the curves of its best blocking and its best spinning arm. `inline` is the
/// synchronous call, where there is one.
///
/// Spinning, as it settles, is held against the worst state of blocking: it is what a thread meets
/// that has just spun, as it does on a fast device. Where the best state would give another class,
/// the device is contested.
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
            us(call.mean_ns),
        );
        return Judgement {
            class: DeviceClass::VeryFast,
            size_threshold_bytes: u64::MAX >> 1,
            contested: false,
            because,
        };
    }
    let mainstream = |because| Judgement {
        class: DeviceClass::Mainstream,
        size_threshold_bytes: 0,
        contested: false,
        because,
    };
    let Some(spin) = spin else {
        return mainstream(
            "nothing can be spun for here: only synchronous calls are possible".into(),
        );
    };
    let sizes: Vec<u64> =
        block.points.iter().zip(&spin.points).map(|(block, _)| block.size_bytes).collect();
    let latencies = |curve: &Curve, of: fn(&CurvePoint) -> Ns| {
        repaired(&curve.points[..sizes.len()].iter().map(of).collect::<Vec<_>>())
    };
    let best = latencies(block, |point| point.states().best_ns);
    let block = latencies(block, |point| point.states().worst_ns);
    let spin = latencies(spin, |point| point.median_ns);
    let (Some(&size), Some(&block_ns), Some(&spin_ns)) =
        (sizes.first(), block.first(), spin.first())
    else {
        return mainstream("nothing was measured".into());
    };
    let switches_ns = bounds.switches_ns as f64;
    let pays_with = |ease, block_ns, spin_ns| {
        saves(NEGLIGIBLE_GAIN / ease, block_ns, spin_ns)
            && worth_its_time(SPIN_PER_SWITCH * ease, block_ns, spin_ns, switches_ns)
    };
    let pays = |block_ns, spin_ns| pays_with(1.0, block_ns, spin_ns);
    let is_fast = pays_with(bounds.ease(), block_ns, spin_ns);
    let kept = match is_fast == pays(block_ns, spin_ns) {
        true => "",
        false => "; near the border it keeps the class that an earlier probe found",
    };
    if !is_fast {
        return mainstream(too_little(block_ns, spin_ns) + kept);
    }
    // Last size, counted up from the smallest, at which it holds.
    let last = |holds: &dyn Fn(Ns, Ns) -> bool| {
        let hold = block.iter().zip(&spin).take_while(|(block, spin)| holds(**block, **spin));
        sizes[hold.count().max(1) - 1]
    };
    let worth = last(&pays);
    let mut because = format!(
        "spinning saves {:.0} % at {} KiB ({:.1} against {:.1} µs); it is worth its time up to {} KiB, \
         and saves {:.0} % or more up to {} KiB",
        (1.0 - spin_ns as f64 / block_ns.max(1) as f64) * 100.0,
        size / 1024,
        us(spin_ns),
        us(block_ns),
        worth / 1024,
        NEGLIGIBLE_GAIN * 100.0,
        last(&saves_something) / 1024,
    );
    because += kept;
    let contested = !pays(best[0], spin_ns);
    if contested {
        because += &format!(
            "; contested: where blocking is in its best state ({:.1} µs), the device is mainstream",
            us(best[0])
        );
    }
    Judgement {
        class: DeviceClass::Fast,
        size_threshold_bytes: worth.min(bounds.largest_threshold_bytes),
        contested,
        because,
    }
}

/// A curve without the noise of single sizes: the one that is furthest from the running median of
/// three is put where its neighbours would have it, until none is. A curve that rises as latencies
/// do, more from one size to the next, stays what it is.
fn repaired(curve: &[Ns]) -> Vec<Ns> {
    let mut repaired = curve.to_vec();
    for _ in 0..curve.len() {
        let smooth = smoothed(&repaired);
        let off = |at: usize| (repaired[at].max(1) as f64 / smooth[at].max(1) as f64).ln().abs();
        let furthest = (0..repaired.len()).max_by(|&a, &b| off(a).total_cmp(&off(b)));
        let Some(at) = furthest.filter(|&at| off(at) > 0.0) else { break };
        repaired[at] = match (at.checked_sub(1), repaired.get(at + 1)) {
            // Sizes double: a third of the way, where latency is linear in the size.
            (Some(before), Some(&after)) => {
                let before = repaired[before];
                before.min(after) + before.abs_diff(after) / 3
            }
            _ => smooth[at],
        };
    }
    repaired
}

/// Running medians of three, the ends by Tukey's rule.
fn smoothed(curve: &[Ns]) -> Vec<Ns> {
    let median = |mut three: [Ns; 3]| {
        three.sort_unstable();
        three[1]
    };
    let beyond = |near: Ns, far: Ns| (3 * near).saturating_sub(2 * far);
    let mut smooth = curve.to_vec();
    for (at, three) in curve.windows(3).enumerate() {
        smooth[at + 1] = median([three[0], three[1], three[2]]);
    }
    if let [first, near, far, ..] = smooth[..] {
        smooth[0] = median([first, near, beyond(near, far)]);
    }
    if let [.., far, near, last] = smooth[..] {
        smooth[curve.len() - 1] = median([last, near, beyond(near, far)]);
    }
    smooth
}

fn us(ns: Ns) -> f64 {
    ns as f64 / 1e3
}

/// The method to spin by, from the latency of each in the worst state: the default, unless another
/// one saves more than next to nothing.
pub fn judge_methods(raced: &[(SpinMethod, Ns)]) -> SpinMethod {
    let default = SpinMethod::default();
    let of_default = raced.iter().find(|(method, _)| *method == default);
    let fastest = raced.iter().min_by_key(|(_, ns)| *ns);
    match (of_default, fastest) {
        (Some((_, default_ns)), Some((_, ns))) if !saves_something(*default_ns, *ns) => default,
        (_, fastest) => fastest.map_or(default, |(method, _)| *method),
    }
}

/// Largest size at which a lone request blocks better on a ring than in a synchronous call: faster
/// by more than next to nothing in the worst state, and at no more CPU time; 0 where none does.
pub fn judge_ring(inline: &Curve, ring: &Curve) -> u64 {
    let better = |(inline, ring): &(&CurvePoint, &CurvePoint)| {
        saves_something(inline.states().worst_ns, ring.states().worst_ns)
            && ring.cpu_ns_per_request <= inline.cpu_ns_per_request
    };
    let sizes = inline.points.iter().zip(&ring.points);
    sizes.take_while(better).last().map_or(0, |(inline, _)| inline.size_bytes)
}

/// Size threshold of requests of which a thread keeps several in flight. One wait serves several of
/// them, blocked or not, so spinning must be the faster, and take hardly a greater share of a CPU
/// per request than it saves in time.
pub fn judge_async(points: &[AsyncPoint], bounds: Bounds) -> u64 {
    let pays = |point: &&AsyncPoint| {
        let AsyncPoint { block, spin, .. } = point;
        let gain = block.ns_per_request as f64 / spin.ns_per_request.max(1) as f64;
        saves_something(block.ns_per_request, spin.ns_per_request)
            && spin.cpu_ns_per_request <= SPIN_PER_SWITCH * gain * block.cpu_ns_per_request
    };
    let last = points.iter().take_while(pays).last();
    last.map_or(0, |point| point.size_bytes.min(bounds.largest_threshold_bytes))
}

/// Whether the gain is not negligible: SmartCon §4.1's rule.
fn saves_something(block_ns: Ns, spin_ns: Ns) -> bool {
    saves(NEGLIGIBLE_GAIN, block_ns, spin_ns)
}

fn saves(share: f64, block_ns: Ns, spin_ns: Ns) -> bool {
    block_ns.saturating_sub(spin_ns) as f64 >= share * block_ns as f64
}

/// Whether the spin holds the CPU for no longer than so many times what leaving it is worth: what
/// the switches add to the request, and the switches themselves. It is the forerunner's rule, with
/// some slack. Without it a disk whose blocking is somewhat slower would keep a core busy for the
/// disk's own time.
fn worth_its_time(times: f64, block_ns: Ns, spin_ns: Ns, switches_ns: f64) -> bool {
    let cost_ns = block_ns.saturating_sub(spin_ns) as f64 + switches_ns;
    spin_ns as f64 <= times * cost_ns
}

/// Why spinning does not pay at the smallest size.
fn too_little(block_ns: Ns, spin_ns: Ns) -> String {
    let against = format!("{:.1} µs against {:.1} µs blocking", us(spin_ns), us(block_ns));
    if !saves_something(block_ns, spin_ns) {
        return format!("spinning gains too little: {against}");
    }
    format!(
        "spinning is not worth its time: {against}, so a spin of {:.1} µs would save {:.1} µs",
        us(spin_ns),
        us(block_ns - spin_ns)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{AsyncCost, States};

    #[test]
    fn a_ring_must_be_faster_and_take_no_more_cpu() {
        let inline = curve(1.0, &[(4, 20_000, 8e3), (8, 22_000, 9e3), (16, 24_000, 1e4)]);
        let ring = |points: &[_]| judge_ring(&inline, &curve(1.0, points));
        assert_eq!(ring(&[(4, 11_000, 5e3), (8, 14_000, 7e3), (16, 23_000, 9e3)]), 8 << 10);
        assert_eq!(ring(&[(4, 19_000, 5e3), (8, 14_000, 7e3), (16, 14_000, 9e3)]), 0);
        assert_eq!(ring(&[(4, 11_000, 2e4), (8, 14_000, 7e3), (16, 14_000, 9e3)]), 0);
    }

    #[test]
    fn a_spin_method_that_is_hardly_faster_does_not_replace_the_default() {
        use SpinMethod::{CqPeek, GetEvents, TaskrunFlag};
        let judged = |[peek, get, flag]: [Ns; 3]| {
            judge_methods(&[(CqPeek, peek), (GetEvents, get), (TaskrunFlag, flag)])
        };
        assert_eq!(judged([6_600, 6_500, 6_700]), TaskrunFlag);
        assert_eq!(judged([57_000, 20_000, 27_000]), GetEvents);
        assert_eq!(judged([57_000, 20_500, 21_000]), TaskrunFlag);
        assert_eq!(judge_methods(&[]), TaskrunFlag);
    }

    fn async_submission(points: &[(u64, u64, u64)]) -> Vec<AsyncPoint> {
        let cost = |ns_per_request, cpu_ns| AsyncCost {
            ns_per_request,
            cpu_ns_per_request: cpu_ns as f64,
            voluntary_switches_per_request: 0.5,
        };
        let point = |&(kib, block_ns, spin_ns): &(u64, u64, u64)| AsyncPoint {
            size_bytes: kib << 10,
            depth: 8,
            block: cost(block_ns, 5_000),
            spin: cost(spin_ns, spin_ns),
        };
        points.iter().map(point).collect()
    }

    #[test]
    fn several_in_flight_are_judged_by_themselves() {
        let threshold = |points: &[_]| judge_async(&async_submission(points), BOUNDS);
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
            states: None,
            voluntary_switches_per_request: switches,
            cpu_ns_per_request,
        };
        Curve { mode: String::new(), points: points.iter().map(point).collect() }
    }

    const BOUNDS: Bounds =
        Bounds { switches_ns: 4_000, largest_threshold_bytes: 64 << 10, before: None };

    #[test]
    fn a_device_near_the_border_keeps_the_class_that_it_had() {
        let block = |us: u64| curve(1.0, &[(4, us * 1000, 20e3)]);
        let spin = curve(1.0, &[(4, 47_000, 47e3)]);
        let judged = |us, before| {
            let block = block(us);
            judge(Some(&block), &block, Some(&spin), Bounds { before, ..BOUNDS })
        };
        let classes = |before| [60, 72, 76, 100].map(|us| judged(us, before).class);
        use DeviceClass::{Fast, Mainstream, VeryFast};
        assert_eq!(classes(None), [Mainstream, Mainstream, Fast, Fast]);
        assert_eq!(classes(Some(VeryFast)), classes(None));
        assert_eq!(classes(Some(Fast)), [Mainstream, Fast, Fast, Fast]);
        assert_eq!(classes(Some(Mainstream)), [Mainstream, Mainstream, Mainstream, Fast]);
        let kept = judged(72, Some(Fast));
        assert_eq!((kept.size_threshold_bytes, kept.contested), (4 << 10, true));
        assert!(kept.because.contains("an earlier probe"), "{}", kept.because);
    }

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
        let sizes = |ns: [u64; 4]| {
            curve(1.0, &[(4, ns[0], 9e3), (8, ns[1], 9e3), (16, ns[2], 9e3), (32, ns[3], 9e3)])
        };
        let block = sizes([30_000, 32_000, 40_000, 90_000]);
        let spin = sizes([15_000, 30_000, 38_000, 50_000]);
        let judged = judge(Some(&block), &block, Some(&spin), BOUNDS);
        assert_eq!(judged.size_threshold_bytes, 4 << 10);
    }

    /// Latencies in microseconds at 4, 8, 16… KiB.
    fn sized(us: &[u64]) -> Curve {
        let points: Vec<_> = us.iter().zip(2..).map(|(us, at)| (1 << at, us * 1000, 0.0)).collect();
        curve(1.0, &points)
    }

    #[test]
    fn one_noisy_size_cuts_no_threshold_and_changes_no_class() {
        let (block, spin) = ([60, 61, 63, 67, 75, 90, 120, 180], [15, 16, 18, 22, 32, 50, 90, 170]);
        let judged = |block: &[u64], spin: &[u64]| {
            let block = sized(block);
            let judged = judge(Some(&block), &block, Some(&sized(spin)), BOUNDS);
            (judged.class, judged.size_threshold_bytes, judged.contested)
        };
        let clean = (DeviceClass::Fast, 64 << 10, false);
        assert_eq!(judged(&block, &spin), clean);
        for noisy in 0..block.len() {
            let (mut low, mut high) = (block, spin);
            low[noisy] /= 10;
            assert_eq!(judged(&low, &spin), clean, "blocking too fast at {noisy}");
            high[noisy] *= 10;
            assert_eq!(judged(&block, &high), clean, "spinning too slow at {noisy}");
        }
    }

    /// Blocking that takes so many microseconds in its best state, and so many in its worst.
    fn two_states(best_us: &[u64], worst_us: &[u64]) -> Curve {
        let mut curve = sized(worst_us);
        for (point, best_us) in curve.points.iter_mut().zip(best_us) {
            point.states = Some(States { best_ns: best_us * 1000, worst_ns: point.median_ns });
        }
        curve
    }

    #[test]
    fn a_device_that_blocks_best_in_one_state_and_worst_in_the_other_is_contested() {
        let spin = sized(&[15, 16, 18]);
        let judged = |best: &[u64], worst: &[u64]| {
            let block = two_states(best, worst);
            judge(Some(&block), &block, Some(&spin), BOUNDS)
        };
        let contested = judged(&[5, 6, 8], &[60, 61, 63]);
        assert_eq!(contested.class, DeviceClass::Fast, "as the worst state has it");
        assert_eq!(contested.size_threshold_bytes, 16 << 10);
        assert!(contested.contested && contested.because.contains("contested"), "{contested:?}");
        let fast = judged(&[40, 41, 43], &[60, 61, 63]);
        assert!(fast.class == DeviceClass::Fast && !fast.contested, "{fast:?}");
        let mainstream = judged(&[5, 6, 8], &[16, 17, 19]);
        assert!(mainstream.class == DeviceClass::Mainstream && !mainstream.contested);
    }

    #[test]
    fn a_device_served_by_the_caller_is_not_contested() {
        let call = Curve { mode: String::new(), points: two_states(&[2], &[20]).points };
        let mut call = call;
        call.points[0].voluntary_switches_per_request = 0.0;
        call.points[0].mean_ns = 2_000;
        let judged = judge(Some(&call), &call, Some(&sized(&[21])), BOUNDS);
        assert_eq!((judged.class, judged.contested), (DeviceClass::VeryFast, false));
    }

    #[test]
    fn without_a_ring_nothing_is_fast() {
        let block = curve(1.0, &[(4, 30_000, 9e3)]);
        assert_eq!(judge(Some(&block), &block, None, BOUNDS).class, DeviceClass::Mainstream);
    }
}
