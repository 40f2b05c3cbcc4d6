// SPDX-License-Identifier: MIT OR Apache-2.0
//! Many simulations that differ in parameters: one small Parquet file each, named by its content.
//!
//! A point whose file is there is not simulated again. So a sweep goes on where it was stopped, and
//! the files of several machines make one dataset when they are copied together.

mod parquet;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail, ensure};
use dwell_sim::assign::in_line;
use dwell_sim::columns::{self, Column};
use dwell_sim::{Params, PolicyKind, Rng};
use serde::{Deserialize, Serialize};

use super::content::{self, content_of, files_of};
use super::{Ask, Study, Tell, files};

/// A TOML file that describes the simulations. Its batches lie beside it.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sweep {
    /// Batches: files, or directories of them.
    pub batches: Vec<PathBuf>,
    /// Policies; all where it is left out.
    #[serde(default)]
    pub policies: Vec<String>,
    /// How many seeds each point has.
    #[serde(default = "three")]
    pub seeds: u64,
    /// Instructions of each trace at most.
    #[serde(default)]
    pub limit: Option<u64>,
    /// Parameters and their values, all combinations of which are points.
    #[serde(default)]
    pub grid: BTreeMap<String, Vec<toml::Value>>,
    /// Random points instead.
    #[serde(default)]
    pub draw: Option<Draw>,
}

/// Random points.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Draw {
    /// How many.
    pub count: u64,
    /// What they are drawn by.
    #[serde(default)]
    pub seed: u64,
    /// Parameters and the least and the most that each may be.
    pub between: BTreeMap<String, [toml::Value; 2]>,
}

fn three() -> u64 {
    3
}

/// One simulation of a sweep.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Point {
    /// What names it: a hash of all that its rows depend on.
    pub key: String,
    /// The batch's file.
    pub batch: PathBuf,
    /// Parameters, each as `name=value`.
    pub sets: Vec<String>,
}

/// One of several machines: it does every `of`th point from the `number`th on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Which, from 1 on.
    pub number: usize,
    /// Of how many.
    pub of: usize,
}

impl Shard {
    /// # Errors
    /// A number that is not among so many.
    pub fn new(number: usize, of: usize) -> Result<Shard> {
        ensure!((1..=of).contains(&number), "shard {number}/{of}: write a shard as 3/64");
        Ok(Shard { number, of })
    }

    /// Its part of all points.
    pub fn part(self, points: Vec<Point>) -> Vec<Point> {
        points.into_iter().skip(self.number - 1).step_by(self.of).collect()
    }
}

impl std::str::FromStr for Shard {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Shard> {
        let parts = text.split_once('/');
        let parts = parts.and_then(|(number, of)| Some((number.parse().ok()?, of.parse().ok()?)));
        let (number, of) = parts.with_context(|| format!("`{text}`: write a shard as 3/64"))?;
        Shard::new(number, of)
    }
}

/// What became of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Points simulated now.
    pub simulated: usize,
    /// Points that were there.
    pub kept: usize,
}

impl Sweep {
    /// Reads a sweep; its batches are found beside the file.
    ///
    /// # Errors
    /// A file that is no sweep, with the field.
    pub fn read(path: &Path) -> Result<Sweep> {
        let named = || path.display().to_string();
        let text = std::fs::read_to_string(path).with_context(named)?;
        Sweep::parse(&text, path.parent().unwrap_or(Path::new(""))).with_context(named)
    }

    /// A sweep from text, its batches in `beside`.
    ///
    /// # Errors
    /// A text that is no sweep, with the field.
    pub fn parse(text: &str, beside: &Path) -> Result<Sweep> {
        let mut sweep: Sweep = toml::from_str(text)
            .map_err(|error| anyhow!(in_line(text, error.span(), error.message())))?;
        sweep.batches.iter_mut().for_each(|batch| *batch = beside.join(&*batch));
        ensure!(!sweep.batches.is_empty(), "batches: name at least one");
        ensure!(sweep.seeds > 0, "seeds: must be at least 1");
        for (name, values) in &sweep.grid {
            ensure!(!values.is_empty(), "grid.{name}: give at least one value");
        }
        sweep.policies()?;
        Ok(sweep)
    }

    /// All files that its points depend on.
    ///
    /// # Errors
    /// Batches that cannot be read.
    pub fn files(&self) -> Result<Vec<PathBuf>> {
        let mut all = Vec::new();
        for batch in files(&self.batches)? {
            all.append(&mut files_of(&batch)?);
        }
        all.sort();
        all.dedup();
        Ok(all)
    }

    fn policies(&self) -> Result<Vec<PolicyKind>> {
        self.policies.iter().map(|name| name.parse().map_err(anyhow::Error::msg)).collect()
    }

    /// All points, in an order that depends on the sweep alone.
    ///
    /// # Errors
    /// Parameters that nobody knows or whose values do not fit; batches that cannot be read.
    pub fn points(&self) -> Result<Vec<Point>> {
        let mut all = match &self.draw {
            None => vec![vec![]],
            Some(draw) => draw.points()?,
        };
        for (name, values) in &self.grid {
            all = all
                .iter()
                .flat_map(|sets| values.iter().map(move |value| with(sets, name, &word(value))))
                .collect();
        }
        for sets in &all {
            let mut params = Params::default();
            sets.iter().try_for_each(|set| params.set(set))?;
            params.check()?;
        }
        let mut points = Vec::new();
        for batch in files(&self.batches)? {
            let content = content_of(&batch)?;
            for sets in &all {
                let key = self.key(&content, sets)?;
                points.push(Point { key, batch: batch.clone(), sets: sets.clone() });
            }
        }
        Ok(points)
    }

    /// All that rows depend on: this simulator's code, the batch with its traces, and what is
    /// asked.
    fn key(&self, content: &blake3::Hash, sets: &[String]) -> Result<String> {
        let asked = (content::code(), self.policies()?, self.seeds, self.limit, sets);
        let mut hash = blake3::Hasher::new();
        hash.update(content.as_bytes());
        hash.update(serde_json::to_string(&asked)?.as_bytes());
        Ok(hash.finalize().to_hex()[..32].to_owned())
    }

    /// Simulates those of `points` whose files are not yet in `dir`. Once `cancel` is set, it keeps
    /// the files that are complete.
    ///
    /// # Errors
    /// A point that cannot be simulated; a directory that takes no file.
    pub fn run(
        &self,
        points: &[Point],
        dir: &Path,
        tell: &Tell<'_>,
        cancel: &AtomicBool,
    ) -> Result<Swept> {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("cannot make the directory {}", dir.display()))?;
        let mut swept = Swept::default();
        for (at, point) in points.iter().enumerate() {
            let file = dir.join(format!("{}.parquet", point.key));
            if file.exists() {
                swept.kept += 1;
                continue;
            }
            let share = |share: f64| (at as f64 + share) / points.len() as f64;
            let name = if point.sets.is_empty() { "as it is".into() } else { point.sets.join(" ") };
            let hear = |batch: &str, _: &str, done: f64| tell(batch, &name, share(done));
            let Some(columns) = self.simulated(point, &hear, cancel)? else { break };
            parquet::save(&columns, &file)?;
            swept.simulated += 1;
            if cancel.load(Ordering::Relaxed) {
                break;
            }
        }
        Ok(swept)
    }

    /// The rows of one point; `None` once `cancel` is set.
    fn simulated(
        &self,
        point: &Point,
        tell: &Tell<'_>,
        cancel: &AtomicBool,
    ) -> Result<Option<Vec<Column>>> {
        let ask = Ask {
            batches: vec![point.batch.clone()],
            policies: self.policies()?,
            seeds: self.seeds,
            limit: self.limit.unwrap_or(u64::MAX),
            partial: false,
            sets: point.sets.clone(),
            keep: None,
        };
        let study = Study::simulate(&ask, tell, cancel)?;
        if study.ended.is_some() {
            return Ok(None);
        }
        let reports = study.reports();
        let mut columns = vec![columns::texts("key", reports.iter().map(|_| point.key.clone()))];
        columns.extend(columns::of_runs(&reports));
        // Every file of a sweep has the same columns.
        for set in &point.sets {
            let (name, value) = set.split_once('=').context("a parameter without a value")?;
            let name = format!("set.{name}");
            columns.push(columns::texts(name, reports.iter().map(|_| value.to_owned())));
        }
        Ok(Some(columns))
    }
}

impl Draw {
    fn points(&self) -> Result<Vec<Vec<String>>> {
        let ends = |name: &str, value: &toml::Value| match value {
            toml::Value::Integer(number) => Ok(*number as f64),
            toml::Value::Float(number) => Ok(*number),
            other => bail!("draw.between.{name}: `{other}` is no number"),
        };
        let mut dice = Rng::new(self.seed);
        let mut points = Vec::new();
        for _ in 0..self.count {
            let mut sets = Vec::new();
            for (name, [least, most]) in &self.between {
                let (low, high) = (ends(name, least)?, ends(name, most)?);
                ensure!(low <= high, "draw.between.{name}: {low} is more than {high}");
                let whole = least.is_integer() && most.is_integer();
                let drawn = match whole {
                    true => (low + share(&mut dice) * (high - low + 1.0)).floor().min(high),
                    false => low + share(&mut dice) * (high - low),
                };
                sets.push(format!("{name}={drawn}"));
            }
            points.push(sets);
        }
        Ok(points)
    }
}

/// From 0 up to 1.
fn share(dice: &mut Rng) -> f64 {
    (dice.next() >> 11) as f64 / (1u64 << 53) as f64
}

fn word(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

fn with(sets: &[String], name: &str, value: &str) -> Vec<String> {
    sets.iter().cloned().chain([format!("{name}={value}")]).collect()
}

#[cfg(test)]
mod tests;
