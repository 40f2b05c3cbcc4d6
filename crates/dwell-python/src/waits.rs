// SPDX-License-Identifier: MIT OR Apache-2.0
//! Waits on a device that is not here.

use std::sync::Arc;

use dwell::{WaitPolicy, policies};
use dwell_bench::waits;
use dwell_sim::columns::{counts, numbers, texts};
use dwell_sim::wait::{Scenario, WaitReport};
use pyo3::prelude::*;

use crate::error::refused;
use crate::running;
use crate::table::Table;

/// Simulates a scenario, given as TOML, under policies; one row per policy and seed.
#[pyfunction]
#[pyo3(signature = (scenario, sets, names, seeds))]
pub fn wait(
    py: Python<'_>,
    scenario: &str,
    sets: Vec<String>,
    names: Vec<String>,
    seeds: u64,
) -> PyResult<Table> {
    let scenario = Scenario::parse(scenario, &sets).map_err(refused)?;
    let names = if names.is_empty() { policies::names() } else { names };
    let policy = |name: &String| {
        let known = || policies::names().join(", ");
        policies::by_name(name)
            .ok_or_else(|| refused(format!("no policy is called `{name}`; there are {}", known())))
    };
    let chosen: Vec<Arc<dyn WaitPolicy>> = names.iter().map(policy).collect::<PyResult<_>>()?;
    let outcome = running::done(py, None, |_, _| waits::compare(&scenario, &chosen, seeds))?;
    let all: Vec<(u64, &WaitReport)> =
        outcome.reports.iter().flat_map(|of| (1..).zip(of.iter())).collect();
    let count = |of: fn(&WaitReport) -> u64| all.iter().map(move |(_, one)| of(one));
    let number = |of: fn(&WaitReport) -> f64| all.iter().map(move |(_, one)| of(one));
    Table::of(vec![
        texts("policy", all.iter().map(|(_, one)| one.policy.clone())),
        counts("seed", all.iter().map(|(seed, _)| *seed)),
        counts("elapsed_ns", count(|one| one.elapsed_ns)),
        counts("requests", count(|one| one.requests)),
        numbers("requests_per_second", number(WaitReport::per_second)),
        numbers("mean_ns", number(|one| one.mean_ns)),
        counts("p50_ns", count(|one| one.p50_ns)),
        counts("p99_ns", count(|one| one.p99_ns)),
        numbers("cpu_ns_per_request", number(WaitReport::cpu_ns_per_request)),
        counts("left_cpu", count(|one| one.left_cpu)),
        counts("expired", count(|one| one.expired)),
        counts("spin_ns", count(|one| one.cpu.spin_ns)),
        counts("stressors_ns", count(|one| one.cpu.stressors_ns)),
        counts("switches", count(|one| one.switches)),
    ])
}
