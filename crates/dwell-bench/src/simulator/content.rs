// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the rows of a simulation depend on, and reports kept under it.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use dwell_sim::{Batch, Kept, Plan, PolicyKind, Report};

use crate::sources::source;

/// The code whose change makes other rows.
const SIMULATOR: [&str; 3] = ["dwell-policy", "dwell-sim", "dwell-trace"];

/// Hashes of that code.
pub(super) fn code() -> [Option<u64>; 3] {
    SIMULATOR.map(source)
}

/// The files of a batch: its own and its traces.
pub(super) fn files_of(batch: &Path) -> Result<Vec<PathBuf>> {
    let named = || batch.display().to_string();
    let text = std::fs::read_to_string(batch).with_context(named)?;
    let parsed = Batch::parse(&text).with_context(named)?;
    let beside = batch.parent().unwrap_or(Path::new(""));
    let traces = parsed.processes.iter().filter_map(|process| process.trace.as_ref());
    let mut all = vec![batch.to_owned()];
    all.extend(traces.map(|trace| beside.join(trace)));
    Ok(all)
}

/// A hash of a batch and its traces.
pub(super) fn content_of(batch: &Path) -> Result<blake3::Hash> {
    let mut all = blake3::Hasher::new();
    for path in files_of(batch)? {
        let mut one = blake3::Hasher::new();
        let read = File::open(&path).and_then(|file| one.update_reader(file).map(drop));
        read.with_context(|| format!("cannot read {}", path.display()))?;
        all.update(one.finalize().as_bytes());
    }
    Ok(all.finalize())
}

/// Reports of one plan, a small file each, in a directory named by all that they depend on. So a
/// long run goes on where it was stopped, and what has changed is simulated anew.
pub(super) struct KeptRuns(PathBuf);

impl KeptRuns {
    /// Those in `root` of a plan made from `batch` with traces of at most `limit` instructions.
    ///
    /// # Errors
    /// A batch or a trace that cannot be read; a directory that cannot be made.
    pub(super) fn new(root: &Path, plan: &Plan, batch: &Path, limit: u64) -> Result<Self> {
        let mut hash = blake3::Hasher::new();
        hash.update(content_of(batch)?.as_bytes());
        hash.update(serde_json::to_string(&(code(), &plan.params, limit))?.as_bytes());
        let dir = root.join(&hash.finalize().to_hex()[..32]);
        std::fs::create_dir_all(&dir)
            .with_context(|| format!("cannot make the directory {}", dir.display()))?;
        Ok(KeptRuns(dir))
    }

    fn file(&self, policy: PolicyKind, seed: u64) -> PathBuf {
        self.0.join(format!("{policy}-{seed}.json"))
    }
}

impl Kept for KeptRuns {
    fn find(&self, policy: PolicyKind, seed: u64) -> Option<Report> {
        let text = std::fs::read(self.file(policy, seed)).ok()?;
        // What was cut off by a full disk is simulated again.
        serde_json::from_slice(&text).ok()
    }

    fn keep(&self, report: &Report) -> Result<(), String> {
        let text = serde_json::to_string(report).map_err(|error| error.to_string())?;
        crate::result::write(&self.file(report.policy, report.seed), &text)
            .map_err(|error| format!("{error:#}"))
    }
}
