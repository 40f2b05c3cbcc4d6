// SPDX-License-Identifier: MIT OR Apache-2.0
//! One experiment per figure: each measures all cases that `figures.toml` names.
//!
//! Whatever is compared runs in interleaved rounds and is paired round by round. A case that
//! cannot be measured here (no root, no device) is noted with its reason; nothing fails for that.

mod advised;
mod backlog;
mod beside;
mod bystander;
mod calls;
mod channel;
mod classes;
mod counted;
mod decisions;
mod finding;
mod host_page;
mod its;
mod its_why;
mod job;
mod jobs;
mod judged;
mod lab;
mod large;
mod leaving;
mod load;
mod mixed;
mod model;
mod nfs;
mod nfs_files;
mod nfs_mount;
mod nfs_peers;
mod one_fault;
mod paced;
mod pager;
mod pager_batch;
mod pager_predicted;
mod pause;
mod peers;
mod pollution;
mod predicted;
mod predictive;
mod probe;
mod programs;
mod promise;
mod recording;
mod regret;
mod response;
mod sampled;
mod script;
mod sequential;
mod settle;
mod simulator;
mod soak;
mod spinning;
mod stages;
mod sums;
mod swapped;
mod switches;
mod threshold;
mod tracing;
mod umap_programs;
mod whole;
mod window;
mod workloads;
mod wrapped;

use std::time::Instant;

use anyhow::{Context, Result, ensure};

use crate::figure::FigureResult;
use dwell_bench::machine::Machine;

pub use lab::Lab;

/// Hears what is being measured, and the share of the whole that is done, 0–1.
pub type Progress<'a> = dyn FnMut(&str, f64) + 'a;

/// Fills in a result; a figure that is more than its cases returns its own chart.
type Experiment = fn(&mut Lab, &mut FigureResult, &mut Progress<'_>) -> Result<Option<String>>;

const EXPERIMENTS: [(&str, Experiment); 78] = [
    ("S1", switches::direct),
    ("S2", switches::indirect),
    ("S3", classes::measure),
    ("S4", probe::measure),
    ("S5", backlog::measure),
    ("S6", threshold::measure),
    ("S7", decisions::measure),
    ("S8", spinning::measure),
    ("S9", model::table),
    ("S10", model::projection),
    ("S11", sequential::measure),
    ("S12", leaving::measure),
    ("S13", load::measure),
    ("S14", workloads::servers),
    ("S15", workloads::blocks),
    ("S16", bystander::measure),
    ("S17", large::measure),
    ("S18", pollution::measure),
    ("S19", pause::measure),
    ("A1", predictive::measure),
    ("A2", switches::working_set),
    ("A3", whole::measure),
    ("A4", response::measure),
    ("G0", stages::measure),
    ("G1", one_fault::measure),
    ("G2", pager::orders),
    ("G3", pager::graphs),
    ("G4", pager_batch::measure),
    ("G5", pager::major_faults),
    ("G6", umap_programs::measure),
    ("I1", its::measure),
    ("I2", its::measure),
    ("I3", its::measure),
    ("I4", its::measure),
    ("I5", its::measure),
    ("I6", its::measure),
    ("I7", its::measure),
    ("I8", its::measure),
    ("I9", its_why::measure),
    ("M1", job::measure),
    ("M2", mixed::measure),
    ("M3", host_page::measure),
    ("M4", jobs::measure),
    ("D1", channel::latency),
    ("D2", channel::throughput),
    ("D3", channel::asynchronous),
    ("D4", channel::oltp::transactions),
    ("D5", channel::oltp::records),
    ("D6", channel::bound),
    ("D7", channel::neighbours::measure),
    ("D8", channel::clients::measure),
    ("D9", channel::trips::measure),
    ("N1", nfs::threads),
    ("N2", nfs_peers::writes),
    ("N3", nfs::datagrams),
    ("N4", nfs::windows),
    ("N5", nfs_peers::reads),
    ("N6", nfs_files::files),
    ("N7", nfs_mount::mounts),
    ("P1", peers::measure),
    ("P2", simulator::measure),
    ("P3", recording::measure),
    ("R0", settle::measure),
    ("R1", regret::measure),
    ("R2", finding::measure),
    ("R3", judged::measure),
    ("R4", paced::measure),
    ("T1", soak::measure),
    ("U1", programs::reads),
    ("U2", programs::real),
    ("U3", calls::measure),
    ("U4", tracing::measure),
    ("V1", beside::misses),
    ("V2", beside::accesses),
    ("V3", swapped::measure),
    ("V4", pager_predicted::measure),
    ("V5", advised::measure),
    ("W1", predicted::measure),
];

/// The figures that can be measured, in order.
pub fn ids() -> Vec<&'static str> {
    EXPERIMENTS.map(|(id, _)| id).into()
}

/// Whether a figure is to be measured: rows of the present code and rules, from a machine of this
/// kind, are lacking.
///
/// # Errors
/// A file of results that cannot be read.
pub fn is_due(id: &str, lab: &Lab) -> Result<bool> {
    Ok(earlier(id, lab, &Machine::gather())?.is_none_or(|result| !result.is_complete()))
}

/// What was measured of a figure and still holds: here, or kept of another machine of this kind.
fn earlier(id: &str, lab: &Lab, machine: &Machine) -> Result<Option<FigureResult>> {
    let kept = lab.kept.as_ref().map(|kept| kept.join(machine.kind()));
    for directory in lab.results.iter().chain(&kept) {
        let result = FigureResult::load(directory, id)?;
        if let Some(result) = result.filter(|result| result.goes_on(machine, lab.effort)) {
            return Ok(Some(result));
        }
    }
    Ok(None)
}

/// The result to fill in. A figure that was stopped goes on with the rows that it lacks; one that
/// is complete begins anew. Where only some rows are asked for and none of them is lacking, those
/// do.
fn begin(id: &str, lab: &Lab) -> Result<FigureResult> {
    let machine = Machine::gather();
    let mut new = FigureResult::new(id, machine.clone())?;
    new.effort = lab.effort;
    let names: Vec<&str> = new.rows.iter().map(|row| row.case.as_str()).collect();
    ensure!(
        names.iter().any(|name| lab.asks_for(name)),
        "no case of {id} has {:?} at the beginning of a word: they are {}",
        lab.only.as_deref().unwrap_or_default(),
        names.join("; ")
    );
    let Some(mut result) = earlier(id, lab, &machine)? else { return Ok(new) };
    if lab.only.is_some() {
        let mut asked = result.rows.iter().filter(|row| lab.asks_for(&row.case));
        if !asked.any(|row| result.lacks(&row.case)) {
            result.forget(|case| lab.asks_for(case))?;
        }
    } else if result.is_complete() {
        return Ok(new);
    }
    Ok(result)
}

/// Measures one figure, or what it lacks. The second part is its chart, where it is not the usual
/// one ([`FigureResult::svg`]).
///
/// # Errors
/// An unknown figure; a device, process or request that failed. A device that cannot be made here
/// is none: its cases are noted.
pub fn measure(
    id: &str,
    lab: &mut Lab,
    progress: &mut Progress<'_>,
) -> Result<(FigureResult, Option<String>)> {
    let known = EXPERIMENTS.iter().find(|(known, _)| *known == id);
    let (id, experiment) = known
        .with_context(|| format!("there is no experiment {id}: known are {}", ids().join(", ")))?;
    let mut result = begin(id, lab)?;
    let (began, before) = (Instant::now(), result.seconds);
    let svg = experiment(lab, &mut result, progress).with_context(|| format!("figure {id}"))?;
    result.seconds = before + began.elapsed().as_secs_f64();
    progress("done", 1.0);
    Ok((result, svg))
}
