// SPDX-License-Identifier: MIT OR Apache-2.0
//! M1: the main job held to its own targets.

use anyhow::Result;
use dwell::DeviceClass;

use super::lab::{both, put, ratio_text, row, skip, unless_class};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use crate::result::{Load, Metric, Run, pair};
use crate::stand::Kind;
use crate::subject::Subject;

const SIZE_BYTES: u64 = 4096;
const LARGE: [u64; 3] = [128 << 10, 256 << 10, 512 << 10];
const SPINS: [&str; 3] = ["raw-cq-peek", "raw-get-events", "raw-taskrun-flag"];

const IDLE: &str = "loop on tmpfs, idle, 4 KiB";
const AGAINST_BEST: &str = "loop on tmpfs, idle, 4 KiB: ÷ best hand-written spin";
const LOADED: &str = "loop on tmpfs, ten number crunchers, 4 KiB";
const ZRAM: &str = "zram, idle, 4 KiB: smartcon ÷ plain pread";
const DISK: [&str; 2] = ["virtio disk, idle, 4 KiB", "virtio disk, idle, 4 KiB: CPU per request"];

fn large(size_bytes: u64) -> [String; 2] {
    let case = format!("loop on tmpfs, idle, {} KiB", size_bytes >> 10);
    [case.clone(), format!("{case}: CPU per request")]
}

/// M1.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    match lab.subject(Kind::Loop)? {
        Ok(subject) => on_loop(lab, result, subject, progress)?,
        Err(why) => {
            skip(result, &[IDLE, AGAINST_BEST, LOADED], &why)?;
            LARGE.into_iter().try_for_each(|size| skip(result, &large(size), &why))?;
        }
    }
    match lab.subject(Kind::Zram)? {
        Ok(subject) => {
            let odd = unless_class(&subject, DeviceClass::VeryFast);
            let plan = lab.plan(&["pread", "smartcon"], &[SIZE_BYTES], (41, 100));
            let run = lab.run(&plan, &[subject], (0.8, 0.87), progress)?;
            put(
                result,
                ZRAM,
                ratio(&run, Kind::Zram, "smartcon", "pread", Metric::Throughput)?,
                odd,
            )?;
        }
        Err(why) => skip(result, &[ZRAM], &why)?,
    }
    match lab.subject(Kind::Disk)? {
        Ok(subject) => {
            let odd = unless_class(&subject, DeviceClass::Mainstream);
            let remark = both(odd, Some(subject.description.clone()));
            let plan = lab.plan(&["block", "smartcon"], &[SIZE_BYTES], (61, 150));
            let run = lab.run(&plan, &[subject], (0.87, 1.0), progress)?;
            for (case, metric) in DISK.into_iter().zip(Metric::ALL) {
                let ratio = ratio(&run, Kind::Disk, "smartcon", "block", metric)?;
                put(result, case, ratio, remark.clone())?;
            }
        }
        Err(why) => skip(result, &DISK, &why)?,
    }
    Ok(None)
}

/// Two contenders of a run at 4 KiB.
fn ratio(
    run: &Run,
    kind: Kind,
    ours: &str,
    base: &str,
    metric: Metric,
) -> Result<Option<crate::stats::Paired>> {
    let (ours, base) = (row(run, kind, SIZE_BYTES, ours)?, row(run, kind, SIZE_BYTES, base)?);
    Ok(pair(ours, base, metric))
}

fn on_loop(
    lab: &Lab,
    result: &mut FigureResult,
    subject: Subject,
    progress: &mut Progress<'_>,
) -> Result<()> {
    let odd = unless_class(&subject, DeviceClass::Fast);
    let subjects = [subject];
    let of =
        |run: &Run, ours: &str, base: &str| ratio(run, Kind::Loop, ours, base, Metric::Throughput);

    let contenders = [&["block", "smartcon"], &SPINS[..]].concat();
    let plan = lab.plan(&contenders, &[SIZE_BYTES], (41, 100));
    let run = lab.run(&plan, &subjects, (0.0, 0.3), progress)?;
    put(result, IDLE, of(&run, "smartcon", "block")?, odd.clone())?;
    // The best of three by its median: taking the best of each round anew would hold smartcon
    // against three draws of noise.
    let throughput = |name: &&str| {
        let row = row(&run, Kind::Loop, SIZE_BYTES, name);
        row.map_or(0.0, |row| row.median(|round| round.throughput()))
    };
    let best = SPINS.into_iter().max_by(|a, b| throughput(a).total_cmp(&throughput(b)));
    let best = best.unwrap_or(SPINS[0]);
    put(result, AGAINST_BEST, of(&run, "smartcon", best)?, both(odd.clone(), Some(best.into())))?;

    // Time slices are milliseconds long: a batch must hold many of them.
    let mut plan = lab.plan(&["block", "smartcon", "spin"], &[SIZE_BYTES], (21, 600));
    plan.loads = vec![Load::Cpu];
    let run = lab.run(&plan, &subjects, (0.3, 0.62), progress)?;
    let contrast = of(&run, "spin", "block")?
        .map(|spin| format!("always spinning ÷ block: {}", ratio_text(&spin)));
    put(result, LOADED, of(&run, "smartcon", "block")?, both(odd.clone(), contrast))?;

    let plan = lab.plan(&["block", "smartcon"], &LARGE, (31, 120));
    let run = lab.run(&plan, &subjects, (0.62, 0.8), progress)?;
    for size in LARGE {
        let [ours, base] = ["smartcon", "block"].map(|name| row(&run, Kind::Loop, size, name));
        let (ours, base) = (ours?, base?);
        for (case, metric) in large(size).iter().zip(Metric::ALL) {
            put(result, case, pair(ours, base, metric), odd.clone())?;
        }
    }
    Ok(())
}
