// SPDX-License-Identifier: MIT OR Apache-2.0
//! M3: what the host page is worth where more processes want to spin than there are CPUs.

use std::path::{Path, PathBuf};
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
const POLICIES: [&str; 2] = ["adaptive", "smartcon"];
/// Milliseconds of a part that are not measured, and that are.
const LEAD_IN_MS: u64 = 1_500;
const PART_MS: u64 = 3_000;
/// Only a process that hangs needs so long to begin.
const PATIENCE: Duration = Duration::from_secs(30);

/// Whether the reading processes share one page, or each has its own and so the whole limit.
const SHARE: [bool; 3] = [true, true, false];
/// What a part gives beside no bystander, and beside some.
const NUMBERS: [(&str, &[&str]); 2] = [
    ("readers alone", &["requests per second", "CPU per request"]),
    ("beside bystanders", &["a bystander's speed"]),
];

/// M3.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let Some((subject, odd)) = lab.fast_loop(result, progress)? else { return Ok(None) };
    // What the processes of one part learn, those of the next know.
    let pages = tempfile::tempdir_in("/dev/shm").context("making host pages")?;
    let steps = POLICIES.len() * NUMBERS.len();
    for (number, policy) in POLICIES.into_iter().enumerate() {
        for (load, (state, numbers)) in NUMBERS.into_iter().enumerate() {
            let bystanders = load * lab.cpus().div_ceil(2);
            let cases: Vec<String> = numbers.iter().map(|of| format!("{policy}: {of}")).collect();
            let at = number * NUMBERS.len() + load;
            let (until, mut step) =
                (lab.until(WIDTH), step(progress, &format!("{policy}, {state}"), at, steps));
            let sampled = lab.sample(result, &cases, || {
                let mut parts = Parts::new(1, until, |contender| {
                    let pages = Pages { place: pages.path(), policy, shared: SHARE[contender] };
                    part(lab, &subject, &pages, bystanders).map(|of| (of, ()))
                });
                pairs::sample(1, until, &mut parts, &mut |share| step.show(share)).map(Ok)
            })?;
            let Some(sampled) = sampled else { continue };
            for (number, case) in cases.iter().enumerate() {
                enter(result, case, &sampled, (0, 2, number), odd.clone())?;
            }
            lab.keep(result)?;
        }
    }
    Ok(None)
}

/// The pages of a contender's processes.
struct Pages<'a> {
    place: &'a Path,
    policy: &'static str,
    shared: bool,
}

impl Pages<'_> {
    fn of(&self, process: usize) -> PathBuf {
        match self.shared {
            true => self.place.join(format!("{}-shared", self.policy)),
            false => self.place.join(format!("{}-{process}", self.policy)),
        }
    }
}

/// The numbers of one part, whose processes are new.
fn part(lab: &Lab, subject: &Subject, pages: &Pages<'_>, bystanders: usize) -> Result<Vec<f64>> {
    let count = EACH * lab.cpus();
    let mut readers = Loads::sharers(count, subject, pages.policy, |at| pages.of(at), &lab.hidden)?;
    let began = Instant::now();
    while readers.seen().iterations < count as u64 {
        readers.check()?;
        ensure!(began.elapsed() < PATIENCE, "processes on a host page do not begin");
        std::thread::sleep(Duration::from_millis(2));
    }
    let mut beside = Loads::bystanders(bystanders, &lab.hidden)?;
    std::thread::sleep(lab.span(LEAD_IN_MS));
    let (began, before) = (Instant::now(), (readers.seen(), beside.seen()));
    std::thread::sleep(lab.span(PART_MS));
    let (read, turned) = (readers.seen().since(&before.0), beside.seen().since(&before.1));
    let seconds = began.elapsed().as_secs_f64();
    readers.check()?;
    beside.check()?;
    let requests = read.iterations as f64;
    Ok(match bystanders {
        0 => vec![requests / seconds, read.cpu_ns as f64 / requests],
        _ => vec![turned.iterations as f64 / seconds],
    })
}
