// SPDX-License-Identifier: MIT OR Apache-2.0
//! D1, D2, D3, D6: files through channels, against the kernel's ways to the same backing files.
//!
//! The controller runs in this process, so the CPU time of a round is that of both sides.
#![allow(unsafe_code)]

use std::fs::File as Plain;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dwell::buffer::Aligned;
use dwell::queue::{Action, Io, Queue};
use dwell::source::Source;
use dwell::{File, Options, Route, arch, clock, mapping};
use dwell_channel::client::{self, ChannelBuffer, ChannelQueue, Served, Shape};
use dwell_channel::controller::{self, Controller};
use dwell_channel::fs::{Channels, Options as Serving, Server};

use super::lab::{put, skip, skip_all};
use super::{Lab, Progress};
use crate::figure::{FigureResult, Measured};
use crate::stand::Kind;
use crate::stats::{Middle, Paired, SplitMix};
use crate::workload::spec::FileSystemKind;

const ROUND_TRIP: &str = "cross-core round trip of a cache line";
const WAYS: [(&str, Action); 2] = [("read", Action::Read), ("write", Action::Write)];
const DEPTH: u32 = 64;
/// Requests between two readings of the clock.
const CHUNK: u32 = 256;

/// A served directory, there as long as this.
struct Stage {
    _server: Server,
    backing: PathBuf,
    mount: tempfile::TempDir,
    _directory: Option<tempfile::TempDir>,
    bytes: u64,
}

impl Stage {
    /// Over a file of `bytes` bytes in `backing`, or on a tmpfs; or why there can be none here.
    fn make(backing: Option<&Path>, bytes: u64) -> Result<Result<Stage, String>> {
        let own = match backing {
            Some(_) => None,
            None => Some(tempfile::tempdir_in("/dev/shm").context("a directory in /dev/shm")?),
        };
        let backing = match (&own, backing) {
            (Some(own), _) => own.path().to_owned(),
            (None, Some(backing)) => backing.to_owned(),
            (None, None) => unreachable!("a directory of its own was made above"),
        };
        std::fs::write(backing.join("data"), &crate::fixture::half_noise(bytes as usize)[..])
            .context("writing the file to serve")?;
        let mount = tempfile::tempdir().context("a directory to serve at")?;
        let controller = Controller::start(controller::Options::default())?;
        let (at, threads) = (mount.path().to_owned(), 2);
        let serving = Serving { backing: backing.clone(), mount: at, private: false, threads };
        Ok(match Server::start(&serving, Arc::new(controller), Channels::default) {
            Ok(_server) => Ok(Stage { _server, backing, mount, _directory: own, bytes }),
            Err(error) => Err(error.to_string()),
        })
    }

    fn kernel(&self, served: bool, direct: bool) -> Result<Contender> {
        let directory = if served { self.mount.path() } else { &self.backing };
        let flags = if direct { libc::O_DIRECT } else { 0 };
        let mut options = Plain::options();
        let file =
            options.read(true).write(true).custom_flags(flags).open(directory.join("data"))?;
        Ok(Contender::Kernel(file))
    }

    fn channel(&self, direct: bool) -> Result<Contender> {
        client::register();
        let policy = Arc::new(dwell::policy::Spin);
        let options = File::options().write(true).direct(direct).policy(policy);
        Ok(Contender::Blocking(options.open(self.mount.path().join("data"))?))
    }

    /// `in_channel`: buffers live there; else requests are copied.
    fn queue(&self, depth: u32, bytes: u32, in_channel: bool) -> Result<Contender> {
        let served = Served::open(&self.mount.path().join("data"), &Options::new().write(true))?;
        let arena_bytes = if in_channel { depth * bytes.max(64) } else { 0 };
        let queue = served.asynchronous(Shape { depth, slot_bytes: 4096, arena_bytes })?;
        let mut buffers = Vec::new();
        for _ in 0..depth {
            buffers.push(match in_channel {
                true => Memory::Channel(queue.buffer(bytes).context("no room in the channel")?),
                false => Memory::Own(Aligned::new(bytes as usize)),
            });
        }
        Ok(Contender::Many { served, queue, buffers })
    }
}

enum Memory {
    Channel(ChannelBuffer),
    Own(Aligned),
}

impl Memory {
    fn start(&mut self) -> *mut u8 {
        match self {
            Memory::Channel(buffer) => buffer.as_mut_ptr(),
            Memory::Own(buffer) => buffer.as_mut_ptr(),
        }
    }
}

/// A way to the file.
enum Contender {
    Kernel(Plain),
    Blocking(File),
    Many { served: Served, queue: ChannelQueue, buffers: Vec<Memory> },
}

/// What is asked for.
#[derive(Clone, Copy)]
struct Job {
    action: Action,
    request_bytes: u32,
    file_bytes: u64,
}

impl Job {
    fn next(&self, dice: &mut SplitMix) -> u64 {
        let places = (self.file_bytes / u64::from(self.request_bytes)) as usize;
        dice.below(places) as u64 * u64::from(self.request_bytes)
    }
}

/// Nanoseconds of a request: on the clock, and of all CPUs.
#[derive(Clone, Copy)]
struct Sample {
    ns: f64,
    cpu_ns: f64,
}

impl Contender {
    fn round(&mut self, job: Job, span: Duration) -> Result<Sample> {
        let mut dice = SplitMix(7);
        self.chunk(job, &mut dice)?;
        let (began, cpu, mut requests) = (Instant::now(), clock::process_cpu(), 0);
        while began.elapsed() < span {
            self.chunk(job, &mut dice)?;
            requests += CHUNK;
        }
        let each = |ns: f64| ns / f64::from(requests.max(1));
        let ns = each(began.elapsed().as_nanos() as f64);
        Ok(Sample { ns, cpu_ns: each((clock::process_cpu() - cpu) as f64) })
    }

    fn chunk(&mut self, job: Job, dice: &mut SplitMix) -> Result<()> {
        let reads = job.action == Action::Read;
        let whole = job.request_bytes as usize;
        match self {
            Contender::Kernel(file) => {
                let mut buffer = Aligned::new(whole);
                for _ in 0..CHUNK {
                    let at = job.next(dice);
                    let done = match reads {
                        true => file.read_at(&mut buffer, at)?,
                        false => file.write_at(&buffer, at)?,
                    };
                    ensure!(done == whole, "{done} bytes of {whole}");
                }
            }
            Contender::Blocking(file) => {
                let mut buffer = Aligned::new(whole);
                for _ in 0..CHUNK {
                    let at = job.next(dice);
                    let done = match reads {
                        true => file.read_at(&mut buffer, at)?,
                        false => file.write_at(&buffer, at)?,
                    };
                    ensure!(done == whole, "{done} bytes of {whole}");
                }
            }
            Contender::Many { served, queue, buffers } => {
                let depth = buffers.len() as u32;
                let (mut sent, mut done, mut wrong) = (0, 0, 0);
                let mut free: Vec<u32> = (0..depth).collect();
                // Tickets number their places in their low bits; which buffer is there is kept here.
                let mut at_place = vec![0; 4096];
                while done < CHUNK {
                    while sent < CHUNK
                        && let Some(buffer) = free.pop()
                    {
                        let memory = buffers[buffer as usize].start();
                        let (target, at) = (served.target(), job.next(dice));
                        // SAFETY: the buffer is this request's until its completion is out, and outlives it.
                        let io =
                            unsafe { Io::plain(job.action, target, memory, job.request_bytes, at) };
                        let ticket = queue.submit(io, Route::Interrupt);
                        let ticket = ticket.map_err(|_| anyhow::anyhow!("no room in the queue"))?;
                        at_place[ticket.0 as usize & 4095] = buffer;
                        sent += 1;
                    }
                    queue.flush();
                    queue.poll(&mut |completion| {
                        done += 1;
                        wrong += u32::from(completion.result != whole as i32);
                        free.push(at_place[completion.ticket.0 as usize & 4095]);
                    });
                }
                ensure!(wrong == 0, "{wrong} requests failed");
            }
        }
        Ok(())
    }
}

/// Interleaved rounds of all contenders; the round trip is measured in each of them too.
fn rounds(
    lab: &Lab,
    result: &mut FigureResult,
    contenders: &mut [Contender],
    job: Job,
    progress: (&mut Progress<'_>, &str, f64),
) -> Result<Vec<Vec<Sample>>> {
    let (progress, what, share) = progress;
    let mut all: Vec<Vec<Sample>> = contenders.iter().map(|_| Vec::new()).collect();
    let mut trips = Vec::new();
    for _ in 0..lab.times(31) {
        progress(what, share);
        trips.push(round_trip_ns(lab.span(10)));
        for (contender, samples) in contenders.iter_mut().zip(&mut all) {
            samples.push(contender.round(job, lab.span(60))?);
        }
    }
    put(result, ROUND_TRIP, middle(trips.into_iter()), None)?;
    Ok(all)
}

fn middle(samples: impl Iterator<Item = f64>) -> Option<Measured> {
    Middle::of(samples).map(|Middle { value, low, high }| Measured { value, low, high })
}

fn ratio(ours: &[Sample], base: &[Sample], of: fn(&Sample) -> f64) -> Option<Paired> {
    Paired::of(ours.iter().zip(base).map(|(ours, base)| (of(ours), of(base))))
}

fn times(ours: &[Sample], base: &[Sample]) -> Option<String> {
    let of = |samples: &[Sample]| middle(samples.iter().map(|sample| sample.ns));
    let (ours, base) = (of(ours)?, of(base)?);
    Some(format!("{:.0} ns against {:.0} ns", ours.value, base.value))
}

fn file_bytes(lab: &Lab) -> u64 {
    lab.device_bytes.min(64 << 20)
}

/// D1.
pub fn latency(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let stage = match Stage::make(None, file_bytes(lab))? {
        Ok(stage) => stage,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    on_tmpfs(lab, result, &stage, (progress, 0.5), 1)?;
    for (place, kind, share) in
        [("ext4 on loop", Kind::Loop, 0.5), ("ext4 on zram", Kind::Zram, 0.75)]
    {
        let case = |way: &str| format!("{place}, direct {way}: channel ÷ kernel");
        let made = match lab.place(kind, FileSystemKind::Ext4)? {
            Ok(made) => made,
            Err(why) => {
                skip(result, &WAYS.map(|(way, _)| case(way)), &why)?;
                continue;
            }
        };
        let stage = match Stage::make(Some(made.path()), file_bytes(lab))? {
            Ok(stage) => stage,
            Err(why) => {
                skip(result, &WAYS.map(|(way, _)| case(way)), &why)?;
                continue;
            }
        };
        for (way, action) in WAYS {
            let job = Job { action, request_bytes: 4096, file_bytes: stage.bytes };
            let mut contenders = [stage.channel(true)?, stage.kernel(false, true)?];
            let all = rounds(lab, result, &mut contenders, job, (&mut *progress, place, share))?;
            let ratio = ratio(&all[0], &all[1], |sample| sample.ns);
            put(result, &case(way), ratio, times(&all[0], &all[1]))?;
        }
    }
    Ok(None)
}

/// D2.
pub fn throughput(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    match Stage::make(None, file_bytes(lab))? {
        Ok(stage) => on_tmpfs(lab, result, &stage, (progress, 1.0), DEPTH)?,
        Err(why) => skip_all(result, &why)?,
    }
    Ok(None)
}

/// Channel, bare tmpfs and the mount: times of a request at depth 1, else rates.
fn on_tmpfs(
    lab: &Lab,
    result: &mut FigureResult,
    stage: &Stage,
    (progress, all_of_it): (&mut Progress<'_>, f64),
    depth: u32,
) -> Result<()> {
    for (at, (way, action)) in WAYS.into_iter().enumerate() {
        let job = Job { action, request_bytes: 4096, file_bytes: stage.bytes };
        let ours = match depth {
            1 => stage.channel(false)?,
            depth => stage.queue(depth, 4096, true)?,
        };
        let mut contenders = [ours, stage.kernel(false, false)?, stage.kernel(true, false)?];
        let share = all_of_it * at as f64 / 2.0;
        let all = rounds(lab, result, &mut contenders, job, (&mut *progress, way, share))?;
        for (base, name) in [(1, "bare tmpfs"), (2, "the mount without it")] {
            let of: fn(&Sample) -> f64 = match depth {
                1 => |sample| sample.ns,
                _ => |sample| 1e9 / sample.ns,
            };
            let case = format!("tmpfs, {way}: channel ÷ {name}");
            put(result, &case, ratio(&all[0], &all[base], of), times(&all[0], &all[base]))?;
        }
    }
    Ok(())
}

/// D3.
pub fn asynchronous(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let stage = match Stage::make(None, file_bytes(lab))? {
        Ok(stage) => stage,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    for (at, (way, action)) in WAYS.into_iter().enumerate() {
        let job = Job { action, request_bytes: 512, file_bytes: stage.bytes };
        let mut contenders = [stage.queue(DEPTH, 512, true)?, stage.channel(false)?];
        let share = at as f64 / 2.0;
        let all = rounds(lab, result, &mut contenders, job, (&mut *progress, way, share))?;
        let (ours, base) = (&all[0], &all[1]);
        let case = format!("{way}: 64 in flight ÷ blocking calls");
        put(result, &case, ratio(ours, base, |sample| 1e9 / sample.ns), times(ours, base))?;
        let case = format!("{way}: 64 in flight ÷ blocking calls, per CPU second");
        put(result, &case, ratio(ours, base, |sample| 1e9 / sample.cpu_ns), None)?;
    }
    Ok(None)
}

/// D6.
pub fn bound(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let stage = match Stage::make(None, file_bytes(lab))? {
        Ok(stage) => stage,
        Err(why) => return skip_all(result, &why).map(|()| None),
    };
    let job = Job { action: Action::Read, request_bytes: 4096, file_bytes: stage.bytes };
    let mut ours = stage.queue(1, 4096, false)?;
    let (mut trips, mut copies, mut reads) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..lab.times(31) {
        progress("reads, round trips and copies", 0.0);
        trips.push(round_trip_ns(lab.span(10)));
        copies.push(foreign_copy_ns(lab.span(20)));
        reads.push(ours.round(job, lab.span(60))?.ns);
    }
    let floor = trips.iter().zip(&copies).map(|(trip, copy)| trip + copy);
    let ratio = Paired::of(reads.iter().copied().zip(floor));
    put(result, "that ÷ (round trip + copy)", ratio, None)?;
    put(result, ROUND_TRIP, middle(trips.into_iter()), None)?;
    let case = "one copy of 4 KiB that the other core wrote last";
    put(result, case, middle(copies.into_iter()), None)?;
    put(result, "4 KiB read, one at a time, copied out", middle(reads.into_iter()), None)?;
    Ok(None)
}

/// A word on cache lines of its own.
#[repr(align(128))]
struct Line(AtomicU32);

/// Two threads that take turns; the second does `answer` in each of its own.
struct Turns {
    ours: Line,
    theirs: Line,
    over: AtomicBool,
}

impl Turns {
    /// What `ours` measured in each turn, in nanoseconds, on average, for so long.
    fn play(span: Duration, answer: impl Fn() + Sync, mut ours: impl FnMut() -> u64) -> f64 {
        let turns = Turns {
            ours: Line(AtomicU32::new(0)),
            theirs: Line(AtomicU32::new(0)),
            over: AtomicBool::new(false),
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut turn = 0;
                while !turns.over.load(Ordering::Relaxed) {
                    if turns.ours.0.load(Ordering::Acquire) == turn {
                        arch::relax();
                        continue;
                    }
                    turn += 1;
                    answer();
                    turns.theirs.0.store(turn, Ordering::Release);
                }
            });
            let (until, mut turn, mut sum_ns) = (Instant::now() + span, 0u32, 0);
            while turn == 0 || Instant::now() < until {
                for _ in 0..100 {
                    turn += 1;
                    turns.ours.0.store(turn, Ordering::Release);
                    while turns.theirs.0.load(Ordering::Acquire) != turn {
                        arch::relax();
                    }
                    sum_ns += ours();
                }
            }
            turns.over.store(true, Ordering::Relaxed);
            sum_ns as f64 / f64::from(turn)
        })
    }
}

/// A cache line to another core and back.
fn round_trip_ns(span: Duration) -> f64 {
    let began = Instant::now();
    let mut turns = 0u64;
    Turns::play(
        span,
        || {},
        || {
            turns += 1;
            0
        },
    );
    began.elapsed().as_nanos() as f64 / turns as f64
}

/// A copy of 4 KiB that another core wrote last.
fn foreign_copy_ns(span: Duration) -> f64 {
    struct Room(*mut u8);
    // SAFETY: the memory is used by turns, each of which the other thread sees end.
    unsafe impl Sync for Room {}
    impl Room {
        fn start(&self) -> *mut u8 {
            self.0
        }
    }
    let (mut shared, mut own) = (Aligned::new(4096), Aligned::new(4096));
    let source = Aligned::new(4096);
    let room = Room(shared.as_mut_ptr());
    let room = &room;
    // SAFETY: both are 4096 bytes; the turns keep the threads apart.
    let answer = move || unsafe { mapping::copy(source.as_ptr(), room.start(), 4096) };
    Turns::play(span, answer, || {
        let began = clock::now();
        // SAFETY: as above.
        unsafe { mapping::copy(room.start(), own.as_mut_ptr(), 4096) };
        clock::now() - began
    })
}
