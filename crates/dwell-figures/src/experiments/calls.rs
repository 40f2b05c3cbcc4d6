// SPDX-License-Identifier: MIT OR Apache-2.0
//! U3: what a call costs more under `dwell run` that Dwell has nothing to do with, or that finds
//! its bytes in the page cache; what a process costs more that makes no call.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::{Context, Result};

use super::lab::{put, skip};
use super::wrapped::{Wrapping, both_variants, compared};
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::compare::{Measured as Ran, Plan, Wrapper};
use dwell_bench::loads::{Calls, calls_per_second};
use dwell_bench::stand::Kind;
use dwell_bench::stats::Middle;
use dwell_bench::units;
use dwell_bench::workload::spec::FileSystemKind;

const PASSED: &str = "call passed through: 1 byte to /dev/null";
const CACHED: &str = "warm cached read: 4 KiB of a file on a fast device";
const STARTED: &str = "process: true, from its start to its end";
const READ_BYTES: usize = 4096;

/// U3.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let wrapping = match Wrapping::make(lab)? {
        Ok(wrapping) => wrapping,
        Err(why) => return skip(result, &[PASSED, CACHED, STARTED], &why).map(|()| None),
    };
    let nothing = wrapping.plan(vec!["true".into()], wrapper(&wrapping), lab.times(101));
    more(&nothing, (result, STARTED), (|run: &Ran| run.wall_ns as f64, 1e6), (0.0, progress))?;
    let passed = Calls { path: "/dev/null".into(), write: true, bytes: 1, ..calls(lab) };
    compare(lab, &wrapping, (result, PASSED), passed, (0.3, progress))?;
    match lab.place(Kind::Loop, FileSystemKind::Ext4)? {
        Ok(place) => {
            wrapping.know(&place)?;
            let path = place.path().join("data");
            let noise = dwell_bench::fixture::half_noise(1 << 20);
            std::fs::write(&path, &noise[..]).context("writing the file to read")?;
            let cached = Calls { path, write: false, bytes: READ_BYTES, ..calls(lab) };
            compare(lab, &wrapping, (result, CACHED), cached, (0.65, progress))?;
        }
        Err(why) => skip(result, &[CACHED], &why)?,
    }
    Ok(None)
}

/// How many calls at once, and how often.
fn calls(lab: &Lab) -> Calls {
    let (calls, batches) = if lab.is_hasty() { (100, 3) } else { (20_000, 25) };
    Calls { path: PathBuf::new(), write: false, bytes: 1, calls, batches }
}

fn compare(
    lab: &Lab,
    wrapping: &Wrapping,
    (result, case): (&mut FigureResult, &str),
    calls: Calls,
    (from, progress): (f64, &mut Progress<'_>),
) -> Result<()> {
    let mut program = vec![std::env::current_exe().context("this program's own file")?.into()];
    program.extend(lab.hidden.iter().map(OsString::from));
    program.push(calls.word()?.into());
    let mut plan = wrapping.plan(program, wrapper(wrapping), lab.times(31));
    plan.told = Some(calls_per_second);
    // What it prints is the measured rate.
    plan.check = Some(vec!["true".into()]);
    let ns = |run: &Ran| 1e9 / run.told.unwrap_or(f64::NAN);
    more(&plan, (result, case), (ns, 1.0), (from, progress))
}

fn wrapper(wrapping: &Wrapping) -> Wrapper {
    Wrapper::dwell_run(&wrapping.dwell())
}

/// What the wrapped command needs more of `ns` than the untouched one, in the case's unit of so
/// many nanoseconds.
fn more(
    plan: &Plan,
    (result, case): (&mut FigureResult, &str),
    (ns, unit_ns): (impl Fn(&Ran) -> f64, f64),
    (from, progress): (f64, &mut Progress<'_>),
) -> Result<()> {
    let (mut done, total) = (0.0, plan.runs() as f64);
    let comparison = compared(plan, &mut |what| {
        progress(&format!("{case}: {what}"), from + 0.3 * done / total);
        done += 1.0;
    })?;
    let (ours, base) = both_variants(&comparison)?;
    let rounds = ours.rounds.iter().zip(&base.rounds);
    let more = Middle::of(rounds.map(|(ours, base)| (ns(ours) - ns(base)) / unit_ns));
    let more = more.map(|Middle { value, low, high }| Measured { value, low, high });
    let remark = format!("untouched: {}", units::time_ns(base.median(&ns)));
    put(result, case, more, Some(remark))
}
