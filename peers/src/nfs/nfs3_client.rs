// SPDX-License-Identifier: MIT OR Apache-2.0
//! nfs3_client: one request at a time on a connection, so as many connections as requests
//! outstanding, at most eight, on one thread.

use std::cell::Cell;
use std::rc::Rc;

use anyhow::{Context, Result, bail, ensure};
use dwell_bench::result::Direction;
use dwell_bench::usage::{Cost, Meter, Scope};
use nfs3_client::nfs3_types::nfs3::{
    COMMIT3args, CREATE3args, LOOKUP3args, Nfs3Option, Nfs3Result, READ3args, WRITE3args,
    createhow3, diropargs3, filename3, nfs_fh3, sattr3, stable_how,
};
use nfs3_client::nfs3_types::rpc::{auth_unix, opaque_auth};
use nfs3_client::nfs3_types::xdr_codec::Opaque;
use nfs3_client::tokio::{TokioConnector, TokioIo};
use nfs3_client::{Nfs3Connection, Nfs3ConnectionBuilder};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::LocalSet;

use super::{Client, Transfer};
use crate::runtimes::built_with;

/// More would be more threads of the server than it has processors for here.
const MOST_CONNECTIONS: u32 = 8;

type Connection = Nfs3Connection<TokioIo<TcpStream>>;

struct Nfs3(Runtime);

pub fn make() -> Result<Box<dyn Client>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    Ok(Box::new(Nfs3(runtime.context("setting up tokio")?)))
}

impl Client for Nfs3 {
    fn version(&self) -> Result<String> {
        built_with("nfs3_client")
    }

    fn settings(&self) -> Vec<String> {
        vec![
            "tokio's runtime of one thread".into(),
            format!("a connection for each request outstanding, at most {MOST_CONNECTIONS}"),
            "unstable writes, one COMMIT at the end".into(),
        ]
    }

    fn serve(&mut self, transfer: &Transfer) -> Result<Cost> {
        LocalSet::new().block_on(&self.0, run(Rc::new(transfer.clone())))
    }
}

async fn connect(transfer: &Transfer) -> Result<Connection> {
    let place = transfer.remote.place()?;
    let user = auth_unix {
        stamp: 0,
        machinename: Opaque::borrowed(b"dwell-peers"),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
        gids: Vec::new(),
    };
    Nfs3ConnectionBuilder::new(TokioConnector, place.host, place.export)
        .nfs3_port(place.port)
        .mount_port(place.mount_port)
        .credential(opaque_auth::auth_unix(&user))
        .mount()
        .await
        .context("mounting")
}

async fn find(connection: &mut Connection, transfer: &Transfer) -> Result<nfs_fh3> {
    let name = filename3(Opaque::borrowed(transfer.remote.place()?.name.as_bytes()));
    let r#where = diropargs3 { dir: connection.root_nfs_fh3(), name };
    match transfer.direction {
        Direction::Read => match connection.lookup(&LOOKUP3args { what: r#where }).await? {
            Nfs3Result::Ok(found) => Ok(found.object),
            Nfs3Result::Err((status, _)) => bail!("LOOKUP: {status:?}"),
        },
        Direction::Write => {
            let attributes = sattr3 { mode: Nfs3Option::Some(0o644), ..sattr3::default() };
            let create = CREATE3args { where_: r#where, how: createhow3::UNCHECKED(attributes) };
            match connection.create(&create).await? {
                Nfs3Result::Ok(made) => match made.obj {
                    Nfs3Option::Some(handle) => Ok(handle),
                    Nfs3Option::None => bail!("CREATE gave no handle"),
                },
                Nfs3Result::Err((status, _)) => bail!("CREATE: {status:?}"),
            }
        }
    }
}

async fn run(transfer: Rc<Transfer>) -> Result<Cost> {
    let mut connections = Vec::new();
    for _ in 0..transfer.window.min(MOST_CONNECTIONS) {
        connections.push(connect(&transfer).await?);
    }
    let file = find(&mut connections[0], &transfer).await?;
    let payload: Rc<[u8]> = transfer.payload().into();
    let next = Rc::new(Cell::new(0));
    let meter = Meter::start(Scope::Process);
    let tasks: Vec<_> = (connections.into_iter())
        .map(|connection| {
            let (transfer, next, payload) = (transfer.clone(), next.clone(), payload.clone());
            tokio::task::spawn_local(work(connection, file.clone(), transfer, next, payload))
        })
        .collect();
    let (mut connections, mut seen) = (Vec::new(), None);
    for task in tasks {
        let (connection, verifier) = task.await.context("a task was lost")??;
        connections.push(connection);
        ensure!(
            verifier.is_none() || seen.is_none() || verifier == seen,
            "the server was restarted"
        );
        seen = seen.or(verifier);
    }
    if transfer.direction == Direction::Write {
        let commit = COMMIT3args { file, offset: 0, count: 0 };
        match connections[0].commit(&commit).await? {
            Nfs3Result::Ok(done) => {
                ensure!(seen.is_none_or(|seen| seen == done.verf.0), "the server was restarted");
            }
            Nfs3Result::Err((status, _)) => bail!("COMMIT: {status:?}"),
        }
    }
    let cost = meter.stop();
    for connection in connections {
        // What it was mounted for is done.
        let _ = connection.unmount().await;
    }
    Ok(cost)
}

/// Takes requests until there are none; the verifier that the writes were answered with.
async fn work(
    mut connection: Connection,
    file: nfs_fh3,
    transfer: Rc<Transfer>,
    next: Rc<Cell<u64>>,
    payload: Rc<[u8]>,
) -> Result<(Connection, Option<[u8; 8]>)> {
    let mut seen = None;
    loop {
        let (offset, count) = (next.get(), transfer.size_bytes);
        if offset >= transfer.remote.bytes {
            return Ok((connection, seen));
        }
        next.set(offset + u64::from(count));
        match transfer.direction {
            Direction::Write => {
                let (stable, data) = (stable_how::UNSTABLE, Opaque::borrowed(&payload));
                let write = WRITE3args { file: file.clone(), offset, count, stable, data };
                match connection.write(&write).await? {
                    Nfs3Result::Ok(done) => {
                        ensure!(done.count == count, "a short write at byte {offset}");
                        let verifier = done.verf.0;
                        ensure!(
                            seen.is_none_or(|seen| seen == verifier),
                            "the server was restarted"
                        );
                        seen = Some(verifier);
                    }
                    Nfs3Result::Err((status, _)) => bail!("WRITE at byte {offset}: {status:?}"),
                }
            }
            Direction::Read => {
                let read = READ3args { file: file.clone(), offset, count };
                match connection.read(&read).await? {
                    Nfs3Result::Ok(done) => transfer.check(offset, &done.data.0)?,
                    Nfs3Result::Err((status, _)) => bail!("READ at byte {offset}: {status:?}"),
                }
            }
        }
    }
}
