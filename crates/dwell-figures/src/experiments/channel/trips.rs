// SPDX-License-Identifier: MIT OR Apache-2.0
//! D9: how often an operation on a served directory goes to the daemon, and what each trip costs.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use dwell_channel::daemon::Options;
use dwell_channel::fs::DataPath;

use super::middle;
use super::stage::{DATA, Stage};
use crate::experiments::lab::{put, skip_all};
use crate::experiments::{Lab, Progress};
use crate::figure::FigureResult;
use dwell_bench::fixture::Directory;
use dwell_bench::stats::{Middle, Paired};

/// Names in the directory that is listed.
const NAMES: usize = 100;

/// Something that programs do in a directory.
type Operation = fn(&Path) -> io::Result<()>;

const OPERATIONS: [(&str, Operation); 7] = [
    ("open and close", |dir| File::open(dir.join(DATA)).map(drop)),
    ("create and unlink", |dir| {
        File::create(dir.join("new"))?;
        fs::remove_file(dir.join("new"))
    }),
    ("open, write, fstat, close", |dir| {
        let file = File::options().write(true).open(dir.join(DATA))?;
        file.write_all_at(b"data", 0)?;
        file.metadata().map(drop)
    }),
    ("open, fsync, close", |dir| File::open(dir.join(DATA))?.sync_all()),
    ("stat", |dir| fs::metadata(dir.join(DATA)).map(drop)),
    ("stat of a missing name", |dir| match fs::metadata(dir.join("missing")) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        _ => Err(io::ErrorKind::AlreadyExists.into()),
    }),
    ("list of 100 names and attributes", |dir| {
        fs::read_dir(dir.join("list"))?.try_for_each(|entry| entry?.metadata().map(drop))
    }),
];

const WAKE_UP: &str = "wake-up round trip of two threads";

/// D9.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let scratch = match Directory::new(Path::new("/dev/shm")) {
        Ok(scratch) => scratch,
        Err(why) => return skip_all(result, &why.to_string()).map(|()| None),
    };
    let made = |name| -> Result<PathBuf> {
        let directory = scratch.path().join(name);
        fs::create_dir(&directory)?;
        Ok(directory)
    };
    let bare = made("bare")?;
    let mut stages = Vec::new();
    for (name, hidden) in [("served", false), ("hidden", true)] {
        match Stage::passed_through(&made(name)?, hidden, Options::default())? {
            Ok(stage) => stages.push(stage),
            Err(why) => return skip_all(result, &why).map(|()| None),
        }
    }
    let places = [bare.as_path(), stages[0].mount(), stages[1].mount()];
    for place in places {
        fill(place)?;
    }
    let mut woken = Vec::new();
    for (at, (name, operation)) in OPERATIONS.into_iter().enumerate() {
        progress(name, at as f64 / OPERATIONS.len() as f64);
        let mut rounds: Vec<[Round; 3]> = Vec::new();
        for _ in 0..lab.times(15) {
            woken.push(wake_up_ns(lab.span(20))?);
            let round = |at: usize| {
                let stage = at.checked_sub(1).map(|at| &stages[at]);
                Round::of(operation, places[at], stage, lab.span(60))
            };
            rounds.push([round(0)?, round(1)?, round(2)?]);
        }
        enter(result, name, &rounds, &woken[woken.len() - rounds.len()..])?;
    }
    let data = match stages[0].data_path() {
        DataPath::Passthrough => "the kernel reads and writes the backing files itself".to_owned(),
        DataPath::DirectIo { why } => format!("the daemon reads and writes: {why}"),
    };
    put(result, WAKE_UP, middle(woken.into_iter()), Some(data))?;
    Ok(None)
}

fn fill(dir: &Path) -> Result<()> {
    fs::write(dir.join(DATA), vec![1; 1 << 16])?;
    fs::create_dir(dir.join("list"))?;
    for name in 0..NAMES {
        fs::write(dir.join(format!("list/{name}")), b"")?;
    }
    Ok(())
}

/// What a place did in a round.
struct Round {
    /// Of an operation, on the clock.
    ns: f64,
    /// That an operation waited for.
    trips: f64,
}

impl Round {
    fn of(act: Operation, dir: &Path, stage: Option<&Stage>, span: Duration) -> Result<Round> {
        act(dir)?;
        let trips = || stage.map_or(0, Stage::trips);
        let (before, began, mut done) = (trips(), Instant::now(), 0.0);
        while done == 0.0 || began.elapsed() < span {
            act(dir)?;
            done += 1.0;
        }
        let ns = began.elapsed().as_nanos() as f64 / done;
        Ok(Round { ns, trips: (trips() - before) as f64 / done })
    }
}

fn enter(
    result: &mut FigureResult,
    name: &str,
    rounds: &[[Round; 3]],
    woken_ns: &[f64],
) -> Result<()> {
    const BARE: usize = 0;
    for (at, place) in [(1, ""), (2, ", hidden")] {
        let us = |at: usize| {
            let ns = Middle::of(rounds.iter().map(|round| round[at].ns));
            ns.map_or(f64::NAN, |ns| ns.value / 1000.0)
        };
        let remark = format!("{:.1} µs against {:.1} µs of bare tmpfs", us(at), us(BARE));
        let trips = middle(rounds.iter().map(|round| round[at].trips));
        put(result, &format!("{name}{place}: trips"), trips, Some(remark))?;
    }
    // What it takes longer than on the bare directory is all for trips.
    let of_trip = |round: &[Round; 3]| (round[1].ns - round[BARE].ns) / round[1].trips.max(1.0);
    let ratio = Paired::of(rounds.iter().map(of_trip).zip(woken_ns.iter().copied()));
    let trip = Middle::of(rounds.iter().map(of_trip));
    let remark = trip.map(|ns| format!("{:.1} µs", ns.value / 1000.0));
    let case = format!("{name}: trip ÷ wake-up");
    match rounds.iter().any(|round| round[1].trips >= 0.5) {
        true => put(result, &case, ratio, remark),
        false => result.note(&case, "it makes no trip"),
    }
}

/// Two threads that wake each other by turns, each asleep meanwhile.
fn wake_up_ns(span: Duration) -> Result<f64> {
    let (mut ours, mut theirs) = UnixStream::pair()?;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut byte = [0];
            while theirs.read_exact(&mut byte).and_then(|()| theirs.write_all(&byte)).is_ok() {}
        });
        let mut turn = || -> io::Result<()> {
            let mut byte = [1];
            ours.write_all(&byte)?;
            ours.read_exact(&mut byte)
        };
        turn()?;
        let (began, mut turns) = (Instant::now(), 0.0);
        while turns == 0.0 || began.elapsed() < span {
            turn()?;
            turns += 1.0;
        }
        let ns = began.elapsed().as_nanos() as f64 / turns;
        drop(ours);
        Ok(ns)
    })
}
