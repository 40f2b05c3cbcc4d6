// SPDX-License-Identifier: MIT OR Apache-2.0
//! U4: what being traced by `dwell advise` costs.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use dwell::buffer::Aligned;
use dwell_advise::{Follow, Tracer};

use super::lab::{put, skip};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::stand::Kind;
use dwell_bench::stats::{Paired, SplitMix};
use dwell_bench::workload::spec::FileSystemKind;

const ROUNDS: usize = 30;
const PART_MS: u64 = 200;
const READS: [(&str, usize); 2] =
    [("loop: 4 KiB direct reads", 4 << 10), ("loop: 128 KiB direct reads", 128 << 10)];
const COMMITS: &str = "ext4 on loop: 4 KiB writes, each with fdatasync";
const PIPES: &str = "two threads and two pipes: a byte there and back";

/// U4.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let part = lab.span(PART_MS);
    match lab.subject(Kind::Loop)? {
        Ok(subject) => {
            let file = open(&subject.address, libc::O_DIRECT, false)?;
            for (at, (case, size)) in READS.into_iter().enumerate() {
                progress(case, at as f64 / 4.0);
                let mut buffer = Aligned::new(size);
                let (mut random, blocks) = (SplitMix(1), subject.bytes as usize / size);
                compare(lab, result, case, &mut || {
                    rate(part, || {
                        let offset = (random.below(blocks) * size) as u64;
                        file.read_exact_at(&mut buffer, offset)
                    })
                })?;
            }
        }
        Err(why) => skip(result, &READS.map(|(case, _)| case), &why)?,
    }
    progress(COMMITS, 0.5);
    match lab.place(Kind::Loop, FileSystemKind::Ext4)? {
        Ok(place) => {
            let file = open(&place.path().join("commits"), 0, true)?;
            let mut offset = 0;
            compare(lab, result, COMMITS, &mut || {
                rate(part, || {
                    offset = (offset + 4096) % (1 << 20);
                    file.write_all_at(&[1; 4096], offset)?;
                    file.sync_data()
                })
            })?;
        }
        Err(why) => skip(result, &[COMMITS], &why)?,
    }
    progress(PIPES, 0.75);
    compare(lab, result, PIPES, &mut || round_trips(part))?;
    Ok(None)
}

fn open(path: &std::path::Path, flags: i32, write: bool) -> Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(write).create(write).custom_flags(flags);
    options.open(path).with_context(|| path.display().to_string())
}

/// Rates traced and not, in turn, as a ratio.
fn compare(
    lab: &Lab,
    result: &mut FigureResult,
    case: &str,
    rate: &mut dyn FnMut() -> io::Result<f64>,
) -> Result<()> {
    if !lab.wants(result, &[case]) {
        return Ok(());
    }
    let mut rounds = Vec::new();
    rate()?;
    for round in 0..lab.times(ROUNDS) {
        let traced = |rate: &mut dyn FnMut() -> io::Result<f64>| -> Result<Result<f64, String>> {
            let tracer = match Tracer::start(Follow::Process(std::process::id())) {
                Ok(tracer) => tracer,
                Err(why) => return Ok(Err(why.to_string())),
            };
            let traced = rate()?;
            tracer.finish()?;
            Ok(Ok(traced))
        };
        let (with, without) = match round % 2 {
            0 => (traced(rate)?, rate()?),
            _ => {
                let without = rate()?;
                (traced(rate)?, without)
            }
        };
        match with {
            Ok(with) => rounds.push((with, without)),
            Err(why) => return skip(result, &[case], &why),
        }
    }
    put(result, case, Paired::of(rounds), None)?;
    lab.keep(result)
}

/// How often a thing is done in a second.
fn rate(part: Duration, mut once: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let (begin, mut count) = (Instant::now(), 0.0);
    while begin.elapsed() < part {
        once()?;
        count += 1.0;
    }
    Ok(count / begin.elapsed().as_secs_f64())
}

fn round_trips(part: Duration) -> io::Result<f64> {
    let (mut read, mut write) = io::pipe()?;
    let (mut back, mut answer) = io::pipe()?;
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            while read.read(&mut byte).is_ok_and(|count| count == 1) {
                if answer.write_all(&byte).is_err() {
                    break;
                }
            }
        });
        let rate = rate(part, || {
            write.write_all(b"x")?;
            back.read_exact(&mut [0])
        });
        // The other thread ends with its pipe.
        drop(write);
        rate
    })
}
