// SPDX-License-Identifier: MIT OR Apache-2.0
//! G2, G3, G5: orders of visits and walks over graphs in memory larger than a process may have, by
//! the pager's region and by others.

use anyhow::{Context, Result};

use super::lab::{both, put, skip, skip_all, subtitle};
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use dwell_bench::chart::{DotRow, Dots, Panel};
use dwell_bench::pager::{
    Ask, Entry, Method, Order, Plan, Program, SWAP, Terms, TestFile, UMAP, Work, has_umap, limits,
    measure, regions,
};
use dwell_bench::result::{RoundResult, Row, Run, pair_by};
use dwell_bench::stand::Kind;
use dwell_bench::stats::{Middle, Paired, Summary};
use dwell_bench::units;
use dwell_bench::workload::spec::FileSystemKind;

/// A mapped file is so many times as long as what may be in memory of it.
const OVER: u64 = 4;
/// Pages between two visits where visits are strided: more than the kernel reads around a fault.
const STRIDE_PAGES: u64 = 33;

impl From<Middle> for Measured {
    fn from(Middle { value, low, high }: Middle) -> Self {
        Measured { value, low, high }
    }
}

/// A file of random bytes on ext4 on a device made for it, or on the machine's own disk; an
/// emulated device; or why there is none here.
pub(super) fn test_file(lab: &mut Lab, kind: Kind, bytes: u64) -> Result<Result<TestFile, String>> {
    if kind == Kind::Emulated {
        return Ok(lab.subject(kind)?.map(|subject| TestFile::of(&subject)));
    }
    let place = lab.place_of(kind, FileSystemKind::Ext4, TestFile::room_bytes(bytes))?;
    Ok(place.and_then(|place| TestFile::with_data(place, bytes)))
}

/// A graph on ext4 on a loop device, or why there is none here.
pub(super) fn graph(lab: &Lab) -> Result<Result<TestFile, String>> {
    let scale = scale(lab);
    let room = TestFile::room_bytes(TestFile::graph_bytes(scale));
    match lab.place_of(Kind::Loop, FileSystemKind::Ext4, room)? {
        Ok(place) => TestFile::with_graph(place, scale).map(Ok),
        Err(why) => Ok(Err(why)),
    }
}

pub(super) fn entry(
    lab: &Lab,
    test_file: &TestFile,
    work: Work,
    methods: &[&str],
) -> Result<Entry> {
    let methods = methods.iter().map(|method| Method::of(method)).collect::<Result<_>>()?;
    let most_ns = lab.span(3_000).as_nanos() as u64;
    Ok(test_file.entry(work, &Terms { methods, over: OVER, most_ns }))
}

/// Length of the file. Also where there is little time: with less memory than the kernel reads
/// ahead at once, several MiB on some disks, it kills a mapping's process.
pub(super) fn file_bytes(lab: &Lab) -> u64 {
    match lab.is_hasty() {
        true => (lab.device_bytes / 8).max(2 << 20),
        false => lab.device_bytes / 2,
    }
}

/// Vertices of a graph, as a power of two. A smaller one would not be four times as large as the
/// least memory that a process can be given.
pub(super) fn scale(lab: &Lab) -> u32 {
    if lab.is_hasty() { 14 } else { 18 }
}

/// Entries measured, as the part `from..to` of an experiment.
pub(super) fn race(
    lab: &Lab,
    test_file: &TestFile,
    entries: Vec<Entry>,
    rounds: usize,
    (from, to): (f64, f64),
    progress: &mut Progress<'_>,
) -> Result<Run> {
    let plan = Plan {
        devices: vec![test_file.device.clone()],
        entries,
        baseline: "mmap".into(),
        rounds: lab.times(rounds),
        // Minutes go by where the kernel reads much that is not wanted.
        best_only: true,
        hidden: lab.hidden.clone(),
        stop: Default::default(),
    };
    let shown = &mut |what: &str, share: f64| progress(what, from + (to - from) * share);
    measure(&plan, Vec::new(), shown)
}

/// The row of one contender at some work.
fn row<'r>(run: &'r Run, work: &str, method: &str) -> Option<&'r Row> {
    run.rows.iter().find(|row| row.policy == method && row.setting.workload() == work)
}

/// The text in place of a case that needs a way that was not measured.
pub(super) fn missing() -> String {
    limits().err().map_or_else(|| "not measured here".into(), |why| why.to_string())
}

fn speed(round: &RoundResult) -> f64 {
    round.operations_per_second()
}

/// How much faster one way was than another, round by round.
fn faster(run: &Run, work: &str, method: &str, other: &str) -> Option<Paired> {
    pair_by(row(run, work, method)?, row(run, work, other)?, speed)
}

/// The fastest of some ways by the median.
fn best<'w>(run: &Run, work: &str, methods: &[&'w str]) -> Option<&'w str> {
    let median = |method: &&str| row(run, work, method).map(|row| row.median(speed));
    let known = methods.iter().filter_map(|method| Some((*method, median(method)?)));
    known.max_by(|(_, a), (_, b)| a.total_cmp(b)).map(|(method, _)| method)
}

/// Enters how much faster a way was than the best of others, and names that.
pub(super) fn against_best(
    result: &mut FigureResult,
    case: &str,
    run: &Run,
    work: &str,
    method: &str,
    others: &[&str],
) -> Result<()> {
    match best(run, work, others) {
        None => skip(result, &[case], &missing()),
        Some(other) => {
            let remark = (others.len() > 1).then(|| format!("best: {other}"));
            put(result, case, faster(run, work, method, other), remark)
        }
    }
}

/// Adds to a case's remark the most memory that any contender had, against the limit, where it was
/// counted.
pub(super) fn add_peak(result: &mut FigureResult, case: &str, run: &Run, work: &str) -> Result<()> {
    let rows = run.rows.iter().filter(|row| row.setting.workload() == work);
    let paging = rows.flat_map(|row| &row.rounds).map(|round| &round.paging);
    let most = paging
        .filter_map(|counts| Some((*counts.get("peak_bytes")?, *counts.get("limit_bytes")?)))
        .max();
    let Some((peak, limit)) = most else { return Ok(()) };
    let peak = format!("peak {} of {}", units::bytes(peak), units::bytes(limit));
    let before = result.rows.iter().find(|row| row.case == case).and_then(|row| row.note.clone());
    result.note(case, &both(before, Some(peak)).unwrap_or_default())
}

/// The cases of a figure that begin with a device's name.
pub(super) fn cases_of(result: &FigureResult, name: &str) -> Vec<String> {
    let of = |case: &&String| {
        case.starts_with(&format!("{name}:")) || case.starts_with(&format!("{name},"))
    };
    result.rows.iter().map(|row| &row.case).filter(of).cloned().collect()
}

/// The kernel's ways without hints: every advice that can make it faster.
pub(super) const PLAIN: [&str; 6] =
    ["mmap", "mmap-random", "mmap-sequential", "mmap-willneed", "mmap-populate", "mmap-huge"];
/// Its ways with them.
pub(super) const HINTED: [&str; 2] = ["mmap-hints", "mmap-random-hints"];

/// G2.
pub fn orders(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    if let Err(why) = regions() {
        return skip_all(result, &why).map(|()| None);
    }
    let mut runs = Vec::new();
    for (at, kind) in [Kind::Loop, Kind::Zram, Kind::Disk].into_iter().enumerate() {
        let name = kind.as_str();
        let bytes = file_bytes(lab);
        let test_file = match test_file(lab, kind, bytes)? {
            Ok(test_file) => test_file,
            Err(why) => {
                skip(result, &cases_of(result, name), &why)?;
                continue;
            }
        };
        let visits = |order| Ask::Visits(order).work(test_file.bytes);
        let strided = Order::Strided { pages: STRIDE_PAGES };
        let rivals = || PLAIN.into_iter().chain(UMAP).chain((kind == Kind::Zram).then_some(SWAP));
        let ours = ["region", "region-random", "region-random-hints"];
        let random: Vec<&str> = ours.into_iter().chain(rivals()).chain(HINTED).collect();
        let regular: Vec<&str> = ["region"].into_iter().chain(rivals()).collect();
        let entries = vec![
            entry(lab, &test_file, visits(Order::Random), &random)?,
            entry(lab, &test_file, visits(Order::Sequential), &regular)?,
            entry(lab, &test_file, visits(strided), &regular)?,
        ];
        let part = (at as f64 / 3.0, (at + 1) as f64 / 3.0);
        let run = race(lab, &test_file, entries, 9, part, progress)?;
        let case = |what: &str| format!("{name}, {what}");
        let hinted = case("random with hints ÷ mmap given the same hints");
        against_best(result, &hinted, &run, "random", "region-random-hints", &HINTED)?;
        for order in ["random", "sequential", "strided"] {
            let ours = if order == "random" { "region-random" } else { "region" };
            let best = case(&format!("{order} ÷ the kernel's best"));
            against_best(result, &best, &run, order, ours, &PLAIN)?;
            add_peak(result, &best, &run, order)?;
            let umap = case(&format!("{order} ÷ UMap"));
            match has_umap() {
                Ok(()) => against_best(result, &umap, &run, order, ours, &UMAP)?,
                Err(why) => skip(result, &[umap], &why)?,
            }
            if kind == Kind::Zram {
                let swap = case(&format!("{order} ÷ swap"));
                let why = run.left_out.iter().find(|why| why.starts_with(SWAP));
                match why {
                    Some(why) => skip(result, &[swap], why)?,
                    None => against_best(result, &swap, &run, order, ours, &[SWAP])?,
                }
            }
        }
        runs.push((name, run));
    }
    Ok(Some(visits_per_second(result, &runs)))
}

/// Pages per second by order and way, a panel per device and order.
fn visits_per_second(result: &FigureResult, runs: &[(&str, Run)]) -> String {
    let mut panels = Vec::new();
    for (name, run) in runs {
        for setting in run.settings() {
            let rows = run.rows.iter().filter(|row| row.setting == *setting);
            let per_second = |round: &RoundResult| speed(round) / 1e3;
            let mut rows: Vec<(&Row, Summary)> =
                rows.filter_map(|row| Some((row, row.summary(per_second)?))).collect();
            rows.sort_by(|(_, a), (_, b)| b.median.total_cmp(&a.median));
            let dot = |(row, speed): &(&Row, Summary)| DotRow {
                label: row.policy.clone(),
                measured: Some((speed.median, speed.min, speed.max)),
                target: None,
                paper: None,
                text: units::per_second(speed.median * 1e3),
            };
            panels.push(Panel {
                axis_label: format!("{name}, {}: pages (1000 per second, log)", setting.workload()),
                rows: rows.iter().map(dot).collect(),
                mark: None,
            });
        }
    }
    Dots {
        title: "Pages visited per second of a file four times as long as its memory".into(),
        subtitle: subtitle(result, "the same memory limit for all"),
        dots: "median; bar: slowest to fastest round".into(),
        panels,
    }
    .svg()
}

/// G3.
pub fn graphs(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    const MEAN: &str = "geometric mean";
    const HINTED_MEAN: &str = "geometric mean, the region with hints";
    const PLAIN_MEAN: &str = "geometric mean, neither given hints";
    const OURS: [&str; 2] = ["region", "region-hints"];
    if let Err(why) = regions() {
        return skip_all(result, &why).map(|()| None);
    }
    let test_file = match graph(lab)? {
        Ok(test_file) => test_file,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let methods: Vec<&str> = OURS.into_iter().chain(PLAIN).chain(HINTED).collect();
    let entry = |program| entry(lab, &test_file, Work::Graph(program), &methods);
    let entries = Program::ALL.map(entry).into_iter().collect::<Result<_>>()?;
    let run = race(lab, &test_file, entries, 7, (0.0, 1.0), progress)?;
    let kernels: Vec<&str> = PLAIN.into_iter().chain(HINTED).collect();
    if limits().is_err() {
        return skip_all(result, &missing()).map(|()| None);
    }
    let programs = Program::ALL.map(Program::as_str);
    for program in programs {
        let case = format!("{program} ÷ the best mmap");
        // Hints are the program's to give or not, on either side.
        let ours = best(&run, program, &OURS).context("no region was measured")?;
        against_best(result, &case, &run, program, ours, &kernels)?;
        let before = result.rows.iter().find(|row| row.case == case);
        let before = before.and_then(|row| row.note.clone());
        result.note(&case, &both(Some(format!("ours: {ours}")), before).unwrap_or_default())?;
        add_peak(result, &case, &run, program)?;
    }
    let means = [
        (MEAN, &OURS[..], &kernels[..]),
        (HINTED_MEAN, &OURS[1..], &kernels),
        // A program that tells a region nothing tells the kernel nothing either.
        (PLAIN_MEAN, &OURS[..1], &PLAIN),
    ];
    for (case, ours, kernels) in means {
        put(result, case, geometric_mean(&run, &programs, ours, kernels), None)?;
    }
    Ok(Some(visits_per_second_of(result, &run)))
}

/// Per round, the geometric mean over programs of how much faster the best of some ways was than
/// the best of others.
fn geometric_mean(run: &Run, programs: &[&str], ours: &[&str], others: &[&str]) -> Option<Paired> {
    let rows = |program: &&str| {
        let (method, other) = (best(run, program, ours)?, best(run, program, others)?);
        Some((row(run, program, method)?, row(run, program, other)?))
    };
    let rows = programs.iter().map(rows).collect::<Option<Vec<_>>>()?;
    let rounds =
        rows.iter().map(|(ours, other)| ours.rounds.len().min(other.rounds.len())).min()?;
    let mean = |of: &dyn Fn(&(&Row, &Row)) -> f64| {
        let logs: f64 = rows.iter().map(|rows| of(rows).ln()).sum();
        (logs / rows.len() as f64).exp()
    };
    Paired::of((0..rounds).map(|round| {
        let ours = mean(&|(ours, _)| speed(&ours.rounds[round]));
        (ours, mean(&|(_, other)| speed(&other.rounds[round])))
    }))
}

fn visits_per_second_of(result: &FigureResult, run: &Run) -> String {
    let panel = |program: Program| {
        let seconds = |round: &RoundResult| round.wall_ns as f64 / 1e9;
        let rows = run.rows.iter().filter(|row| row.setting.workload() == program.as_str());
        let mut rows: Vec<(&Row, Summary)> =
            rows.filter_map(|row| Some((row, row.summary(seconds)?))).collect();
        rows.sort_by(|(_, a), (_, b)| a.median.total_cmp(&b.median));
        let dot = |(row, seconds): &(&Row, Summary)| DotRow {
            label: row.policy.clone(),
            measured: Some((seconds.median, seconds.min, seconds.max)),
            target: None,
            paper: None,
            text: format!(
                "{:.2} s, {:.0} major faults",
                seconds.median,
                row.median(|round| *round.paging.get("major_faults").unwrap_or(&0) as f64)
            ),
        };
        Panel {
            axis_label: format!("{}: time (s, log)", program.as_str()),
            rows: rows.iter().map(dot).collect(),
            mark: None,
        }
    };
    Dots {
        title: "Graph programs on a graph four times as large as its memory".into(),
        subtitle: subtitle(result, "ext4 on loop on tmpfs; the same memory limit for all"),
        dots: "median; bar: fastest to slowest round".into(),
        panels: Program::ALL.map(panel).into(),
    }
    .svg()
}

/// G5.
pub fn major_faults(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    const METHODS: [&str; 3] = ["region", "region-random", "mmap"];
    const KERNELS: &str = "the kernel counts no wait for a page on its way";
    if let Err(why) = regions() {
        return skip_all(result, &why).map(|()| None);
    }
    let bytes = file_bytes(lab);
    let test_files = [test_file(lab, Kind::Loop, bytes)?, graph(lab)?];
    for (at, test_file) in test_files.into_iter().enumerate() {
        let test_file = match test_file {
            Ok(test_file) => test_file,
            Err(why) => return skip_all(result, &why).map(|()| None),
        };
        let visits = |order| Ask::Visits(order).work(test_file.bytes);
        let works = match at {
            0 => vec![
                visits(Order::Sequential),
                visits(Order::Strided { pages: STRIDE_PAGES }),
                visits(Order::Streams { arrays: 6 }),
            ],
            _ => vec![Work::Graph(Program::PageRank(2)), Work::Graph(Program::Communities(2))],
        };
        let entries = works.iter().map(|work| entry(lab, &test_file, *work, &METHODS));
        let entries = entries.collect::<Result<Vec<_>>>()?;
        let part = (at as f64 / 2.0, (at + 1) as f64 / 2.0);
        let run = race(lab, &test_file, entries, 5, part, progress)?;
        // A visit's part of them, because visits that take too long are not all made.
        let faults = |round: &RoundResult| {
            let done: u64 = round.operations.values().sum();
            (*round.paging.get("major_faults").unwrap_or(&0)).max(1) as f64 / done.max(1) as f64
        };
        for work in works {
            let name = work.as_str();
            let against =
                |other| pair_by(row(&run, name, "region")?, row(&run, name, other)?, faults);
            let case = format!("{name}: with reading ahead ÷ without");
            put(result, &case, against("region-random"), None)?;
            let case = format!("{name}: with reading ahead ÷ mmap");
            match against("mmap") {
                Some(ratio) => put(result, &case, Some(ratio), Some(KERNELS.into()))?,
                None => skip(result, &[case], &missing())?,
            }
        }
    }
    Ok(None)
}
