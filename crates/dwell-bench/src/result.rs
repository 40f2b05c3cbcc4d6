// SPDX-License-Identifier: MIT OR Apache-2.0
//! A bench run as it is kept: JSON that tables, reports and later comparisons are made from.

mod conclusion;
mod setting;

use std::{
    collections::BTreeMap, fs, io::Write as _, os::unix::fs::PermissionsExt as _, path::Path,
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use crate::{
    conditions::Conditions,
    machine::Machine,
    stats::{Paired, Summary},
    usage::Cost,
};

pub(crate) use conclusion::DEFAULT_POLICY;
pub use setting::{Direction, Load, Pattern, Requests, Setting, Work};

/// Version of the JSON that this code writes and reads.
pub const SCHEMA: u32 = 1;

/// One bench run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// [`SCHEMA`] of the code that wrote it.
    pub schema: u32,
    /// Where and when.
    pub machine: Machine,
    /// The command that made it.
    pub command: Vec<String>,
    /// What it says about Dwell, in a sentence or two; made by [`Run::conclude`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub verdict: Option<String>,
    /// What it met on the machine, where it looked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conditions: Option<Conditions>,
    /// What was measured on.
    pub devices: Vec<Device>,
    /// How contenders that are not Dwell's own were set up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub contenders: Vec<Configured>,
    /// What was measured.
    pub rows: Vec<Row>,
    /// What was not measured, and why.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Each row against the same row under the baseline policy; made by [`Run::compare_with`].
    pub ratios: Vec<Ratio>,
    /// Why the run ended before all was measured; its rows hold the rounds that were complete.
    #[serde(default)]
    pub ended: Option<String>,
    /// What to know about what was kept, one line each.
    #[serde(default)]
    pub notes: Vec<String>,
}

/// A device that a run used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Device {
    /// Short name that rows refer to.
    pub name: String,
    /// What it is, in one line.
    pub description: String,
    /// Class that the probe gave it.
    pub class: Option<String>,
    /// Size threshold that the probe found, in bytes.
    pub size_threshold_bytes: Option<u64>,
}

/// A contender and how it was set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configured {
    /// Name of its rows.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its settings, each a few words.
    pub settings: Vec<String>,
}

/// One policy at one size in one setting.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// Device, load and workload.
    #[serde(flatten)]
    pub setting: Setting,
    /// Request size, in bytes.
    pub size_bytes: u64,
    /// Wait policy, or the name of a hand-written peer.
    pub policy: String,
    /// One per round, in the order in which they ran; a round's number pairs rows.
    pub rounds: Vec<RoundResult>,
    /// Set on emulated devices: what their wake-up costs and so how far to trust the row.
    pub emulated: Option<String>,
}

/// What one policy did in one round. Times of all its threads, in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RoundResult {
    /// Bytes transferred.
    pub bytes: u64,
    /// Requests completed.
    pub requests: u64,
    /// Wall-clock time.
    pub wall_ns: u64,
    /// Median latency.
    pub p50_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// 99.9th percentile.
    pub p999_ns: u64,
    /// Mean latency.
    pub mean_ns: u64,
    /// Voluntary context switches.
    pub voluntary_switches: u64,
    /// Involuntary context switches.
    pub involuntary_switches: u64,
    /// CPU time in user mode, spinning included.
    pub user_ns: u64,
    /// CPU time in the kernel.
    pub system_ns: u64,
    /// Time spent polling with nothing to do; part of `user_ns` or of `system_ns`.
    pub spin_ns: u64,
    /// CPU time that everybody else used meanwhile, the kernel's own threads among them.
    pub other_cpu_ns: u64,
    /// The part of it that the load's own processes had.
    pub stressor_ns: u64,
    /// Time that the machine's CPUs were idle while requests were in flight, in steps of 10 ms.
    pub iowait_ns: u64,
    /// Turns that the bystanders made meanwhile ([`Load::Bystander`]).
    pub bystander_iterations: u64,
    /// The bystanders' CPU time in user mode, in steps of 10 ms.
    pub bystander_user_ns: u64,
    /// The bystanders' CPU time in the kernel, in steps of 10 ms.
    pub bystander_system_ns: u64,
    /// How many requests were decided for which reason.
    pub decisions: BTreeMap<String, u64>,
    /// For a named workload, the operations completed, by kind. One may be many requests, or none.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub operations: BTreeMap<String, u64>,
    /// Of memory that is paged in: faults, pages and bytes, by name.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub paging: BTreeMap<String, u64>,
    /// Events that the measuring thread's CPU counted, by the names of [`crate::counters`]; empty
    /// where they were not asked for or cannot be counted.
    pub counters: BTreeMap<String, f64>,
}

/// CPU time of a round, as fractions of one CPU. The three add up.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct CpuSplit {
    /// User mode without spinning.
    pub user: f64,
    /// Kernel without spinning.
    pub system: f64,
    /// Spinning.
    pub spin: f64,
}

impl RoundResult {
    /// Bytes per second.
    pub fn throughput(&self) -> f64 {
        self.bytes as f64 * 1e9 / self.wall_ns as f64
    }

    /// Requests per second.
    pub fn requests_per_second(&self) -> f64 {
        self.requests as f64 * 1e9 / self.wall_ns as f64
    }

    /// Operations of a named workload per second; 0 without any.
    pub fn operations_per_second(&self) -> f64 {
        self.operations.values().sum::<u64>() as f64 * 1e9 / self.wall_ns as f64
    }

    /// CPU time (user and system) per request, in nanoseconds.
    pub fn cpu_ns_per_request(&self) -> f64 {
        (self.user_ns + self.system_ns) as f64 / self.requests as f64
    }

    /// Turns per second that the bystanders made.
    pub fn bystander_speed(&self) -> f64 {
        self.bystander_iterations as f64 * 1e9 / self.wall_ns as f64
    }

    /// Where the CPU time went. Spinning is taken off user time first: a ring is watched from user
    /// space, and only what exceeds that (a polled ring, entered to be reaped) off system time.
    pub fn cpu_split(&self) -> CpuSplit {
        let spin = self.spin_ns.min(self.user_ns + self.system_ns);
        let from_user = spin.min(self.user_ns);
        let part = |ns: u64| if self.wall_ns == 0 { 0.0 } else { ns as f64 / self.wall_ns as f64 };
        CpuSplit {
            user: part(self.user_ns - from_user),
            system: part(self.system_ns - (spin - from_user)),
            spin: part(spin),
        }
    }
}

impl Row {
    /// Summary of a quantity over the rounds; `None` without a finite value.
    pub fn summary(&self, quantity: impl Fn(&RoundResult) -> f64) -> Option<Summary> {
        Summary::of(self.rounds.iter().map(quantity))
    }

    /// Median of a quantity over the rounds; NaN without a finite value, shown as a dash.
    pub fn median(&self, quantity: impl Fn(&RoundResult) -> f64) -> f64 {
        self.summary(quantity).map_or(f64::NAN, |summary| summary.median)
    }

    /// Median CPU split over the rounds, each part by itself.
    pub fn cpu_split(&self) -> CpuSplit {
        let part = |get: fn(CpuSplit) -> f64| {
            self.summary(|r| get(r.cpu_split())).map_or(0.0, |s| s.median)
        };
        CpuSplit { user: part(|s| s.user), system: part(|s| s.system), spin: part(|s| s.spin) }
    }
}

/// What a ratio compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Bytes per second: more is better.
    Throughput,
    /// The measured threads' CPU time per request: less is better.
    CpuPerRequest,
    /// Operations of a named workload per second: more is better.
    Operations,
    /// Turns per second of the bystanders beside it: more is better; only where there are any.
    BystanderSpeed,
}

impl Metric {
    /// All metrics.
    pub const ALL: [Metric; 4] =
        [Metric::Throughput, Metric::CpuPerRequest, Metric::Operations, Metric::BystanderSpeed];

    /// The metric's value in one round.
    pub fn of(self, round: &RoundResult) -> f64 {
        match self {
            Metric::Throughput => round.throughput(),
            Metric::CpuPerRequest => round.cpu_ns_per_request(),
            Metric::Operations => round.operations_per_second(),
            Metric::BystanderSpeed => round.bystander_speed(),
        }
    }
}

/// One row against the baseline's row at the same size and setting, round by round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Device, load and workload.
    #[serde(flatten)]
    pub setting: Setting,
    /// Request size, in bytes.
    pub size_bytes: u64,
    /// Policy compared.
    pub policy: String,
    /// Policy that it is compared with.
    pub baseline: String,
    /// The quantity compared.
    pub metric: Metric,
    /// Ratio policy / baseline with its interval.
    #[serde(flatten)]
    pub paired: Paired,
}

/// Ratio of two rows by any quantity, pairing rounds by number; `None` when no round has one.
pub fn pair_by(
    ours: &Row,
    baseline: &Row,
    quantity: impl Fn(&RoundResult) -> f64,
) -> Option<Paired> {
    let rounds = ours.rounds.iter().zip(&baseline.rounds);
    Paired::of(rounds.map(|(ours, baseline)| (quantity(ours), quantity(baseline))))
}

/// Ratio of two rows by `metric`, pairing rounds by number; `None` when no round has one.
pub fn pair(ours: &Row, baseline: &Row, metric: Metric) -> Option<Paired> {
    pair_by(ours, baseline, |round| metric.of(round))
}

impl Run {
    /// A run without rows yet.
    pub fn new(machine: Machine, command: Vec<String>, devices: Vec<Device>) -> Self {
        Run {
            schema: SCHEMA,
            machine,
            command,
            verdict: None,
            conditions: None,
            devices,
            contenders: vec![],
            rows: vec![],
            left_out: vec![],
            ratios: vec![],
            ended: None,
            notes: vec![],
        }
    }

    /// Adds what a later run on the same machine measured; ratios are to be made anew.
    pub fn append(&mut self, other: Run) {
        self.devices.extend(other.devices);
        self.rows.extend(other.rows);
        self.ended = other.ended;
        self.ratios.clear();
    }

    /// Fills [`Run::ratios`]: every row against the row of `baseline` beside it, by every metric
    /// that both have.
    pub fn compare_with(&mut self, baseline: &str) {
        let mut ratios = Vec::new();
        for row in self.rows.iter().filter(|row| row.policy != baseline) {
            let Some(base) = self.row(&row.setting, row.size_bytes, baseline) else { continue };
            ratios.extend(Metric::ALL.into_iter().filter_map(|metric| {
                Some(Ratio {
                    setting: row.setting.clone(),
                    size_bytes: row.size_bytes,
                    policy: row.policy.clone(),
                    baseline: baseline.into(),
                    metric,
                    paired: pair(row, base, metric)?,
                })
            }));
        }
        self.ratios = ratios;
    }

    /// Compares with a baseline and says what that means for Dwell.
    pub fn conclude(&mut self, baseline: &str) {
        self.compare_with(baseline);
        self.verdict = Some(conclusion::sentence(self, baseline));
    }

    /// Compares with a baseline and says what that means for each contender.
    pub fn conclude_each(&mut self, baseline: &str) {
        self.compare_with(baseline);
        self.verdict = Some(conclusion::each::sentence(self, baseline));
    }

    /// Remembers how a contender was set up.
    pub fn tell(&mut self, configured: Option<Configured>) {
        if let Some(new) = configured.filter(|new| !self.contenders.contains(new)) {
            self.contenders.push(new);
        }
    }

    /// The row of one policy.
    pub fn row(&self, setting: &Setting, size_bytes: u64, policy: &str) -> Option<&Row> {
        self.rows.iter().find(|row| {
            row.setting == *setting && row.size_bytes == size_bytes && row.policy == policy
        })
    }

    /// The ratio of one row.
    pub fn ratio(&self, row: &Row, metric: Metric) -> Option<&Ratio> {
        self.ratios.iter().find(|ratio| {
            ratio.metric == metric
                && ratio.setting == row.setting
                && ratio.size_bytes == row.size_bytes
                && ratio.policy == row.policy
        })
    }

    /// The settings in order of first appearance.
    pub fn settings(&self) -> Vec<&Setting> {
        in_order(self.rows.iter().map(|row| &row.setting))
    }

    /// Reads a run from JSON.
    pub fn load(path: &Path) -> Result<Self> {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        #[derive(Deserialize)]
        struct Version {
            schema: u32,
        }
        let name = path.display();
        let Version { schema } = serde_json::from_slice(&text)
            .with_context(|| format!("{name} is not a bench run (no `schema`)"))?;
        if schema != SCHEMA {
            bail!("{name} has schema {schema}, this program reads {SCHEMA}: measure again");
        }
        serde_json::from_slice(&text).with_context(|| format!("{name} is not a bench run"))
    }

    /// Writes the run as JSON.
    pub fn save(&self, path: &Path) -> Result<()> {
        write(path, &(serde_json::to_string_pretty(self)? + "\n"))
    }
}

/// The different ones among `items`, in order of first appearance.
pub fn in_order<T: PartialEq>(items: impl IntoIterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for item in items {
        if !seen.contains(&item) {
            seen.push(item);
        }
    }
    seen
}

/// Writes a file and the directories above it. The file is there as a whole or as it was before.
pub fn write(path: &Path, text: &str) -> Result<()> {
    let put = || -> std::io::Result<()> {
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        let above = above.unwrap_or(Path::new("."));
        fs::create_dir_all(above)?;
        let readable = fs::Permissions::from_mode(0o666);
        let mut file = tempfile::Builder::new().permissions(readable).tempfile_in(above)?;
        file.write_all(text.as_bytes())?;
        file.persist(path)?;
        Ok(())
    };
    put().with_context(|| format!("cannot write {}", path.display()))
}

impl Cost {
    /// A round that cost this and did nothing yet.
    pub fn round(self) -> RoundResult {
        RoundResult {
            wall_ns: self.wall_ns,
            user_ns: self.user_ns,
            system_ns: self.system_ns,
            voluntary_switches: self.voluntary_switches,
            involuntary_switches: self.involuntary_switches,
            ..RoundResult::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn json_round_trip() {
        let run = sample::run();
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("deep/er/run.json");
        run.save(&path).unwrap();
        assert_eq!(Run::load(&path).unwrap(), run);
    }

    #[test]
    fn other_schemas_and_other_files_are_refused_by_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("run.json");
        fs::write(&path, r#"{"schema": 99}"#).unwrap();
        let error = format!("{:#}", Run::load(&path).unwrap_err());
        assert!(error.contains("schema 99") && error.contains("run.json"), "{error}");
        fs::write(&path, "{}").unwrap();
        assert!(Run::load(&path).is_err());
        assert!(Run::load(&directory.path().join("absent")).is_err());
    }

    #[test]
    fn ratios_are_taken_round_by_round_against_the_same_size() {
        let mut run = sample::run();
        run.compare_with("block");
        let policies = in_order(run.rows.iter().map(|row| &row.policy)).len();
        // The sample has no bystanders, so two of the three metrics.
        assert_eq!(run.ratios.len(), run.rows.len() / policies * (policies - 1) * 2);
        let row = run.rows.iter().find(|row| row.policy == "spin").unwrap();
        let ratio = run.ratio(row, Metric::Throughput).unwrap();
        let base = run.row(&row.setting, row.size_bytes, "block").unwrap();
        assert_eq!(Some(ratio.paired), pair(row, base, Metric::Throughput));
        run.compare_with("nobody");
        assert!(run.ratios.is_empty());
    }

    #[test]
    fn spinning_is_taken_off_user_time_then_off_system_time() {
        let mut round =
            RoundResult { wall_ns: 100, user_ns: 50, system_ns: 40, ..Default::default() };
        round.spin_ns = 30;
        assert_eq!(round.cpu_split(), CpuSplit { user: 0.2, system: 0.4, spin: 0.3 });
        round.spin_ns = 70;
        assert_eq!(round.cpu_split(), CpuSplit { user: 0.0, system: 0.2, spin: 0.7 });
        round.spin_ns = 1000;
        assert_eq!(round.cpu_split(), CpuSplit { user: 0.0, system: 0.0, spin: 0.9 });
    }

    #[test]
    fn an_empty_round_gives_no_figure_and_no_panic() {
        let row = Row { rounds: vec![RoundResult::default()], ..sample::run().rows[0].clone() };
        assert!(row.median(RoundResult::throughput).is_nan());
        assert_eq!(row.cpu_split(), CpuSplit::default());
        assert_eq!(pair(&row, &row, Metric::Throughput), None);
    }
}
