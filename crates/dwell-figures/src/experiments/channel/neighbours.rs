// SPDX-License-Identifier: MIT OR Apache-2.0
//! D7: how long one user's requests take beside another user who asks for too much.

use std::time::Instant;

use anyhow::Result;
use dwell::clock;

use super::attackers::{Attack, Attackers};
use super::contender::{Contender, Job};
use super::stage::Stage;
use super::{file_bytes, middle};
use crate::experiments::lab::{put, skip_all};
use crate::experiments::wrapped::open_to_all;
use crate::experiments::{Lab, Progress};
use crate::figure::FigureResult;
use dwell::queue::Action;
use dwell_bench::stats::{Middle, Paired, SplitMix};

const ATTACKS: [(&str, Attack); 9] = [
    ("64 MiB commands, 1 channel", Attack::Long(1)),
    ("64 MiB commands, 15 channels", Attack::Long(15)),
    ("512 idle channels", Attack::Idle(511)),
    ("400 silent sockets", Attack::Silent(400)),
    ("a stuck file, 256 commands", Attack::Stuck(256)),
    ("100,000 opens", Attack::Opens(100_000)),
    ("a flood of doorbells", Attack::Doorbells(64)),
    ("one thread that only computes", Attack::Compute(1)),
    ("two threads that only compute", Attack::Compute(2)),
];

/// Median and 99th percentile of a round, in nanoseconds.
type Times = (f64, f64);

/// D7.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    if !rustix::process::geteuid().is_root() {
        return skip_all(result, "only root can act as several users").map(|()| None);
    }
    let stage = match Stage::with_data(None, file_bytes(lab))? {
        Ok(stage) => stage,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    open_to_all(stage.backing())?;
    open_to_all(stage.mount())?;
    let mut victim = Contender::channel(&stage, false)?;
    let mut alone = Vec::new();
    for (at, (name, attack)) in ATTACKS.into_iter().enumerate() {
        progress(name, at as f64 / ATTACKS.len() as f64);
        let (mut before, mut beside) = (Vec::new(), Vec::new());
        for _ in 0..lab.times(9) {
            before.push(times(lab, &mut victim)?);
            let attackers = Attackers::start(attack, &stage)?;
            beside.push(times(lab, &mut victim)?);
            attackers.stop()?;
        }
        enter(result, name, &before, &beside)?;
        alone.extend(before);
    }
    put(result, "undisturbed: median", middle(alone.iter().map(|times| times.0)), None)?;
    put(result, "undisturbed: p99", middle(alone.iter().map(|times| times.1)), None)?;
    Ok(None)
}

fn enter(result: &mut FigureResult, name: &str, before: &[Times], beside: &[Times]) -> Result<()> {
    let us =
        |times: &[f64]| Middle::of(times.iter().copied()).map_or(f64::NAN, |ns| ns.value / 1000.0);
    for (what, is_p99) in [("median", false), ("p99", true)] {
        let of = |times: &[Times]| -> Vec<f64> {
            times.iter().map(|times| if is_p99 { times.1 } else { times.0 }).collect()
        };
        let (before, beside) = (of(before), of(beside));
        let remark = format!("{:.1} µs against {:.1} µs", us(&beside), us(&before));
        let ratio = Paired::of(beside.into_iter().zip(before));
        put(result, &format!("{name}: {what} ÷ undisturbed"), ratio, Some(remark))?;
    }
    Ok(())
}

/// Times of reads of 4 KiB, one after the other, for a while.
fn times(lab: &Lab, victim: &mut Contender) -> Result<Times> {
    let job = Job { action: Action::Read, request_bytes: 4096, file_bytes: file_bytes(lab) };
    let (mut dice, mut all) = (SplitMix(11), Vec::new());
    victim.one(job, &mut dice)?;
    let (began, span) = (Instant::now(), lab.span(400));
    while all.is_empty() || began.elapsed() < span {
        let at = clock::now();
        victim.one(job, &mut dice)?;
        all.push(clock::now() - at);
    }
    all.sort_unstable();
    let share = |percent: usize| all[(all.len() - 1) * percent / 100] as f64;
    Ok((share(50), share(99)))
}
