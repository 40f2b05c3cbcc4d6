// SPDX-License-Identifier: MIT OR Apache-2.0
//! What `explain` tells is what `choose` decides.

use dwell_policy::policy::{self, Check, CpuSignal, Looked, SmartCon, WaitPolicy};
use dwell_policy::{
    Arm, Backlog, Call, DeviceClass, Estimate, Kind, Latency, Learned, Load, Profile, Reason,
    Routes, Wait,
};
use proptest::prelude::*;

fn profile() -> impl Strategy<Value = Option<Profile>> {
    let class = prop_oneof![
        1 => Just(DeviceClass::VeryFast),
        6 => Just(DeviceClass::Fast),
        1 => Just(DeviceClass::Mainstream)
    ];
    let profile = (class, 0u64..20, 0u64..100_000, 0u64..50_000, 0u64..200_000).prop_map(
        |(class, size_log2, switch_ns, reload_ns, latency_ns)| Profile {
            class,
            size_threshold_bytes: 1 << size_log2,
            async_threshold_bytes: (1 << size_log2) & !0xffff,
            switch_ns,
            reload_ns,
            latency_ns,
            ..Profile::default()
        },
    );
    proptest::option::weighted(0.9, profile)
}

fn load() -> impl Strategy<Value = Load> {
    (0.0f32..1.0, 0.0f32..1.0, 0.0f32..1.0, any::<bool>(), 0u8..3).prop_map(
        |(others, total, threshold, may_spin, competitors)| {
            let mut load = Load::new(others, total, threshold);
            (load.may_spin, load.competitors) = (may_spin, competitors);
            load
        },
    )
}

/// Everything about a request except its profile, which it borrows.
fn wait() -> impl Strategy<Value = Wait<'static>> {
    let kind = prop_oneof![4 => Just(Kind::Read), 4 => Just(Kind::Write), 1 => Just(Kind::Sync)];
    let call = prop_oneof![Just(Call::Blocking), Just(Call::Async)];
    let routes = prop_oneof![
        Just(Routes::INLINE),
        Just(Routes::INTERRUPT),
        Just(Routes::INLINE | Routes::INTERRUPT),
        Just(Routes::INLINE | Routes::INTERRUPT | Routes::POLLED),
    ];
    let request = (kind, 0u64..20, 0u64..20, 0u32..4, call, routes);
    (request, load(), 0u64..100_000, 0u64..100_000, any::<u64>()).prop_map(
        |((kind, size, ahead, requests, call, routes), load, spun, blocked, sequence)| Wait {
            backlog: Backlog { bytes: if ahead < 8 { 0 } else { 1 << ahead }, requests },
            call,
            routes,
            load,
            estimate: Estimate {
                spun: Latency { mean_ns: spun / 2, deviation_ns: 0 },
                blocked: Latency { mean_ns: blocked, deviation_ns: 0 },
            },
            sequence,
            awake: sequence % 5 > 0,
            learned: learned(sequence),
            ..Wait::new(kind, 1 << size, None)
        },
    )
}

/// Nothing, or one of the arms, for good or on trial.
fn learned(number: u64) -> Option<Learned> {
    let arm = Arm::ALL.get(number as usize % (Arm::ALL.len() + 2))?;
    Some(Learned { arm: *arm, trial: number.is_multiple_of(2) })
}

fn checks(policy: &dyn WaitPolicy, wait: &Wait<'_>) -> Vec<Check> {
    let mut checks = Vec::new();
    policy.explain(wait, &mut |check| checks.push(check));
    checks
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

    #[test]
    fn the_first_check_with_a_decision_is_the_decision(
        profile in profile(),
        wait in wait(),
        threshold in proptest::option::of(0.0f32..1.0),
        queue_limit in proptest::option::of(0u32..3),
        total in any::<bool>(),
    ) {
        let wait = Wait { profile: profile.as_ref(), ..wait };
        let signal = if total { CpuSignal::Total } else { CpuSignal::Others };
        let smartcon = SmartCon { cpu_threshold: threshold, queue_limit, signal };
        let named = policy::NAMES.map(|name| policy::by_name(name).unwrap());
        for policy in named.into_iter().chain([&smartcon as &dyn WaitPolicy]) {
            let first = checks(policy, &wait).into_iter().find_map(|check| check.decision);
            prop_assert_eq!(first, Some(policy.choose(&wait)), "{}", policy.name());
        }
    }

    #[test]
    fn a_check_bears_its_verdict_out(profile in profile(), wait in wait()) {
        let wait = Wait { profile: profile.as_ref(), ..wait };
        for check in checks(&SmartCon { queue_limit: Some(1), ..SmartCon::default() }, &wait) {
            let above = match check.looked {
                Looked::Probed(probed) => !probed,
                Looked::Class(class) => class.is_some_and(|class| class != DeviceClass::Fast),
                // Without a profile nothing behind the first check is ever asked.
                _ if profile.is_none() => continue,
                Looked::Kind(kind) => kind == Kind::Sync,
                Looked::Size { bytes, threshold_bytes }
                | Looked::Backlog { bytes, threshold_bytes } => Some(bytes) > threshold_bytes,
                Looked::QueueLength { requests, limit } => limit.is_some_and(|l| requests > l),
                Looked::Cpu { used, threshold, .. } => used > threshold,
                Looked::Awake(awake) => !awake,
                Looked::SpinnerLimit(may_spin) => !may_spin,
                Looked::Queue(_) => true,
                other => panic!("not a check of smartcon: {other:?}"),
            };
            prop_assert_eq!(above, check.decision.is_some(), "{:?}", check);
        }
    }
}

#[test]
fn a_large_request_is_stopped_by_its_size_and_the_checks_behind_are_told_too() {
    let profile = Profile::default();
    let wait = Wait::new(Kind::Read, 1 << 20, Some(&profile));
    let checks = checks(&SmartCon::default(), &wait);
    assert_eq!(checks.len(), 10);
    let at = checks.iter().position(|check| check.decision.is_some()).unwrap();
    let size = Looked::Size { bytes: 1 << 20, threshold_bytes: Some(64 << 10) };
    assert_eq!((checks[at].looked, checks[at].decision.unwrap().reason), (size, Reason::Size));
}
