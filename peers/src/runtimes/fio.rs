// SPDX-License-Identifier: MIT OR Apache-2.0
//! fio, run once for each batch: blocking calls in threads, or one thread over io_uring. The time
//! is that of its job alone, by its own account, to the millisecond.

use std::collections::BTreeMap;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use dwell_bench::parent::die_with_parent;
use dwell_bench::program::Answer;
use dwell_bench::result::{Direction, Pattern, RoundResult};
use serde::Deserialize;

use super::Peer;
use crate::work::{Subject, Work};

/// It counts in milliseconds, so it gets some.
const SHORTEST: Duration = Duration::from_millis(10);

struct Fio {
    engine: &'static str,
    version: String,
}

/// One thread for each request in flight, in blocking calls.
pub fn psync(_subject: &Subject) -> Result<Box<dyn Peer>> {
    make("psync")
}

/// One thread over a ring.
pub fn io_uring(_subject: &Subject) -> Result<Box<dyn Peer>> {
    make("io_uring")
}

fn make(engine: &'static str) -> Result<Box<dyn Peer>> {
    let said = Command::new("fio").arg("--version").output();
    let said = said.context("cannot start fio: install it, or leave it out")?;
    let version = String::from_utf8_lossy(&said.stdout).trim().trim_start_matches("fio-").into();
    Ok(Box::new(Fio { engine, version }))
}

impl Peer for Fio {
    fn version(&self) -> Result<String> {
        Ok(self.version.clone())
    }

    fn settings(&self) -> Vec<String> {
        let depth = match self.engine {
            "psync" => "numjobs: one thread for each request in flight",
            _ => "iodepth: the queue depth, otherwise the engine's defaults",
        };
        vec![
            format!("ioengine={} thread time_based norandommap", self.engine),
            depth.into(),
            "its own account, in milliseconds; its switches are of both kinds together".into(),
        ]
    }

    fn serve(&mut self, work: Work) -> Result<Answer> {
        let mut command = Command::new("fio");
        command.args(arguments(self.engine, &work)?).stdin(Stdio::null());
        die_with_parent(&mut command);
        let output = command.output().context("cannot start fio")?;
        let text = String::from_utf8_lossy(&output.stdout);
        let complaint = String::from_utf8_lossy(&output.stderr);
        let complaint = complaint.lines().rfind(|line| !line.is_empty()).unwrap_or_default();
        ensure!(output.status.success(), "fio: {}: {complaint}", output.status);
        let json = text.find('{').map_or("", |start| &text[start..]);
        let report: Report = serde_json::from_str(json).context("fio's report")?;
        let round = report.round(work.writes())?;
        let size_bytes = work.order.size_bytes;
        ensure!(round.bytes == round.requests * size_bytes, "fio: not all requests were whole");
        Ok(Answer { round, samples_ns: None })
    }
}

fn arguments(engine: &str, work: &Work) -> Result<Vec<String>> {
    let (order, subject) = (&work.order, &work.subject);
    let path = subject.path.to_str().context("fio takes no path that is not UTF-8")?;
    let rw = match (order.requests.pattern, order.requests.direction) {
        (Pattern::Rand, Direction::Read) => "randread",
        (Pattern::Rand, Direction::Write) => "randwrite",
        (Pattern::Seq, Direction::Read) => "read",
        (Pattern::Seq, Direction::Write) => "write",
    };
    let depth = u64::from(order.requests.depth);
    let span_ms = Duration::from_nanos(order.span_ns).max(SHORTEST).as_millis();
    let mut arguments = vec![
        "--name=peer".into(),
        format!("--filename={}", path.replace(':', "\\:")),
        format!("--ioengine={engine}"),
        format!("--rw={rw}"),
        format!("--bs={}", order.size_bytes),
        format!("--direct={}", u8::from(subject.direct)),
        format!("--runtime={span_ms}ms"),
        // It does not like a seed of 0.
        format!("--randseed={}", (order.seed >> 1).max(1)),
        "--thread".into(),
        "--time_based".into(),
        "--norandommap".into(),
        "--group_reporting".into(),
        "--lat_percentiles=1".into(),
        "--percentile_list=50:99:99.9".into(),
        "--output-format=json".into(),
    ];
    // In threads, each has a stretch of its own to read in sequence.
    let mut stretch = subject.bytes / order.size_bytes * order.size_bytes;
    if engine == "psync" {
        arguments.push(format!("--numjobs={depth}"));
        let own = subject.bytes / depth / order.size_bytes * order.size_bytes;
        if order.requests.pattern == Pattern::Seq && own > 0 {
            stretch = own;
            arguments.push(format!("--offset_increment={own}"));
        }
    } else {
        arguments.push(format!("--iodepth={depth}"));
    }
    arguments.push(format!("--size={stretch}"));
    if order.requests.direction == Direction::Read {
        arguments.push("--readonly".into());
    }
    Ok(arguments)
}

#[derive(Deserialize)]
struct Report {
    jobs: Vec<Job>,
}

#[derive(Deserialize)]
struct Job {
    error: i32,
    read: Stream,
    write: Stream,
    /// Milliseconds, of all threads together.
    job_runtime: u64,
    /// Percent of `job_runtime`.
    usr_cpu: f64,
    sys_cpu: f64,
    ctx: u64,
}

#[derive(Deserialize)]
struct Stream {
    io_bytes: u64,
    total_ios: u64,
    /// Milliseconds.
    runtime: u64,
    lat_ns: Latency,
}

#[derive(Deserialize)]
struct Latency {
    mean: f64,
    #[serde(default)]
    percentile: BTreeMap<String, u64>,
}

impl Report {
    fn round(&self, writes: bool) -> Result<RoundResult> {
        let [job] = &self.jobs[..] else { anyhow::bail!("fio reported {} jobs", self.jobs.len()) };
        ensure!(job.error == 0, "fio: error {}", job.error);
        let stream = if writes { &job.write } else { &job.read };
        let percentile = |name: &str| stream.lat_ns.percentile.get(name).copied().unwrap_or(0);
        let cpu_ns = |percent: f64| (percent / 100.0 * job.job_runtime as f64 * 1e6) as u64;
        Ok(RoundResult {
            bytes: stream.io_bytes,
            requests: stream.total_ios,
            wall_ns: stream.runtime * 1_000_000,
            p50_ns: percentile("50.000000"),
            p99_ns: percentile("99.000000"),
            p999_ns: percentile("99.900000"),
            mean_ns: stream.lat_ns.mean.round() as u64,
            voluntary_switches: job.ctx,
            user_ns: cpu_ns(job.usr_cpu),
            system_ns: cpu_ns(job.sys_cpu),
            ..RoundResult::default()
        })
    }
}
