// SPDX-License-Identifier: MIT OR Apache-2.0
//! The contenders: Dwell's policies, and the hand-written loops they are held against.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use dwell::buffer::{Aligned, Pool};
use dwell::device::Device;
use dwell::dwell_policy::Goal;
use dwell::monitor::SystemMonitor;
use dwell::parameters::DeviceParameters;
use dwell::{File, Options, Stats, WaitPolicy, arch, policies, policy};

use crate::batch::Batch;
use crate::program::{self, Answer, Peers, Program};
use crate::raw::{self, Blocking, RawRing};
use crate::result::{Configured, Direction, RoundResult};
use crate::subject::Subject;
use crate::usage::Scope;

/// Names of the hand-written loops.
pub const HAND_WRITTEN: [&str; 6] = raw::NAMES;

/// One contender on one subject.
pub enum Contender {
    /// Dwell under a policy.
    Dwell {
        /// The subject, open.
        file: Box<File>,
        /// Whether pipelines register their buffers and the file.
        registered: bool,
    },
    /// `pread` and `pwrite`.
    Blocking(Blocking),
    /// A hand-written ring.
    Ring(Box<RawRing>),
    /// Another runtime, in a program of its own.
    Program(Box<Program>),
}

/// A contender's name and the parameters behind it, as in `smartcon:queue-limit=1+pause=off`.
fn parts(name: &str) -> (&str, impl Iterator<Item = &str>) {
    let (base, parameters) = name.split_once(':').unwrap_or((name, ""));
    (base, parameters.split('+').filter(|text| !text.is_empty()))
}

/// Whether a policy compares arms while it serves.
pub(crate) fn learns(name: &str) -> bool {
    policies::by_name(parts(name).0).is_some_and(|policy| policy.goal().is_some())
}

/// Whether spin loops execute the processor's spin hint while a contender is measured: yes, unless
/// its name says `pause=off`. All threads of the process spin alike; dropping it restores what was.
pub(crate) struct PauseChoice(bool);

impl PauseChoice {
    pub(crate) fn of(name: &str) -> Self {
        let before = arch::pause();
        arch::set_pause(!parts(name).1.any(|parameter| parameter == NO_PAUSE));
        PauseChoice(before)
    }
}

impl Drop for PauseChoice {
    fn drop(&mut self) {
        arch::set_pause(self.0);
    }
}

const NO_PAUSE: &str = "pause=off";
const REGISTERED: &str = "registered=on";
/// Parameters that are not a policy's own.
const OF_ALL: [&str; 4] = [NO_PAUSE, "pause=on", REGISTERED, "registered=off"];

/// A policy by name. All take `pause=off` ([`arch::set_pause`], set while it is measured) and
/// `registered=on` ([`Pipeline::register`](dwell::pipeline::Pipeline::register)). `smartcon` takes
/// more parameters, as `smartcon:queue-limit=1+signal=total`, and so does `adaptive`, as
/// `adaptive:goal=latency`.
pub fn policy_of(name: &str) -> Result<Arc<dyn WaitPolicy>> {
    let (base, parameters) = parts(name);
    let mut parameters = parameters.filter(|parameter| !OF_ALL.contains(parameter));
    if base == "smartcon" {
        let mut smartcon = policy::SmartCon::default();
        for parameter in parameters {
            match parameter.split_once('=') {
                Some(("cpu-threshold", value)) => {
                    let threshold: f32 =
                        value.parse().with_context(|| format!("cpu-threshold={value}"))?;
                    if !(0.0..=1.0).contains(&threshold) {
                        bail!("cpu-threshold={value}: a fraction from 0 to 1 is wanted");
                    }
                    smartcon.cpu_threshold = Some(threshold);
                }
                Some(("queue-limit", value)) => {
                    let limit = value.parse().with_context(|| format!("queue-limit={value}"))?;
                    smartcon.queue_limit = Some(limit);
                }
                Some(("signal", "total")) => smartcon.signal = policy::CpuSignal::Total,
                Some(("signal", "others")) => smartcon.signal = policy::CpuSignal::Others,
                _ => bail!(
                    "smartcon:{parameter}: known parameters are cpu-threshold=0..1, \
                     queue-limit=N, signal=others|total, pause=on|off and registered=on|off"
                ),
            }
        }
        return Ok(Arc::new(smartcon));
    }
    if base == "adaptive"
        && let Some(parameter) = parameters.next()
    {
        let goal = parameter.strip_prefix("goal=").and_then(Goal::by_name);
        let Some(goal) = goal else {
            bail!(
                "adaptive:{parameter}: known parameters are goal=latency|balanced|efficient, \
                 pause=on|off and registered=on|off"
            )
        };
        return Ok(Arc::new(policy::Adaptive { goal, ..policy::Adaptive::default() }));
    }
    match policies::by_name(base) {
        Some(known) if parameters.next().is_none() => Ok(known),
        Some(_) => {
            bail!(
                "{name}: only adaptive and smartcon take parameters other than pause=on|off and \
                 registered=on|off"
            )
        }
        None => bail!("{name}: no such policy; there are {}", policies::names().join(", ")),
    }
}

/// Whether a name is one of a contender. Which peers there are only their program knows
/// ([`Peers::check`]).
pub fn check_name(name: &str) -> Result<()> {
    if HAND_WRITTEN.contains(&name) || is_peer(name) { Ok(()) } else { policy_of(name).map(drop) }
}

/// Whether a contender of this name is in a program of its own.
pub fn is_peer(name: &str) -> bool {
    name.starts_with(program::PREFIX)
}

/// Whether a contender of this name can only reach files and block devices.
pub fn is_foreign(name: &str) -> bool {
    HAND_WRITTEN.contains(&name) || is_peer(name)
}

/// Whether a contender's requests depend on what the system monitor sees.
pub fn follows_load(name: &str) -> bool {
    let base = parts(name).0;
    !["block", "spin", "hybrid"].contains(&base) && policies::by_name(base).is_some()
}

impl Contender {
    /// Dwell under a policy that has no name of its own.
    pub fn under(
        policy: Arc<dyn WaitPolicy>,
        subject: &Subject,
        parameters: DeviceParameters,
        monitor: Option<&Arc<SystemMonitor>>,
    ) -> Result<Self> {
        let options = Options::new()
            .direct(subject.direct)
            .write(subject.write)
            .parameters(parameters)
            .policy(policy);
        let options = match monitor {
            Some(monitor) => options.monitor(monitor.clone()),
            None => options,
        };
        let file = Box::new(options.open(&subject.address)?);
        Ok(Contender::Dwell { file, registered: false })
    }

    /// Opens a subject for a contender of this name; a peer is looked for near this program.
    pub fn open(name: &str, subject: &Subject, monitor: &Arc<SystemMonitor>) -> Result<Self> {
        if is_peer(name) {
            return Self::peer(name, subject, &Peers::find(None)?);
        }
        if name == "pread" {
            return Ok(Contender::Blocking(Blocking(subject.open_plainly()?)));
        }
        if name == "raw-iopoll" && !Device::beneath(&subject.address)?.io_poll {
            // Before Linux 6.14 the kernel would say nothing and wait for interrupts.
            bail!(
                "raw-iopoll: {} offers no polled completions (its queue/io_poll is 0): leave \
                 raw-iopoll out, or give its driver poll queues",
                subject.name
            );
        }
        if HAND_WRITTEN.contains(&name) {
            let ring = RawRing::new(name, subject.open_plainly()?, subject.block_bytes)?;
            return Ok(Contender::Ring(Box::new(ring)));
        }
        let mut contender =
            Self::under(policy_of(name)?, subject, subject.parameters, Some(monitor))?;
        if let Contender::Dwell { registered, .. } = &mut contender {
            *registered = parts(name).1.any(|parameter| parameter == REGISTERED);
        }
        Ok(contender)
    }

    /// A peer from this program.
    pub fn peer(name: &str, subject: &Subject, peers: &Peers) -> Result<Self> {
        Ok(Contender::Program(Box::new(Program::new(name, subject, peers)?)))
    }

    /// How it is set up, where it is not Dwell's own; `None` before the first batch of a peer.
    pub fn configured(&self, name: &str) -> Option<Configured> {
        match self {
            Contender::Dwell { .. } => None,
            Contender::Blocking(_) | Contender::Ring(_) => Some(Configured {
                name: name.into(),
                version: env!("CARGO_PKG_VERSION").into(),
                settings: raw::settings(name),
            }),
            Contender::Program(program) => program.configured(),
        }
    }

    /// One request; not of a peer, which is asked for batches only.
    #[inline]
    pub fn request(&mut self, direction: Direction, buffer: &mut [u8], offset: u64) -> Result<()> {
        match self {
            Contender::Dwell { file, .. } => one(file, direction, buffer, offset)?,
            Contender::Blocking(blocking) => blocking
                .request(direction, buffer, offset)
                .with_context(|| format!("{direction} at byte {offset}"))?,
            Contender::Ring(ring) => ring
                .request(direction, buffer, offset)
                .with_context(|| format!("{direction} at byte {offset}"))?,
            Contender::Program(_) => bail!("a peer is asked for batches, not for one request"),
        }
        Ok(())
    }

    /// A batch of requests for `span`, with one in flight for each buffer. Only a peer's samples
    /// are in the answer; those of others are in the batch.
    pub fn serve(
        &mut self,
        batch: &mut Batch,
        buffers: &mut Vec<Aligned>,
        span: Duration,
    ) -> Result<Answer> {
        let round = match self {
            Contender::Dwell { file, .. } if batch.depth() == 1 => {
                serve_one_by_one(file, batch, buffers, span)?
            }
            Contender::Dwell { file, registered: false } => {
                serve_many(file, batch, buffers, None, span)?
            }
            Contender::Dwell { file, registered: true } => {
                let pool = Pool::new(batch.depth(), batch.size_bytes());
                let mut pooled: Vec<Aligned> = std::iter::from_fn(|| pool.take()).collect();
                for (buffer, from) in pooled.iter_mut().zip(buffers) {
                    buffer.copy_from_slice(from);
                }
                serve_many(file, batch, &mut pooled, Some(&pool), span)?
            }
            Contender::Blocking(blocking) => blocking.serve(batch, buffers, span)?,
            Contender::Ring(ring) => ring.serve(batch, buffers, span)?,
            Contender::Program(program) => return program.serve(batch, span),
        };
        Ok(Answer { round, samples_ns: None })
    }

    /// Whether its batches are served in the calling thread alone.
    pub fn serves_in_caller(&self, depth: usize) -> bool {
        match self {
            Contender::Dwell { .. } | Contender::Ring(_) => true,
            Contender::Blocking(_) => depth == 1,
            Contender::Program(_) => false,
        }
    }

    /// What Dwell counted; empty for others.
    pub fn stats(&self) -> Stats {
        match self {
            Contender::Dwell { file, .. } => file.stats(),
            _ => Stats::default(),
        }
    }
}

#[inline]
fn one(file: &File, direction: Direction, buffer: &mut [u8], offset: u64) -> dwell::Result<()> {
    match direction {
        Direction::Read => file.read_exact_at(buffer, offset),
        Direction::Write => file.write_all_at(buffer, offset),
    }
}

/// One request after the other by blocking calls.
fn serve_one_by_one(
    file: &File,
    batch: &mut Batch,
    buffers: &mut [Aligned],
    span: Duration,
) -> Result<RoundResult> {
    let (direction, buffer) = (batch.requests().direction, &mut buffers[0]);
    let meter = batch.begin(span, Scope::Thread);
    while let Some(request) = batch.take() {
        one(file, direction, buffer, request.offset)?;
        batch.done(request, buffer.len())?;
    }
    Ok(batch.round(meter.stop()))
}

/// As many requests in a pipeline as there are buffers.
fn serve_many(
    file: &File,
    batch: &mut Batch,
    buffers: &mut Vec<Aligned>,
    pool: Option<&Pool>,
    span: Duration,
) -> Result<RoundResult> {
    let direction = batch.requests().direction;
    let mut pipeline = file.pipeline(buffers.len() as u32)?;
    if let Some(pool) = pool {
        pipeline.register(pool)?;
    }
    let meter = batch.begin(span, Scope::Thread);
    loop {
        while !buffers.is_empty()
            && let Some(request) = batch.take()
            && let Some(buffer) = buffers.pop()
        {
            let taken = match direction {
                Direction::Read => pipeline.read_at((buffer, request), request.offset),
                Direction::Write => pipeline.write_at((buffer, request), request.offset),
            };
            taken.map_err(|(error, _)| error)?;
        }
        let Some(finished) = pipeline.next() else { return Ok(batch.round(meter.stop())) };
        if let Some((buffer, request)) = finished.buffer {
            batch.done(request, finished.result?)?;
            buffers.push(buffer);
        }
    }
}
