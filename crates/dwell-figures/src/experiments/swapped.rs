// SPDX-License-Identifier: MIT OR Apache-2.0
//! V3: the simulator's faults beside those of real runs in too little memory, which swap to zram.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dwell_sim::params::PAGE_BYTES;
use dwell_sim::trace::{Extent, Recorded};
use dwell_sim::{Machine, Params, PolicyKind, Survey, Task, survey};
use dwell_workloads::{Catalogue, Workload};

use super::beside::{prepared, recorded};
use super::lab::skip_all;
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::fixture::{Directory, MemoryGroup, Setting};
use dwell_bench::pager::Swap;
use dwell_bench::stats::Paired;
use dwell_bench::usage;

/// Programs whose memory is anonymous, so that the kernel swaps it.
const PROGRAMS: [&str; 2] = ["wrf", "xz"];
/// Memory in percent of the pages that a program touches.
const SHARES: [u64; 3] = [50, 70, 90];
/// Size of the programs.
const SCALE: f64 = 1.0 / 16.0;
/// A limit that no program reaches.
const AMPLE_BYTES: u64 = 4 << 30;
/// How often the kernel's counts of a group's pages are refreshed.
const REFRESH: Duration = Duration::from_millis(1);
/// Pages that a fault reads besides its own, as a power of two.
const CLUSTER: &str = "/proc/sys/vm/page-cluster";

/// V3.
pub(super) fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let Some(dwell) = lab.dwell.clone() else {
        return skip_all(result, "there is no command to record with").map(|()| None);
    };
    if let Err(why) = MemoryGroup::new(AMPLE_BYTES) {
        return skip_all(result, &why.to_string()).map(|()| None);
    }
    let before = std::fs::read_to_string(CLUSTER);
    let cluster = match before.and_then(|text| Setting::change(CLUSTER.as_ref(), &text, "0")) {
        Ok(cluster) => cluster,
        Err(why) => return skip_all(result, &format!("{CLUSTER}: {why}")).map(|()| None),
    };
    let directory = Directory::new(&lab.directory)?;
    let catalogue = Catalogue::its().map_err(|why| anyhow::anyhow!(why))?;
    let scale = SCALE * lab.effort.clamp(1e-3, 1.0);
    for (at, name) in PROGRAMS.into_iter().enumerate() {
        progress(name, at as f64 / PROGRAMS.len() as f64);
        let workload = catalogue.workloads.iter().find(|workload| workload.name == name);
        let workload = workload.context("the catalogue lacks a program")?;
        let found = one(&dwell, workload, directory.path(), scale, lab.times(5));
        for (at, share) in SHARES.into_iter().enumerate() {
            let case = format!("{name}, memory for {share} % of its pages");
            match &found {
                Err(why) => result.note(&case, &format!("{why:#}"))?,
                Ok(points) => {
                    let Point { simulated, real } = &points[at];
                    let pairs = real.iter().map(|&real| (*simulated as f64, real as f64));
                    match Paired::of(pairs) {
                        Some(ratio) => result.measured(&case, ratio)?,
                        None => result.note(&case, "a side had no fault")?,
                    }
                }
            }
        }
    }
    drop(cluster);
    Ok(None)
}

/// Major faults at one size of memory, of each real run.
struct Point {
    simulated: u64,
    real: Vec<u64>,
}

fn one(
    dwell: &Path,
    workload: &Workload,
    directory: &Path,
    scale: f64,
    rounds: usize,
) -> Result<Vec<Point>> {
    let command = prepared(dwell, workload, directory, scale)?;
    let path = directory.join("swapped.dwt");
    recorded(dwell, &command, &path)?;
    let trace = Recorded::open(&workload.name, &path, Extent::WHOLE)?;
    let params = Params::default();
    let survey = survey(&trace, &params, &mut |_| true)?.context("stopped")?;
    let pages = survey.pages.len() as u64;
    let swap = Swap::new(2 * pages * PAGE_BYTES)?;
    // What the kernel counts besides the pages in the trace: code, tables, the C library.
    let (_, peak_bytes) = limited(&command, AMPLE_BYTES)?;
    let besides = peak_bytes.context("the kernel does not say what was used")?;
    let besides = besides.saturating_sub(pages * PAGE_BYTES);
    let points = SHARES.map(|share| -> Result<Point> {
        let memory = pages * share / 100 * PAGE_BYTES;
        let run = |_| -> Result<u64> { Ok(limited(&command, memory + besides)?.0) };
        Ok(Point {
            simulated: simulated(&trace, &survey, &params, memory)?,
            real: (0..rounds).map(run).collect::<Result<Vec<_>>>()?,
        })
    });
    let points = points.into_iter().collect();
    drop(swap);
    points
}

/// Pages that came back from the device.
fn simulated(trace: &Recorded, survey: &Survey, params: &Params, memory: u64) -> Result<u64> {
    let pages = survey.on_device(params);
    let tasks = [Task { source: trace, nice: 0, pages: &pages }];
    let mut machine = Machine::new(params, PolicyKind::Sync, 1, memory, &tasks)?;
    machine.run(&mut |_| true)?;
    Ok(machine.report("swapped").faults.again)
}

/// Major faults of a command in a group of so much memory, and the most that the group used.
fn limited(command: &[String], bytes: u64) -> Result<(u64, Option<u64>)> {
    let group = MemoryGroup::new(bytes)?;
    Swap::allow(group.path())?;
    let before = usage::children_faults().major;
    let mut running = Command::new("sh")
        .args(["-c", "echo 0 >\"$0/cgroup.procs\" && exec \"$@\""])
        .arg(group.path())
        .args(command)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start sh")?;
    let counts = group.path().join("memory.stat");
    let ended = loop {
        if let Some(ended) = running.try_wait().context("waiting for sh")? {
            break ended;
        }
        // The kernel refreshes its counts of a group's pages every two seconds, or when they are
        // read. By old counts it finds no page to swap and kills a program that swaps fast.
        std::fs::read(&counts).with_context(|| counts.display().to_string())?;
        std::thread::sleep(REFRESH);
    };
    ensure!(ended.success(), "{}: {ended} in {bytes} bytes", command[0]);
    Ok((usage::children_faults().major - before, group.peak_bytes()))
}
