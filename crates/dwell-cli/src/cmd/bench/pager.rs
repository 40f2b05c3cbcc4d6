// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell bench pager`: a file as memory larger than a process may have, by the pager and by mmap.

use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::{Args, ValueEnum};
use dwell_bench::pager::{self, Ask, Method, Order, Program, Setup, Terms};
use dwell_bench::stand::Kind;

use super::probing::ProbeArgs;
use super::{conclude, hidden};
use crate::answer::wrong;
use crate::progress::Progress;
use crate::signals::Signals;
use crate::{given, size};

/// What to measure, and how.
#[derive(Args)]
pub struct Pager {
    /// Files or addresses (emu:z-nand), which are only read. Without any: files made for it, on
    /// --on
    paths: Vec<PathBuf>,
    /// Devices to make files of random bytes on, each with ext4: a loop device over memory,
    /// compressed memory, the disk of the working directory
    #[arg(
        long,
        value_enum,
        value_delimiter = ',',
        default_value = "loop",
        conflicts_with = "paths"
    )]
    on: Vec<On>,
    /// Length of those files
    #[arg(long, default_value = "64M", conflicts_with = "paths", value_parser = file_bytes)]
    bytes: u64,
    /// Contenders. The kernel's mapping: mmap; with advice for all of it: mmap-random,
    /// mmap-sequential, mmap-willneed, mmap-populate, mmap-huge; with the program's hints by
    /// MADV_WILLNEED: mmap-hints, mmap-random-hints. Regions: region, region-hints,
    /// region-sequential, region-random, region-random-hints; with one wait mode:
    /// region-spin-ahead, and without reading ahead region-spin, region-spin-hints,
    /// region-block; with a thread that handles faults: region-thread. Others: swap (anonymous
    /// memory, swapped to zram), umap and umap-64k (UMap, built by `make peers`), device and
    /// device-block (reads one by one, spun and blocked for)
    #[arg(long = "contenders", alias = "ways", value_name = "CONTENDERS", value_delimiter = ',', default_value = "mmap,mmap-random,mmap-random-hints,region,region-random,region-hints", value_parser = known_method)]
    methods: Vec<String>,
    /// The contender that the others are held against
    #[arg(long, default_value = "mmap", value_parser = known_method)]
    baseline: String,
    /// Work to do: visits to pages in an order, or walks over a graph, which the files then are
    #[arg(long, value_enum, value_delimiter = ',', default_value = "random,sequential,strided")]
    work: Vec<WorkArg>,
    /// Distance of strided visits, in pages, 33 if not said
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    stride: Option<u64>,
    /// Vertices of graphs, as a power of two, 18 if not said
    #[arg(long, conflicts_with = "paths", value_parser = clap::value_parser!(u32).range(14..=26))]
    scale: Option<u32>,
    /// How much of a file may be in memory: its length divided by this, but 4 MiB at least
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1024))]
    memory_ratio: u64,
    /// Longest time of visits in each round, as 300ms or 2s
    #[arg(long, default_value = "2s", value_parser = given::milliseconds)]
    max_time: u64,
    /// Interleaved rounds
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,
    /// Directory for report.html, result.json and result.csv
    #[arg(short, long, value_name = "DIR", default_value = "dwell-report")]
    out: PathBuf,
    /// Print the result as JSON in place of the table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    probe: ProbeArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum On {
    Loop,
    Zram,
    Disk,
}

#[derive(Clone, Copy, ValueEnum)]
enum WorkArg {
    Random,
    Sequential,
    Strided,
    PageRank,
    RandomWalk,
    Communities,
    ShortestPaths,
    BreadthFirst,
    Sort,
}

/// Some pages at least.
fn file_bytes(text: &str) -> Result<u64, String> {
    match size::bytes(text)? {
        bytes if bytes < 1 << 20 => Err("a file has 1MiB at least".to_owned()),
        bytes => Ok(bytes),
    }
}

fn known_method(name: &str) -> Result<String, String> {
    Method::of(name).map(|method| method.name).map_err(|why| why.to_string())
}

impl Pager {
    /// What can be known to be wrong before anything is opened.
    fn check(&self) -> Result<()> {
        let word = |work: &WorkArg| {
            work.to_possible_value().map_or(String::new(), |word| word.get_name().to_owned())
        };
        let on = |on: &On| Kind::from(*on).as_str().to_owned();
        given::once("--contenders", self.methods.iter().cloned())?;
        given::once("--work", self.work.iter().map(word))?;
        given::once("--on", self.on.iter().map(on))?;
        let strides = self.work.iter().any(|work| matches!(work, WorkArg::Strided));
        if self.stride.is_some() && !strides {
            return Err(wrong("--stride: nothing is strided without --work strided"));
        }
        let graphs = self.work.iter().any(|work| matches!(work.of(1), Ask::Graph(_)));
        if self.scale.is_some() && !graphs {
            return Err(wrong("--scale: no graph is made without --work that walks one"));
        }
        Ok(())
    }

    /// Does it.
    pub fn run(&self) -> Result<()> {
        self.check()?;
        given::baseline(&self.baseline, &self.methods)?;
        given::subjects(&self.paths)?;
        std::fs::create_dir_all(&self.out).with_context(|| {
            format!("cannot make the report's directory {}", self.out.display())
        })?;
        let mut progress = Progress::of("bench");
        let probing = self.probe.probing(&mut progress)?;
        progress.show("making and probing files", 0.0);
        let setup = Setup {
            paths: self.paths.clone(),
            on: self.on.iter().map(|&on| on.into()).collect(),
            bytes: self.bytes,
            scale: self.scale.unwrap_or(18),
            directory: ".".into(),
            asks: self.work.iter().map(|work| work.of(self.stride.unwrap_or(33))).collect(),
            terms: Terms {
                methods: self.methods.iter().map(|name| Method::of(name)).collect::<Result<_>>()?,
                over: self.memory_ratio,
                most_ns: self.max_time * 1_000_000,
            },
        };
        let test_files = setup.make(&probing)?;
        let signals = Signals::watch().context("watching for Ctrl-C")?;
        let plan = pager::Plan {
            devices: test_files.devices(),
            entries: test_files.entries(&setup)?,
            baseline: self.baseline.clone(),
            rounds: self.rounds.into(),
            best_only: false,
            hidden: hidden(),
            stop: signals.stop.clone(),
        };
        let command = std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect();
        let outcome = pager::measure(&plan, command, &mut |what, share| progress.show(what, share));
        progress.finish();
        let outcome = outcome.map(|mut run| {
            run.left_out.extend(test_files.left_out.iter().cloned());
            run
        });
        conclude(outcome, &signals, &self.out, self.json)
    }
}

impl From<On> for Kind {
    fn from(on: On) -> Self {
        match on {
            On::Loop => Kind::Loop,
            On::Zram => Kind::Zram,
            On::Disk => Kind::Disk,
        }
    }
}

impl WorkArg {
    fn of(self, stride: u64) -> Ask {
        match self {
            WorkArg::Random => Ask::Visits(Order::Random),
            WorkArg::Sequential => Ask::Visits(Order::Sequential),
            WorkArg::Strided => Ask::Visits(Order::Strided { pages: stride }),
            WorkArg::PageRank => Ask::Graph(Program::ALL[0]),
            WorkArg::RandomWalk => Ask::Graph(Program::ALL[1]),
            WorkArg::Communities => Ask::Graph(Program::ALL[2]),
            WorkArg::ShortestPaths => Ask::Graph(Program::ALL[3]),
            WorkArg::BreadthFirst => Ask::Graph(Program::BreadthFirst),
            WorkArg::Sort => Ask::Sort,
        }
    }
}
