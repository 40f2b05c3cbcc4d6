// SPDX-License-Identifier: MIT OR Apache-2.0
//! compio over its io_uring driver, with the flags that its documentation recommends to a runtime
//! of one thread.

use std::rc::Rc;

use ::compio::BufResult;
use ::compio::buf::{IoBuf, Slice};
use ::compio::driver::{DriverType, ProactorBuilder};
use ::compio::fs::{File, OpenOptions};
use ::compio::io::{AsyncReadAt, AsyncWriteAt};
use ::compio::runtime::{Runtime, spawn};
use anyhow::{Result, anyhow, ensure};
use dwell_bench::program::Answer;

use super::{Peer, built_with};
use crate::buffer::page_aligned;
use crate::work::{Subject, Work};

/// Its own default.
const CAPACITY: u32 = 1024;

struct Compio;

/// io_uring with COOP_TASKRUN and TASKRUN_FLAG.
pub fn make(_subject: &Subject) -> Result<Box<dyn Peer>> {
    Ok(Box::new(Compio))
}

impl Peer for Compio {
    fn version(&self) -> Result<String> {
        built_with("compio")
    }

    fn settings(&self) -> Vec<String> {
        vec![
            "io_uring driver, coop_taskrun, taskrun_flag".into(),
            "capacity 1024, or the queue depth".into(),
        ]
    }

    fn serve(&mut self, work: Work) -> Result<Answer> {
        let mut proactor = ProactorBuilder::new();
        proactor.capacity(CAPACITY.max(work.order.requests.depth));
        proactor.coop_taskrun(true).taskrun_flag(true);
        let runtime = Runtime::builder().with_proactor(proactor).build()?;
        ensure!(runtime.driver_type() == DriverType::IoUring, "it found no io_uring to run on");
        runtime.block_on(async move {
            let mut options = OpenOptions::new();
            options.read(true).write(work.subject.write).custom_flags(work.subject.flags());
            let file = Rc::new(options.open(&work.subject.path).await?);
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
        buffers.push(other.await.map_err(|error| anyhow!("a task: {error:?}"))??);
    }
    buffers.push(own?);
    Ok(())
}

async fn one(work: Rc<Work>, file: Rc<File>, mut buffer: Buffer) -> Result<Buffer> {
    let writes = work.writes();
    while let Some(request) = work.take() {
        let BufResult(bytes, back) = match writes {
            true => (&*file).write_at(buffer, request.offset).await,
            false => file.read_at(buffer, request.offset).await,
        };
        buffer = back;
        work.done(request, bytes?, &buffer)?;
    }
    Ok(buffer)
}
