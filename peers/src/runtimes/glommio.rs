// SPDX-License-Identifier: MIT OR Apache-2.0
//! glommio: one pinned executor over a `DmaFile`, which parks at once or spins before it parks.

use std::rc::Rc;
use std::time::Duration;

use ::glommio::io::{DmaBuffer, DmaFile, OpenOptions};
use ::glommio::{LocalExecutorBuilder, Placement, spawn_local};
use anyhow::{Context, Result, anyhow};
use dwell_bench::batch::fill;
use dwell_bench::program::Answer;

use super::{Peer, built_with, cpu_for_one};
use crate::work::{Subject, Work};

/// What glommio's own examples and benchmarks spin.
const SPIN: Duration = Duration::from_millis(10);
/// Its own defaults; more is given where a batch needs more.
const IO_MEMORY_BYTES: usize = 10 << 20;
const RING_DEPTH: usize = 128;

struct Glommio {
    cpu: usize,
    spin: Option<Duration>,
}

/// Parks as soon as there is nothing to do, which is the default.
pub fn parking(_subject: &Subject) -> Result<Box<dyn Peer>> {
    Ok(Box::new(Glommio { cpu: cpu_for_one()?, spin: None }))
}

/// Spins before it parks.
pub fn spinning(_subject: &Subject) -> Result<Box<dyn Peer>> {
    Ok(Box::new(Glommio { cpu: cpu_for_one()?, spin: Some(SPIN) }))
}

impl Peer for Glommio {
    fn version(&self) -> Result<String> {
        built_with("glommio")
    }

    fn settings(&self) -> Vec<String> {
        let spin = match self.spin {
            Some(spin) => format!("spin_before_park {} ms", spin.as_millis()),
            None => "no spin_before_park".into(),
        };
        vec![
            format!("Placement::Fixed({})", self.cpu),
            spin,
            "DmaFile: direct I/O, polled where it finds that the device offers it".into(),
            "10 MiB of registered memory and a ring of 128, or as much as a batch needs".into(),
        ]
    }

    fn serve(&mut self, work: Work) -> Result<Answer> {
        let memory = IO_MEMORY_BYTES.max(2 * work.size_bytes() * work.depth());
        let mut builder = LocalExecutorBuilder::new(Placement::Fixed(self.cpu))
            .io_memory(memory)
            .ring_depth(RING_DEPTH.max(work.depth().next_power_of_two()));
        if let Some(spin) = self.spin {
            builder = builder.spin_before_park(spin);
        }
        let executor = builder.make().map_err(|error| anyhow!("an executor: {error}"))?;
        executor.run(async move {
            let mut options = OpenOptions::new();
            options.read(true).write(work.subject.write).custom_flags(work.subject.flags());
            let path = &work.subject.path;
            let file = options.dma_open(path).await.map_err(|error| anyhow!("{error}"))?;
            let (file, work) = (Rc::new(file), Rc::new(work));
            work.warm_up();
            all(&work, &file).await?;
            let meter = work.begin();
            all(&work, &file).await?;
            let answer = work.answer(&meter);
            file.close_rc().await.map_err(|error| anyhow!("closing: {error}"))?;
            Ok(answer)
        })
    }
}

/// One task for each request in flight, the first of them the caller.
async fn all(work: &Rc<Work>, file: &Rc<DmaFile>) -> Result<()> {
    let spawn = |i| spawn_local(one(work.clone(), file.clone(), i)).detach();
    let others: Vec<_> = (1..work.depth() as u64).map(spawn).collect();
    let own = one(work.clone(), file.clone(), 0).await;
    for other in others {
        other.await.context("a task was cancelled")??;
    }
    own
}

async fn one(work: Rc<Work>, file: Rc<DmaFile>, seed: u64) -> Result<()> {
    let failed = |error| anyhow!("{error}");
    if !work.writes() {
        // Memory comes from the executor's pool with each read.
        while let Some(request) = work.take() {
            let read = file.read_at_aligned(request.offset, work.size_bytes()).await;
            let read = read.map_err(failed)?;
            work.done(request, read.len(), &read)?;
        }
        return Ok(());
    }
    let buffer: Rc<DmaBuffer> = {
        let mut buffer = file.alloc_dma_buffer(work.size_bytes());
        fill(buffer.as_bytes_mut(), seed);
        Rc::new(buffer)
    };
    while let Some(request) = work.take() {
        let bytes = file.write_rc_at(buffer.clone(), request.offset).await.map_err(failed)?;
        work.done(request, bytes, &[])?;
    }
    Ok(())
}
