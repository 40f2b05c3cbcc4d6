// SPDX-License-Identifier: MIT OR Apache-2.0
//! monoio over its io_uring driver.

use std::rc::Rc;

use ::monoio::buf::{IoBufMut, SliceMut};
use ::monoio::fs::File;
use ::monoio::{IoUringDriver, RuntimeBuilder, spawn};
use anyhow::{Context, Result};
use dwell_bench::program::Answer;

use super::{Peer, built_with};
use crate::buffer::page_aligned;
use crate::work::{Subject, Work};

/// Its own default.
const ENTRIES: u32 = 1024;

struct Monoio;

/// The io_uring driver, otherwise as it is by default.
pub fn make(_subject: &Subject) -> Result<Box<dyn Peer>> {
    Ok(Box::new(Monoio))
}

impl Peer for Monoio {
    fn version(&self) -> Result<String> {
        built_with("monoio")
    }

    fn settings(&self) -> Vec<String> {
        vec!["io_uring driver, default flags".into(), "1024 entries, or the queue depth".into()]
    }

    fn serve(&mut self, work: Work) -> Result<Answer> {
        let mut runtime = RuntimeBuilder::<IoUringDriver>::new()
            .with_entries(ENTRIES.max(work.order.requests.depth))
            .build()
            .context("a runtime")?;
        runtime.block_on(async move {
            let file = Rc::new(File::from_std(work.subject.open()?)?);
            let work = Rc::new(work);
            let buffer = |i| {
                let (buffer, range) = page_aligned(work.size_bytes(), i);
                buffer.slice_mut(range)
            };
            let mut buffers: Vec<_> = (0..work.depth() as u64).map(buffer).collect();
            work.warm_up();
            all(&work, &file, &mut buffers).await?;
            let meter = work.begin();
            all(&work, &file, &mut buffers).await?;
            Ok(work.answer(&meter))
        })
    }
}

type Buffer = SliceMut<Vec<u8>>;

/// One task for each buffer, the first of them the caller.
async fn all(work: &Rc<Work>, file: &Rc<File>, buffers: &mut Vec<Buffer>) -> Result<()> {
    let Some(own) = buffers.pop() else { return Ok(()) };
    let spawn = |buffer| spawn(one(work.clone(), file.clone(), buffer));
    let others: Vec<_> = buffers.drain(..).map(spawn).collect();
    let own = one(work.clone(), file.clone(), own).await;
    for other in others {
        buffers.push(other.await?);
    }
    buffers.push(own?);
    Ok(())
}

async fn one(work: Rc<Work>, file: Rc<File>, mut buffer: Buffer) -> Result<Buffer> {
    let writes = work.writes();
    while let Some(request) = work.take() {
        let (bytes, back) = match writes {
            true => file.write_at(buffer, request.offset).await,
            false => file.read_at(buffer, request.offset).await,
        };
        buffer = back;
        work.done(request, bytes?, &buffer)?;
    }
    Ok(buffer)
}
