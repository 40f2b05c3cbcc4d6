// SPDX-License-Identifier: MIT OR Apache-2.0
//! A comparison as it is kept: JSON that the table, the report and later readers are made from.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use dwell_host::stats_page::Snapshot;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::verdict::{self, Finding, Verdict};
use crate::machine::Machine;
use crate::result::write;
use crate::stats::{Paired, Summary};

/// Version of the JSON that this code writes and reads.
pub const SCHEMA: u32 = 1;

/// Name of the variant that others are held against: the command as it is.
pub const UNTOUCHED: &str = "untouched";
/// Name of the variant that is the command as it is once more: what the two differ in, no policy
/// did.
pub const CONTROL: &str = "control";

/// One command, untouched and under wait policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// [`SCHEMA`] of the code that wrote it.
    pub schema: u32,
    /// Where and when.
    pub machine: Machine,
    /// The command that made it.
    pub command: Vec<String>,
    /// What was compared, word by word.
    pub program: Vec<String>,
    /// What was run before each run, word by word; empty without.
    #[serde(default)]
    pub setup: Vec<String>,
    /// What was run after each run to see its results, word by word; empty without.
    #[serde(default)]
    pub check: Vec<String>,
    /// Rounds before those that are kept.
    pub warmup: usize,
    /// The variants, [`UNTOUCHED`] first.
    pub variants: Vec<Variant>,
    /// Each variant against [`UNTOUCHED`]; made by [`Comparison::conclude`].
    pub ratios: Vec<Ratio>,
    /// Why it ended before all was measured; the variants hold the complete rounds.
    pub ended: Option<String>,
    /// What to know about it, one line each.
    pub notes: Vec<String>,
}

/// The command in one form.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Variant {
    /// [`UNTOUCHED`], [`CONTROL`] or the name of the policy.
    pub name: String,
    /// What was run, word by word.
    pub words: Vec<String>,
    /// One per round, in the order of the rounds.
    pub rounds: Vec<Measured>,
    /// How it compares; `None` for [`UNTOUCHED`].
    pub finding: Option<Finding>,
    /// Whether its results are those of the untouched command.
    pub results: Results,
}

/// One run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// Its place in its round, from 1 on.
    pub place: usize,
    /// Wall-clock time, in nanoseconds.
    pub wall_ns: u64,
    /// CPU time in user mode, of the command and its descendants.
    pub user_ns: u64,
    /// CPU time in the kernel.
    pub system_ns: u64,
    /// Voluntary context switches.
    pub voluntary_switches: u64,
    /// Involuntary context switches.
    pub involuntary_switches: u64,
    /// Page faults that waited for storage.
    pub major_faults: u64,
    /// Bytes read by system calls, from caches too; `None` where the kernel does not count.
    pub read_bytes: Option<u64>,
    /// Bytes written by system calls.
    pub written_bytes: Option<u64>,
    /// Bytes fetched from storage.
    pub read_storage_bytes: Option<u64>,
    /// Bytes caused to be sent to storage.
    pub written_storage_bytes: Option<u64>,
    /// Exit status; `None` after a signal.
    pub exit_status: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// A rate that the command told of itself, where somebody knew how to read it.
    pub told: Option<f64>,
    /// A sum over its results: the check's output or, without a check, its own.
    pub results_sum: String,
    /// What `dwell run` counted, as it wrote it.
    pub stats: Option<Value>,
}

/// What can be said of a variant's results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Results {
    /// In each round those of the untouched command.
    Same,
    /// Others in some rounds, though the untouched command's are the same in all.
    Differ,
    /// Those of the untouched command differ from round to round by themselves.
    Unstable,
}

impl Results {
    /// In few words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Results::Same => "same",
            Results::Differ => "DIFFER",
            Results::Unstable => "vary by themselves",
        }
    }
}

/// What of a variant is held against the untouched command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Metric {
    /// Runs per second of wall-clock time: more is better.
    Speed,
    /// CPU time: less is better.
    Cpu,
    /// Context switches, both kinds.
    Switches,
    /// The rate that the command told: more is better.
    Told,
}

impl Metric {
    /// All metrics.
    pub const ALL: [Metric; 4] = [Metric::Speed, Metric::Cpu, Metric::Switches, Metric::Told];

    /// Its value in one run.
    pub fn of(self, run: &Measured) -> f64 {
        match self {
            Metric::Speed => 1e9 / run.wall_ns as f64,
            Metric::Cpu => run.cpu_ns() as f64,
            Metric::Switches => run.switches() as f64,
            Metric::Told => run.told.unwrap_or(f64::NAN),
        }
    }
}

/// A variant against [`UNTOUCHED`], paired round by round.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// Name of the variant.
    pub variant: String,
    /// The quantity compared: speed, CPU time, context switches or the rate told.
    pub metric: Metric,
    /// Variant ÷ untouched with its interval.
    #[serde(flatten)]
    pub paired: Paired,
}

impl Measured {
    /// CPU time, both modes.
    pub fn cpu_ns(&self) -> u64 {
        self.user_ns + self.system_ns
    }

    /// Context switches, both kinds.
    pub fn switches(&self) -> u64 {
        self.voluntary_switches + self.involuntary_switches
    }

    /// Whether it ended by itself with status 0.
    pub fn succeeded(&self) -> bool {
        self.exit_status == Some(0)
    }

    /// Shares of the bytes moved that `dwell run` knows of and that it decided about.
    fn coverage(&self) -> Option<(f64, f64)> {
        let run: Snapshot = serde_json::from_value(self.stats.clone()?).ok()?;
        let seen = run.coverage()?;
        let stats = run.stats();
        let decided = stats.bytes_read.saturating_add(stats.bytes_written);
        let known = decided.saturating_add(run.passed.bytes);
        Some((seen, seen * decided as f64 / known.max(1) as f64))
    }

    /// How it ended, in words.
    pub fn ending(&self) -> String {
        match (self.exit_status, self.signal) {
            (Some(status), _) => format!("exit status {status}"),
            (None, Some(signal)) => format!("ended by signal {signal}"),
            (None, None) => "ended in an unknown way".into(),
        }
    }
}

impl Variant {
    /// Summary of a quantity over the rounds.
    pub fn summary(&self, quantity: impl Fn(&Measured) -> f64) -> Option<Summary> {
        Summary::of(self.rounds.iter().map(quantity))
    }

    /// Median over the rounds; NaN without a finite value, shown as a dash.
    pub fn median(&self, quantity: impl Fn(&Measured) -> f64) -> f64 {
        self.summary(quantity).map_or(f64::NAN, |summary| summary.median)
    }

    /// Shares of the bytes that the command moved, 0–1, medians over the rounds: those that
    /// `dwell run` knows of, and those that it decided about. `None` where it counted nothing.
    pub fn coverage(&self) -> Option<(f64, f64)> {
        let shares: Vec<(f64, f64)> = self.rounds.iter().filter_map(Measured::coverage).collect();
        let middle = |of: fn(&(f64, f64)) -> f64| Some(Summary::of(shares.iter().map(of))?.median);
        Some((middle(|shares| shares.0)?, middle(|shares| shares.1)?))
    }
}

/// Whether a variant of this name is the command as it is.
pub(super) fn is_untouched(name: &str) -> bool {
    [UNTOUCHED, CONTROL].contains(&name)
}

/// Variant and base of one metric, round by round.
fn pairs(ours: &Variant, base: &Variant, metric: Metric) -> impl Iterator<Item = (f64, f64)> {
    ours.rounds.iter().zip(&base.rounds).map(move |(ours, base)| (metric.of(ours), metric.of(base)))
}

impl Comparison {
    /// The command as it is.
    pub fn untouched(&self) -> Option<&Variant> {
        self.variants.iter().find(|variant| variant.name == UNTOUCHED)
    }

    /// The variants beside the first: under a policy, or [`CONTROL`].
    pub fn others(&self) -> impl Iterator<Item = &Variant> {
        self.variants.iter().filter(|variant| variant.name != UNTOUCHED)
    }

    /// A variant's ratio to the untouched command.
    pub fn ratio(&self, variant: &str, metric: Metric) -> Option<&Paired> {
        let is_it = |ratio: &&Ratio| ratio.variant == variant && ratio.metric == metric;
        self.ratios.iter().find(is_it).map(|ratio| &ratio.paired)
    }

    /// Takes the ratios, finds the verdicts and holds the results against each other.
    pub fn conclude(&mut self) {
        self.ratios.clear();
        let Some(base) = self.untouched().cloned() else { return };
        let untouched = self.variants.iter().filter(|variant| is_untouched(&variant.name));
        let mut sums = untouched.flat_map(|variant| &variant.rounds).map(|run| &run.results_sum);
        let unstable = sums.next().is_some_and(|first| sums.any(|sum| sum != first));
        for variant in &mut self.variants {
            let rounds = || variant.rounds.iter().zip(&base.rounds);
            let differ = rounds().any(|(ours, base)| ours.results_sum != base.results_sum);
            let results = match (unstable, differ) {
                (true, _) => Results::Unstable,
                (false, true) => Results::Differ,
                (false, false) => Results::Same,
            };
            let paired = |metric| Paired::of(pairs(variant, &base, metric));
            let finding = paired(Metric::Speed).map(|speed| {
                let ahead = rounds().filter(|(ours, base)| ours.wall_ns < base.wall_ns).count();
                let behind = rounds().filter(|(ours, base)| ours.wall_ns > base.wall_ns).count();
                verdict::find(&speed, ahead, behind, paired(Metric::Cpu).as_ref())
            });
            let name = &variant.name;
            if name != UNTOUCHED {
                let ratio = |metric| {
                    let paired = paired(metric)?;
                    Some(Ratio { variant: name.clone(), metric, paired })
                };
                self.ratios.extend(Metric::ALL.into_iter().filter_map(ratio));
            }
            variant.finding = finding.filter(|_| variant.name != UNTOUCHED);
            variant.results = results;
        }
    }

    /// What to know where the command was told apart from itself.
    pub(super) fn unrest(&self) -> Option<String> {
        let control = self.variants.iter().find(|variant| variant.name == CONTROL)?;
        let verdict = control.finding.as_ref()?.verdict;
        (verdict != Verdict::Inconclusive).then(|| {
            format!(
                "{CONTROL}, the same command, was {verdict} than {UNTOUCHED}: a difference like that \
                 tells nothing of a policy either"
            )
        })
    }

    /// Writes it as JSON.
    pub fn save(&self, path: &Path) -> Result<()> {
        write(path, &self.json()?)
    }

    /// As JSON.
    pub fn json(&self) -> Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    /// Reads what [`Comparison::save`] wrote.
    pub fn load(path: &Path) -> Result<Self> {
        let name = path.display();
        let text = fs::read_to_string(path).with_context(|| format!("cannot read {name}"))?;
        let comparison: Self = serde_json::from_str(&text)
            .with_context(|| format!("{name} is not the result of dwell compare"))?;
        match comparison.schema {
            SCHEMA => Ok(comparison),
            other => bail!("{name} has schema {other}; this program reads {SCHEMA}"),
        }
    }

    /// Writes it as CSV.
    pub fn save_csv(&self, path: &Path) -> Result<()> {
        write(path, &self.csv()?)
    }

    /// As CSV: one line per variant and round.
    pub fn csv(&self) -> Result<String> {
        let mut lines = csv::Writer::from_writer(Vec::new());
        lines.write_record([
            "variant",
            "round",
            "place",
            "wall_ns",
            "user_ns",
            "system_ns",
            "voluntary_switches",
            "involuntary_switches",
            "major_faults",
            "read_bytes",
            "written_bytes",
            "read_storage_bytes",
            "written_storage_bytes",
            "exit_status",
            "signal",
            "told",
            "results_sum",
        ])?;
        for variant in &self.variants {
            for (i, run) in variant.rounds.iter().enumerate() {
                let optional =
                    |value: Option<u64>| value.map_or_else(String::new, |v| v.to_string());
                let number = |value: Option<i32>| value.map_or_else(String::new, |v| v.to_string());
                lines.write_record([
                    variant.name.clone(),
                    (i + 1).to_string(),
                    run.place.to_string(),
                    run.wall_ns.to_string(),
                    run.user_ns.to_string(),
                    run.system_ns.to_string(),
                    run.voluntary_switches.to_string(),
                    run.involuntary_switches.to_string(),
                    run.major_faults.to_string(),
                    optional(run.read_bytes),
                    optional(run.written_bytes),
                    optional(run.read_storage_bytes),
                    optional(run.written_storage_bytes),
                    number(run.exit_status),
                    number(run.signal),
                    run.told.map_or_else(String::new, |told| told.to_string()),
                    run.results_sum.clone(),
                ])?;
            }
        }
        let bytes = lines.into_inner().map_err(|error| error.into_error())?;
        String::from_utf8(bytes).context("a name that is no text")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample;

    #[test]
    fn a_command_that_is_told_apart_from_itself_is_said_to_be() {
        let unrest = |name: &str| {
            let mut comparison = sample::comparison();
            let found = comparison.variants.iter_mut().find(|variant| variant.name == name);
            found.unwrap().name = CONTROL.into();
            comparison.conclude();
            comparison.unrest()
        };
        let said = unrest("hybrid").unwrap();
        assert!(said.starts_with("control, the same command, was slower"), "{said}");
        assert_eq!(unrest("block"), None);
        assert_eq!(sample::comparison().unrest(), None);
    }
}
