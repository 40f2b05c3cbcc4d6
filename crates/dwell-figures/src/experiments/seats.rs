// SPDX-License-Identifier: MIT OR Apache-2.0
//! M3: what the seats of the host page are worth where more processes want to spin than there are
//! CPUs, and after one of them was killed.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use super::sampled::{enter, step};
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::loads::Loads;
use dwell_bench::pairs::{self, Parts};
use dwell_bench::subject::Subject;

/// Half the width of an interval.
const WIDTH: f64 = 0.05;
/// Reading processes for each CPU.
const EACH: usize = 2;
/// Milliseconds of a part that are not measured, and that are: a seat changes hands once a second.
const LEAD_IN_MS: u64 = 1_500;
const PART_MS: u64 = 3_000;
/// Only a process that hangs needs so long to begin.
const PATIENCE: Duration = Duration::from_secs(30);

/// What limits the spinning threads of a contender's processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Limit {
    /// The seats.
    Seats,
    /// Nothing in common: each process has the whole limit.
    Alone,
    /// The seats. A process that holds one is killed before the readers begin.
    Killed,
    /// The seats, one of which stays taken, as after a kill in a count that knows no owners.
    Kept,
}

const CONTENDERS: [Limit; 5] =
    [Limit::Seats, Limit::Seats, Limit::Alone, Limit::Killed, Limit::Kept];
/// What a part gives beside no bystander, and beside one.
const NUMBERS: [(&str, &[&str]); 2] = [
    ("readers alone", &["requests per second", "CPU per request"]),
    ("beside a bystander", &["a bystander's speed"]),
];
/// Rows of all states, and the places of the two that each compares among the contenders.
const ROWS: [(&str, (usize, usize)); 2] =
    [("seats ÷ no common limit", (0, 2)), ("seats ÷ plain count, one killed", (3, 4))];

/// M3.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let Some((subject, odd)) = lab.fast_loop(result, progress)? else { return Ok(None) };
    for (bystanders, (state, numbers)) in NUMBERS.into_iter().enumerate() {
        let case = |row: &str, number: &str| format!("{number}: {row}");
        let cases: Vec<String> =
            ROWS.iter().flat_map(|(row, _)| numbers.iter().map(|of| case(row, of))).collect();
        let (until, mut step) = (lab.until(WIDTH), step(progress, state, bystanders, 2));
        let sampled = lab.sample(result, &cases, || {
            let others = CONTENDERS.len() - 2;
            let mut parts = Parts::new(others, until, |contender| {
                part(lab, &subject, CONTENDERS[contender], bystanders).map(|of| (of, ()))
            });
            pairs::sample(others, until, &mut parts, &mut |share| step.show(share)).map(Ok)
        })?;
        let Some(sampled) = sampled else { continue };
        for (row, (ours, base)) in ROWS {
            for (number, of) in numbers.iter().enumerate() {
                enter(result, &case(row, of), &sampled, (ours, base, number), odd.clone())?;
            }
        }
        lab.keep(result)?;
    }
    Ok(None)
}

/// The numbers of one part, whose processes are new and so is their page.
fn part(lab: &Lab, subject: &Subject, limit: Limit, bystanders: usize) -> Result<Vec<f64>> {
    let place = tempfile::tempdir_in("/dev/shm").context("making a host page")?;
    let page = place.path().join("page");
    let mut holder = match limit {
        Limit::Seats | Limit::Alone => None,
        Limit::Killed | Limit::Kept => Some(begun(Loads::holder(&page, &lab.hidden)?, 1)?),
    };
    if limit == Limit::Killed {
        holder = None;
    }
    let page: Option<&Path> = (limit != Limit::Alone).then_some(&page);
    let count = EACH * lab.cpus();
    let mut readers = begun(Loads::sharers(count, subject, page, &lab.hidden)?, count as u64)?;
    let mut beside = Loads::bystanders(bystanders, &lab.hidden)?;
    std::thread::sleep(lab.span(LEAD_IN_MS));
    let (began, before) = (Instant::now(), (readers.seen(), beside.seen()));
    std::thread::sleep(lab.span(PART_MS));
    let (read, turned) = (readers.seen().since(&before.0), beside.seen().since(&before.1));
    let seconds = began.elapsed().as_secs_f64();
    for load in [&mut readers, &mut beside].into_iter().chain(&mut holder) {
        load.check()?;
    }
    let requests = read.iterations as f64;
    Ok(match bystanders {
        0 => vec![requests / seconds, read.cpu_ns as f64 / requests],
        _ => vec![turned.iterations as f64 / seconds],
    })
}

/// Processes once they have made so many turns together.
fn begun(mut load: Loads, turns: u64) -> Result<Loads> {
    let began = Instant::now();
    while load.seen().iterations < turns {
        load.check()?;
        ensure!(began.elapsed() < PATIENCE, "processes on a host page do not begin");
        std::thread::sleep(Duration::from_millis(2));
    }
    Ok(load)
}
