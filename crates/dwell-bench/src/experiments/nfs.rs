// SPDX-License-Identifier: MIT OR Apache-2.0
//! N1, N3, N4: a file to an NFS server by one thread, against blocking threads, without and with loss, with the
//! window that it finds.

use std::sync::mpsc;

use anyhow::{Context, Result};

use super::lab::{put, skip, skip_all, subtitle};
use super::{Lab, Progress};
use crate::chart::{self, Axis, Lines, Look, Point, Series};
use crate::figure::{FigureResult, Measured};
use crate::fixture::{
    Export, Ganesha, Unavailable, in_own_network, lose_datagrams, lose_nothing, shape,
    shape_nothing,
};
use crate::nfs::{BARE, BIOD, DYNAMIC, Job, Plan, SINGLE, measure};
use crate::result::{Direction, Metric, RoundResult, Row, Run, pair, pair_by};

/// What all are measured against.
pub(super) const SERVER: &str = "nfs-ganesha on loopback, in memory, data thrown away";
const SIZE_BYTES: u32 = 8192;
const BYTES: u64 = 32 << 20;
/// On a slow link a file that is so much shorter takes as long.
const SLOWER: u64 = 4;
const WINDOWS: [u32; 9] = [2, 3, 4, 5, 6, 7, 8, 16, 32];
const FIXED: [u32; 6] = [2, 4, 8, 12, 16, 32];
const MOST: u32 = 32;
const LOST_OF_100: u32 = 2;
const SLOW_MEGABITS: u32 = 200;

/// Works with a server in a network of its own, while this thread shows the progress.
pub(super) fn beside_server<T: Send>(
    progress: &mut Progress<'_>,
    work: impl FnOnce(&Ganesha, &mut Progress<'_>) -> Result<T> + Send,
) -> Result<Result<T, Unavailable>> {
    let (sender, receiver) = mpsc::channel::<(String, f64)>();
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            in_own_network(|| {
                let server = Ganesha::start(&[Export::memory("/mem")], false)?;
                Ok(work(&server, &mut |what, share| {
                    // Nobody hears it any more when the program ends.
                    let _ = sender.send((what.to_owned(), share));
                }))
            })
        });
        for (what, share) in receiver {
            progress(&what, share);
        }
        match worker.join() {
            Ok(done) => Ok(match done.and_then(|done| done) {
                Ok(value) => Ok(value?),
                Err(why) => Err(why),
            }),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

/// How often, and how much.
#[derive(Clone, Copy)]
pub(super) struct Scale {
    pub rounds: usize,
    pub bytes: u64,
}

impl Scale {
    pub fn of(lab: &Lab, rounds: usize) -> Self {
        Scale { rounds: lab.times(rounds), bytes: if lab.is_hasty() { BYTES / 32 } else { BYTES } }
    }
}

fn plan(server: &Ganesha, proto: &str, entries: Vec<(String, u32)>, scale: Scale) -> Result<Plan> {
    let Scale { rounds, bytes } = scale;
    let url = server.address("/mem/file", &format!("&proto={proto}")).parse()?;
    let job = Job { url, size_bytes: SIZE_BYTES, bytes, direction: Direction::Write };
    let server = SERVER.into();
    Ok(Plan { job, entries, rounds, server, peers: None, stop: Default::default() })
}

pub(super) fn of(name: &str, windows: &[u32]) -> Vec<(String, u32)> {
    windows.iter().map(|window| (name.to_owned(), *window)).collect()
}

pub(super) fn depth(row: &Row) -> u32 {
    row.setting.requests().map_or(0, |requests| requests.depth)
}

pub(super) fn row<'r>(run: &'r Run, policy: &str, window: u32) -> Result<&'r Row> {
    let found = run.rows.iter().find(|row| row.policy == policy && depth(row) == window);
    found.with_context(|| format!("{policy} with window {window} is missing"))
}

/// The row with the best median.
pub(super) fn best<'r>(rows: impl Iterator<Item = &'r Row>) -> Result<&'r Row> {
    let speed = |row: &Row| row.median(RoundResult::throughput);
    rows.max_by(|a, b| speed(a).total_cmp(&speed(b))).context("nothing was measured")
}

fn switches(round: &RoundResult) -> f64 {
    (round.voluntary_switches + round.involuntary_switches) as f64
}

pub(super) fn cpu(round: &RoundResult) -> f64 {
    (round.user_ns + round.system_ns) as f64
}

/// N1.
pub fn threads(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let scale = Scale::of(lab, 15);
    let run = beside_server(progress, |server, progress| {
        let mut entries = of(BIOD, &WINDOWS);
        entries.extend(of(SINGLE, &WINDOWS));
        entries.extend(of(BARE, &[8]));
        measure(&plan(server, "tcp", entries, scale)?, Vec::new(), progress)
    })?;
    let run = match run {
        Ok(run) => run,
        Err(why) => return skip_all(result, &why.to_string()).map(|()| None),
    };
    let small = |policy: &'static str| {
        run.rows.iter().filter(move |row| row.policy == policy && depth(row) <= 8)
    };
    let biods = run.rows.iter().filter(|row| row.policy == BIOD);
    let (ours, theirs) = (best(small(SINGLE))?, best(biods)?);
    let remark = format!("window {} against {} biods", depth(ours), depth(theirs));
    let case = "throughput: best window of 2–8 ÷ best number of biods";
    put(result, case, pair(ours, theirs, Metric::Throughput), Some(remark))?;
    for window in [8, 32] {
        let (ours, theirs) = (row(&run, SINGLE, window)?, row(&run, BIOD, window)?);
        let case = format!("window {window}: context switches ÷ those of {window} biods");
        let counts = format!("{:.0} against {:.0}", ours.median(switches), theirs.median(switches));
        put(result, &case, pair_by(ours, theirs, switches), Some(counts))?;
    }
    let (ours, theirs) = (row(&run, SINGLE, 8)?, row(&run, BIOD, 8)?);
    put(result, "window 8: CPU time ÷ that of 8 biods", pair_by(ours, theirs, cpu), None)?;
    let bare = row(&run, BARE, 8)?;
    put(
        result,
        "window 8: CPU time of bare calls ÷ that of 8 biods",
        pair_by(bare, theirs, cpu),
        None,
    )?;
    let mut behind = Vec::new();
    for window in WINDOWS.into_iter().filter(|window| *window <= 8) {
        let (ours, theirs) = (row(&run, SINGLE, window)?, row(&run, BIOD, window)?);
        if ours.median(RoundResult::throughput) < theirs.median(RoundResult::throughput) {
            behind.push(window.to_string());
        }
    }
    let case = "windows of 2–8 at which it is behind as many biods";
    let which = (!behind.is_empty()).then(|| behind.join(", "));
    put(result, case, Some(Measured::exact(behind.len() as f64)), which)?;
    Ok(Some(chart(result, &run)))
}

/// Throughput by window, a line for each contender.
fn chart(result: &FigureResult, run: &Run) -> String {
    let line = |(number, policy): (usize, &str)| Series {
        name: match policy {
            BIOD => "biods".into(),
            _ => "one thread (ours)".into(),
        },
        look: Look(number),
        points: (run.rows.iter().filter(|row| row.policy == policy))
            .filter_map(|row| {
                let summary = row.summary(|round| round.throughput() / 1e6)?;
                let (low, high) = (summary.lower_quartile, summary.upper_quartile);
                let x = f64::from(depth(row));
                Some(Point { x, y: summary.median, low, high, stroke: None })
            })
            .collect(),
    };
    let windows = WINDOWS.map(f64::from);
    let speeds = run.rows.iter().map(|row| row.median(|round| round.throughput() / 1e6));
    Lines {
        title: "32 MB to an NFS server in 8 KiB unstable writes, by window".into(),
        subtitle: subtitle(result, "median; bar: quartiles"),
        x: Axis::covering("Window (requests), number of biods", chart::Scale::Log, windows),
        y: Axis::covering("Throughput (MB/s)", chart::Scale::Linear, speeds.chain([0.0])),
        series: [BIOD, SINGLE].into_iter().enumerate().map(line).collect(),
        marks: Vec::new(),
    }
    .svg()
}

/// Measures two conditions round by round: without and with a disturbance.
fn with_and_without(
    plan: &Plan,
    disturb: impl Fn() -> Result<(), Unavailable>,
    calm: impl Fn() -> Result<(), Unavailable>,
    progress: &mut Progress<'_>,
) -> Result<(Run, Run)> {
    let one = Plan { rounds: 1, ..plan.clone() };
    let mut runs: Option<(Run, Run)> = None;
    for round in 0..plan.rounds {
        let share = round as f64 / plan.rounds as f64;
        let mut shown = |what: &str, _: f64| progress(what, share);
        let without = measure(&one, Vec::new(), &mut shown)?;
        disturb()?;
        let with = measure(&one, Vec::new(), &mut shown);
        calm()?;
        let with = with?;
        match &mut runs {
            None => runs = Some((without, with)),
            Some((all, all_with)) => {
                for (all, more) in [(all, without), (all_with, with)] {
                    for (row, more) in all.rows.iter_mut().zip(more.rows) {
                        row.rounds.extend(more.rounds);
                    }
                }
            }
        }
    }
    runs.context("no round was measured")
}

/// N3.
pub fn datagrams(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let scale = Scale::of(lab, 11);
    let runs = beside_server(progress, |server, progress| {
        let plan = plan(server, "udp", of(SINGLE, &FIXED), scale)?;
        let lose = || lose_datagrams(Ganesha::PORT, LOST_OF_100);
        with_and_without(&plan, lose, lose_nothing, progress)
    })?;
    let (calm, lossy) = match runs {
        Ok(runs) => runs,
        Err(why) => return skip_all(result, &why.to_string()).map(|()| None),
    };
    let (widest, fastest) = (row(&calm, SINGLE, MOST)?, best(calm.rows.iter())?);
    let remark = Some(format!("best: {}", depth(fastest)));
    let ratio = pair(widest, fastest, Metric::Throughput);
    put(result, "window 32 ÷ the best of 2–32", ratio, remark)?;
    let ratio = pair(row(&lossy, SINGLE, MOST)?, widest, Metric::Throughput);
    let case = "window 32 with 2 % of datagrams lost ÷ without loss";
    put(result, case, ratio, None)?;
    Ok(None)
}

/// Progress of one of three parts.
fn third<'p>(progress: &'p mut Progress<'_>, part: f64) -> impl FnMut(&str, f64) + 'p {
    move |what, share| progress(what, (part + share) / 3.0)
}

/// N4.
pub fn windows(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let scale = Scale::of(lab, 9);
    let entries = || {
        let mut entries = of(SINGLE, &FIXED);
        entries.push((DYNAMIC.to_owned(), MOST));
        entries
    };
    let runs = beside_server(progress, |server, progress| {
        let tcp = measure(
            &plan(server, "tcp", entries(), scale)?,
            Vec::new(),
            &mut third(progress, 0.0),
        )?;
        let udp = plan(server, "udp", entries(), scale)?;
        let lose = || lose_datagrams(Ganesha::PORT, LOST_OF_100);
        let udp = with_and_without(&udp, lose, lose_nothing, &mut third(progress, 1.0));
        let mut slow = plan(server, "tcp", entries(), scale)?;
        slow.job.bytes = scale.bytes / SLOWER;
        let slow = match shape(SLOW_MEGABITS) {
            Ok(()) => {
                let run = measure(&slow, Vec::new(), &mut third(progress, 2.0));
                shape_nothing()?;
                run
            }
            Err(why) => Err(why.into()),
        };
        Ok((tcp, udp, slow))
    })?;
    let (tcp, udp, slow) = match runs {
        Ok(runs) => runs,
        Err(why) => return skip_all(result, &why.to_string()).map(|()| None),
    };
    judge(result, "TCP", Ok(tcp))?;
    match udp {
        Ok((calm, lossy)) => {
            judge(result, "UDP", Ok(calm))?;
            judge(result, "UDP, 2 % of datagrams lost", Ok(lossy))?;
        }
        Err(why) => {
            let why = format!("{why:#}");
            skip(result, &["UDP", "UDP, 2 % of datagrams lost"], &why)?;
        }
    }
    judge(result, "TCP, 200 Mbit/s", slow)?;
    Ok(None)
}

fn judge(result: &mut FigureResult, case: &str, run: Result<Run>) -> Result<()> {
    let run = match run {
        Ok(run) => run,
        Err(why) => return skip(result, &[case], &format!("{why:#}")),
    };
    let fixed = best(run.rows.iter().filter(|row| row.policy == SINGLE))?;
    let found = row(&run, DYNAMIC, MOST)?;
    let remark = Some(format!("best fixed: {}", depth(fixed)));
    put(result, case, pair(found, fixed, Metric::Throughput), remark)
}
