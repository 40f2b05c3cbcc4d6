// SPDX-License-Identifier: MIT OR Apache-2.0
//! M4: five jobs with and without Dwell, in absolute numbers.

use std::os::unix::fs::FileExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use dwell::buffer::Aligned;
use dwell::clock;
use dwell_channel::client;
use dwell_channel::daemon::{self, Daemon};
use dwell_channel::fs::{Channels, Options as Serving, Server};

use super::lab::skip;
use super::nfs::{Scale, beside_server};
use super::pager::{self, HINTED, PLAIN, missing, race};
use super::programs::{fio_reads, runs};
use super::sampled::{THROUGHPUT, enter, learning, once_learned, step, width};
use super::wrapped::{POLICY, Wrapping};
use super::{Lab, Progress};
use crate::figure::{FigureResult, Side};
use dwell_bench::counters::Counters;
use dwell_bench::fixture::half_noise;
use dwell_bench::nfs::{DYNAMIC, Job, THREADS};
use dwell_bench::pager::{Program, Work, limits, regions};
use dwell_bench::pairs::{self, Parts, Sampled, Until};
use dwell_bench::result::{Direction, Load, RoundResult, Row, pair_by};
use dwell_bench::stand::Kind;
use dwell_bench::stats::SplitMix;
use dwell_bench::trial::{Number, Question};
use dwell_bench::workload::spec::FileSystemKind;

const FIO: &str = "fio as it is: reads of 4 KiB from a loop device";
const BESIDE: &str = "reads of 4 KiB from a loop device beside disk readers";
const SERVED: &str = "reads of 4 KiB from a directory in memory";
const GRAPH: &str = "page rank of a graph four times its memory";
const NFS: &str = "writes of 8 KiB to an NFS server";
const STEPS: usize = 5;

/// Places of the two sides among contenders.
const WITHOUT: usize = 0;
const OURS: usize = 2;
const READ_BYTES: usize = 4096;
const MISSES: &str = "last_level_misses";

/// M4.
pub fn measure(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Result<Option<String>> {
    let jobs = [fio, beside_readers, served, graph, nfs];
    for (case, job) in [FIO, BESIDE, SERVED, GRAPH, NFS].into_iter().zip(jobs) {
        if lab.wants(result, &[case]) {
            if let Err(why) = job(lab, result, progress)? {
                skip(result, &[case], &why)?;
            }
            lab.keep(result)?;
        }
    }
    Ok(None)
}

/// What a job returns: the inner error is why it cannot be done here.
type Measured = Result<Result<(), String>>;

/// The parts of both sides.
type Rounds = [Vec<RoundResult>; 2];

/// Samples what one side does in a part, and the other.
fn sample(
    until: Until,
    progress: &mut dyn FnMut(f64),
    mut part: impl FnMut(bool) -> Result<RoundResult>,
) -> Result<(Sampled, Rounds)> {
    let mut parts = Parts::new(1, until, |contender| {
        let round = part(contender == OURS)?;
        Ok((vec![round.requests_per_second()], round))
    });
    let sampled = pairs::sample(1, until, &mut parts, progress)?;
    let mut kept = std::mem::take(&mut parts.kept);
    Ok((sampled, [WITHOUT, OURS].map(|at| std::mem::take(&mut kept[at]))))
}

fn enter_both(
    result: &mut FigureResult,
    case: &str,
    (sampled, rounds): &(Sampled, Rounds),
    names: [&str; 2],
) -> Result<()> {
    enter(result, case, sampled, (OURS, WITHOUT, 0), None)?;
    let [without, ours] = rounds;
    result.beside(case, [Side::of(names[0], without), Side::of(names[1], ours)])
}

/// fio, untouched and under `dwell run`, which knows what its own runs have learned.
fn fio(lab: &mut Lab, result: &mut FigureResult, progress: &mut Progress<'_>) -> Measured {
    let place = match lab.place(Kind::Loop, FileSystemKind::Ext4)? {
        Ok(place) => place,
        Err(why) => return Ok(Err(why)),
    };
    if let Err(why) = runs("fio", "--version") {
        return Ok(Err(why));
    }
    let wrapping = match Wrapping::make(lab)? {
        Ok(wrapping) => wrapping,
        Err(why) => return Ok(Err(why)),
    };
    let words = fio_reads(lab, place.path())?;
    let run = |ours: bool| {
        let mut command =
            Command::new(if ours { wrapping.dwell() } else { words[0].clone().into() });
        if ours {
            command.args(["run", "--policy", POLICY, "--quiet", "--"]).arg(&words[0]);
            command.envs(wrapping.unprobed());
        }
        told(command.args(&words[1..]))
    };
    let (learn, until) = learning(lab.until(width(result, FIO, Load::Idle)));
    let mut step = step(progress, FIO, 0, STEPS);
    let sampled = lab.sample(result, &[FIO], || {
        let began = Instant::now();
        while began.elapsed() < learn {
            run(true)?;
        }
        sample(until, &mut |share| step.show(share), run).map(Ok)
    })?;
    if let Some(sampled) = sampled {
        enter_both(result, FIO, &sampled, ["blocking", "`dwell run`"])?;
    }
    Ok(Ok(()))
}

/// What fio tells of a run of one job that reads.
fn told(command: &mut Command) -> Result<RoundResult> {
    let output = command.stdin(Stdio::null()).output().context("fio cannot be run")?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "fio: {}: {said}", output.status);
    let text = String::from_utf8_lossy(&output.stdout);
    let json = text.find('{').map_or("", |start| &text[start..]);
    let told: serde_json::Value = serde_json::from_str(json).context("what fio printed")?;
    let number = |pointer: &str| {
        let number = told.pointer(pointer).and_then(serde_json::Value::as_f64);
        number.with_context(|| format!("fio printed no {pointer}"))
    };
    let latency = |percentile: &str| {
        number(&format!("/jobs/0/read/lat_ns/percentile/{percentile}")).map(|ns| ns as u64)
    };
    let cpu_ns =
        |of: &str| Ok::<_, anyhow::Error>(number(of)? * number("/jobs/0/job_runtime")? * 1e4);
    Ok(RoundResult {
        bytes: number("/jobs/0/read/io_bytes")? as u64,
        requests: number("/jobs/0/read/total_ios")? as u64,
        wall_ns: (number("/jobs/0/read/runtime")? * 1e6) as u64,
        p50_ns: latency("50.000000")?,
        p99_ns: latency("99.000000")?,
        user_ns: cpu_ns("/jobs/0/usr_cpu")? as u64,
        system_ns: cpu_ns("/jobs/0/sys_cpu")? as u64,
        ..RoundResult::default()
    })
}

/// A reader whose caches others use while it waits.
fn beside_readers(
    lab: &mut Lab,
    result: &mut FigureResult,
    progress: &mut Progress<'_>,
) -> Measured {
    let subject = match lab.subject(Kind::Loop)? {
        Ok(subject) => subject,
        Err(why) => return Ok(Err(why)),
    };
    let counted = Counters::open().is_ok_and(|counters| counters.names().contains(&MISSES));
    let numbers = [THROUGHPUT, Number::Counter(MISSES)];
    let (load, kind) = (Load::Readers, Kind::Loop);
    let question = lab.question((kind, &subject), &[POLICY], width(result, BESIDE, load));
    let question = Question {
        load,
        part: lab.part(kind, load),
        numbers: &numbers[..1 + usize::from(counted)],
        ..question
    };
    let question = once_learned(question);
    let mut step = step(progress, BESIDE, 1, STEPS);
    let asked = lab.sample(result, &[BESIDE], || lab.ask(&question, &lab.means(), &mut step))?;
    let Some(asked) = asked else { return Ok(Ok(())) };
    let misses = |row: &Row| row.median(|round| round.counters[MISSES] / round.requests as f64);
    let [without, ours] = [WITHOUT, OURS].map(|at| &asked.rows[at]);
    let remark = counted.then(|| {
        let (without, ours) = (misses(without), misses(ours));
        format!("misses of the last-level cache per read: {without:.1}, then {ours:.1}")
    });
    enter(result, BESIDE, &asked.sampled, (OURS, WITHOUT, 0), remark)?;
    let sides = [Side::of("blocking", &without.rounds), Side::of(POLICY, &ours.rounds)];
    result.beside(BESIDE, sides)?;
    Ok(Ok(()))
}

/// A file by `pread`, and through a channel to the daemon that serves it, whose CPU counts.
fn served(lab: &mut Lab, result: &mut FigureResult, progress: &mut Progress<'_>) -> Measured {
    let bytes = lab.device_bytes.min(64 << 20);
    let memory = tempfile::tempdir_in("/dev/shm").context("a directory in /dev/shm")?;
    let file = memory.path().join("data");
    std::fs::write(&file, &half_noise(bytes as usize)[..]).context("writing the file to serve")?;
    let mount = tempfile::tempdir().context("a directory to serve at")?;
    let serving = Serving {
        backing: memory.path().into(),
        mount: mount.path().into(),
        private: false,
        threads: 2,
        passthrough: false,
    };
    let daemon = Arc::new(Daemon::start(daemon::Options::default())?);
    let _server = match Server::start(&serving, daemon, Channels::default) {
        Ok(server) => server,
        Err(error) => return Ok(Err(error.to_string())),
    };
    client::register();
    let plain = std::fs::File::open(&file).context("the file")?;
    let ours = dwell::open(mount.path().join("data")).context("the served file")?;
    let (span, until) = (lab.span(60), lab.until(width(result, SERVED, Load::Idle)));
    let mut step = step(progress, SERVED, 2, STEPS);
    let sampled = lab.sample(result, &[SERVED], || {
        let part = |by_channel: bool| {
            // The thread that served the last part may spin for a moment still.
            std::thread::sleep(Duration::from_millis(2));
            match by_channel {
                true => reads(bytes, span, |buffer, at| Ok(ours.read_at(buffer, at)?)),
                false => reads(bytes, span, |buffer, at| Ok(plain.read_at(buffer, at)?)),
            }
        };
        sample(until, &mut |share| step.show(share), part).map(Ok)
    })?;
    if let Some(sampled) = sampled {
        enter_both(result, SERVED, &sampled, ["`pread`", "channel"])?;
    }
    Ok(Ok(()))
}

/// Random reads one at a time, as long as `span`; the CPU time is that of this process.
fn reads(
    bytes: u64,
    span: Duration,
    mut read: impl FnMut(&mut [u8], u64) -> Result<usize>,
) -> Result<RoundResult> {
    let (mut dice, mut buffer) = (SplitMix(7), Aligned::new(READ_BYTES));
    let places = (bytes / READ_BYTES as u64) as usize;
    let mut took = Vec::with_capacity(1 << 17);
    let (began, cpu) = (clock::now(), clock::process_cpu());
    let until = began + span.as_nanos() as u64;
    let mut now = began;
    while now < until {
        let at = dice.below(places) as u64 * READ_BYTES as u64;
        let done = read(&mut buffer, at)?;
        ensure!(done == READ_BYTES, "{done} bytes of {READ_BYTES} at byte {at}");
        let ended = clock::now();
        took.push(ended - now);
        now = ended;
    }
    let user_ns = clock::process_cpu() - cpu;
    took.sort_unstable();
    let share = |share: f64| took[((took.len() - 1) as f64 * share) as usize];
    Ok(RoundResult {
        bytes: took.len() as u64 * READ_BYTES as u64,
        requests: took.len() as u64,
        wall_ns: now - began,
        p50_ns: share(0.5),
        p99_ns: share(0.99),
        user_ns,
        ..RoundResult::default()
    })
}

/// A walk over a graph, by the best of the kernel's mappings and by a region.
fn graph(lab: &mut Lab, result: &mut FigureResult, progress: &mut Progress<'_>) -> Measured {
    const REGION: &str = "region-hints";
    if let Err(why) = regions() {
        return Ok(Err(why));
    }
    if limits().is_err() {
        return Ok(Err(missing()));
    }
    let test_file = match pager::graph(lab)? {
        Ok(test_file) => test_file,
        Err(why) => return Ok(Err(why)),
    };
    let mappings: Vec<&str> = PLAIN.into_iter().chain(HINTED).collect();
    let methods: Vec<&str> = [REGION].into_iter().chain(mappings).collect();
    let work = Work::Graph(Program::ALL[0]);
    let entry = pager::entry(lab, &test_file, work, &methods)?;
    let share = (3.0 / STEPS as f64, 4.0 / STEPS as f64);
    let run = race(lab, &test_file, vec![entry], 7, share, progress)?;
    let speed = RoundResult::operations_per_second;
    let mappings = run.rows.iter().filter(|row| row.policy != REGION);
    let best = mappings.max_by(|a, b| a.median(speed).total_cmp(&b.median(speed)));
    let ours = run.rows.iter().find(|row| row.policy == REGION);
    let (Some(best), Some(ours)) = (best, ours) else { return Ok(Err(missing())) };
    let ratio = pair_by(ours, best, speed).context("no round has both")?;
    result.measured(GRAPH, ratio)?;
    // One request is the whole walk.
    let whole =
        |round: &RoundResult| RoundResult { p50_ns: round.wall_ns, requests: 1, ..round.clone() };
    let side =
        |name: &str, row: &Row| Side::of(name, &row.rounds.iter().map(whole).collect::<Vec<_>>());
    let sides = [side(&format!("`{}`", best.policy), best), side("pager, with hints", ours)];
    result.beside(GRAPH, sides)?;
    Ok(Ok(()))
}

/// A file to a server by eight threads with a connection each, and by one thread.
fn nfs(lab: &mut Lab, result: &mut FigureResult, progress: &mut Progress<'_>) -> Measured {
    const SIZE_BYTES: u32 = 8192;
    const BLOCKING: (&str, u32) = (THREADS, 8);
    const ONE_THREAD: (&str, u32) = (DYNAMIC, 32);
    let (scale, until) = (Scale::of(lab, 1), lab.until(width(result, NFS, Load::Idle)));
    let share = 4.0 / STEPS as f64;
    let measured = beside_server(progress, |server, progress| {
        let url = server.address("/mem/file", "&proto=tcp").parse()?;
        let bytes = scale.bytes;
        let job = Job { url, size_bytes: SIZE_BYTES, bytes, direction: Direction::Write };
        let part = |ours: bool| {
            let (name, window) = if ours { ONE_THREAD } else { BLOCKING };
            job.run(name, window)
        };
        let shown = &mut |done: f64| progress(NFS, share + done / STEPS as f64);
        Ok(sample(until, shown, part))
    })?;
    match measured {
        Err(why) => Ok(Err(why.to_string())),
        Ok(Err(why)) if why.is::<pairs::Restless>() => {
            result.postpone(NFS, &why.to_string()).map(Ok)
        }
        Ok(sampled) => {
            let names = ["eight threads, a request each", "one thread, up to 32 requests"];
            enter_both(result, NFS, &sampled?, names).map(Ok)
        }
    }
}
