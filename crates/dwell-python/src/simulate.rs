// SPDX-License-Identifier: MIT OR Apache-2.0
//! Batches of processes that page from a fast device.

use std::path::{Path, PathBuf};

use dwell_bench::simulator::sweep::{Point, Sweep};
use dwell_bench::simulator::{Ask, Simulated, Study};
use dwell_sim::columns::{self, Column, counts, texts};
use dwell_sim::params::Said;
use dwell_sim::{Params, PolicyKind};
use pyo3::prelude::*;

use crate::error::refused;
use crate::running;
use crate::table::Table;

/// Each parameter: name, default as text, unit, the paper's section, whether the paper leaves it
/// open, and what it is.
#[pyfunction]
pub fn fields() -> Vec<(&'static str, String, &'static str, &'static str, bool, &'static str)> {
    let defaults = Params::default();
    let of = |field: &dwell_sim::params::Field| {
        let value = defaults.get(field.name).unwrap_or_default();
        let open = field.said == Said::Open;
        (field.name, value, field.unit, field.section, open, field.doc.trim())
    };
    Params::FIELDS.iter().map(of).collect()
}

/// Simulates batches; gives a table of runs, one of processes and one of programs.
#[pyfunction]
#[pyo3(signature = (batches, policies, seeds, sets, limit, partial, progress))]
#[expect(clippy::too_many_arguments, reason = "Python's half names them")]
pub fn simulate(
    py: Python<'_>,
    batches: Vec<PathBuf>,
    policies: Vec<String>,
    seeds: u64,
    sets: Vec<String>,
    limit: Option<u64>,
    partial: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<(Table, Table, Table)> {
    let mut params = Params::default();
    sets.iter().try_for_each(|set| params.set(set)).map_err(refused)?;
    params.check().map_err(refused)?;
    let policies: Result<Vec<PolicyKind>, _> = policies.iter().map(|name| name.parse()).collect();
    let ask = Ask {
        batches,
        policies: policies.map_err(refused)?,
        seeds,
        limit: limit.unwrap_or(u64::MAX),
        partial,
        sets,
        keep: None,
    };
    let study = running::done(py, progress.as_ref(), |far, cancel| {
        let tell = |batch: &str, phase: &str, share: f64| {
            if let Ok(mut far) = far.lock() {
                *far = (format!("{batch}: {phase}"), share);
            }
        };
        Study::simulate(&ask, &tell, cancel)
    })?;
    let study = study.map_err(refused)?;
    let reports = study.reports();
    let runs = Table::of(columns::of_runs(&reports))?;
    Ok((runs, Table::of(columns::of_processes(&reports))?, Table::of(programs(&study.batches))?))
}

/// One row per program of a batch, alone.
fn programs(batches: &[Simulated]) -> Vec<Column> {
    let all = || batches.iter().flat_map(|one| one.programs.iter().map(move |of| (one, of)));
    vec![
        texts("batch", all().map(|(batch, _)| batch.name.clone())),
        texts("program", all().map(|(_, of)| of.name.clone())),
        counts("instructions", all().map(|(_, of)| of.instructions)),
        counts("footprint_bytes", all().map(|(_, of)| of.footprint_bytes)),
        counts("working_set_bytes", all().map(|(_, of)| of.working_set_bytes)),
    ]
}

/// A sweep of TOML text, its batches in a directory.
fn sweep_of(text: &str, beside: &Path) -> PyResult<Sweep> {
    Sweep::parse(text, beside).map_err(refused)
}

/// Key, batch and parameters of a point.
type Told = (String, PathBuf, Vec<String>);

/// The points of a sweep.
#[pyfunction]
pub fn sweep_points(text: &str, beside: PathBuf) -> PyResult<Vec<Told>> {
    let points = sweep_of(text, &beside)?.points().map_err(refused)?;
    Ok(points.into_iter().map(|Point { key, batch, sets }| (key, batch, sets)).collect())
}

/// The files that a sweep's points depend on, as named in it.
#[pyfunction]
pub fn sweep_files(text: &str, beside: PathBuf) -> PyResult<Vec<PathBuf>> {
    sweep_of(text, &beside)?.files().map_err(refused)
}

/// Simulates those of `points` that are not in `out`; gives how many that were.
#[pyfunction]
#[pyo3(signature = (text, beside, out, points, progress))]
pub fn sweep_run(
    py: Python<'_>,
    text: &str,
    beside: PathBuf,
    out: PathBuf,
    points: Vec<Told>,
    progress: Option<Py<PyAny>>,
) -> PyResult<usize> {
    let sweep = sweep_of(text, &beside)?;
    let point = |(key, batch, sets)| Point { key, batch, sets };
    let points: Vec<Point> = points.into_iter().map(point).collect();
    let swept = running::done(py, progress.as_ref(), |far, cancel| {
        let tell = |batch: &str, point: &str, share: f64| {
            if let Ok(mut far) = far.lock() {
                *far = (format!("{batch}: {point}"), share);
            }
        };
        sweep.run(&points, &out, &tell, cancel)
    })?;
    Ok(swept.map_err(refused)?.simulated)
}
