// SPDX-License-Identifier: MIT OR Apache-2.0
//! D1, D2, D3, D6: files through channels, against the kernel's ways to the same backing files.
//!
//! The daemon runs in this process, so the CPU time of a round is that of both sides.

mod attackers;
pub mod clients;
mod contender;
mod crossing;
pub mod neighbours;
pub mod oltp;
pub mod stage;
pub mod trips;

use std::time::Duration;

use anyhow::{Context, Result};
use dwell::mapping::Mapping;
use dwell::queue::Action;

use contender::{Contender, Job, Sample};
use crossing::{foreign_copy_ns, relay_ns, round_trip_ns};
use stage::Stage;

use super::lab::{put, skip, skip_all};
use super::sampled::{Step, enter, step, width};
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::pairs::{self, Parts};
use dwell_bench::result::Load;
use dwell_bench::stand::Kind;
use dwell_bench::stats::{Middle, Paired};
use dwell_bench::workload::spec::FileSystemKind;

const ROUND_TRIP: &str = "cross-core round trip of a cache line";
const WAYS: [(&str, Action); 2] = [("read", Action::Read), ("write", Action::Write)];
const DEPTH: u32 = 64;
/// After so long nobody spins for a request that does not come.
const STILL: Duration = Duration::from_millis(2);

/// Interleaved rounds of all contenders; the round trip is measured in each of them too.
fn rounds(
    lab: &Lab,
    result: &mut FigureResult,
    contenders: &mut [Contender],
    job: Job,
    progress: (&mut Progress<'_>, &str, f64),
) -> Result<Vec<Vec<Sample>>> {
    let (progress, what, share) = progress;
    let mut all: Vec<Vec<Sample>> = contenders.iter().map(|_| Vec::new()).collect();
    let mut trips = Vec::new();
    for _ in 0..lab.times(31) {
        progress(what, share);
        // The thread that served the last round may spin for a moment still. Two threads that pass
        // a line need both CPUs.
        std::thread::sleep(STILL);
        trips.push(round_trip_ns(lab.span(10)));
        for (contender, samples) in contenders.iter_mut().zip(&mut all) {
            samples.push(contender.round(job, lab.span(60))?);
        }
    }
    put(result, ROUND_TRIP, middle(trips.into_iter()), None)?;
    Ok(all)
}

fn middle(samples: impl Iterator<Item = f64>) -> Option<Measured> {
    Middle::of(samples).map(|Middle { value, low, high }| Measured { value, low, high })
}

fn ratio(ours: &[Sample], base: &[Sample], of: fn(&Sample) -> f64) -> Option<Paired> {
    Paired::of(ours.iter().zip(base).map(|(ours, base)| (of(ours), of(base))))
}

fn times(ours: &[Sample], base: &[Sample]) -> Option<String> {
    let of = |samples: &[Sample]| middle(samples.iter().map(|sample| sample.ns));
    let (ours, base) = (of(ours)?, of(base)?);
    Some(format!("{:.0} ns against {:.0} ns", ours.value, base.value))
}

fn file_bytes(lab: &Lab) -> u64 {
    lab.device_bytes.min(64 << 20)
}

/// D1.
pub fn latency(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let stage = match Stage::with_data(None, file_bytes(lab))? {
        Ok(stage) => stage,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    if lab.wants(result, &[ROUND_TRIP]) {
        progress(ROUND_TRIP, 0.0);
        let trips: Vec<f64> = (0..lab.times(31)).map(|_| round_trip_ns(lab.span(10))).collect();
        put(result, ROUND_TRIP, middle(trips.into_iter()), None)?;
        lab.keep(result)?;
    }
    for (at, (way, action)) in WAYS.into_iter().enumerate() {
        let cases =
            ["bare tmpfs", "the mount without it"].map(|n| format!("tmpfs, {way}: channel ÷ {n}"));
        let open = || -> Result<Vec<Contender>> {
            let bare = || Contender::kernel(&stage, false, false);
            let mount = Contender::kernel(&stage, true, false)?;
            Ok(vec![bare()?, bare()?, Contender::channel(&stage, false)?, mount])
        };
        sampled(lab, result, &cases, open, action, step(progress, &cases[0], at, 6))?;
    }
    for (at, (place, kind)) in
        [("ext4 on loop", Kind::Loop), ("ext4 on zram", Kind::Zram)].into_iter().enumerate()
    {
        let cases = WAYS.map(|(way, _)| format!("{place}, direct {way}: channel ÷ kernel"));
        if !lab.wants(result, &cases) {
            continue;
        }
        let made = match lab.place(kind, FileSystemKind::Ext4)? {
            Ok(made) => made,
            Err(why) => {
                skip(result, &cases, &why)?;
                continue;
            }
        };
        let stage = match Stage::with_data(Some(made.path()), file_bytes(lab))? {
            Ok(stage) => stage,
            Err(why) => {
                skip(result, &cases, &why)?;
                continue;
            }
        };
        for (i, (case, (_, action))) in cases.iter().zip(WAYS).enumerate() {
            let open = || -> Result<Vec<Contender>> {
                let bare = || Contender::kernel(&stage, false, true);
                Ok(vec![bare()?, bare()?, Contender::channel(&stage, true)?])
            };
            let step = step(progress, case, 2 + 2 * at + i, 6);
            sampled(lab, result, std::slice::from_ref(case), open, action, step)?;
        }
    }
    Ok(None)
}

/// Samples the time of a request through a channel, which is the third contender, beside the
/// kernel's own way, which is the first two, and beside the others; a case each.
fn sampled(
    lab: &Lab,
    result: &mut FigureResult,
    cases: &[String],
    open: impl FnOnce() -> Result<Vec<Contender>>,
    action: Action,
    mut step: Step<'_, '_>,
) -> Result<()> {
    const OURS: usize = 2;
    let job = Job { action, request_bytes: 4096, file_bytes: file_bytes(lab) };
    let until = lab.until(width(result, &cases[0], Load::Idle));
    let sampled = lab.sample(result, cases, || {
        let mut contenders = open()?;
        let others = contenders.len() - 2;
        let mut parts = Parts::new(others, until, |contender| {
            // The thread that served the last part may go on spinning for a moment.
            std::thread::sleep(STILL);
            if !lab.is_hasty() {
                contenders[contender].round(job, lab.span(20))?;
            }
            let ns = contenders[contender].round(job, lab.span(60))?.ns;
            Ok((vec![ns], ns))
        });
        let sampled = pairs::sample(others, until, &mut parts, &mut |share| step.show(share))?;
        Ok(Ok((sampled, std::mem::take(&mut parts.kept))))
    })?;
    let Some((sampled, kept)) = sampled else { return Ok(()) };
    let median = |at: usize| Middle::of(kept[at].iter().copied()).map_or(f64::NAN, |m| m.value);
    for (case, base) in cases.iter().zip([0, OURS + 1]) {
        let remark = format!("{:.0} ns against {:.0} ns", median(OURS), median(base));
        enter(result, case, &sampled, (OURS, base, 0), Some(remark))?;
    }
    lab.keep(result)
}

/// D2.
pub fn throughput(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    match Stage::with_data(None, file_bytes(lab))? {
        Ok(stage) => on_tmpfs(lab, result, &stage, progress)?,
        Err(why) => skip_all(result, &why)?,
    }
    Ok(None)
}

/// Channel, bare tmpfs and the mount: rates.
fn on_tmpfs(
    lab: &Lab,
    result: &mut FigureResult,
    stage: &Stage,
    progress: &mut Progress<'_>,
) -> Result<()> {
    for (at, (way, action)) in WAYS.into_iter().enumerate() {
        let job = Job { action, request_bytes: 4096, file_bytes: file_bytes(lab) };
        let mut contenders = [
            Contender::queue(stage, DEPTH, 4096, true)?,
            Contender::kernel(stage, false, false)?,
            Contender::kernel(stage, true, false)?,
        ];
        let share = at as f64 / 2.0;
        let all = rounds(lab, result, &mut contenders, job, (&mut *progress, way, share))?;
        for (base, name) in [(1, "bare tmpfs"), (2, "the mount without it")] {
            let case = format!("tmpfs, {way}: channel ÷ {name}");
            let ratio = ratio(&all[0], &all[base], |sample| 1e9 / sample.ns);
            put(result, &case, ratio, times(&all[0], &all[base]))?;
        }
    }
    Ok(())
}

/// D3.
pub fn asynchronous(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let stage = match Stage::with_data(None, file_bytes(lab))? {
        Ok(stage) => stage,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    for (at, (way, action)) in WAYS.into_iter().enumerate() {
        let job = Job { action, request_bytes: 512, file_bytes: file_bytes(lab) };
        let mut contenders =
            [Contender::queue(&stage, DEPTH, 512, true)?, Contender::channel(&stage, false)?];
        let share = at as f64 / 2.0;
        let all = rounds(lab, result, &mut contenders, job, (&mut *progress, way, share))?;
        let (ours, base) = (&all[0], &all[1]);
        let case = format!("{way}: 64 in flight ÷ blocking calls");
        put(result, &case, ratio(ours, base, |sample| 1e9 / sample.ns), times(ours, base))?;
        let case = format!("{way}: 64 in flight ÷ blocking calls, per CPU second");
        put(result, &case, ratio(ours, base, |sample| 1e9 / sample.cpu_ns), None)?;
    }
    Ok(None)
}

/// D6.
pub fn bound(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let stage = match Stage::with_data(None, file_bytes(lab))? {
        Ok(stage) => stage,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let job = Job { action: Action::Read, request_bytes: 4096, file_bytes: file_bytes(lab) };
    let mut ours = Contender::queue(&stage, 1, 4096, false)?;
    let file = std::fs::File::open(stage.backing().join(stage::DATA)).context("the served file")?;
    let file = Mapping::of_file(&file, file_bytes(lab), false).context("mapping it")?;
    let (mut trips, mut copies) = (Vec::new(), Vec::new());
    let (mut relays, mut reads) = (Vec::new(), Vec::new());
    for _ in 0..lab.times(31) {
        progress("reads, round trips and copies", 0.0);
        trips.push(round_trip_ns(lab.span(10)));
        copies.push(foreign_copy_ns(lab.span(20)));
        relays.push(relay_ns(lab.span(20), &file));
        reads.push(ours.round(job, lab.span(60))?.ns);
    }
    let floor = trips.iter().zip(&copies).map(|(trip, copy)| trip + copy);
    let ratio = Paired::of(reads.iter().copied().zip(floor));
    put(result, "that ÷ (round trip + copy)", ratio, None)?;
    let ratio = Paired::of(reads.iter().copied().zip(relays.iter().copied()));
    put(result, "4 KiB read ÷ two bare threads", ratio, None)?;
    let case = "two bare threads: copied from the file, and out again";
    put(result, case, middle(relays.into_iter()), None)?;
    put(result, ROUND_TRIP, middle(trips.into_iter()), None)?;
    let case = "one copy of 4 KiB that the other core wrote last";
    put(result, case, middle(copies.into_iter()), None)?;
    put(result, "4 KiB read, one at a time, copied out", middle(reads.into_iter()), None)?;
    Ok(None)
}
