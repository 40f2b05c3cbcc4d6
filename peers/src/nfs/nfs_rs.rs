// SPDX-License-Identifier: MIT OR Apache-2.0
//! nfs-rs: one connection, and as many tasks as requests outstanding, on the runtime of its
//! documentation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use dwell_bench::result::Direction;
use dwell_bench::usage::{Cost, Meter, Scope};
use nfs_rs::{Mount, WriteOutcome};
use tokio::runtime::Runtime;

use super::{Client, Transfer};
use crate::runtimes::built_with;

struct NfsRs(Runtime);

pub fn make() -> Result<Box<dyn Client>> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    Ok(Box::new(NfsRs(runtime.context("setting up tokio")?)))
}

impl Client for NfsRs {
    fn version(&self) -> Result<String> {
        built_with("nfs-rs")
    }

    fn settings(&self) -> Vec<String> {
        let workers = self.0.metrics().num_workers();
        vec![
            format!("tokio's multi-threaded runtime, {workers} threads"),
            "one connection, a task for each request outstanding".into(),
            "unstable writes, commit_write_batch at the end".into(),
        ]
    }

    fn serve(&mut self, transfer: &Transfer) -> Result<Cost> {
        let transfer = Arc::new(transfer.clone());
        self.0.block_on(async move {
            let place = transfer.remote.place()?;
            let url = format!(
                "nfs://{}{}?version=3&nfsport={}&mountport={}",
                place.host, place.export, place.port, place.mount_port
            );
            let mount: Arc<dyn Mount> =
                nfs_rs::parse_url_and_mount(&url).await.context("mounting")?.into();
            let file = match transfer.direction {
                Direction::Write => mount.create_path(place.name, Some(0o644)).await,
                Direction::Read => mount.lookup_path(place.name).await,
            };
            let file = file.context("finding the file")?.fh;
            let cost = run(&mount, file, &transfer).await;
            // What it was mounted for is done.
            let _ = mount.umount().await;
            cost
        })
    }
}

async fn run(mount: &Arc<dyn Mount>, file: Bytes, transfer: &Arc<Transfer>) -> Result<Cost> {
    let payload = Bytes::from(transfer.payload());
    let next = Arc::new(AtomicU64::new(0));
    let meter = Meter::start(Scope::Process);
    let tasks: Vec<_> = (0..transfer.window)
        .map(|_| {
            let (mount, file, payload) = (mount.clone(), file.clone(), payload.clone());
            let (transfer, next) = (transfer.clone(), next.clone());
            tokio::spawn(async move {
                let mut written = Vec::new();
                loop {
                    let at = next.fetch_add(u64::from(transfer.size_bytes), Ordering::Relaxed);
                    if at >= transfer.remote.bytes {
                        return Ok::<Vec<WriteOutcome>, anyhow::Error>(written);
                    }
                    match transfer.direction {
                        Direction::Write => {
                            let outcome = mount.write(file.clone(), at, payload.clone()).await?;
                            ensure!(
                                outcome.count == transfer.size_bytes,
                                "a short write at byte {at}"
                            );
                            written.push(outcome);
                        }
                        Direction::Read => {
                            let data = mount.read(file.clone(), at, transfer.size_bytes).await?;
                            transfer.check(at, &data)?;
                        }
                    }
                }
            })
        })
        .collect();
    let mut written = Vec::new();
    for task in tasks {
        written.extend(task.await.context("a task was lost")??);
    }
    if transfer.direction == Direction::Write {
        mount.commit_write_batch(file, 0, 0, &written).await.context("COMMIT")?;
    }
    Ok(meter.stop())
}
