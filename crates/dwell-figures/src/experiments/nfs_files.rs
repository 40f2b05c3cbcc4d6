// SPDX-License-Identifier: MIT OR Apache-2.0
//! N6: many small files to an NFS server by one thread against blocking threads, and one large file
//! there and back against libnfs's `nfs-cp`.

use std::path::Path;

use anyhow::{Context, Result};

use super::lab::skip_all;
use super::nfs::beside_server_of;
use super::sampled::{enter, width};
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::fixture::{Export, Ganesha};
use dwell_bench::nfs::files::{self, Copied};
use dwell_bench::pairs::{self, Parts, Until};
use dwell_bench::result::Load;
use dwell_bench::stats::Summary;

/// Threads of the baseline: as many as help it.
const THREADS: u32 = 8;
const SMALL: (usize, usize) = (10_000, 4096);
const LARGE_BYTES: usize = 400_000_000;

const FILES: [&str; 3] = [
    "small files: throughput ÷ that of 8 threads",
    "small files: CPU time ÷ that of 8 threads",
    "small files: context switches ÷ those of 8 threads",
];
const PUT: [&str; 2] =
    ["large file, put: throughput ÷ nfs-cp's", "large file, put: CPU time ÷ nfs-cp's"];
const GET: [&str; 2] =
    ["large file, get: throughput ÷ nfs-cp's", "large file, get: CPU time ÷ nfs-cp's"];
const FAULTS: [&str; 2] = ["large file, put: page faults", "large file, get: page faults"];

/// Throughput, CPU time and switches of a copy, each greater than nothing.
fn numbers(copied: &Copied) -> Vec<f64> {
    let cost = copied.cost;
    let switches = cost.voluntary_switches + cost.involuntary_switches;
    let cpu_ns = cost.user_ns + cost.system_ns;
    vec![1e9 / cost.wall_ns.max(1) as f64, cpu_ns.max(1) as f64, switches.max(1) as f64]
}

/// Samples ours beside another, and clears away after each part. Each part has a number, for names:
/// the server would remember one whose file was cleared away beneath it.
fn sample(
    until: Until,
    ours: &dyn Fn(u32) -> Result<Copied>,
    theirs: &dyn Fn(u32) -> Result<Copied>,
    clear: &dyn Fn(u32) -> Result<()>,
    progress: &mut dyn FnMut(f64),
) -> Result<(pairs::Sampled, Vec<Copied>)> {
    let mut number = 0;
    let mut parts = Parts::new(1, until, |contender| {
        number += 1;
        let copied = if contender == 2 { ours(number) } else { theirs(number) }?;
        clear(number)?;
        Ok((numbers(&copied), copied))
    });
    let sampled = pairs::sample(1, until, &mut parts, progress)?;
    Ok((sampled, std::mem::take(&mut parts.kept[2])))
}

/// N6.
pub fn files(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let memory = Path::new("/dev/shm");
    let directory = match tempfile::tempdir_in(memory) {
        Ok(directory) => directory,
        Err(why) => {
            return skip_all(result, &format!("{}: {why}", memory.display())).map(|()| None);
        }
    };
    let (source, exported) = (directory.path().join("source"), directory.path().join("export"));
    std::fs::create_dir(&exported)?;
    let part = if lab.is_hasty() { 100 } else { 1 };
    files::make(&source, SMALL.0 / part, SMALL.1)?;
    let large = &files::make(&directory.path().join("large"), 1, LARGE_BYTES / part)?[0];
    let until = lab.until(width(result, FILES[0], Load::Idle));
    let export = [Export::directory(&exported)];
    let third = |at: usize| move |share: f64| (at as f64 + share.clamp(0.0, 1.0)) / 3.0;

    let found = lab.sample(result, &FILES, || {
        let found = beside_server_of(&export, progress, |server, progress| {
            let to = |number: u32| exported.join(format!("to{number}"));
            let address = |number| server.address(&to(number).display().to_string(), "");
            let clear = |number| std::fs::remove_dir_all(to(number)).context("clearing away");
            let theirs = |number| {
                std::fs::create_dir(to(number))?;
                files::by_threads(&source, &address(number).parse()?, THREADS)
            };
            let ours = |number| files::ours(&source.display().to_string(), &address(number));
            let shown = &mut |done| progress(FILES[0], third(0)(done));
            sample(until, &ours, &theirs, &clear, shown)
        })?;
        Ok(found.map_err(|why| why.to_string()))
    })?;
    if let Some((sampled, _)) = found {
        for (number, case) in FILES.into_iter().enumerate() {
            enter(result, case, &sampled, (2, 0, number), None)?;
        }
        lab.keep(result)?;
    }

    for (at, (cases, faults)) in [(PUT, FAULTS[0]), (GET, FAULTS[1])].into_iter().enumerate() {
        let all = [cases[0], cases[1], faults];
        let is_put = at == 0;
        let found = lab.sample(result, &all, || {
            let found = beside_server_of(&export, progress, |server, progress| {
                let back = directory.path().join("back");
                let read = exported.join("read");
                if !is_put {
                    std::fs::copy(large, &read).context("making the file to be read")?;
                }
                let made = |number: u32| exported.join(format!("made{number}"));
                // From where and to where, with the server's file as a client names it.
                let ends = |number, name: &dyn Fn(&Path) -> String| match is_put {
                    true => (large.display().to_string(), name(&made(number))),
                    false => (name(&read), back.display().to_string()),
                };
                let clear = |number| {
                    let gone = if is_put { made(number) } else { back.clone() };
                    // The server may keep it open, and with it its memory.
                    let emptied = std::fs::File::create(&gone).map(drop);
                    let removed = emptied.and_then(|()| std::fs::remove_file(gone));
                    removed.context("clearing away")
                };
                let ours = |number| {
                    let name = |path: &Path| server.address(&path.display().to_string(), "");
                    let (from, to) = ends(number, &name);
                    files::ours(&from, &to)
                };
                let theirs = |number| {
                    let (nfs, mount) = (Ganesha::PORT, Ganesha::MOUNT_PORT);
                    let name = |path: &Path| files::libnfs_address("127.0.0.1", nfs, mount, path);
                    let (from, to) = ends(number, &name);
                    files::by_libnfs(&from, &to)
                };
                let shown = &mut |done| progress(cases[0], third(1 + at)(done));
                sample(until, &ours, &theirs, &clear, shown)
            });
            match found {
                Ok(found) => Ok(found.map_err(|why| why.to_string())),
                // It is not installed everywhere.
                Err(why) if format!("{why:#}").contains(files::NFS_CP) => {
                    Ok(Err(format!("{why:#}")))
                }
                Err(why) => Err(why),
            }
        })?;
        let Some((sampled, kept)) = found else { continue };
        for (number, case) in cases.into_iter().enumerate() {
            enter(result, case, &sampled, (2, 0, number), None)?;
        }
        let bytes = (LARGE_BYTES / part) as f64;
        let per_mb = kept.iter().map(|copied| copied.faults as f64 / (bytes / 1e6));
        if let Some(median) = Summary::of(per_mb).map(|summary| summary.median) {
            super::lab::put(result, faults, Some(Measured::exact(median)), None)?;
        }
        lab.keep(result)?;
    }
    Ok(None)
}
