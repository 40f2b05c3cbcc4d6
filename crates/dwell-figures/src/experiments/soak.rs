// SPDX-License-Identifier: MIT OR Apache-2.0
//! T1: processes that go on for long while files, clients and regions come and go: their memory,
//! descriptors and latency in the second quarter of the time and in the last.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dwell::clock;
use dwell_bench::fixture::{Directory, Export, half_noise};
use dwell_bench::stand::Kind;
use dwell_bench::stats::{Paired, SplitMix};
use dwell_bench::units;
use dwell_bench::workload::spec::FileSystemKind;
use dwell_channel::daemon;
use dwell_nfs::fuse::{self, Mounted};
use dwell_pager::{Options as Paging, Region};

use super::channel::stage::{DATA, Stage};
use super::lab::{put, skip};
use super::nfs::beside_server_of;
use super::programs::runs;
use super::wrapped::{POLICY, Wrapping};
use super::{Lab, Progress};
use crate::figure::{FULL_ROW_S, FigureResult, Measured};

const FILES: &str = "opened files";
const PROGRAM: &str = "sqlite under `dwell run`";
const SERVED: &str = "served directory, clients killed";
const MOUNT: &str = "NFS mount";
const REGIONS: &str = "memory regions";
const STEPS: f64 = 5.0;

/// Looks at a process, evenly over its time.
const LOOKS: usize = 40;
const BLOCK: usize = 4096;
/// A file that is read, in bytes.
const FILE_BYTES: usize = 4 << 20;
/// Files of the NFS mount in a cycle, and reads in the other cycles.
const MADE: usize = 8;
const READS: usize = 32;
/// A client that is killed lives so long.
const LIFE: Duration = Duration::from_millis(5);

/// What one job returns: the inner error is why it cannot be done here.
type Soaked = Result<Result<Soak, String>>;

/// T1.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    type Job = fn(&mut Lab, Duration, &mut Progress<'_>) -> Soaked;
    let jobs: [(&str, Job); 5] =
        [(FILES, files), (PROGRAM, program), (SERVED, served), (MOUNT, mount), (REGIONS, regions)];
    let span = Duration::from_secs_f64(FULL_ROW_S * lab.effort);
    for (at, (name, job)) in jobs.into_iter().enumerate() {
        let cases = ["memory", "descriptors", "latency"].map(|of| format!("{name}: {of}"));
        if !lab.wants(result, &cases) {
            continue;
        }
        let mut shown = |_: &str, share: f64| progress(name, (at as f64 + share) / STEPS);
        shown(name, 0.0);
        match job(lab, span, &mut shown).with_context(|| name.to_owned())? {
            Ok(soak) => soak.enter(result, &cases)?,
            Err(why) => skip(result, &cases, &why)?,
        }
        lab.keep(result)?;
    }
    Ok(None)
}

/// What a look at a process found.
#[derive(Clone, Copy)]
struct Look {
    memory_bytes: f64,
    descriptors: f64,
    /// Median time of the cycles since the last look.
    cycle_ns: f64,
}

/// All looks at a process.
struct Soak {
    looks: Vec<Look>,
    cycles: u64,
    span: Duration,
}

impl Soak {
    /// Lets a process work for `span`, in cycles.
    fn of(
        process: u32,
        span: Duration,
        progress: &mut Progress<'_>,
        mut cycle: impl FnMut() -> Result<()>,
    ) -> Result<Soak> {
        let (began, mut looks, mut cycles) = (Instant::now(), Vec::with_capacity(LOOKS), 0);
        for at in 1..=LOOKS {
            let mut took = Vec::new();
            while took.is_empty() || began.elapsed() < span.mul_f64(at as f64 / LOOKS as f64) {
                let start = clock::now();
                cycle()?;
                took.push(clock::now() - start);
            }
            took.sort_unstable();
            cycles += took.len() as u64;
            looks.push(Look {
                memory_bytes: memory_bytes(process)? as f64,
                descriptors: descriptors(process)? as f64,
                cycle_ns: took[took.len() / 2] as f64,
            });
            progress("", at as f64 / LOOKS as f64);
        }
        Ok(Soak { looks, cycles, span: began.elapsed() })
    }

    fn enter(&self, result: &mut FigureResult, cases: &[String; 3]) -> Result<()> {
        let quarter = self.looks.len() / 4;
        let (early, late) = (&self.looks[quarter..2 * quarter], &self.looks[3 * quarter..]);
        let most = |looks: &[Look], of: fn(&Look) -> f64| looks.iter().map(of).fold(0.0, f64::max);
        let growth = |of: fn(&Look) -> f64| {
            Paired::of(late.iter().zip(early).map(|(late, early)| (of(late), of(early))))
        };
        let [memory, descriptors, latency] = cases;
        let bytes: fn(&Look) -> f64 = |look| look.memory_bytes;
        let mib = |looks| most(looks, bytes) / f64::from(1 << 20);
        let remark = format!(
            "{:.1} MiB at most, then {:.1} MiB; {} cycles in {}",
            mib(early),
            mib(late),
            self.cycles,
            units::time_ns(self.span.as_nanos() as f64)
        );
        put(result, memory, growth(bytes), Some(remark))?;
        let open: fn(&Look) -> f64 = |look| look.descriptors;
        let (before, after) = (most(early, open), most(late, open));
        let remark = format!("{before} at most, then {after}");
        put(result, descriptors, Some(Measured::exact(after - before)), Some(remark))?;
        put(result, latency, growth(|look| look.cycle_ns), None)
    }
}

/// Memory that belongs to a process alone or that it shares without a file.
fn memory_bytes(process: u32) -> Result<u64> {
    let place = format!("/proc/{process}/status");
    let text = fs::read_to_string(&place).with_context(|| place.clone())?;
    let kib = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix(" kB")?.parse::<u64>().ok()
    };
    let sum = ["RssAnon:", "RssShmem:", "VmSwap:"].map(kib).into_iter().flatten().sum::<u64>();
    ensure!(sum > 0, "{place} says nothing of memory");
    Ok(sum << 10)
}

fn descriptors(process: u32) -> Result<usize> {
    let place = format!("/proc/{process}/fd");
    Ok(fs::read_dir(&place).context(place)?.count())
}

/// The file that most cycles read.
fn with_data(directory: &Path) -> Result<PathBuf> {
    let path = directory.join(DATA);
    fs::write(&path, &half_noise(FILE_BYTES)[..]).context("writing a file to read")?;
    Ok(path)
}

/// A thread that is new in each cycle opens a file by the default policy, reads a block and closes
/// it, again and again.
fn files(lab: &mut Lab, span: Duration, progress: &mut Progress<'_>) -> Soaked {
    let place = match lab.place(Kind::Loop, FileSystemKind::Ext4)? {
        Ok(place) => place,
        Err(why) => return Ok(Err(why)),
    };
    let path = with_data(place.path())?;
    let reads = || -> Result<()> {
        for at in 0..READS {
            let mut block = vec![0; BLOCK];
            dwell::open(&path)?.read_at(&mut block, (at * BLOCK) as u64)?;
        }
        Ok(())
    };
    let cycle = || std::thread::scope(|scope| scope.spawn(reads).join().expect("it only reads"));
    Soak::of(std::process::id(), span, progress, cycle).map(Ok)
}

/// A database's shell, killed and reaped when dropped.
struct Shell {
    child: Child,
    asks: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Shell {
    fn start(mut command: Command) -> Result<Shell> {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().context("starting sqlite3")?;
        let asks = child.stdin.take().context("its standard input")?;
        let answers = BufReader::new(child.stdout.take().context("its standard output")?);
        Ok(Shell { child, asks, answers })
    }

    /// Has statements carried out, to the end.
    fn ask(&mut self, statements: &str) -> Result<()> {
        const DONE: &str = "all-done";
        writeln!(self.asks, "{statements} SELECT '{DONE}';").context("asking sqlite3")?;
        let mut line = String::new();
        while line.trim_end() != DONE {
            line.clear();
            ensure!(self.answers.read_line(&mut line)? > 0, "sqlite3 ended");
        }
        Ok(())
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Commits of a database that stays as long as it is.
fn program(lab: &mut Lab, span: Duration, progress: &mut Progress<'_>) -> Soaked {
    let place = match lab.place(Kind::Loop, FileSystemKind::Ext4)? {
        Ok(place) => place,
        Err(why) => return Ok(Err(why)),
    };
    let wrapping = match Wrapping::make(lab)? {
        Ok(wrapping) => wrapping,
        Err(why) => return Ok(Err(why)),
    };
    if let Err(why) = runs("sqlite3", "--version") {
        return Ok(Err(why));
    }
    let mut command = wrapped(&wrapping, &[]);
    command.args(["sqlite3", "-batch"]).arg(place.path().join("database"));
    let mut shell = Shell::start(command)?;
    shell.ask("PRAGMA cache_size = 16; CREATE TABLE t (k INTEGER PRIMARY KEY, v BLOB);")?;
    let put = "INSERT OR REPLACE INTO t VALUES (abs(random()) % 1000, randomblob(500));";
    let statements = format!("BEGIN; {} COMMIT; SELECT count(*) FROM t;", put.repeat(8));
    Soak::of(shell.child.id(), span, progress, || shell.ask(&statements)).map(Ok)
}

/// A command by `dwell run` that knows what its own runs have learned.
fn wrapped(wrapping: &Wrapping, options: &[&str]) -> Command {
    let mut command = Command::new(wrapping.dwell());
    command.args(["run", "--policy", POLICY, "--quiet"]).args(options).arg("--");
    command.envs(wrapping.unprobed());
    command
}

/// A server in this process. Its clients read by channels; every other one is killed amid that.
fn served(lab: &mut Lab, span: Duration, progress: &mut Progress<'_>) -> Soaked {
    let wrapping = match Wrapping::make(lab)? {
        Ok(wrapping) => wrapping,
        Err(why) => return Ok(Err(why)),
    };
    let backing = match Directory::new(Path::new("/dev/shm")) {
        Ok(backing) => backing,
        Err(why) => return Ok(Err(why.to_string())),
    };
    let options = daemon::Options { monitor: Some(lab.monitor.clone()), ..Default::default() };
    let stage = match Stage::passed_through(backing.path(), false, options)? {
        Ok(stage) => stage,
        Err(why) => return Ok(Err(why)),
    };
    with_data(stage.backing())?;
    let path = stage.mount().join(DATA);
    let mut clients = 0;
    let cycle = || -> Result<()> {
        let mut block = [0; BLOCK];
        for _ in 0..READS {
            File::open(&path)?.read_exact(&mut block)?;
        }
        let mut command = wrapped(&wrapping, &["--channels"]);
        command.args(["dd", "of=/dev/null", "bs=4k", "status=none"]);
        let mut client = command.arg(format!("if={}", path.display())).spawn()?;
        clients += 1;
        if clients % 2 == 0 {
            std::thread::sleep(LIFE);
            // It may have come to its end before.
            let _ = client.kill();
            client.wait()?;
        } else {
            ensure!(client.wait()?.success(), "a client failed");
        }
        Ok(())
    };
    Soak::of(std::process::id(), span, progress, cycle).map(Ok)
}

/// A client in this process, whose mount the cycles use: files made, listed, read and removed.
fn mount(_: &mut Lab, span: Duration, progress: &mut Progress<'_>) -> Soaked {
    let directory = tempfile::tempdir_in("/dev/shm").context("a directory in memory")?;
    let (exported, at) = (directory.path().join("export"), directory.path().join("at"));
    fs::create_dir(&exported)?;
    fs::create_dir(&at)?;
    let measured =
        beside_server_of(&[Export::directory(&exported)], progress, |server, progress| {
            let url = server.address(&exported.display().to_string(), "&hard").parse()?;
            let mounted = match Mounted::start(&url, &at) {
                Ok(mounted) => mounted,
                Err(why) => return Ok(Err(why.to_string())),
            };
            let soak = Soak::of(std::process::id(), span, progress, || made_and_removed(&at));
            fuse::unmount(&at, soak.is_err())?;
            mounted.wait()?;
            soak.map(Ok)
        })?;
    Ok(measured.unwrap_or_else(|why| Err(why.to_string())))
}

fn made_and_removed(at: &Path) -> Result<()> {
    let (directory, data) = (at.join("files"), [0x5a; BLOCK]);
    fs::create_dir(&directory)?;
    for number in 0..MADE {
        fs::write(directory.join(number.to_string()), data)?;
    }
    for entry in fs::read_dir(&directory)? {
        ensure!(fs::read(entry?.path())? == data, "a file has other bytes");
    }
    Ok(fs::remove_dir_all(&directory)?)
}

/// A file becomes memory, an eighth of it at a time; after some faults the region goes.
fn regions(lab: &mut Lab, span: Duration, progress: &mut Progress<'_>) -> Soaked {
    let place = match lab.place(Kind::Loop, FileSystemKind::Ext4)? {
        Ok(place) => place,
        Err(why) => return Ok(Err(why)),
    };
    if let Err(why) = dwell_bench::pager::regions() {
        return Ok(Err(why));
    }
    let path = with_data(place.path())?;
    let mut dice = SplitMix(7);
    let cycle = || -> Result<()> {
        let region = Region::open(dwell::open(&path)?, &Paging::new(FILE_BYTES / 8))?;
        for _ in 0..4 * READS {
            let at = dice.below(region.len());
            // SAFETY: within the region, which lives, and which nobody writes.
            std::hint::black_box(unsafe { region.as_ptr().add(at).read_volatile() });
        }
        Ok(region.close()?)
    };
    Soak::of(std::process::id(), span, progress, cycle).map(Ok)
}
