// SPDX-License-Identifier: MIT OR Apache-2.0
//! One thread that keeps a window of requests outstanding, by `dwell-nfs`.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Context, Result, ensure};
use dwell::executor::Executor;
use dwell_nfs::client::Client;
use dwell_nfs::connection::Payload;
use dwell_nfs::engine::WindowKind;
use dwell_nfs::file::{RemoteFile, Writer};
use dwell_nfs::nfs3::SetAttributes;
use dwell_nfs::url::Url;

use super::Job;
use crate::result::Direction;
use crate::usage::{Cost, Meter, Scope};

/// How many bytes the file holds, if it is there.
pub fn held(url: &Url) -> Result<Option<u64>> {
    let executor = Executor::new().context("setting up the executor")?;
    let tasks = executor.handle();
    executor.block_on(async {
        let client = Client::mount(&tasks, url).await?;
        Ok(client.find_followed(url).await?.map(|found| found.attributes.bytes))
    })
}

/// Moves the file once.
pub fn run(job: &Job, window: WindowKind) -> Result<Cost> {
    let executor = Executor::new().context("setting up the executor")?;
    let tasks = executor.handle();
    let (read_bytes, write_bytes) = (Some(job.size_bytes), Some(job.size_bytes));
    let url = Url { window, read_bytes, write_bytes, ..job.url.clone() };
    executor.block_on(async {
        let client = Client::mount(&tasks, &url).await?;
        let (parent, name) = client.parent(&url).await?;
        let attributes = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
        let handle = match job.direction {
            Direction::Write => client.create(parent, name.as_bytes(), attributes, &url).await?,
            Direction::Read => client.require(&url).await?.handle,
        };
        let file = RemoteFile::new(&client, handle, &url);
        let workers = client.most_outstanding();
        match job.direction {
            Direction::Write => ensure!(
                client.write_bytes() == job.size_bytes,
                "the server takes {} bytes a request",
                client.write_bytes()
            ),
            Direction::Read => ensure!(
                client.read_bytes() == job.size_bytes,
                "the server gives {} bytes a request",
                client.read_bytes()
            ),
        }
        match job.direction {
            Direction::Write => write(job, file, workers).await,
            Direction::Read => read(job, file, workers).await,
        }
    })
}

async fn write(job: &Job, file: RemoteFile, workers: u32) -> Result<Cost> {
    let data = Payload::new(vec![0x5a; job.size_bytes as usize]);
    let tasks = file.client().tasks().clone();
    let writer = Rc::new(Writer::new(file));
    let next = Rc::new(Cell::new(0));
    let (size, bytes) = (u64::from(job.size_bytes), job.bytes);
    let meter = Meter::start(Scope::Process);
    let workers: Vec<_> = (0..workers)
        .map(|_| {
            let (writer, next, data) = (writer.clone(), next.clone(), data.clone());
            tasks.spawn(async move {
                loop {
                    let at = next.get();
                    if at >= bytes {
                        return dwell_nfs::Result::Ok(());
                    }
                    next.set(at + size);
                    writer.write(at, &data.part(0..(bytes - at).min(size) as usize)).await?;
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await?;
    }
    writer.commit().await?;
    Ok(meter.stop())
}

async fn read(job: &Job, file: RemoteFile, workers: u32) -> Result<Cost> {
    let tasks = file.client().tasks().clone();
    let next = Rc::new(Cell::new(0));
    let (size, bytes) = (u64::from(job.size_bytes), job.bytes);
    let meter = Meter::start(Scope::Process);
    let workers: Vec<_> = (0..workers)
        .map(|_| {
            let (file, next) = (file.clone(), next.clone());
            tasks.spawn(async move {
                let mut got = 0;
                loop {
                    let at = next.get();
                    if at >= bytes {
                        return dwell_nfs::Result::Ok(got);
                    }
                    next.set(at + size);
                    let wanted = (bytes - at).min(size) as u32;
                    let data = file.read(at, wanted).await?;
                    got += data.len() as u64;
                }
            })
        })
        .collect();
    let mut got = 0;
    for worker in workers {
        got += worker.await?;
    }
    let cost = meter.stop();
    ensure!(got == bytes, "{got} of {bytes} bytes were read");
    Ok(cost)
}
