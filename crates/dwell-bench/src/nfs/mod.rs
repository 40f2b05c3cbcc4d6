// SPDX-License-Identifier: MIT OR Apache-2.0
//! One file moved to or from an NFS server: by one thread with many requests outstanding, by
//! threads with one each, by bare calls, and by other clients.

pub mod files;
mod one_thread;
mod sync;
mod threads;
mod wire;

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};
use dwell_nfs::engine::{Transport, WindowKind};
use dwell_nfs::url::{Connections, MOST_CONNECTIONS, Url};

use crate::contender::is_peer;
use crate::machine::Machine;
use crate::program::{Order, Peers, Program};
use crate::result::{
    Configured, Device, Direction, Load, Pattern, Requests, RoundResult, Row, Run, Setting, Work,
};

/// Name of the baseline's rows: blocking threads, as many as the window, with a connection each.
pub const THREADS: &str = "threads";
/// Name of the rows of as many blocking threads on one connection.
pub const SHARED: &str = "threads-shared";
/// Name of the rows of one thread with so many requests outstanding.
pub const ASYNC: &str = "async";
/// Name of the rows of one thread with as many connections as requests outstanding.
pub const SPREAD: &str = "async-spread";
/// Name of the rows of one thread that finds its window and its connections.
pub const DYNAMIC: &str = "async-auto";

/// Name of the rows of one thread that does nothing but the calls of such a transfer, over TCP.
pub const SYNC: &str = "sync";

/// One transfer of a file.
#[derive(Clone, Debug)]
pub struct Job {
    /// The file.
    pub url: Url,
    /// Length of one request, in bytes.
    pub size_bytes: u32,
    /// Length of the file, in bytes.
    pub bytes: u64,
    /// Which way.
    pub direction: Direction,
}

impl Job {
    /// How many requests it takes.
    pub fn requests(&self) -> u64 {
        self.bytes.div_ceil(u64::from(self.size_bytes))
    }

    /// Does it once, by a contender that is part of this crate.
    ///
    /// # Errors
    /// What the server or the system says; an unknown contender.
    pub fn run(&self, contender: &str, window: u32) -> Result<RoundResult> {
        let cost = match contender {
            THREADS => threads::run(self, window, false),
            SHARED => threads::run(self, window, true),
            ASYNC => one_thread::run(self, WindowKind::Fixed(window)),
            SPREAD => {
                let connections = Connections::Fixed(window.min(64));
                let url = Url { connections, ..self.url.clone() };
                one_thread::run(&Job { url, ..self.clone() }, WindowKind::Fixed(window))
            }
            DYNAMIC => {
                let connections = Connections::Found { most: MOST_CONNECTIONS };
                let url = Url { connections, ..self.url.clone() };
                let found = WindowKind::Dynamic { most: window };
                one_thread::run(&Job { url, ..self.clone() }, found)
            }
            SYNC => sync::run(self, window),
            other => {
                bail!(
                    "there is no contender {other}: known are {THREADS}, {SHARED}, {ASYNC}, \
                     {SPREAD}, {DYNAMIC}, {SYNC}"
                )
            }
        };
        let cost = cost.with_context(|| format!("{contender}, window {window}"))?;
        Ok(RoundResult { bytes: self.bytes, requests: self.requests(), ..cost.round() })
    }

    /// Bytes of the file that it would write over. A file that is to be read and is long enough is
    /// left as it is.
    ///
    /// # Errors
    /// What the server says.
    pub fn overwrites(&self) -> Result<u64> {
        let held = one_thread::held(&self.url)?.unwrap_or(0);
        Ok(if self.is_readable(held) { 0 } else { held })
    }

    fn is_readable(&self, held: u64) -> bool {
        self.direction == Direction::Read && held >= self.bytes
    }

    /// Makes the file that is to be read, unless it is there.
    ///
    /// # Errors
    /// What the server says.
    pub fn prepare(&self) -> Result<()> {
        if one_thread::held(&self.url)?.is_some_and(|held| self.is_readable(held)) {
            return Ok(());
        }
        let writing = Job { direction: Direction::Write, ..self.clone() };
        one_thread::run(&writing, WindowKind::Fixed(8)).map(|_| ())
    }
}

/// What to measure.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The file and the way; its window does not matter.
    pub job: Job,
    /// Contenders with their windows, each measured once a round.
    pub entries: Vec<(String, u32)>,
    /// Interleaved rounds.
    pub rounds: usize,
    /// The server, in one line.
    pub server: String,
    /// Where the other clients are that have entries, [`PREFIX`](crate::program::PREFIX) before
    /// their names.
    pub peers: Option<Peers>,
    /// Set to end early.
    pub stop: std::sync::Arc<std::sync::atomic::AtomicBool>,
}

/// Other clients, each in a program of its own that is started with its first transfer.
#[derive(Default)]
struct Others(BTreeMap<String, Program>);

impl Others {
    fn run(&mut self, plan: &Plan, name: &str, window: u32) -> Result<RoundResult> {
        let job = &plan.job;
        if !self.0.contains_key(name) {
            let peers =
                plan.peers.as_ref().with_context(|| format!("{name}: peers are missing"))?;
            let write = job.direction == Direction::Write;
            let program = Program::on_server(name, &job.url, job.bytes, write, peers);
            self.0.insert(name.to_owned(), program);
        }
        let program = self.0.get_mut(name).context("it was just put there")?;
        let (pattern, direction) = (Pattern::Seq, job.direction);
        let requests = Requests { pattern, direction, depth: window };
        let size_bytes = u64::from(job.size_bytes);
        let order = Order { span_ns: 0, size_bytes, requests, seed: 0, samples: false };
        let answer = program.measure(&order).with_context(|| format!("window {window}"))?;
        Ok(answer.round)
    }
}

/// Measures in interleaved rounds, every other one in reverse order.
///
/// # Errors
/// What the server or the system says.
pub fn measure(
    plan: &Plan,
    command: Vec<String>,
    progress: &mut dyn FnMut(&str, f64),
) -> Result<Run> {
    let transport = match plan.job.url.transport {
        Transport::Stream => "TCP",
        Transport::Datagram => "UDP",
    };
    let name = format!("nfs-{}", transport.to_lowercase());
    let (class, size_threshold_bytes) = (None, None);
    let device = Device {
        name: name.clone(),
        description: plan.server.clone(),
        class,
        size_threshold_bytes,
    };
    let mut run = Run::new(Machine::gather(), command, vec![device]);
    for (policy, window) in &plan.entries {
        let requests =
            Requests { pattern: Pattern::Seq, direction: plan.job.direction, depth: *window };
        let work = Work::Requests(requests);
        let setting = Setting { device: name.clone(), load: Load::Idle, scheduler: None, work };
        let (size_bytes, rounds) = (u64::from(plan.job.size_bytes), Vec::new());
        run.rows.push(Row { setting, size_bytes, policy: policy.clone(), rounds, emulated: None });
    }
    for (name, settings) in [
        (THREADS, "blocking threads, as many as the window, each with a connection of its own"),
        (SHARED, "blocking threads, as many as the window, on one connection"),
        (ASYNC, "one thread and one connection; the window is fixed"),
        (SPREAD, "one thread with as many connections as requests outstanding"),
        (DYNAMIC, "one thread; window (bounded by the depth) and connections are found"),
        (SYNC, "one thread, one connection, nothing but its calls: the least that a window costs"),
    ] {
        if plan.entries.iter().any(|(known, _)| known == name) {
            let version = env!("CARGO_PKG_VERSION").to_owned();
            let settings = vec![settings.to_owned()];
            run.tell(Some(Configured { name: name.into(), version, settings }));
        }
    }
    if plan.job.direction == Direction::Read {
        plan.job.prepare().context("writing the file that is to be read")?;
    }
    let total = plan.rounds * plan.entries.len();
    let mut others = Others::default();
    for round in 0..plan.rounds {
        let mut results = Vec::new();
        let mut order: Vec<usize> = (0..plan.entries.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for (step, at) in order.into_iter().enumerate() {
            if plan.stop.load(std::sync::atomic::Ordering::Relaxed) {
                if round == 0 {
                    return Err(crate::keep::Interrupted.into());
                }
                run.ended = Some("interrupted".into());
                run.conclude_each(THREADS);
                return Ok(run);
            }
            let (policy, window) = &plan.entries[at];
            let share = (round * plan.entries.len() + step) as f64 / total as f64;
            progress(&format!("{policy}, window {window}"), share);
            let measured = match is_peer(policy) {
                true => others.run(plan, policy, *window)?,
                false => plan.job.run(policy, *window)?,
            };
            results.push((at, measured));
        }
        if round == 0 {
            others.0.values().for_each(|program| run.tell(program.configured()));
        }
        for (at, result) in results {
            run.rows[at].rounds.push(result);
        }
    }
    run.conclude_each(THREADS);
    Ok(run)
}
