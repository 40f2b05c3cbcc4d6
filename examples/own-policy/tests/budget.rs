// SPDX-License-Identifier: MIT OR Apache-2.0
//! The policy decides as it says, and the command knows it.

use std::process::Command;

use dwell_policy::{Kind, Mode, Profile, Reason, Routes, Wait, WaitPolicy};
use own_policy::Budget;

fn decided(kind: Kind, size_bytes: u64) -> (Mode, Reason) {
    let profile = Profile { latency_ns: 10_000, latency_ps_per_byte: 1_000, ..Profile::default() };
    let mut wait = Wait::new(kind, size_bytes, Some(&profile));
    wait.routes = Routes::INLINE | Routes::INTERRUPT;
    let decision = Budget { spin_ns: 20_000 }.choose(&wait);
    (decision.mode, decision.reason)
}

#[test]
fn a_request_due_within_the_budget_is_spun_for() {
    assert_eq!(decided(Kind::Read, 4096), (Mode::Spin, Reason::Pays));
    assert_eq!(decided(Kind::Read, 64 << 10), (Mode::Block, Reason::SwitchCheaper));
    assert_eq!(decided(Kind::Write, 4096), (Mode::Block, Reason::Fixed));
}

fn own(arguments: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_own-policy")).args(arguments).output().unwrap()
}

#[test]
fn the_bench_measures_it_beside_the_others() {
    let directory = std::env::temp_dir().join(format!("own-policy-{}", std::process::id()));
    let report = directory.to_str().unwrap();
    let output = own(&[
        "bench",
        "io",
        "emu:latency=5us,size=1MiB",
        "--policies",
        "block,budget",
        "--sizes",
        "4k",
        "--load",
        "idle",
        "--rounds",
        "1",
        "--batch-ms",
        "2",
        "--json",
        "--out",
        report,
    ]);
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let json = String::from_utf8(output.stdout).unwrap();
    assert!(json.contains("\"policy\": \"budget\""), "{json}");
}

#[test]
fn an_unknown_policy_is_answered_with_all_names() {
    let output = own(&["bench", "io", "--policies", "budgett"]);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success() && error.contains("predictive, its, budget"), "{error}");
}
