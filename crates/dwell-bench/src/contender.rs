// SPDX-License-Identifier: MIT OR Apache-2.0
//! What is measured: Dwell's policies, and the hand-written loops they are held against.

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use dwell::buffer::Aligned;
use dwell::known::Known;
use dwell::monitor::SystemMonitor;
use dwell::pipeline::Pipeline;
use dwell::ring::SpinMethod;
use dwell::{File, Options, Stats, WaitPolicy, arch, policies, policy};
use io_uring::{IoUring, opcode, types};

use crate::result::Direction;
use crate::subject::Subject;

/// Names of the hand-written loops: a plain synchronous call, and three ways to spin on a ring.
pub const HAND_WRITTEN: [&str; 4] = ["pread", "raw-cq-peek", "raw-get-events", "raw-taskrun-flag"];

/// One contender on one subject, with a buffer of one request size.
pub enum Contender {
    /// Dwell under a policy, one request at a time.
    Dwell(Box<File>),
    /// `pread` and `pwrite`.
    Plain(std::fs::File),
    /// A ring of its own, spun on.
    Spin(Box<RawSpin>),
}

/// A contender's name and the parameters behind it, as in `smartcon:queue-limit=1+pause=off`.
fn parts(name: &str) -> (&str, impl Iterator<Item = &str>) {
    let (base, parameters) = name.split_once(':').unwrap_or((name, ""));
    (base, parameters.split('+').filter(|text| !text.is_empty()))
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

/// A policy by name. All take `pause=off` ([`arch::set_pause`], set while it is measured);
/// `smartcon` takes more parameters, as `smartcon:queue-limit=1+signal=total`.
pub fn policy_of(name: &str) -> Result<Arc<dyn WaitPolicy>> {
    let (base, parameters) = parts(name);
    let mut parameters = parameters.filter(|parameter| ![NO_PAUSE, "pause=on"].contains(parameter));
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
                     queue-limit=N, signal=others|total and pause=on|off"
                ),
            }
        }
        return Ok(Arc::new(smartcon));
    }
    match policies::by_name(base) {
        Some(known) if parameters.next().is_none() => Ok(known),
        Some(_) => bail!("{name}: only smartcon takes parameters other than pause=on|off"),
        None => bail!("{name}: no such policy; there are {}", policies::names().join(", ")),
    }
}

/// Whether a name is one that [`Contender::open`] takes.
pub fn check_name(name: &str) -> Result<()> {
    if HAND_WRITTEN.contains(&name) { Ok(()) } else { policy_of(name).map(drop) }
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
        known: Known,
        monitor: Option<&Arc<SystemMonitor>>,
    ) -> Result<Self> {
        let options =
            Options::new().direct(subject.direct).write(subject.write).known(known).policy(policy);
        let options = match monitor {
            Some(monitor) => options.monitor(monitor.clone()),
            None => options,
        };
        Ok(Contender::Dwell(Box::new(options.open(&subject.address)?)))
    }

    /// Opens a subject for a contender of this name.
    pub fn open(name: &str, subject: &Subject, monitor: &Arc<SystemMonitor>) -> Result<Self> {
        let method = match name {
            "pread" => {
                let file = subject.open_plainly()?;
                return Ok(Contender::Plain(file));
            }
            "raw-cq-peek" => Some(SpinMethod::CqPeek),
            "raw-get-events" => Some(SpinMethod::GetEvents),
            "raw-taskrun-flag" => Some(SpinMethod::TaskrunFlag),
            _ => None,
        };
        if let Some(method) = method {
            let raw = RawSpin::new(subject.open_plainly()?, method)?;
            return Ok(Contender::Spin(Box::new(raw)));
        }
        Self::under(policy_of(name)?, subject, subject.known, Some(monitor))
    }

    /// One request.
    #[inline]
    pub fn request(&mut self, direction: Direction, buffer: &mut [u8], offset: u64) -> Result<()> {
        match self {
            Contender::Dwell(file) => match direction {
                Direction::Read => file.read_exact_at(buffer, offset)?,
                Direction::Write => file.write_all_at(buffer, offset)?,
            },
            Contender::Plain(file) => match direction {
                Direction::Read => file.read_exact_at(buffer, offset),
                Direction::Write => file.write_all_at(buffer, offset),
            }
            .with_context(|| format!("{direction} at byte {offset}"))?,
            Contender::Spin(raw) => raw
                .request(direction, buffer, offset)
                .with_context(|| format!("{direction} at byte {offset}"))?,
        }
        Ok(())
    }

    /// What Dwell counted; empty for hand-written loops.
    pub fn stats(&self) -> Stats {
        match self {
            Contender::Dwell(file) => file.stats(),
            Contender::Plain(_) | Contender::Spin(_) => Stats::default(),
        }
    }

    /// Many requests in flight; `None` for contenders that only serve one at a time.
    pub fn pipeline(&self, depth: u32) -> Result<Option<Pipeline<'_, Aligned>>> {
        match self {
            Contender::Dwell(file) => Ok(Some(file.pipeline(depth)?)),
            Contender::Plain(_) | Contender::Spin(_) => Ok(None),
        }
    }
}

/// A ring spun on by hand, as an engineer would who knows which flags to use: the baseline for
/// "how fast can spinning be".
pub struct RawSpin {
    ring: IoUring,
    file: std::fs::File,
    method: SpinMethod,
}

impl RawSpin {
    fn new(file: std::fs::File, method: SpinMethod) -> Result<Self> {
        let mut builder = IoUring::builder();
        match method {
            SpinMethod::CqPeek => &mut builder,
            SpinMethod::GetEvents => builder.setup_single_issuer().setup_defer_taskrun(),
            SpinMethod::TaskrunFlag => {
                builder.setup_single_issuer().setup_defer_taskrun().setup_taskrun_flag()
            }
        };
        let ring = builder.build(8).with_context(|| format!("a ring for raw-{method}"))?;
        Ok(RawSpin { ring, file, method })
    }

    #[inline]
    fn request(&mut self, direction: Direction, buffer: &mut [u8], offset: u64) -> Result<()> {
        let (fd, bytes) = (types::Fd(self.file.as_raw_fd()), buffer.len() as u32);
        let entry = match direction {
            Direction::Read => {
                opcode::Read::new(fd, buffer.as_mut_ptr(), bytes).offset(offset).build()
            }
            Direction::Write => {
                opcode::Write::new(fd, buffer.as_ptr(), bytes).offset(offset).build()
            }
        };
        // SAFETY: the buffer is borrowed until the completion is seen below.
        unsafe { self.ring.submission().push(&entry) }.context("the ring is full")?;
        self.ring.submit()?;
        const GETEVENTS: u32 = 1;
        let event = loop {
            if let Some(event) = self.ring.completion().next() {
                break event;
            }
            let enter = match self.method {
                SpinMethod::CqPeek => false,
                SpinMethod::GetEvents => true,
                SpinMethod::TaskrunFlag => self.ring.submission().taskrun(),
            };
            if enter {
                // A signal or a short-lived shortage may fail it; the completion comes all the
                // same, and until it is out the buffer must stay.
                // SAFETY: no argument is passed.
                let _ = unsafe { self.ring.submitter().enter::<()>(0, 0, GETEVENTS, None) };
            }
            std::hint::spin_loop();
        };
        match event.result() {
            done if done == bytes as i32 => Ok(()),
            done if done < 0 => Err(std::io::Error::from_raw_os_error(-done).into()),
            done => bail!("{done} of {bytes} bytes"),
        }
    }
}
