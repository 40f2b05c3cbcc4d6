// SPDX-License-Identifier: MIT OR Apache-2.0
//! R4: requests with pauses between, where the CPUs halt meanwhile and where something keeps them
//! awake.

use std::process::{Child, Command};

use anyhow::Result;
use dwell::buffer::Aligned;
use dwell::clock;

use super::lab::both;
use super::sampled::{enter, step};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::entrant::Entrant;
use dwell_bench::pairs::{self, Parts};
use dwell_bench::result::Direction;
use dwell_bench::stats::{SplitMix, Summary};
use dwell_bench::subject::Subject;

const SIZE_BYTES: u64 = 4096;
const PAUSE_NS: u64 = 2_000_000;
/// Requests of a measured part.
const REQUESTS: usize = 100;
/// Half the width of an interval, as a share.
const WIDTH: f64 = 0.03;
const CONTENDERS: [&str; 2] = ["smartcon", "spin"];

/// Processes that have a CPU only while nobody else wants it: it never halts.
struct Awake(Vec<Child>);

impl Awake {
    fn keep(cpus: usize) -> Result<Self, String> {
        // They end with this program, also when it is killed.
        let script = "while kill -0 $PPID; do :; done";
        let mut awake = Awake(Vec::new());
        for _ in 0..cpus {
            let mut command = Command::new("chrt");
            command.args(["--idle", "0", "sh", "-c", script]);
            let child = command.spawn().map_err(|error| format!("cannot start chrt: {error}"))?;
            awake.0.push(child);
        }
        Ok(awake)
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // One that ended by itself needs no signal.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Mean latency of so many requests, each some time after the one before it.
fn latency(entrant: &mut Entrant, subject: &Subject, random: &mut SplitMix) -> Result<f64> {
    let mut buffer = Aligned::new(SIZE_BYTES as usize);
    let places = (subject.bytes / SIZE_BYTES).max(1) as usize;
    let mut spent = 0;
    for _ in 0..REQUESTS {
        clock::sleep_until(clock::now() + PAUSE_NS);
        let offset = random.below(places) as u64 * SIZE_BYTES;
        let began = clock::now();
        entrant.contender.request(Direction::Read, &mut buffer, offset)?;
        spent += clock::now() - began;
    }
    Ok(spent as f64 / REQUESTS as f64)
}

/// R4.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let Some((subject, odd)) = lab.fast_loop(result, progress)? else { return Ok(None) };
    for (i, (state, keep_awake)) in [("halted", false), ("awake", true)].into_iter().enumerate() {
        let cases = CONTENDERS.map(|name| format!("CPUs {state}: latency, {name} ÷ block"));
        let mut step = step(progress, state, i, 2);
        let until = lab.until(WIDTH);
        let sampled = lab.sample(result, &cases, || {
            let _awake = match keep_awake.then(|| Awake::keep(lab.cpus())).transpose() {
                Ok(awake) => awake,
                Err(why) => return Ok(Err(why)),
            };
            let names = ["block", "block"].into_iter().chain(CONTENDERS);
            let mut entrants: Vec<Entrant> = names
                .map(|name| Entrant::open(name, &subject, &lab.monitor))
                .collect::<Result<_>>()?;
            let mut random = SplitMix(SIZE_BYTES);
            let mut parts = Parts::new(CONTENDERS.len(), until, |contender| {
                let mean = latency(&mut entrants[contender], &subject, &mut random)?;
                Ok((vec![mean], mean))
            });
            let shown = &mut |share| step.show(share);
            let sampled = pairs::sample(CONTENDERS.len(), until, &mut parts, shown)?;
            Ok(Ok((sampled, std::mem::take(&mut parts.kept))))
        })?;
        let Some((sampled, kept)) = sampled else { continue };
        let median = |at: usize| Summary::of(kept[at].iter().copied()).map_or(0.0, |s| s.median);
        for (at, case) in cases.iter().enumerate() {
            let (ours, block) = (median(2 + at) / 1e3, median(0) / 1e3);
            let remark = both(odd.clone(), Some(format!("{ours:.1} µs against {block:.1} µs")));
            enter(result, case, &sampled, (2 + at, 0, 0), remark)?;
        }
        lab.keep(result)?;
    }
    Ok(None)
}
