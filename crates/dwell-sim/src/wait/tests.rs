// SPDX-License-Identifier: MIT OR Apache-2.0
//! Scenarios whose outcome follows from the rules by hand, and laws that hold in every one.

use dwell_policy::policy::by_name;
use dwell_policy::{Reason, policy};
use proptest::prelude::*;

use super::*;

fn run(sets: &[&str], name: &str) -> WaitReport {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let scenario = Scenario::default().with(&sets).unwrap();
    simulate(&scenario, by_name(name).unwrap(), 1)
}

/// Requests in one second that take so long each, one after the other.
fn in_a_second(ns: u64) -> std::ops::RangeInclusive<u64> {
    let count = 1_000_000_000 / ns;
    count - 1..=count + 1
}

#[test]
fn a_spinning_thread_waits_for_the_device_alone() {
    let report = run(&[], "spin");
    assert!(in_a_second(3_000 + 300).contains(&report.requests), "{report:?}");
    assert_eq!((report.mean_ns, report.left_cpu, report.switches), (3_000.0, 0, 1));
    assert_eq!(report.reasons.keys().collect::<Vec<_>>(), [Reason::Fixed.as_str()]);
    assert_eq!(report.cpu.spin_ns + report.cpu.work_ns, 1_000_000_000);
}

#[test]
fn a_blocking_thread_waits_for_the_cpu_to_wake_too() {
    let report = run(&[], "block");
    assert!(in_a_second(8_000 + 300).contains(&report.requests), "{report:?}");
    assert_eq!((report.mean_ns, report.cpu.spin_ns), (8_000.0, 0));
    assert_eq!(report.left_cpu, report.requests);
}

#[test]
fn where_blocking_has_the_shorter_way_it_is_faster() {
    let sets = ["device.block_extra_ns=-2000", "device.class=fast"];
    assert_eq!(run(&sets, "block").mean_ns, 1_000.0);
    assert_eq!(run(&sets, "spin").mean_ns, 3_000.0);
}

#[test]
fn adaptive_leaves_a_wrong_prior_whichever_way_it_is_wrong() {
    for (wrong, best) in [
        (["device.class=mainstream", "device.block_extra_ns=150000"], "spin"),
        (["device.class=fast", "device.block_extra_ns=-60000"], "block"),
    ] {
        let sets = [&wrong[..], &["device.latency=100us", "duration_ms=30000"]].concat();
        let (found, best) = (run(&sets, "adaptive"), run(&sets, best));
        assert!(found.requests as f64 > 0.9 * best.requests as f64, "{found:?}");
        assert!(found.reasons["measured"] > found.requests * 9 / 10, "{found:?}");
        let literal = run(&sets, "smartcon");
        assert!(found.requests as f64 > 1.5 * literal.requests as f64, "{literal:?}");
    }
}

#[test]
fn smartcon_spins_on_an_idle_machine_and_blocks_on_a_full_one() {
    let idle = run(&[], "smartcon");
    assert_eq!(idle.requests, run(&[], "spin").requests);
    assert!(idle.reasons.contains_key("pays"));
    let full = run(&["stressors=8"], "smartcon");
    assert_eq!(full.reasons.keys().collect::<Vec<_>>(), ["cpu-busy"]);
    assert_eq!(full.requests, run(&["stressors=8"], "block").requests);
    let large = run(&["size_bytes=1000000"], "smartcon");
    assert_eq!(large.reasons.keys().collect::<Vec<_>>(), ["size"]);
    let slow = run(&["device.latency=1ms"], "smartcon");
    assert_eq!(slow.reasons.keys().collect::<Vec<_>>(), ["mainstream"]);
}

#[test]
fn a_copy_is_work_of_the_caller_whatever_was_decided() {
    for name in policy::NAMES {
        let report = run(&["device.in_caller=true"], name);
        assert_eq!((report.mean_ns, report.left_cpu, report.cpu.spin_ns), (3_000.0, 0, 0));
    }
}

#[test]
fn a_spin_that_passes_its_deadline_leaves_the_cpu() {
    let sets = ["device.latency=20ms", "device.class=fast"];
    let report = run(&sets, "spin");
    assert_eq!(report.expired, report.requests);
    assert_eq!(report.left_cpu, report.requests);
    // At most the longest deadline of each 20 ms.
    assert!(report.cpu.spin_ns <= 510_000_000, "{report:?}");
}

#[test]
fn the_device_serves_so_many_at_a_time_over_one_link() {
    let sets = ["threads=8", "cores=16", "device.parallel=2"];
    let two = run(&sets, "spin");
    // Two at a time, each 3 µs; thinking is hidden behind the queue.
    assert!((660_000..=667_000).contains(&two.requests), "{}", two.requests);
    let sets = ["threads=8", "cores=16", "device.bandwidth_mb_per_s=1024"];
    let linked = run(&sets, "spin");
    assert!((249_000..=250_100).contains(&linked.requests), "{}", linked.requests);
}

#[test]
fn spinners_on_one_cpu_take_turns_and_blockers_use_it() {
    let sets = ["cores=1", "threads=2", "device.class=fast"];
    let (spun, blocked) = (run(&sets, "spin"), run(&sets, "block"));
    assert!(spun.cpu.spin_ns > 800_000_000 && blocked.cpu.spin_ns == 0);
    assert!(spun.switches < blocked.switches, "{spun:?} {blocked:?}");
}

#[test]
fn a_thread_that_wakes_up_beside_hogs_is_served_before_them() {
    let report = run(&["cores=1", "stressors=4"], "block");
    // Device, switch and its own work, not the slices of four others.
    assert!(report.p50_ns < 20_000, "{report:?}");
    assert!(report.cpu.stressors_ns > 200_000_000, "{report:?}");
}

#[test]
fn a_worker_needs_a_cpu_of_its_own() {
    let sets = ["cores=1", "device.worker_ns=2000", "device.class=fast"];
    let spun = run(&sets, "spin");
    // On one CPU each request costs a spinner two switches, to the worker and back.
    assert!(spun.mean_ns > 3_000.0 && spun.switches >= 2 * spun.requests - 1, "{spun:?}");
    let beside = run(&["cores=2", "device.worker_ns=2000"], "spin");
    assert_eq!(beside.mean_ns, 3_000.0);
}

#[test]
fn a_hybrid_wait_sleeps_first() {
    let sets = ["device.latency=200us", "device.sleep_overshoot_ns=1000", "device.class=fast"];
    let report = run(&sets, "hybrid");
    assert!(report.cpu.spin_ns > 0 && report.cpu.idle_ns > 3_000_000_000, "{report:?}");
    assert!(report.mean_ns < 206_000.0, "{report:?}");
}

#[test]
fn a_program_s_own_policy_is_asked_like_any_other() {
    struct EveryOther;
    impl WaitPolicy for EveryOther {
        fn name(&self) -> &str {
            "every-other"
        }
        fn choose(&self, wait: &Wait<'_>) -> Decision {
            match wait.sequence % 2 {
                0 => policy::block(wait, Reason::Fixed),
                _ => policy::spin(wait, Reason::Explored),
            }
        }
    }
    let report = simulate(&Scenario::default(), &EveryOther, 1);
    assert_eq!(report.policy, "every-other");
    assert!(report.left_cpu.abs_diff(report.requests / 2) <= 1);
    assert!((5_490.0..5_510.0).contains(&report.mean_ns), "{report:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn every_nanosecond_of_every_cpu_has_one_account_and_a_seed_gives_one_report(
        (cores, threads, stressors) in (1u32..5, 1u32..7, 0u32..6),
        (latency, extra, worker) in (500u64..50_000, -5_000i64..20_000, 0u64..3_000),
        (parallel, bandwidth, name) in (1u32..4, 0u64..3_000, prop::sample::select(policy::NAMES.to_vec())),
        seed in any::<u64>(),
    ) {
        let mut scenario = Scenario { cores, threads, stressors, duration_ms: 20, ..Scenario::default() };
        scenario.device = Device {
            latency: Distribution::new(vec![(0.0, latency), (0.9, latency * 2), (1.0, latency * 9)]).unwrap(),
            block_extra_ns: extra,
            worker_ns: worker,
            parallel,
            bandwidth_mb_per_s: bandwidth,
            class: "fast".into(),
            size_threshold_bytes: 64 << 10,
            ..Device::default()
        };
        scenario.window_ms = 5;
        let policy = by_name(name).unwrap();
        let report = simulate(&scenario, policy, seed);
        prop_assert_eq!(report.cpu.total_ns(), report.elapsed_ns * u64::from(cores), "{:?}", report);
        prop_assert!(report.cpu.spin_ns + report.cpu.work_ns <= report.elapsed_ns * u64::from(threads));
        let asked: u64 = report.reasons.values().sum();
        prop_assert!((report.requests..=report.requests + u64::from(threads)).contains(&asked));
        prop_assert_eq!(simulate(&scenario, policy, seed), report);
    }
}
