// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the policies promise, whatever they are asked.

use dwell_policy::policy::{
    Block, CpuSignal, Hybrid, Its, NAMES, Predictive, SmartCon, Spin, by_name,
};
use dwell_policy::{
    Backlog, Call, Decision, DeviceClass, Estimate, Estimator, Kind, Latency, Load, Mode, Ns,
    Profile, Reason, Route, Routes, Wait, WaitPolicy,
};
use proptest::prelude::*;

const FAST: Profile = Profile {
    class: DeviceClass::Fast,
    size_threshold_bytes: 64 << 10,
    async_threshold_bytes: 64 << 10,
    ring_threshold_bytes: 0,
    switch_ns: 5_000,
    reload_ns: 3_000,
    sleep_overshoot_ns: 14_000,
    latency_ns: 10_000,
    latency_ps_per_byte: 400,
};

fn of_class(class: DeviceClass) -> Profile {
    Profile { class, ..FAST }
}

fn load(others: f32, total: f32, threshold: f32, may_spin: bool) -> Load {
    let mut load = Load::new(others, total, threshold);
    load.may_spin = may_spin;
    load
}

/// A read that every check of SmartCon lets spin.
fn small(profile: &Profile) -> Wait<'_> {
    Wait::new(Kind::Read, 4096, Some(profile))
}

#[test]
fn one_of_several_has_a_class_and_a_threshold_of_its_own() {
    let decide = |class, size_threshold_bytes, async_threshold_bytes, call| {
        let profile = Profile { class, size_threshold_bytes, async_threshold_bytes, ..FAST };
        let decision = SmartCon::default().choose(&Wait { call, ..small(&profile) });
        (decision.mode, decision.reason)
    };
    let (fast, mainstream) = (DeviceClass::Fast, DeviceClass::Mainstream);
    let spins = (Mode::Spin, Reason::Pays);
    let blocks = (Mode::Block, Reason::Mainstream);
    assert_eq!(decide(mainstream, 0, 16 << 10, Call::Async), spins);
    assert_eq!(decide(mainstream, 0, 16 << 10, Call::Blocking), blocks);
    assert_eq!(decide(fast, 64 << 10, 0, Call::Async), blocks);
    assert_eq!(decide(fast, 64 << 10, 0, Call::Blocking), spins);
    assert_eq!(decide(fast, 64 << 10, 2 << 10, Call::Async), (Mode::Block, Reason::Size));
}

#[test]
fn a_lone_small_request_leaves_the_cpu_on_a_ring_where_that_was_found_better() {
    let profile = Profile { ring_threshold_bytes: 16 << 10, ..of_class(DeviceClass::Mainstream) };
    let smartcon = SmartCon::default();
    let wait = small(&profile);
    let route = |wait: &Wait<'_>| smartcon.choose(wait).route;
    assert_eq!(smartcon.always_inline(Some(&profile)), None);
    assert_eq!(smartcon.choose(&wait).mode, Mode::Block);
    assert_eq!(route(&wait), Route::Interrupt);
    assert_eq!(route(&Wait { size_bytes: (16 << 10) + 1, ..wait.clone() }), Route::Inline);
    assert_eq!(route(&Wait { kind: Kind::Sync, ..wait.clone() }), Route::Inline);
    assert_eq!(route(&Wait { load: load(0.9, 0.9, 0.5, true), ..wait.clone() }), Route::Inline);
    assert_eq!(route(&Wait { routes: Routes::INLINE, ..wait.clone() }), Route::Inline);
    // The kernel's own way stays what it is.
    assert_eq!(Block.choose(&wait).route, Route::Inline);
}

#[test]
fn smartcon_checks_class_size_backlog_queue_cpu_and_budget_in_this_order() {
    let policy = SmartCon { queue_limit: Some(2), ..SmartCon::default() };
    let mainstream = of_class(DeviceClass::Mainstream);
    // Everything is wrong at first; each line repairs what the line before it named.
    let mut wait = Wait::new(Kind::Read, (64 << 10) + 1, Some(&mainstream));
    wait.backlog = Backlog { bytes: 1 << 20, requests: 3 };
    wait.load = load(0.9, 0.9, 0.5, false);
    assert_eq!(policy.choose(&wait).reason, Reason::Mainstream);
    wait.profile = Some(&FAST);
    assert_eq!(policy.choose(&wait).reason, Reason::Size);
    wait.size_bytes = 64 << 10;
    assert_eq!(policy.choose(&wait).reason, Reason::Backlog);
    wait.backlog.bytes = 0;
    assert_eq!(policy.choose(&wait).reason, Reason::QueueLength);
    wait.backlog.requests = 2;
    wait.awake = false;
    assert_eq!(policy.choose(&wait).reason, Reason::Asleep);
    wait.awake = true;
    assert_eq!(policy.choose(&wait).reason, Reason::CpuBusy);
    wait.load = load(0.5, 0.5, 0.5, false);
    assert_eq!(policy.choose(&wait).reason, Reason::SpinnerLimit);
    wait.load.may_spin = true;
    // Exactly the threshold, exactly the queue limit, exactly the CPU threshold: still spins.
    let decision = policy.choose(&wait);
    assert_eq!((decision.mode, decision.reason), (Mode::Spin, Reason::Pays));
    wait.kind = Kind::Sync;
    assert_eq!(policy.choose(&wait).reason, Reason::Sync);
}

#[test]
fn size_and_backlog_together_may_reach_the_threshold_and_not_exceed_it() {
    let mut wait = small(&FAST);
    wait.backlog.bytes = (64 << 10) - 4096;
    assert_eq!(SmartCon::default().choose(&wait).reason, Reason::Pays);
    wait.backlog.bytes += 1;
    assert_eq!(SmartCon::default().choose(&wait).reason, Reason::Backlog);
}

#[test]
fn each_signal_is_held_against_the_threshold() {
    let mut wait = small(&FAST);
    wait.load = Load::new(0.2, 0.9, 0.5);
    let with = |signal| SmartCon { signal, ..SmartCon::default() };
    assert_eq!(with(CpuSignal::Others).choose(&wait).reason, Reason::Pays);
    assert_eq!(with(CpuSignal::Total).choose(&wait).reason, Reason::CpuBusy);
    let own = SmartCon { cpu_threshold: Some(0.1), ..SmartCon::default() };
    assert_eq!(own.choose(&wait).reason, Reason::CpuBusy);
}

#[test]
fn names_and_policies_agree() {
    for name in NAMES {
        assert_eq!(by_name(name).expect(name).name(), name);
    }
    assert!(by_name("poll").is_none());
}

/// A device and a machine, as far as an estimator sees them.
struct Simulated {
    latency_ns: Ns,
    switch_ns: Ns,
    overshoot_ns: Ns,
}

impl Simulated {
    /// Latency of one request that was waited for as `decision` says.
    fn serve(&self, decision: &Decision) -> Ns {
        match decision.mode {
            Mode::Block => self.latency_ns + self.switch_ns,
            Mode::Spin if decision.spin_limit_ns < self.latency_ns => {
                self.latency_ns + self.switch_ns
            }
            Mode::Spin => self.latency_ns,
            Mode::Hybrid { sleep_ns } => self.latency_ns.max(sleep_ns + self.overshoot_ns),
        }
    }

    /// Runs `requests` 4 KiB reads under `policy` and says how the last thousand were waited for.
    fn run(
        &self,
        policy: &dyn WaitPolicy,
        profile: &Profile,
        estimator: &mut Estimator,
        requests: u64,
    ) -> (usize, usize) {
        let (mut spun, mut blocked) = (0, 0);
        for sequence in 0..requests {
            let estimate = estimator.of(Kind::Read, 4096);
            let decision = policy.choose(&Wait { sequence, estimate, ..small(profile) });
            estimator.record(Kind::Read, 4096, decision.mode, self.serve(&decision));
            if sequence + 1_000 >= requests {
                match decision.mode {
                    Mode::Block => blocked += 1,
                    Mode::Spin | Mode::Hybrid { .. } => spun += 1,
                }
            }
        }
        (spun, blocked)
    }
}

#[test]
fn a_hybrid_wait_does_not_teach_itself_longer_sleeps() {
    // The profile's overshoot is 14 µs; here it is 6 µs more, then 100 µs, then right again.
    let mut estimator = Estimator::new();
    let mean_after = |overshoot_ns, estimator: &mut Estimator| {
        let device = Simulated { latency_ns: 40_000, switch_ns: 0, overshoot_ns };
        device.run(&Hybrid, &FAST, estimator, 20_000);
        estimator.of(Kind::Read, 4096).spun.mean_ns
    };
    assert!(mean_after(20_000, &mut estimator).abs_diff(40_000) < 1_000);
    assert!(mean_after(114_000, &mut estimator) <= 4 * 100_000);
    assert!(mean_after(14_000, &mut estimator).abs_diff(40_000) < 1_000);
}

fn any_class() -> impl Strategy<Value = DeviceClass> {
    prop_oneof![Just(DeviceClass::VeryFast), Just(DeviceClass::Fast), Just(DeviceClass::Mainstream)]
}

fn any_routes() -> impl Strategy<Value = Routes> {
    (1u8..8).prop_map(|bits| {
        [Routes::INLINE, Routes::POLLED, Routes::INTERRUPT]
            .into_iter()
            .enumerate()
            .filter(|(at, _)| bits & (1 << at) != 0)
            .fold(Routes::NONE, |all, (_, one)| all | one)
    })
}

fn any_profile() -> impl Strategy<Value = Profile> {
    let sizes = (0..1u64 << 22, 0..1u64 << 22, prop_oneof![Just(0u64), 0..1u64 << 22]);
    let figures = (sizes, 0..100_000u64, 0..100_000u64, 0..100_000u64);
    (any_class(), figures, 0..1_000_000u64, 0..10_000u64).prop_map(
        |(class, (sizes, switch_ns, reload_ns, sleep_overshoot_ns), latency_ns, ps)| Profile {
            class,
            size_threshold_bytes: sizes.0,
            async_threshold_bytes: sizes.1,
            ring_threshold_bytes: sizes.2,
            switch_ns,
            reload_ns,
            sleep_overshoot_ns,
            latency_ns,
            latency_ps_per_byte: ps,
        },
    )
}

fn any_latency() -> impl Strategy<Value = Latency> {
    (0..2_000_000u64, 0..2_000_000u64)
        .prop_map(|(mean_ns, deviation_ns)| Latency { mean_ns, deviation_ns })
}

fn any_load() -> impl Strategy<Value = Load> {
    (0f32..=1.0, 0f32..=1.0, 0f32..=1.0, any::<u8>(), any::<bool>()).prop_map(
        |(others, total, threshold, competitors, may_spin)| {
            let mut load = load(others, total, threshold, may_spin);
            load.competitors = competitors;
            load
        },
    )
}

/// Everything about a wait but its profile.
fn any_wait() -> impl Strategy<Value = Wait<'static>> {
    let kind = prop_oneof![3 => Just(Kind::Read), 3 => Just(Kind::Write), 1 => Just(Kind::Sync)];
    let call = prop_oneof![Just(Call::Blocking), Just(Call::Async)];
    let request = (kind, 0..1u64 << 22, call, any_routes(), any::<u64>());
    let backlog = (0..1u64 << 22, 0..64u32);
    (request, backlog, any_latency(), any_latency(), any_load()).prop_map(
        |((kind, size_bytes, call, routes, sequence), (bytes, requests), spun, blocked, load)| {
            Wait {
                backlog: Backlog { bytes, requests },
                call,
                routes,
                estimate: Estimate { spun, blocked },
                load,
                sequence,
                ..Wait::new(kind, size_bytes, None)
            }
        },
    )
}

fn any_smartcon() -> impl Strategy<Value = SmartCon> {
    let signal = prop_oneof![Just(CpuSignal::Others), Just(CpuSignal::Total)];
    (proptest::option::of(0f32..=1.0), proptest::option::of(0..64u32), signal).prop_map(
        |(cpu_threshold, queue_limit, signal)| SmartCon { cpu_threshold, queue_limit, signal },
    )
}

/// Spins while it waits.
fn spins(decision: &Decision) -> bool {
    decision.mode == Mode::Spin
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_decision_takes_a_route_that_is_offered(wait in any_wait(), profile in proptest::option::of(any_profile())) {
        let wait = Wait { profile: profile.as_ref(), ..wait };
        for name in NAMES {
            let decision = by_name(name).unwrap().choose(&wait);
            prop_assert!(wait.routes.has(decision.route), "{name}: {decision:?}");
            let limits = 0..=Decision::MAX_SPIN_LIMIT_NS;
            prop_assert!(limits.contains(&decision.spin_limit_ns));
            // Nobody can stay on the CPU for a call that the kernel may block.
            let inline = decision.route == Route::Inline && decision.mode != Mode::Block;
            prop_assert!(!inline || decision.reason == Reason::VeryFast, "{name}: {decision:?}");
        }
    }

    #[test]
    fn unprobed_devices_pass_through(wait in any_wait(), policy in any_smartcon()) {
        for decision in [policy.choose(&wait), Hybrid.choose(&wait)] {
            prop_assert_eq!(decision.mode, Mode::Block);
            prop_assert!(matches!(decision.reason, Reason::Unprobed | Reason::Sync));
            prop_assert_eq!(decision.route, wait.routes.to_block(wait.call));
        }
        prop_assert_eq!(policy.always_inline(None), Some((Mode::Block, Reason::Unprobed)));
    }

    #[test]
    fn mainstream_devices_never_spin(wait in any_wait(), profile in any_profile(), policy in any_smartcon()) {
        let profile = Profile { class: DeviceClass::Mainstream, ..profile };
        let wait = Wait { profile: Some(&profile), call: Call::Blocking, ..wait };
        let decision = policy.choose(&wait);
        prop_assert_eq!((decision.mode, decision.reason), (Mode::Block, Reason::Mainstream));
    }

    #[test]
    fn very_fast_devices_never_block_where_they_need_not(wait in any_wait(), profile in any_profile(), policy in any_smartcon()) {
        let profile = Profile { class: DeviceClass::VeryFast, ..profile };
        let wait = Wait { profile: Some(&profile), ..wait };
        let decision = policy.choose(&wait);
        // Any set of routes is inline or has a queue.
        prop_assert_eq!((decision.mode, decision.reason), (Mode::Spin, Reason::VeryFast));
        prop_assert_eq!(decision.route == Route::Inline, wait.routes.has(Route::Inline));
    }

    #[test]
    fn fast_devices_never_spin_above_the_cpu_threshold(wait in any_wait(), profile in any_profile(), policy in any_smartcon()) {
        let profile = Profile { class: DeviceClass::Fast, ..profile };
        let wait = Wait { profile: Some(&profile), ..wait };
        let load = match policy.cpu_threshold {
            Some(threshold) => wait.load.with_threshold(threshold),
            None => wait.load,
        };
        let above = match policy.signal {
            CpuSignal::Others => load.others() > load.threshold(),
            CpuSignal::Total => load.total() > load.threshold(),
        };
        if spins(&policy.choose(&wait)) {
            prop_assert!(!above);
            prop_assert!(wait.load.may_spin && wait.kind != Kind::Sync);
            prop_assert!(wait.size_bytes + wait.backlog.bytes <= profile.threshold_of(wait.call));
        }
    }

    #[test]
    fn a_request_that_blocks_blocks_for_more_size_backlog_and_load(
        wait in any_wait(),
        profile in any_profile(),
        policy in any_smartcon(),
        more in (0..1u64 << 20, 0..1u64 << 20, 0..16u32, 0f32..0.5),
    ) {
        let wait = Wait { profile: Some(&profile), ..wait };
        let (bytes, ahead, requests, busier) = more;
        let larger = Wait {
            size_bytes: wait.size_bytes + bytes,
            backlog: Backlog {
                bytes: wait.backlog.bytes + ahead,
                requests: wait.backlog.requests + requests,
            },
            load: load(
                wait.load.others() + busier,
                wait.load.total() + busier,
                wait.load.threshold(),
                wait.load.may_spin,
            ),
            ..wait.clone()
        };
        prop_assert!(spins(&policy.choose(&wait)) || !spins(&policy.choose(&larger)));
    }

    #[test]
    fn a_hybrid_sleep_leaves_the_overshoot_and_some_spin(wait in any_wait(), profile in any_profile()) {
        let wait = Wait { profile: Some(&profile), ..wait };
        let decision = Hybrid.choose(&wait);
        if let Mode::Hybrid { sleep_ns } = decision.mode {
            let overshoot_ns = profile.sleep_overshoot_ns;
            prop_assert!(sleep_ns > 0);
            prop_assert!(sleep_ns + overshoot_ns <= wait.predicted_ns());
            prop_assert!(sleep_ns + overshoot_ns < wait.predicted_ns().max(4));
        }
        let quick = Profile { sleep_overshoot_ns: wait.predicted_ns(), ..profile };
        let decision = Hybrid.choose(&Wait { profile: Some(&quick), ..wait });
        let sleeps = matches!(decision.mode, Mode::Hybrid { .. });
        prop_assert!(!sleeps, "the latency is no longer than the overshoot: {decision:?}");
    }

    #[test]
    fn syncs_block_unless_told_otherwise(wait in any_wait(), profile in any_profile()) {
        let profile = Profile { class: DeviceClass::Fast, ..profile };
        let wait = Wait { kind: Kind::Sync, profile: Some(&profile), ..wait };
        for policy in [&SmartCon::default() as &dyn WaitPolicy, &Hybrid, &Predictive, &Block] {
            prop_assert_eq!(policy.choose(&wait).mode, Mode::Block);
        }
    }

    #[test]
    fn spin_spins_wherever_there_is_a_queue(wait in any_wait()) {
        let decision = Spin.choose(&wait);
        prop_assert_eq!(spins(&decision), wait.routes.to_spin().is_some());
        prop_assert_eq!(decision.reason == Reason::NoQueue, wait.routes.to_spin().is_none());
    }

    #[test]
    fn choose_decides_what_always_inline_promises(wait in any_wait(), profile in proptest::option::of(any_profile())) {
        let wait = Wait { profile: profile.as_ref(), call: Call::Blocking, routes: wait.routes | Routes::INLINE, ..wait };
        for name in NAMES {
            let policy = by_name(name).unwrap();
            if let Some((mode, why)) = policy.always_inline(wait.profile) {
                let decision = policy.choose(&wait);
                prop_assert_eq!((decision.mode, decision.reason, decision.route), (mode, why, Route::Inline), "{}", name);
            }
        }
    }

    #[test]
    fn choose_decides_what_leaves_promises_whatever_came_before(wait in any_wait(), other in any_wait(), profile in proptest::option::of(any_profile())) {
        let wait = Wait { profile: profile.as_ref(), call: Call::Blocking, ..wait };
        let later = Wait { estimate: other.estimate, sequence: other.sequence, nice: other.nice, next_nice: other.next_nice, ..wait.clone() };
        for name in NAMES {
            let policy = by_name(name).unwrap();
            if let Some(why) = policy.leaves(&wait) {
                let decision = policy.choose(&later);
                prop_assert_eq!((decision.mode, decision.reason, decision.route), (Mode::Block, why, Route::Inline), "{}", name);
            }
        }
    }

    #[test]
    fn absurd_profiles_and_estimates_do_not_panic(wait in any_wait(), figures in any::<[u64; 8]>(), samples in any::<[u64; 4]>()) {
        let [size_threshold_bytes, async_threshold_bytes, ring_threshold_bytes, switch_ns, reload_ns, sleep_overshoot_ns, latency_ns, latency_ps_per_byte] = figures;
        let profile = Profile { class: DeviceClass::Fast, size_threshold_bytes, async_threshold_bytes, ring_threshold_bytes, switch_ns, reload_ns, sleep_overshoot_ns, latency_ns, latency_ps_per_byte };
        let mut estimator = Estimator::new();
        for sample_ns in samples {
            estimator.record(Kind::Read, sample_ns, Mode::Spin, sample_ns);
            estimator.record(Kind::Read, sample_ns, Mode::Block, sample_ns);
        }
        let wait = Wait {
            profile: Some(&profile), size_bytes: u64::MAX,
            backlog: Backlog { bytes: u64::MAX, requests: u32::MAX },
            estimate: estimator.of(Kind::Read, samples[0]),
            ..wait
        };
        for name in NAMES {
            let _ = by_name(name).unwrap().choose(&wait);
        }
    }
}

#[test]
fn its_gives_way_to_a_higher_priority_and_to_nothing_else() {
    let wait = |nice, next_nice| Wait { nice, next_nice, ..Wait::new(Kind::Read, 4096, None) };
    let its = Its;
    for (nice, next, mode, why) in [
        (0, None, Mode::Spin, Reason::Pays),
        (5, Some(5), Mode::Spin, Reason::Pays),
        (-5, Some(0), Mode::Spin, Reason::Pays),
        (5, Some(0), Mode::Block, Reason::Sacrificed),
        (19, Some(-20), Mode::Block, Reason::Sacrificed),
    ] {
        let decision = its.choose(&wait(nice, next));
        assert_eq!((decision.mode, decision.reason), (mode, why), "nice {nice}, next {next:?}");
    }
    let sync = Wait { kind: Kind::Sync, ..wait(0, None) };
    assert_eq!(its.choose(&sync).reason, Reason::Sync);
    let slow = Profile { latency_ns: 2 * Its::LONGEST_SPIN_NS, ..Profile::default() };
    let slow = Wait { profile: Some(&slow), ..wait(0, None) };
    assert_eq!(
        (its.choose(&slow).mode, its.choose(&slow).reason),
        (Mode::Block, Reason::Mainstream)
    );
}

#[test]
fn its_leaves_the_cpu_where_spinning_was_seen_to_be_slower_and_now_and_then_tries_again() {
    let latency = |mean_ns| Latency { mean_ns, deviation_ns: 0 };
    let with = |spun, blocked, sequence| {
        let estimate = Estimate { spun: latency(spun), blocked: latency(blocked) };
        Its.choose(&Wait { estimate, sequence, ..Wait::new(Kind::Read, 4096, None) })
    };
    assert_eq!(with(20_000, 30_000, 0).mode, Mode::Spin);
    assert_eq!(
        (with(900_000, 40_000, 0).mode, with(900_000, 40_000, 0).reason),
        (Mode::Block, Reason::SwitchCheaper)
    );
    // One slow spin alone is no reason for ever: the second run tries the other mode.
    assert_eq!(with(300_000, 0, 0).mode, Mode::Block);
    assert_eq!(
        (with(300_000, 0, 40).mode, with(300_000, 0, 40).reason),
        (Mode::Spin, Reason::Explored)
    );
    let spun = (0..100_000).filter(|at| with(900_000, 40_000, *at).mode == Mode::Spin).count();
    assert!((2_000..12_000).contains(&spun), "{spun}");
}
