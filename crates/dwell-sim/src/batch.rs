// SPDX-License-Identifier: MIT OR Apache-2.0
//! A batch as data: which programs run together, at which priorities, with which parameters.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::Params;
use crate::assign::in_line;
use crate::params::ParamError;
use crate::program::{ProgramError, Source};
use crate::synthetic::Loop;

/// A batch of processes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batch {
    /// Its name in tables.
    pub name: String,
    /// Batches of one series differ in the number of their processes, and are compared by it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub series: Option<String>,
    /// Parameters that differ from the defaults, by name.
    #[serde(default)]
    pub set: BTreeMap<String, toml::Value>,
    /// The processes, in the order in which they first become ready.
    #[serde(rename = "process")]
    pub processes: Vec<Entry>,
}

/// One process of a batch.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Its name.
    pub name: String,
    /// Its nice value; drawn by the seed where it is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nice: Option<i8>,
    /// A recorded trace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<PathBuf>,
    /// A synthetic loop.
    #[serde(default, rename = "loop", skip_serializing_if = "Option::is_none")]
    pub looped: Option<Loop>,
}

/// Why a batch cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// It is no batch.
    #[error("not a batch: {0}")]
    Text(String),
    /// It is in a file.
    #[error("{path}: {why}")]
    File {
        /// Which.
        path: String,
        /// The fault of the trace, in words.
        why: String,
    },
    /// A parameter is wrong.
    #[error("[set]: {0}")]
    Param(#[from] ParamError),
    /// A process is wrong.
    #[error("process `{name}`: {why}")]
    Process {
        /// Which.
        name: String,
        /// Why.
        why: String,
    },
}

/// Opens a recorded trace: a process's name, the path that the batch gives.
pub type OpenTrace<'a> = dyn FnMut(&str, &Path) -> Result<Arc<dyn Source>, ProgramError> + 'a;

impl Batch {
    /// Reads a batch from TOML and checks it.
    pub fn parse(text: &str) -> Result<Batch, BatchError> {
        let batch: Batch = toml::from_str(text)
            .map_err(|e| BatchError::Text(in_line(text, e.span(), e.message())))?;
        batch.check()?;
        Ok(batch)
    }

    /// Whether each process has one program and a possible priority.
    pub fn check(&self) -> Result<(), BatchError> {
        if self.processes.is_empty() {
            return Err(BatchError::Text("it has no [[process]]".into()));
        }
        self.params()?;
        for process in &self.processes {
            let bad = |why: String| Err(BatchError::Process { name: process.name.clone(), why });
            match (&process.trace, &process.looped) {
                (Some(_), None) => {}
                (None, Some(looped)) => {
                    if let Err(why) = looped.check() {
                        return bad(why);
                    }
                }
                _ => return bad("give either `trace` or `loop`".into()),
            }
            if process.nice.is_some_and(|nice| !(-20..=19).contains(&nice)) {
                return bad("nice must be -20 to 19".into());
            }
        }
        Ok(())
    }

    /// The parameters of this batch.
    pub fn params(&self) -> Result<Params, ParamError> {
        let mut params = Params::default();
        for (name, value) in &self.set {
            let value = match value {
                toml::Value::String(text) => text.clone(),
                other => other.to_string(),
            };
            params.set(&format!("{name}={value}"))?;
        }
        params.check()?;
        Ok(params)
    }

    /// The programs of this batch; `open_trace` opens recorded ones under the process's name.
    pub fn sources(
        &self,
        open_trace: &mut OpenTrace<'_>,
    ) -> Result<Vec<Arc<dyn Source>>, BatchError> {
        self.check()?;
        let mut sources: Vec<Arc<dyn Source>> = Vec::new();
        for process in &self.processes {
            sources.push(match (&process.trace, &process.looped) {
                (Some(path), _) => open_trace(&process.name, path).map_err(|error| {
                    BatchError::Process { name: process.name.clone(), why: error.to_string() }
                })?,
                (None, Some(looped)) => Arc::new(looped.named(&process.name)),
                (None, None) => continue,
            });
        }
        Ok(sources)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = r#"
        name = "two"
        set = { llc_bytes = "1M", slice_scale = 0.1 }
        [[process]]
        name = "sweep"
        nice = -5
        loop = { order = "sweep", bytes = 1048576, visits = 10 }
        [[process]]
        name = "wrf"
        trace = "wrf.trace"
    "#;

    #[test]
    fn a_batch_is_read_from_text_and_its_traces_are_opened_by_the_caller() {
        let batch = Batch::parse(TEXT).unwrap();
        assert_eq!(batch.params().unwrap().llc_bytes, 1 << 20);
        assert_eq!(toml::from_str::<Batch>(&toml::to_string(&batch).unwrap()).unwrap(), batch);
        let mut asked = Vec::new();
        let sources = batch.sources(&mut |name, path| {
            asked.push((name.to_string(), path.to_path_buf()));
            Ok(Arc::new(crate::synthetic::Script::new(name)))
        });
        let names: Vec<_> =
            sources.unwrap().iter().map(|source| source.name().to_string()).collect();
        assert_eq!(names, ["sweep", "wrf"]);
        assert_eq!(asked, [("wrf".to_string(), PathBuf::from("wrf.trace"))]);
    }

    #[test]
    fn a_wrong_batch_says_where() {
        let says =
            |from: &str, to: &str| Batch::parse(&TEXT.replace(from, to)).unwrap_err().to_string();
        assert_eq!(
            says("trace = \"wrf.trace\"", ""),
            "process `wrf`: give either `trace` or `loop`"
        );
        assert_eq!(says("-5", "20"), "process `sweep`: nice must be -20 to 19");
        assert_eq!(
            says("slice_scale", "slice"),
            "[set]: no parameter is called `slice`; did you mean `slice_scale`?"
        );
        assert_eq!(says("1048576", "1"), "process `sweep`: bytes = 1: must be 80 to 2^40");
        assert!(says("[[process]]", "[[proc]]").starts_with("not a batch: "));
    }
}
