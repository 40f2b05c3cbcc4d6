// SPDX-License-Identifier: MIT OR Apache-2.0
//! G4: six processes that page from a fast device on one CPU, under ITS and under the paper's four
//! others.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use dwell_host::profile::DeviceProfile;
use dwell_workloads::csr;

use super::lab::{put, skip, skip_all, subtitle};
use super::pager::scale;
use super::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::chart::{DotRow, Dots, Panel};
use dwell_bench::fixture::Directory;
use dwell_bench::pager::{
    Method, Order, PAGE_BYTES, Program, Task, Told, Visits, Work, limit_bytes, regions, together,
};
use dwell_bench::stand::Kind;
use dwell_bench::stats::{Paired, SplitMix, Summary};

/// Of its file, a process may have one part in so many in memory.
pub(super) const OVER: u64 = 4;
/// The CPU that all share, as in the paper; the emulated device needs none.
const CPU: usize = 0;
/// Nothing executes ahead of a real process. The program's hints tell what that would find out, to
/// Sync_Runahead and to an ITS that is held against it.
const MODES: [(&str, &str); 6] = [
    ("ITS", "region"),
    ("Sync", "region-spin"),
    ("Async", "region-block"),
    ("Sync_Prefetch", "region-spin-ahead"),
    ("Sync_Runahead", "region-spin-hints"),
    ("ITS with hints", "region-hints"),
];
/// From the highest priority to the lowest: root may go below 0.
pub(super) const NICE: [i32; 6] = [0, 3, 6, 9, 12, 15];
/// The three that the paper counts as high.
const HIGH: usize = 3;

/// A program of a batch.
#[derive(Clone, Copy)]
pub(super) struct Member {
    pub(super) name: &'static str,
    work: Work,
}

impl Member {
    /// Its visits per 1000 pages of the file, if it visits pages.
    pub(super) fn visiting(&self) -> Option<Visits> {
        match self.work {
            Work::Visits(of) => Some(of),
            Work::Graph(_) | Work::Sort => None,
        }
    }
}

/// Visits of the whole page with so much arithmetic after each, per 1000 pages of the file.
const fn visiting(order: Order, per_1000: u64, turns: u32) -> Work {
    Work::Visits(Visits { order, visits: per_1000, whole: true, turns, timed: false })
}

const WRF: Member = Member {
    name: "several arrays (Wrf)",
    work: visiting(Order::Streams { arrays: 6 }, 2000, 1500),
};
const BLENDER: Member =
    Member { name: "window (Blender)", work: visiting(Order::Window { pages: 64 }, 3000, 2500) };
const CAFFE: Member =
    Member { name: "sequential (Caffe)", work: visiting(Order::Sequential, 2000, 2000) };
const DEEPSJENG: Member =
    Member { name: "random (DeepSjeng)", work: visiting(Order::Random, 500, 4000) };
const XZ: Member =
    Member { name: "wide window (Xz)", work: visiting(Order::Window { pages: 512 }, 2000, 2000) };
const COMMUNITIES: Member =
    Member { name: "communities", work: Work::Graph(Program::Communities(1)) };
const WALK: Member = Member { name: "random walk", work: Work::Graph(Program::RandomWalk(16)) };
const PATHS: Member =
    Member { name: "shortest paths (Graph500)", work: Work::Graph(Program::ShortestPaths) };
const RANK: Member = Member { name: "page rank", work: Work::Graph(Program::PageRank(1)) };

/// The paper's batches; programs that cannot be shipped are stood in for by orders of visits.
const BATCHES: [(&str, [Member; 6]); 4] = [
    ("No_Data_Intensive", [WRF, BLENDER, COMMUNITIES, CAFFE, DEEPSJENG, XZ]),
    ("1_Data_Intensive", [WRF, BLENDER, COMMUNITIES, CAFFE, DEEPSJENG, WALK]),
    ("2_Data_Intensive", [WRF, BLENDER, COMMUNITIES, DEEPSJENG, WALK, PATHS]),
    ("3_Data_Intensive", [WRF, BLENDER, COMMUNITIES, WALK, PATHS, RANK]),
];

/// Six that only visit pages, which can be foretold without a trace.
pub(super) const VISITING: [Member; 6] = [WRF, XZ, DEEPSJENG, BLENDER, CAFFE, WRF];

/// What a batch took under one mode in one round, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Taken {
    /// Mean time to the end of the three higher priorities.
    pub(super) high_ns: f64,
    /// The same of the three lower ones.
    pub(super) low_ns: f64,
    /// In which the CPU did nothing, or nothing but wait for storage.
    pub(super) idle_ns: f64,
}

impl Taken {
    /// From what the processes told, in order of priority.
    pub(super) fn of(told: &[Told]) -> Self {
        let began_ns = told.iter().map(|told| told.began_ns).min().unwrap_or(0);
        let ended_ns = told.iter().map(|told| told.ended_ns).max().unwrap_or(0);
        let mean = |told: &[Told]| {
            let finish = told.iter().map(|told| (told.ended_ns - began_ns) as f64);
            finish.sum::<f64>() / told.len().max(1) as f64
        };
        let busy_ns: u64 = told.iter().map(|told| told.round.user_ns + told.round.system_ns).sum();
        let spun_ns: u64 = told.iter().map(|told| told.round.spin_ns).sum();
        let (high, low) = told.split_at(HIGH.min(told.len()));
        Taken {
            high_ns: mean(high),
            low_ns: mean(low),
            idle_ns: (ended_ns - began_ns).saturating_sub(busy_ns).saturating_add(spun_ns) as f64,
        }
    }
}

/// The files that the processes page from, on the machine's own disk and in its page cache.
pub(super) struct Files<'d> {
    pub(super) directory: &'d Path,
    pub(super) profile: Option<DeviceProfile>,
    /// Length of the graph and of the data.
    pub(super) bytes: [u64; 2],
}

impl Files<'_> {
    pub(super) fn make(lab: &mut Lab, directory: &Path) -> Result<[u64; 2]> {
        let graph = directory.join("graph.csr");
        csr::generate(scale(lab), &graph).map_err(|why| anyhow::anyhow!(why))?;
        let bytes = std::fs::metadata(&graph)?.len();
        let data = directory.join("data");
        std::fs::write(&data, &dwell_bench::fixture::half_noise(bytes as usize)[..])?;
        let length = std::fs::metadata(&data)?.len();
        Ok([bytes, length])
    }

    pub(super) fn task(
        &self,
        member: Member,
        method: &Method,
        nice: i32,
        seed: u64,
    ) -> Result<Task> {
        let (name, bytes, work) = match member.work {
            Work::Graph(_) => ("graph.csr", self.bytes[0], member.work),
            Work::Visits(of) => {
                let visits = of.visits * (self.bytes[1] / PAGE_BYTES as u64) / 1000;
                ("data", self.bytes[1], Work::Visits(Visits { visits, ..of }))
            }
            Work::Sort => ("data", self.bytes[1], member.work),
        };
        let file = self.directory.join(name);
        let file = file.to_str().context("the directory's name is not text")?;
        let file = file.replace('%', "%25").replace(',', "%2C");
        let address: PathBuf = format!("{},file={file}", Kind::Emulated.as_str()).into();
        let limit_bytes = limit_bytes(work, &address, bytes, bytes / OVER);
        Ok(Task {
            address,
            profile: self.profile.clone(),
            method: method.clone(),
            work,
            seed,
            most_ns: u64::MAX,
            limit_bytes,
            group: None,
            nice,
            cpu: Some(CPU),
            board: Some(self.directory.join("board")),
        })
    }
}

/// G4.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    if let Err(why) = regions() {
        return skip_all(result, &why).map(|()| None);
    }
    let device = match lab.subject(Kind::Emulated)? {
        Ok(device) => device,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let directory = match Directory::new(&lab.directory) {
        Ok(directory) => directory,
        Err(why) => return skip_all(result, &why.to_string()).map(|()| None),
    };
    let bytes = Files::make(lab, directory.path()).context("making the files")?;
    let files = Files { directory: directory.path(), profile: device.profile.clone(), bytes };
    let rounds = lab.times(9);
    let mut taken: Vec<[Vec<Taken>; MODES.len()]> =
        BATCHES.iter().map(|_| Default::default()).collect();
    let total = (rounds * BATCHES.len() * MODES.len()) as f64;
    let mut step = 0.0;
    for round in 0..rounds {
        for (at, (batch, members)) in BATCHES.iter().enumerate() {
            let members = shuffled(members, (round * BATCHES.len() + at) as u64);
            for turn in 0..MODES.len() {
                let mode = (turn + round) % MODES.len();
                progress(&format!("{batch}, {}", MODES[mode].0), step / total);
                step += 1.0;
                let method = Method::of(MODES[mode].1)?;
                let tasks = members.iter().zip(NICE).enumerate().map(|(seed, (member, nice))| {
                    files.task(*member, &method, nice, (round * 6 + seed) as u64)
                });
                let tasks = tasks.collect::<Result<Vec<_>>>()?;
                let told = together(&tasks, &lab.hidden)
                    .with_context(|| format!("{batch} under {}", MODES[mode].0))?;
                taken[at][mode].push(Taken::of(&told));
            }
        }
    }
    for ((batch, _), modes) in BATCHES.iter().zip(&taken) {
        let [its, others @ .., its_with_hints] = modes;
        for ((name, method), other) in MODES[1..].iter().zip(others) {
            let ours = if method.ends_with("hints") { its_with_hints } else { its };
            let ratio = |of: fn(&Taken) -> f64| {
                Paired::of(ours.iter().zip(other).map(|(its, other)| (of(its), of(other))))
            };
            let case = |what: &str| format!("{batch}: {what} ÷ {name}");
            put(result, &case("high-priority finish"), ratio(|taken| taken.high_ns), None)?;
            put(result, &case("low-priority finish"), ratio(|taken| taken.low_ns), None)?;
            match ratio(|taken| taken.idle_ns) {
                Some(found) => put(result, &case("idle time"), Some(found), None)?,
                None => skip(result, &[case("idle time")], "no idle time in any round")?,
            }
        }
    }
    Ok(Some(chart(result, &taken)))
}

/// The members in an order drawn by a seed: the first has the highest priority.
fn shuffled(members: &[Member; 6], seed: u64) -> [Member; 6] {
    let (mut members, mut random) = (*members, SplitMix(seed));
    for last in (1..members.len()).rev() {
        members.swap(last, random.below(last + 1));
    }
    members
}

/// Finish and idle times by batch and mode.
fn chart(result: &FigureResult, taken: &[[Vec<Taken>; MODES.len()]]) -> String {
    type Of = fn(&Taken) -> f64;
    let measures: [(&str, Of); 3] = [
        ("Finish of the higher priorities", |taken| taken.high_ns),
        ("Finish of the lower priorities", |taken| taken.low_ns),
        ("Idle time", |taken| taken.idle_ns),
    ];
    let panel = |(what, of): (&str, Of)| {
        let mut rows = Vec::new();
        for ((batch, _), modes) in BATCHES.iter().zip(taken) {
            for ((mode, _), rounds) in MODES.iter().zip(modes) {
                let Some(ms) = Summary::of(rounds.iter().map(|taken| of(taken) / 1e6)) else {
                    continue;
                };
                rows.push(DotRow {
                    label: format!("{batch}, {mode}"),
                    measured: Some((ms.median, ms.min, ms.max)),
                    target: None,
                    paper: None,
                    text: format!("{:.0} ms", ms.median),
                });
            }
        }
        Panel { axis_label: format!("{what} (ms, log)"), rows, mark: None }
    };
    let members: Vec<&str> = BATCHES[0].1.iter().map(|member| member.name).collect();
    Dots {
        title: "Six processes on one CPU that page from an emulated device".into(),
        subtitle: subtitle(result, &format!("the first: {}", members.join(", "))),
        dots: "median; bar: least to most".into(),
        panels: measures.map(panel).into(),
    }
    .svg()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_are_the_papers() {
        for (number, (name, members)) in BATCHES.iter().enumerate() {
            let intensive = [WALK.name, PATHS.name, RANK.name];
            let count = members.iter().filter(|member| intensive.contains(&member.name)).count();
            assert_eq!(count, number, "{name}");
            let names = shuffled(members, 5).map(|member| member.name);
            assert!(members.iter().all(|member| names.contains(&member.name)));
        }
    }

    #[test]
    fn idle_is_what_nobody_used_and_what_was_spun_away() {
        let told = |began_ns, ended_ns, busy_ns, spin_ns| Told {
            began_ns,
            ended_ns,
            round: dwell_bench::result::RoundResult {
                user_ns: busy_ns,
                spin_ns,
                ..Default::default()
            },
            ..Told::default()
        };
        let told = [
            told(100, 200, 40, 10),
            told(90, 300, 50, 0),
            told(100, 400, 60, 0),
            told(100, 590, 100, 5),
        ];
        let taken = Taken::of(&told);
        assert_eq!((taken.high_ns, taken.low_ns), ((110.0 + 210.0 + 310.0) / 3.0, 500.0));
        assert_eq!(taken.idle_ns, (500 - 250 + 15) as f64);
    }
}
