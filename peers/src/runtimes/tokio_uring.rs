// SPDX-License-Identifier: MIT OR Apache-2.0
//! tokio-uring, as it is by default.

use std::rc::Rc;

use ::tokio_uring::buf::{BoundedBuf, Slice};
use ::tokio_uring::fs::File;
use ::tokio_uring::{Runtime, builder, spawn};
use anyhow::{Context, Result};
use dwell_bench::program::Answer;

use super::{Peer, built_with};
use crate::buffer::page_aligned;
use crate::work::{Subject, Work};

/// Its own default.
const ENTRIES: u32 = 256;

struct TokioUring;

/// The default runtime.
pub fn make(_subject: &Subject) -> Result<Box<dyn Peer>> {
    Ok(Box::new(TokioUring))
}

impl Peer for TokioUring {
    fn version(&self) -> Result<String> {
        built_with("tokio-uring")
    }

    fn settings(&self) -> Vec<String> {
        vec!["default flags".into(), "256 entries, or the queue depth".into()]
    }

    fn serve(&mut self, work: Work) -> Result<Answer> {
        let entries = ENTRIES.max(work.order.requests.depth.next_power_of_two());
        let runtime = Runtime::new(builder().entries(entries)).context("a runtime")?;
        runtime.block_on(async move {
            let file = Rc::new(File::from_std(work.subject.open()?));
            let work = Rc::new(work);
            let buffer = |i| {
                let (buffer, range) = page_aligned(work.size_bytes(), i);
                buffer.slice(range)
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

type Buffer = Slice<Vec<u8>>;

/// One task for each buffer, the first of them the caller.
async fn all(work: &Rc<Work>, file: &Rc<File>, buffers: &mut Vec<Buffer>) -> Result<()> {
    let Some(own) = buffers.pop() else { return Ok(()) };
    let spawn = |buffer| spawn(one(work.clone(), file.clone(), buffer));
    let others: Vec<_> = buffers.drain(..).map(spawn).collect();
    let own = one(work.clone(), file.clone(), own).await;
    for other in others {
        buffers.push(other.await.context("a task")??);
    }
    buffers.push(own?);
    Ok(())
}

async fn one(work: Rc<Work>, file: Rc<File>, mut buffer: Buffer) -> Result<Buffer> {
    let writes = work.writes();
    while let Some(request) = work.take() {
        let (bytes, back) = match writes {
            true => file.write_at(buffer, request.offset).submit().await,
            false => file.read_at(buffer, request.offset).await,
        };
        buffer = back;
        work.done(request, bytes?, &buffer)?;
    }
    Ok(buffer)
}
