// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell lab sim wait`: waits on a device that is not here, under every wait policy.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use dwell::WaitPolicy;
use dwell::policies;
use dwell_bench::units;
use dwell_bench::waits::{self, Outcome, mean};
use dwell_sim::wait::{Scenario, WaitReport};

use crate::answer::wrong;
use crate::cmd::explain::policy_name;
use crate::show::{self, Screen};
use crate::{given, places, size};

/// Waits on a device that you do not own: CPUs, threads, others' work, and any latency
#[derive(clap::Args)]
pub struct Wait {
    /// A scenario as TOML; without it, one thread on four CPUs and a device of 3 µs
    scenario: Option<PathBuf>,
    /// Set a parameter, as in --set cores=32 or --set device.latency=3us; may be given again
    #[arg(long = "set", value_name = "NAME=VALUE")]
    sets: Vec<String>,
    /// Take the device from what dwell probe learned of this file or block device
    #[arg(long, value_name = "PATH")]
    probed: Option<PathBuf>,
    /// Size of each request
    #[arg(long, value_parser = size::request_bytes)]
    size: Option<u64>,
    /// Policies, also a program's own; all when left out, each against the first
    #[arg(long, alias = "policy", value_delimiter = ',', value_parser = policy_name)]
    policies: Vec<String>,
    /// How many seeds
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: u64,
    /// Print the scenario, to copy and edit
    #[arg(long)]
    print: bool,
    /// Print JSON instead of a table
    #[arg(long, conflicts_with = "print")]
    json: bool,
}

impl Wait {
    pub(super) fn run(&self) -> Result<()> {
        given::once("--policies", self.policies.iter().cloned())?;
        let scenario = self.scenario()?;
        if self.print {
            return Ok(show::out(&scenario.to_toml()?)?);
        }
        let names = match self.policies.is_empty() {
            true => policies::names(),
            false => self.policies.clone(),
        };
        let chosen: Vec<Arc<dyn WaitPolicy>> =
            names.iter().filter_map(|name| policies::by_name(name)).collect();
        let outcome = waits::compare(&scenario, &chosen, self.seeds);
        let text = match self.json {
            true => show::json(&serde_json::to_value(&outcome)?)?,
            false => table(&outcome),
        };
        Ok(show::out(&text)?)
    }

    fn scenario(&self) -> Result<Scenario> {
        let text = match &self.scenario {
            None => String::new(),
            Some(path) => std::fs::read_to_string(path)
                .with_context(|| format!("reading {}", path.display()))?,
        };
        let named = || self.scenario.as_ref().map_or("--set".into(), |p| p.display().to_string());
        let mut scenario = Scenario::parse(&text, &[]).with_context(named)?;
        if let Some(bytes) = self.size {
            scenario.size_bytes = bytes;
        }
        if let Some(path) = &self.probed {
            let beneath = places::profiles()?.beneath(path)?;
            let Some(profile) = &beneath.profile else {
                bail!("{}: not probed yet: dwell probe {0}", path.display());
            };
            scenario = waits::of_probed(profile, scenario.size_bytes, &scenario);
        }
        scenario.with(&self.sets).map_err(wrong)
    }
}

fn table(outcome: &Outcome) -> String {
    let scenario = &outcome.scenario;
    let screen = Screen::stdout();
    let profile = scenario.profile();
    let plural = |count: u32| if count == 1 { "" } else { "s" };
    let mut text = format!(
        "{} CPU{}, {} thread{} with requests of {}, {} process{} that compute; a {} device of {}\n",
        scenario.cores,
        plural(scenario.cores),
        scenario.threads,
        plural(scenario.threads),
        units::bytes(scenario.size_bytes),
        scenario.stressors,
        if scenario.stressors == 1 { "" } else { "es" },
        profile.class,
        units::time_ns(profile.latency_of(scenario.size_bytes) as f64),
    );
    let heads = [
        "policy",
        "requests/s",
        "gain",
        "mean",
        "p50",
        "p99",
        "CPU per request",
        "blocked",
        "spun",
        "others' work",
        "reasons",
    ];
    let mut table = screen.table(&heads, &[1, 2, 3, 4, 5, 6, 7, 8, 9]);
    let base = outcome.reports.first().map_or(1.0, |first| mean(first, WaitReport::per_second));
    for reports in &outcome.reports {
        let Some(first) = reports.first() else { continue };
        let of = |of: fn(&WaitReport) -> f64| mean(reports, of);
        let asked = first.reasons.values().sum::<u64>().max(1) as f64;
        let reasons = first
            .reasons
            .iter()
            .map(|(why, count)| format!("{why} {:.0} %", 100.0 * *count as f64 / asked));
        let all_cpus = |part: f64| {
            let all = first.elapsed_ns as f64 * f64::from(scenario.cores);
            format!("{:.1} %", 100.0 * part / all)
        };
        table.add_row([
            first.policy.clone(),
            units::count(of(WaitReport::per_second) as u64),
            format!("{:.2}×", of(WaitReport::per_second) / base.max(1e-9)),
            units::time_ns(of(|report| report.mean_ns)),
            units::time_ns(of(|report| report.p50_ns as f64)),
            units::time_ns(of(|report| report.p99_ns as f64)),
            units::time_ns(of(WaitReport::cpu_ns_per_request)),
            format!("{:.0} %", 100.0 * of(|r| r.left_cpu as f64 / r.requests.max(1) as f64)),
            all_cpus(of(|report| report.cpu.spin_ns as f64)),
            all_cpus(of(|report| report.cpu.stressors_ns as f64)),
            reasons.collect::<Vec<_>>().join(", "),
        ]);
    }
    text += &show::finished(&table);
    text + "gain: requests per second ÷ those of the first policy; spun, others' work: of all CPUs' time\n"
}
