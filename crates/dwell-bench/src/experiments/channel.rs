// SPDX-License-Identifier: MIT OR Apache-2.0
//! D1, D2, D3, D6: files through channels, against the kernel's ways to the same backing files.
//!
//! The controller runs in this process, so the CPU time of a round is that of both sides.

mod contender;
mod crossing;
pub mod oltp;
mod stage;

use std::time::Duration;

use anyhow::{Context, Result};
use dwell::mapping::Mapping;
use dwell::queue::Action;

use contender::{Contender, Job, Sample};
use crossing::{foreign_copy_ns, relay_ns, round_trip_ns};
use stage::Stage;

use super::lab::{put, skip, skip_all};
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use crate::stand::Kind;
use crate::stats::{Middle, Paired};
use crate::workload::spec::FileSystemKind;

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
        // Who served the last round may spin for a moment still, and two threads that pass a line need both CPUs.
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
    on_tmpfs(lab, result, &stage, (progress, 0.5), 1)?;
    for (place, kind, share) in
        [("ext4 on loop", Kind::Loop, 0.5), ("ext4 on zram", Kind::Zram, 0.75)]
    {
        let case = |way: &str| format!("{place}, direct {way}: channel ÷ kernel");
        let made = match lab.place(kind, FileSystemKind::Ext4)? {
            Ok(made) => made,
            Err(why) => {
                skip(result, &WAYS.map(|(way, _)| case(way)), &why)?;
                continue;
            }
        };
        let stage = match Stage::with_data(Some(made.path()), file_bytes(lab))? {
            Ok(stage) => stage,
            Err(why) => {
                skip(result, &WAYS.map(|(way, _)| case(way)), &why)?;
                continue;
            }
        };
        for (way, action) in WAYS {
            let job = Job { action, request_bytes: 4096, file_bytes: file_bytes(lab) };
            let mut contenders =
                [Contender::channel(&stage, true)?, Contender::kernel(&stage, false, true)?];
            let all = rounds(lab, result, &mut contenders, job, (&mut *progress, place, share))?;
            let ratio = ratio(&all[0], &all[1], |sample| sample.ns);
            put(result, &case(way), ratio, times(&all[0], &all[1]))?;
        }
    }
    Ok(None)
}

/// D2.
pub fn throughput(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    match Stage::with_data(None, file_bytes(lab))? {
        Ok(stage) => on_tmpfs(lab, result, &stage, (progress, 1.0), DEPTH)?,
        Err(why) => skip_all(result, &why)?,
    }
    Ok(None)
}

/// Channel, bare tmpfs and the mount: times of a request at depth 1, else rates.
fn on_tmpfs(
    lab: &Lab,
    result: &mut FigureResult,
    stage: &Stage,
    (progress, all_of_it): (&mut Progress<'_>, f64),
    depth: u32,
) -> Result<()> {
    for (at, (way, action)) in WAYS.into_iter().enumerate() {
        let job = Job { action, request_bytes: 4096, file_bytes: file_bytes(lab) };
        let ours = match depth {
            1 => Contender::channel(stage, false)?,
            depth => Contender::queue(stage, depth, 4096, true)?,
        };
        let mut contenders =
            [ours, Contender::kernel(stage, false, false)?, Contender::kernel(stage, true, false)?];
        let share = all_of_it * at as f64 / 2.0;
        let all = rounds(lab, result, &mut contenders, job, (&mut *progress, way, share))?;
        for (base, name) in [(1, "bare tmpfs"), (2, "the mount without it")] {
            let of: fn(&Sample) -> f64 = match depth {
                1 => |sample| sample.ns,
                _ => |sample| 1e9 / sample.ns,
            };
            let case = format!("tmpfs, {way}: channel ÷ {name}");
            put(result, &case, ratio(&all[0], &all[base], of), times(&all[0], &all[base]))?;
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
