// SPDX-License-Identifier: MIT OR Apache-2.0
//! N1, N3, N4: a file to an NFS server by one thread, against blocking threads, without and with
//! loss, with the window that it finds.

use std::sync::mpsc;

use anyhow::{Context, Result};

use super::lab::{put, skip, skip_all, subtitle};
use super::sampled::{enter, width};
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::chart::{self, Axis, Lines, Look, Point, Series};
use dwell_bench::fixture::{
    Export, Ganesha, Unavailable, in_own_network, lose_datagrams, lose_nothing, shape,
    shape_nothing,
};
use dwell_bench::nfs::{ASYNC, DYNAMIC, Job, Plan, SHARED, SYNC, THREADS, measure};
use dwell_bench::pairs::{self, Parts, Sampled, Until};
use dwell_bench::result::{Direction, Load, Metric, RoundResult, Row, Run, pair};
use dwell_bench::stats::Summary;

/// What all are measured against.
pub(super) const SERVER: &str = "nfs-ganesha on loopback, on CPUs of its own, in memory";
const SIZE_BYTES: u32 = 8192;
const BYTES: u64 = 32 << 20;
/// On a slow link a file that is so much shorter takes as long.
const SLOWER: u64 = 4;
const WINDOWS: [u32; 9] = [2, 3, 4, 5, 6, 7, 8, 16, 32];
const FIXED: [u32; 6] = [2, 4, 8, 12, 16, 32];
const MOST: u32 = 32;
const LOST_OF_100: u32 = 2;
const SLOW_MEGABITS: u32 = 200;

/// Works with a server in a network of its own and on CPUs of its own, while this thread shows the
/// progress.
pub(super) fn beside_server<T: Send>(
    progress: &mut Progress<'_>,
    work: impl FnOnce(&Ganesha, &mut Progress<'_>) -> Result<T> + Send,
) -> Result<Result<T, Unavailable>> {
    beside_server_of(&[Export::memory("/mem")], progress, work)
}

/// The same with other exports.
pub(super) fn beside_server_of<T: Send>(
    exports: &[Export],
    progress: &mut Progress<'_>,
    work: impl FnOnce(&Ganesha, &mut Progress<'_>) -> Result<T> + Send,
) -> Result<Result<T, Unavailable>> {
    let (sender, receiver) = mpsc::channel::<(String, f64)>();
    std::thread::scope(|scope| {
        let worker = scope.spawn(move || {
            in_own_network(|| {
                let server = Ganesha::start_apart(exports)?;
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
    let url = server.address("/mem/file", &format!("&proto={proto}&nconnect=1")).parse()?;
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

/// A contender and its window.
type Entry = (&'static str, u32);
/// Numbers of a transfer.
type Numbers = fn(&RoundResult) -> Vec<f64>;

/// Contenders that are sampled beside a baseline, all on one server.
#[derive(Clone, Copy)]
struct Transfers {
    proto: &'static str,
    scale: Scale,
    until: Until,
    numbers: Numbers,
}

impl Transfers {
    fn plan(&self, server: &Ganesha) -> Result<Plan> {
        plan(server, self.proto, Vec::new(), self.scale)
    }

    fn sample(
        &self,
        job: &Job,
        base: Entry,
        others: &[Entry],
        progress: &mut dyn FnMut(f64),
    ) -> Result<(Sampled, Vec<Vec<RoundResult>>)> {
        let all: Vec<Entry> = [base; 2].iter().chain(others).copied().collect();
        let mut parts = Parts::new(others.len(), self.until, |contender| {
            let (name, window) = all[contender];
            let round = job.run(name, window)?;
            Ok(((self.numbers)(&round), round))
        });
        let sampled = pairs::sample(others.len(), self.until, &mut parts, progress)?;
        Ok((sampled, std::mem::take(&mut parts.kept)))
    }
}

/// The fastest of both ways to connect threads: each has its own case.
const FASTEST: [(&str, [&str; 2]); 2] = [
    (
        "tcp",
        [
            "throughput: best window ÷ best biods, one connection",
            "throughput: best window ÷ best biods, one each",
        ],
    ),
    (
        "udp",
        [
            "UDP throughput: best window ÷ best biods, one socket",
            "UDP throughput: best window ÷ best biods, one each",
        ],
    ),
];
const BEHIND: &str = "windows of 2–8 at which it is behind as many biods";
/// Rounds in which the best windows are found.
const SCOUTING: usize = 3;
/// Questions of the figure.
const STEPS: usize = 5;

/// The best window of 2–8 beside the best number of threads, of both kinds: what was found, how
/// many each has, and what was seen of all.
fn fastest(
    transfers: &Transfers,
    server: &Ganesha,
    progress: &mut dyn FnMut(&str, f64),
) -> Result<(Sampled, [u32; 3], Run)> {
    let entries = [SHARED, THREADS, ASYNC].iter().flat_map(|name| of(name, &WINDOWS)).collect();
    let scout = plan(server, transfers.proto, entries, transfers.scale)?;
    let seen = measure(&scout, Vec::new(), &mut |what, done| progress(what, done / 4.0))?;
    let window = |name: &str, most: u32| -> Result<u32> {
        let rows = seen.rows.iter().filter(|row| row.policy == name && depth(row) <= most);
        Ok(depth(best(rows)?))
    };
    let best = [window(SHARED, MOST)?, window(ASYNC, 8)?, window(THREADS, MOST)?];
    let [shared, ours, each] = best;
    let job = transfers.plan(server)?.job;
    let shown = &mut |done| progress("throughput", 0.25 + 0.75 * done);
    let (sampled, _) =
        transfers.sample(&job, (SHARED, shared), &[(ASYNC, ours), (THREADS, each)], shown)?;
    Ok((sampled, best, seen))
}

/// N1.
pub fn threads(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let scale = Scale::of(lab, SCOUTING);
    let until = lab.until(width(result, FASTEST[0].1[0], Load::Idle));
    let step = |at: usize| move |share: f64| (at as f64 + share.clamp(0.0, 1.0)) / STEPS as f64;
    let transfers =
        Transfers { proto: "tcp", scale, until, numbers: |round| vec![round.throughput()] };

    let mut drawn = None;
    for (at, (proto, cases)) in FASTEST.into_iter().enumerate() {
        let (share, transfers) = (step(at), Transfers { proto, ..transfers });
        let found = lab.sample(result, &cases, || {
            let found = beside_server(progress, |server, progress| {
                fastest(&transfers, server, &mut |what, done| progress(what, share(done)))
            })?;
            Ok(found.map_err(|why| why.to_string()))
        })?;
        let Some((sampled, [shared, ours, each], seen)) = found else { continue };
        for (case, (base, biods)) in cases.into_iter().zip([(0, shared), (3, each)]) {
            let remark = format!("window {ours} against {biods} biods");
            enter(result, case, &sampled, (2, base, 0), Some(remark))?;
        }
        lab.keep(result)?;
        drawn = drawn.or(Some(seen));
    }

    for (at, window) in [8, 32].into_iter().enumerate() {
        let share = step(2 + at);
        // Contender, baseline and number of each case.
        let mut cases = vec![
            (format!("window {window}: context switches ÷ those of {window} biods"), (2, 0, 0)),
            (format!("window {window}: switches ÷ those of {window} on one connection"), (2, 3, 0)),
        ];
        if window == 8 {
            let more = [
                ("CPU time ÷ that of 8 biods", (2, 0, 1)),
                ("CPU time ÷ that of 8 on one connection", (2, 3, 1)),
                ("CPU time of bare calls ÷ that of 8 biods", (4, 0, 1)),
            ];
            cases.extend(more.map(|(case, place)| (format!("window 8: {case}"), place)));
        }
        let transfers =
            Transfers { numbers: |round| vec![switches(round), cpu(round)], ..transfers };
        let (names, places): (Vec<String>, Vec<_>) = cases.into_iter().unzip();
        let found = lab.sample(result, &names, || {
            let found = beside_server(progress, |server, progress| {
                let job = transfers.plan(server)?.job;
                let others = [(ASYNC, window), (SHARED, window), (SYNC, window)];
                let others = if window == 8 { &others[..] } else { &others[..2] };
                let shown = &mut |done| progress(&names[0], share(done));
                transfers.sample(&job, (THREADS, window), others, shown)
            })?;
            Ok(found.map_err(|why| why.to_string()))
        })?;
        let Some((sampled, kept)) = found else { continue };
        let median = |at: usize| {
            Summary::of(kept[at].iter().map(switches)).map_or(f64::NAN, |summary| summary.median)
        };
        for (case, place) in names.iter().zip(places) {
            let (ours, base, number) = place;
            let counts = format!("{:.0} against {:.0}", median(ours), median(base));
            enter(result, case, &sampled, place, Some(counts).filter(|_| number == 0))?;
        }
        lab.keep(result)?;
    }

    let share = step(4);
    // All windows together have the time of one row.
    let windows: Vec<u32> = WINDOWS.into_iter().filter(|window| *window <= 8).collect();
    let limit = until.limit / windows.len() as u32;
    let transfers = Transfers { until: Until { limit, ..until }, ..transfers };
    let found = lab.sample(result, &[BEHIND], || {
        let found = beside_server(progress, |server, progress| {
            let job = transfers.plan(server)?.job;
            let mut behind = Vec::new();
            for (at, &window) in windows.iter().enumerate() {
                let (base, ours) = ((THREADS, window), [(ASYNC, window)]);
                let part = |done: f64| share((at as f64 + done) / windows.len() as f64);
                let shown = &mut |done| progress(BEHIND, part(done));
                let (sampled, _) = transfers.sample(&job, base, &ours, shown)?;
                if sampled.row(2, 0, 0).is_some_and(|(ratio, _)| ratio.high < 1.0) {
                    behind.push(window.to_string());
                }
            }
            Ok(behind)
        })?;
        Ok(found.map_err(|why| why.to_string()))
    })?;
    if let Some(behind) = found {
        let which = (!behind.is_empty()).then(|| behind.join(", "));
        put(result, BEHIND, Some(Measured::exact(behind.len() as f64)), which)?;
        lab.keep(result)?;
    }
    Ok(drawn.map(|seen| chart(result, &seen)))
}

/// Throughput by window, a line for each contender.
fn chart(result: &FigureResult, run: &Run) -> String {
    let line = |(number, policy): (usize, &str)| Series {
        name: match policy {
            THREADS => "biods, a connection each".into(),
            SHARED => "biods on one connection".into(),
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
        series: [THREADS, SHARED, ASYNC].into_iter().enumerate().map(line).collect(),
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
        let plan = plan(server, "udp", of(ASYNC, &FIXED), scale)?;
        let lose = || lose_datagrams(Ganesha::PORT, LOST_OF_100);
        with_and_without(&plan, lose, lose_nothing, progress)
    })?;
    let (calm, lossy) = match runs {
        Ok(runs) => runs,
        Err(why) => return skip_all(result, &why.to_string()).map(|()| None),
    };
    let (widest, fastest) = (row(&calm, ASYNC, MOST)?, best(calm.rows.iter())?);
    let remark = Some(format!("best: {}", depth(fastest)));
    let ratio = pair(widest, fastest, Metric::Throughput);
    put(result, "window 32 ÷ the best of 2–32", ratio, remark)?;
    let ratio = pair(row(&lossy, ASYNC, MOST)?, widest, Metric::Throughput);
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
        let mut entries = of(ASYNC, &FIXED);
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
    let fixed = best(run.rows.iter().filter(|row| row.policy == ASYNC))?;
    let found = row(&run, DYNAMIC, MOST)?;
    let remark = Some(format!("best fixed: {}", depth(fixed)));
    put(result, case, pair(found, fixed, Metric::Throughput), remark)
}
