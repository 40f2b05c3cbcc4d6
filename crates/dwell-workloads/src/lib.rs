// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs to trace, as data: what each stands for, how it is run, and which run together; and the
//! walks over graphs that run over any memory.

pub mod csr;
pub mod graphs;
pub mod random;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;

/// The shipped catalogue.
pub const ITS: &str = include_str!("../workloads/its.toml");
/// Name of the program with this project's kernels.
pub const KERNELS: &str = "dwell-kernels";

/// Workloads and batches of one file.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Catalogue {
    /// Its name.
    pub name: String,
    /// One line.
    pub about: String,
    /// Instructions recorded of each program at scale 1; all where it is left out.
    pub limit: Option<u64>,
    /// The programs.
    #[serde(default, rename = "workload")]
    pub workloads: Vec<Workload>,
    /// Which run together.
    #[serde(default, rename = "batch")]
    pub batches: Vec<Batch>,
}

/// One program to trace.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Name of its trace.
    pub name: String,
    /// What of the paper it stands for.
    pub stands_for: String,
    /// How.
    pub how: String,
    /// `general` or `data-intensive`.
    pub class: String,
    /// A program that must be installed.
    pub needs: Option<Needs>,
    /// Numbers that follow the scale.
    #[serde(default)]
    pub parameters: BTreeMap<String, Parameter>,
    /// Instructions of the start-up at scale 1, which are not recorded.
    #[serde(default)]
    pub skip: u64,
    /// Commands run before, untraced.
    #[serde(default)]
    pub prepare: Vec<Vec<String>>,
    /// The command that is traced.
    pub command: Vec<String>,
}

/// A program and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Needs {
    /// Its name.
    pub program: String,
    /// The Debian package that has it.
    pub package: String,
}

/// A number that follows the scale.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// At scale 1.
    pub value: u64,
    /// How it follows.
    pub scaled: Scaled,
}

/// How a number follows the scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Scaled {
    /// In proportion.
    By,
    /// With its square root: the side of an area.
    SquareRoot,
    /// With its cube root: the side of a volume.
    CubeRoot,
    /// One more for each doubling: an exponent.
    Log2,
    /// Not.
    No,
}

/// Processes that run together.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Its name.
    pub name: String,
    /// Workloads by name.
    #[serde(default)]
    pub workloads: Vec<String>,
    /// Trace files, in place of workloads or beside them.
    #[serde(default)]
    pub traces: Vec<PathBuf>,
    /// Batches of one series differ in the number of their processes, and are compared by it.
    pub series: Option<String>,
}

impl Parameter {
    /// Its value at a scale; at least 1.
    pub fn at(&self, scale: f64) -> u64 {
        let value = self.value as f64;
        let scaled = match self.scaled {
            Scaled::By => value * scale,
            Scaled::SquareRoot => value * scale.sqrt(),
            Scaled::CubeRoot => value * scale.cbrt(),
            Scaled::Log2 => value + scale.log2(),
            Scaled::No => value,
        };
        scaled.round().max(1.0) as u64
    }
}

impl Batch {
    /// As a file for `dwell sim its`, to stand beside the traces of its workloads.
    pub fn file(&self) -> String {
        let quoted = |text: &str| toml::Value::from(text).to_string();
        let mut text = format!("name = {}\n", quoted(&self.name));
        if let Some(series) = &self.series {
            text += &format!("series = {}\n", quoted(series));
        }
        let workloads = self.workloads.iter().map(|name| (name.clone(), format!("{name}.dwt")));
        let traces = self.traces.iter().map(|path| {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            (name, path.to_string_lossy().into_owned())
        });
        for (name, trace) in workloads.chain(traces) {
            let (name, trace) = (quoted(&name), quoted(&trace));
            text += &format!("\n[[process]]\nname = {name}\ntrace = {trace}\n");
        }
        text
    }
}

impl Catalogue {
    /// Reads a catalogue, called `name` in errors.
    pub fn parse(text: &str, name: &str) -> Result<Self, String> {
        let catalogue: Catalogue = toml::from_str(text).map_err(|e| format!("{name}: {e}"))?;
        let plain = |name: &str| {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            !name.is_empty() && name.chars().all(plain)
        };
        let known = |wanted: &String| catalogue.workloads.iter().any(|w| w.name == *wanted);
        for batch in &catalogue.batches {
            if let Some(stranger) = batch.workloads.iter().find(|wanted| !known(wanted)) {
                return Err(format!("{name}: batch {}: no workload {stranger}", batch.name));
            }
            if !plain(&batch.name) {
                return Err(format!("{name}: batch {:?}: letters, digits, - _ .", batch.name));
            }
        }
        for workload in &catalogue.workloads {
            if !plain(&workload.name) {
                return Err(format!(
                    "{name}: workload {:?}: letters, digits, - _ .",
                    workload.name
                ));
            }
            if workload.command.is_empty() {
                return Err(format!("{name}: workload {}: an empty command", workload.name));
            }
        }
        Ok(catalogue)
    }

    /// Instructions recorded of each program at a scale.
    pub fn limit(&self, scale: f64) -> Option<u64> {
        self.limit.map(|limit| (limit as f64 * scale) as u64)
    }

    /// The shipped catalogue.
    pub fn its() -> Result<Self, String> {
        Self::parse(ITS, "its.toml")
    }
}

impl Workload {
    /// The trace of it in a directory.
    pub fn trace(&self, out: &Path) -> PathBuf {
        out.join(format!("{}.dwt", self.name))
    }

    /// Instructions of its start-up at a scale.
    pub fn skip(&self, scale: f64) -> u64 {
        (self.skip as f64 * scale) as u64
    }

    /// Its parameters at a scale, as a person reads them.
    pub fn size(&self, scale: f64) -> String {
        let named = |(name, p): (&String, &Parameter)| format!("{name} {}", p.at(scale));
        self.parameters.iter().map(named).collect::<Vec<_>>().join(", ")
    }

    /// Words of a command with what they name put in.
    pub fn words(&self, words: &[String], out: &Path, kernels: &Path, scale: f64) -> Vec<String> {
        let filled = |word: &String| {
            let mut word = word.replace("$OUT", &out.to_string_lossy());
            word = word.replace("$kernels", &kernels.to_string_lossy());
            // Longer names first, so that none is taken for the beginning of another.
            let mut names: Vec<_> = self.parameters.iter().collect();
            names.sort_by_key(|(name, _)| std::cmp::Reverse(name.len()));
            for (name, parameter) in names {
                word = word.replace(&format!("${name}"), &parameter.at(scale).to_string());
            }
            word
        };
        words.iter().map(filled).collect()
    }

    /// The program that is missing, if one is: also where Debian puts games.
    pub fn missing(&self, path: &str) -> Option<&Needs> {
        let here = |needs: &&Needs| program(&needs.program, path).is_none();
        self.needs.as_ref().filter(here)
    }
}

/// Where a program is, by a search path as in `PATH`.
pub fn program(name: &str, path: &str) -> Option<PathBuf> {
    if name.contains('/') {
        return Some(PathBuf::from(name)).filter(|file| file.is_file());
    }
    path.split(':').chain(["/usr/games"]).map(|dir| Path::new(dir).join(name)).find(|f| f.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_catalogue_has_nine_workloads_in_four_batches_of_six() {
        let its = Catalogue::its().unwrap();
        assert_eq!(its.workloads.len(), 9);
        let (series, batches): (Vec<_>, Vec<_>) =
            its.batches.iter().partition(|batch| batch.series.is_some());
        assert_eq!(batches.len(), 4);
        assert!(series.iter().map(|batch| batch.workloads.len()).eq(2..=5));
        let intensive = |name: &String| {
            its.workloads.iter().any(|w| w.name == *name && w.class == "data-intensive")
        };
        for (number, batch) in batches.iter().enumerate() {
            assert_eq!(batch.workloads.len(), 6, "{}", batch.name);
            assert_eq!(batch.workloads.iter().filter(|w| intensive(w)).count(), number);
        }
    }

    #[test]
    fn parameters_follow_the_scale_and_are_put_in() {
        let its = Catalogue::its().unwrap();
        let walk = its.workloads.iter().find(|w| w.name == "random-walk").unwrap();
        let words =
            |scale| walk.words(&walk.command, Path::new("/o"), Path::new("/k"), scale).join(" ");
        assert_eq!(words(1.0), "/k walk --graph /o/graph-20.csr --walks 4000000 --steps 16");
        assert_eq!(words(0.125), "/k walk --graph /o/graph-17.csr --walks 500000 --steps 16");
        assert_eq!(walk.size(2.0), "scale 21, walks 8000000");
        assert_eq!((walk.skip(0.5), its.limit(0.5)), (5_000_000, Some(500_000_000)));
    }

    #[test]
    fn a_batch_becomes_a_file_that_names_its_traces() {
        let batch = Batch {
            name: "b".into(),
            workloads: vec!["wrf".into()],
            traces: vec!["/t/gcc.dwt".into()],
            series: None,
        };
        assert_eq!(
            batch.file(),
            "name = \"b\"\n\n[[process]]\nname = \"wrf\"\ntrace = \"wrf.dwt\"\n\
             \n[[process]]\nname = \"gcc\"\ntrace = \"/t/gcc.dwt\"\n"
        );
    }

    #[test]
    fn mistakes_in_a_catalogue_are_named() {
        for (text, says) in [
            ("name = \"x\"\nabout = \"\"\nsurprise = 1", "surprise"),
            ("name = \"x\"\nabout = \"\"\n[[batch]]\nname = \"b\"\nworkloads = [\"w\"]", "batch b"),
            ("name = 1", "mine.toml"),
        ] {
            let told = Catalogue::parse(text, "mine.toml").unwrap_err();
            assert!(told.contains(says) && told.contains("mine.toml"), "{told}");
        }
    }
}
