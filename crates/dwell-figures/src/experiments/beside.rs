// SPDX-License-Identifier: MIT OR Apache-2.0
//! V1 and V2: the recorder and the simulator's caches beside Cachegrind and ChampSim, program by
//! program.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use dwell_sim::flat::{self, Counts, Shape};
use dwell_workloads::{Catalogue, KERNELS, Workload, program};

use super::counted::{Beside, Pair};
use super::lab::skip_all;
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::fixture::Directory;

/// The first and the last level of the simulator's default machine.
const L1: Shape = Shape { bytes: 32 << 10, ways: 8 };
const LL: Shape = Shape { bytes: 8 << 20, ways: 16 };
/// Size of the programs: Cachegrind counts whole executions, so these are recorded whole.
const SCALE: f64 = 1.0 / 64.0;
/// The program whose trace ChampSim reads.
const EXPORTED: &str = "wrf";
const CHAMPSIM: &str = "ChampSim, wrf: accesses of the first level";

/// V1: misses.
pub(super) fn misses(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let found = match all(lab, progress)? {
        Ok(found) => found,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let l1 = |counts: &Counts| counts.l1_read_misses + counts.l1_write_misses;
    let ll = |counts: &Counts| counts.ll_read_misses + counts.ll_write_misses;
    rows(result, &found, &[("L1 misses", &l1), ("LL misses", &ll)])?;
    Ok(None)
}

/// V2: instructions and accesses.
pub(super) fn accesses(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let found = match all(lab, progress)? {
        Ok(found) => found,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let accesses = |counts: &Counts| counts.reads + counts.writes;
    let instructions = |counts: &Counts| counts.instructions;
    rows(result, &found, &[("instructions", &instructions), ("accesses", &accesses)])?;
    match champsim(lab, progress)? {
        Ok((ours, theirs)) => {
            result.measured(CHAMPSIM, Measured::exact(deviation(ours, theirs)))?;
            result.note(CHAMPSIM, &format!("{ours} and {theirs}"))?;
        }
        Err(why) => result.note(CHAMPSIM, &why)?,
    }
    Ok(None)
}

type Of<'a> = &'a dyn Fn(&Counts) -> u64;

fn rows(result: &mut FigureResult, found: &Beside, parts: &[(&str, Of<'_>)]) -> Result<()> {
    for (name, pair) in found {
        for (what, of) in parts {
            let case = format!("{name}: {what}");
            match pair {
                Err(why) => result.note(&case, why)?,
                Ok(Pair { ours, theirs }) => {
                    let (ours, theirs) = (of(ours), of(theirs));
                    result.measured(&case, Measured::exact(deviation(ours, theirs)))?;
                    result.note(&case, &format!("{ours} and {theirs}"))?;
                }
            }
        }
    }
    Ok(())
}

/// How far apart two counts are, in percent of the second.
fn deviation(ours: u64, theirs: u64) -> f64 {
    100.0 * ours.abs_diff(theirs) as f64 / theirs.max(1) as f64
}

/// All nine programs, run once for both figures.
fn all(lab: &mut Lab, progress: &mut Progress<'_>) -> Result<Result<Rc<Beside>, String>> {
    if let Some(found) = &lab.beside {
        return Ok(Ok(found.clone()));
    }
    let Some(dwell) = lab.dwell.clone() else {
        return Ok(Err("there is no command to record with".into()));
    };
    if program("valgrind", &std::env::var("PATH").unwrap_or_default()).is_none() {
        return Ok(Err("valgrind is not installed".into()));
    }
    let directory = Directory::new(&lab.directory)?;
    let catalogue = Catalogue::its().map_err(|why| anyhow::anyhow!(why))?;
    let scale = SCALE * lab.effort.clamp(1e-3, 1.0);
    let mut found = Vec::new();
    for (at, workload) in catalogue.workloads.iter().enumerate() {
        progress(&workload.name, at as f64 / catalogue.workloads.len() as f64);
        let pair = one(&dwell, workload, directory.path(), scale);
        found.push((workload.name.clone(), pair.map_err(|why| format!("{why:#}"))));
    }
    let found = Rc::new(found);
    lab.beside = Some(found.clone());
    Ok(Ok(found))
}

/// One program under both.
fn one(dwell: &Path, workload: &Workload, directory: &Path, scale: f64) -> Result<Pair> {
    let command = prepared(dwell, workload, directory, scale)?;
    let trace = directory.join("beside.dwt");
    recorded(dwell, &command, &trace)?;
    let ours = flat::counts(&trace, L1, LL)?;
    Ok(Pair { ours, theirs: cachegrind(&command, directory)? })
}

/// The command of a workload, whose inputs are there then.
pub(super) fn prepared(
    dwell: &Path,
    workload: &Workload,
    directory: &Path,
    scale: f64,
) -> Result<Vec<String>> {
    let path = std::env::var("PATH").unwrap_or_default();
    if let Some(needs) = workload.missing(&path) {
        anyhow::bail!("{} is not installed", needs.program);
    }
    let kernels = dwell.with_file_name(KERNELS);
    let words = |words: &[String]| workload.words(words, directory, &kernels, scale);
    for prepare in &workload.prepare {
        quietly(&words(prepare))?;
    }
    let mut command = words(&workload.command);
    if let Some(found) = program(&command[0], &path) {
        command[0] = found.to_string_lossy().into_owned();
    }
    Ok(command)
}

pub(super) fn recorded(dwell: &Path, command: &[String], trace: &Path) -> Result<()> {
    let dwell = dwell.to_string_lossy().into_owned();
    let trace = trace.to_string_lossy().into_owned();
    let record =
        [&dwell, "lab", "trace", "record", "--force", "-o", &trace, "--"].map(String::from);
    quietly(&[&record[..], command].concat())
}

fn quietly(words: &[String]) -> Result<()> {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    let ended = command.output().with_context(|| format!("cannot run {}", words[0]))?;
    let said = String::from_utf8_lossy(&ended.stderr);
    ensure!(
        ended.status.success(),
        "{}: {}, {}",
        words[0],
        ended.status,
        said.lines().last().unwrap_or("no word")
    );
    Ok(())
}

/// What Cachegrind counts, with caches of the same shape.
fn cachegrind(command: &[String], directory: &Path) -> Result<Counts> {
    let out = directory.join("cachegrind.out");
    let shape = |name: &str, of: Shape| format!("--{name}={},{},64", of.bytes, of.ways);
    let options = [
        "valgrind".into(),
        "--tool=cachegrind".into(),
        "--cache-sim=yes".into(),
        shape("D1", L1),
        shape("LL", LL),
        format!("--cachegrind-out-file={}", out.display()),
    ];
    quietly(&[&options[..], command].concat())?;
    let text = std::fs::read_to_string(&out).context("what Cachegrind counted")?;
    let line = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.with_context(|| format!("Cachegrind's file has no line {name}"))
    };
    let (names, values) = (line("events:")?, line("summary:")?);
    let of = |name: &str| -> Result<u64> {
        let at = names.split_whitespace().position(|known| known == name);
        let value = at.and_then(|at| values.split_whitespace().nth(at));
        Ok(value.with_context(|| format!("Cachegrind did not count {name}"))?.parse()?)
    };
    Ok(Counts {
        instructions: of("Ir")?,
        reads: of("Dr")?,
        writes: of("Dw")?,
        l1_read_misses: of("D1mr")?,
        l1_write_misses: of("D1mw")?,
        ll_read_misses: of("DLmr")?,
        ll_write_misses: of("DLmw")?,
    })
}

/// Accesses of one program in its trace, and in ChampSim after the trace is exported; or why not.
fn champsim(lab: &Lab, progress: &mut Progress<'_>) -> Result<Result<(u64, u64), String>> {
    let Some(champsim) = program("champsim", &std::env::var("PATH").unwrap_or_default()) else {
        return Ok(Err("not measured here: champsim is not installed".into()));
    };
    let (Some(dwell), Ok(catalogue)) = (lab.dwell.clone(), Catalogue::its()) else {
        return Ok(Err("there is no command to record with".into()));
    };
    progress(CHAMPSIM, 0.95);
    let directory = Directory::new(&lab.directory)?;
    let workload = catalogue.workloads.iter().find(|workload| workload.name == EXPORTED);
    let workload = workload.context("the catalogue lacks a program")?;
    let counted = exported(&dwell, &champsim, workload, directory.path());
    Ok(counted.map_err(|why| format!("{why:#}")))
}

fn exported(
    dwell: &Path,
    champsim: &Path,
    workload: &Workload,
    directory: &Path,
) -> Result<(u64, u64)> {
    let command = prepared(dwell, workload, directory, SCALE)?;
    let (trace, out) = (directory.join("a.dwt"), directory.join("a.champsimtrace"));
    recorded(dwell, &command, &trace)?;
    let ours = flat::counts(&trace, L1, LL)?;
    let export = ["lab", "trace", "export", "-o"].map(PathBuf::from);
    let export = [&[dwell.to_owned()], &export[..], &[out.clone(), trace]].concat();
    let words: Vec<String> =
        export.iter().map(|word| word.to_string_lossy().into_owned()).collect();
    quietly(&words)?;
    let ran = Command::new(champsim)
        .args(["--warmup-instructions", "0", "--simulation-instructions"])
        .arg(ours.instructions.to_string())
        .arg(&out)
        .output()
        .context("cannot run champsim")?;
    let said = String::from_utf8_lossy(&ran.stdout);
    // cpu0->cpu0_L1D TOTAL        ACCESS:   123456 HIT: …
    let line = said.lines().find(|line| line.contains("L1D TOTAL"));
    let count = line.and_then(|line| line.split("ACCESS:").nth(1)?.split_whitespace().next());
    let theirs = count.context("champsim told no accesses of its first level")?.parse()?;
    Ok((ours.reads + ours.writes, theirs))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deviation_has_no_sign() {
        assert_eq!((deviation(99, 100), deviation(101, 100), deviation(0, 0)), (1.0, 1.0, 0.0));
    }
}
