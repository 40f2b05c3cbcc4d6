// SPDX-License-Identifier: MIT OR Apache-2.0
//! kimojio: as it is by default, and busy polling on a CPU of its own, with polled reads where the
//! device has them.

use std::os::fd::OwnedFd;
use std::rc::Rc;

use ::kimojio::configuration::{BusyPoll, Configuration};
use ::kimojio::operations::{pread_polled, pwrite_polled, spawn_task};
use anyhow::{Context, Result, anyhow};
use dwell::buffer::Aligned;
use dwell_bench::batch::fill;
use dwell_bench::program::Answer;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::{Peer, built_with, cpu_for_one};
use crate::work::{Subject, Work};

struct Kimojio {
    /// The CPU that it busily polls on.
    busy: Option<usize>,
    polled: bool,
}

/// The default: it sleeps until a completion.
pub fn sleeping(_subject: &Subject) -> Result<Box<dyn Peer>> {
    Ok(Box::new(Kimojio { busy: None, polled: false }))
}

/// Busy polling, which its documentation wants on few threads, each pinned to a CPU.
pub fn busy(subject: &Subject) -> Result<Box<dyn Peer>> {
    let cpu = cpu_for_one()?;
    let mut one = CpuSet::new();
    one.set(cpu);
    sched_setaffinity(None, &one).with_context(|| format!("pinning to CPU {cpu}"))?;
    let file = OwnedFd::from(subject.open()?);
    let tried = ::kimojio::run(0, async move {
        let mut buffer = Aligned::new(Aligned::ALIGNMENT);
        pread_polled(&file, &mut buffer, 0, true).await.is_ok()
    });
    let polled = subject.direct && matches!(tried, Some(Ok(true)));
    Ok(Box::new(Kimojio { busy: Some(cpu), polled }))
}

impl Peer for Kimojio {
    fn version(&self) -> Result<String> {
        built_with("kimojio")
    }

    fn settings(&self) -> Vec<String> {
        let Some(cpu) = self.busy else {
            return vec!["default configuration (BusyPoll::Never)".into()];
        };
        let polled = match self.polled {
            true => "polled reads and writes",
            false => "reads and writes not polled: the device does not offer it",
        };
        vec!["BusyPoll::Always".into(), format!("pinned to CPU {cpu}"), polled.into()]
    }

    fn serve(&mut self, work: Work) -> Result<Answer> {
        let file = Rc::new(OwnedFd::from(work.subject.open()?));
        let busy_poll = if self.busy.is_some() { BusyPoll::Always } else { BusyPoll::Never };
        let configuration = Configuration::new().set_busy_poll(busy_poll);
        let polled = self.polled;
        let served = ::kimojio::run_with_configuration(
            0,
            async move {
                let work = Rc::new(work);
                let buffer = |i| {
                    let mut buffer = Aligned::new(work.size_bytes());
                    fill(&mut buffer, i);
                    buffer
                };
                let mut buffers: Vec<Aligned> = (0..work.depth() as u64).map(buffer).collect();
                work.warm_up();
                all(&work, &file, polled, &mut buffers).await?;
                let meter = work.begin();
                all(&work, &file, polled, &mut buffers).await?;
                Ok(work.answer(&meter))
            },
            configuration,
        );
        served.context("it was shut down")?.map_err(|_| anyhow!("it panicked"))?
    }
}

/// One task for each buffer, the first of them the caller.
async fn all(
    work: &Rc<Work>,
    file: &Rc<OwnedFd>,
    polled: bool,
    buffers: &mut Vec<Aligned>,
) -> Result<()> {
    let Some(own) = buffers.pop() else { return Ok(()) };
    let spawn = |buffer| spawn_task(one(work.clone(), file.clone(), polled, buffer));
    let others: Vec<_> = buffers.drain(..).map(spawn).collect();
    let own = one(work.clone(), file.clone(), polled, own).await;
    for other in others {
        buffers.push(other.await.map_err(|error| anyhow!("a task: {error:?}"))??);
    }
    buffers.push(own?);
    Ok(())
}

async fn one(
    work: Rc<Work>,
    file: Rc<OwnedFd>,
    polled: bool,
    mut buffer: Aligned,
) -> Result<Aligned> {
    let writes = work.writes();
    while let Some(request) = work.take() {
        let bytes = match writes {
            true => pwrite_polled(&file, &buffer, request.offset, polled).await,
            false => pread_polled(&file, &mut buffer, request.offset, polled).await,
        };
        let bytes = bytes.with_context(|| format!("at byte {}", request.offset))?;
        work.done(request, bytes, &buffer)?;
    }
    Ok(buffer)
}
