// SPDX-License-Identifier: MIT OR Apache-2.0
//! Other NFS clients: each moves one file to or from a server with so many requests outstanding,
//! set up as its documentation recommends.

mod libnfs;
mod nfs3_client;
mod nfs_rs;

use anyhow::{Context, Result, ensure};
use dwell_bench::program::{Answer, Order};
use dwell_bench::result::{Direction, RoundResult};
use dwell_bench::usage::Cost;
use dwell_nfs::url::Url;

/// Requests outstanding at most.
const MOST_OUTSTANDING: u32 = 1024;

/// A client, set up in one way.
pub trait Client {
    /// Its version.
    fn version(&self) -> Result<String>;

    /// How it is set up, each a few words.
    fn settings(&self) -> Vec<String>;

    /// Moves the file once. What it takes to connect and to find the file is not counted; a COMMIT
    /// at the end of writes is.
    fn serve(&mut self, transfer: &Transfer) -> Result<Cost>;
}

type Make = fn() -> Result<Box<dyn Client>>;

/// All clients by name.
pub const CLIENTS: [(&str, Make); 3] =
    [("libnfs", libnfs::make), ("nfs3_client", nfs3_client::make), ("nfs-rs", nfs_rs::make)];

/// A file on a server.
#[derive(Clone, Debug)]
pub struct Remote {
    /// Where it is: a file directly in an export.
    pub url: Url,
    /// How many bytes of it are moved, from its beginning.
    pub bytes: u64,
    /// Whether it may be written.
    pub write: bool,
    /// Whether each eight bytes read must hold their offset.
    pub verify: bool,
}

impl Remote {
    /// The export, the file's name in it, the ports of NFS and MOUNT: all are to be said, so that
    /// no client spends time on asking for them.
    pub fn place(&self) -> Result<Place<'_>> {
        let url = &self.url;
        let (export, name) = url.path.rsplit_once('/').context("the address has no path")?;
        ensure!(!export.is_empty(), "{url}: an export and a file in it are wanted");
        let port = url.port.with_context(|| format!("{url}: a port is wanted"))?;
        let mount_port = url.mount_port.with_context(|| format!("{url}: mountport is wanted"))?;
        Ok(Place { host: &url.host, port, mount_port, export, name })
    }
}

/// See [`Remote::place`].
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub host: &'a str,
    pub port: u16,
    pub mount_port: u16,
    pub export: &'a str,
    pub name: &'a str,
}

/// One file to be moved once.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// Which file.
    pub remote: Remote,
    /// Length of one request, in bytes.
    pub size_bytes: u32,
    /// Requests outstanding.
    pub window: u32,
    /// Which way.
    pub direction: Direction,
}

impl Transfer {
    /// What an order asks for; of its span and its seed nothing is used.
    fn new(order: &Order, remote: &Remote) -> Result<Self> {
        let (size, window) = (order.size_bytes, order.requests.depth);
        let direction = order.requests.direction;
        ensure!(
            (1..=1 << 20).contains(&size),
            "requests of {size} bytes; 1 to {} are wanted",
            1 << 20
        );
        ensure!(
            remote.bytes.is_multiple_of(size),
            "the file is not made of requests of {size} bytes"
        );
        ensure!(
            (1..=MOST_OUTSTANDING).contains(&window),
            "a window of {window}: 1 to {MOST_OUTSTANDING} is wanted"
        );
        ensure!(remote.write || direction == Direction::Read, "writes were not allowed (--write)");
        Ok(Transfer { remote: remote.clone(), size_bytes: size as u32, window, direction })
    }

    /// Where its requests begin, in bytes, in order.
    pub fn offsets(&self) -> impl Iterator<Item = u64> + use<> {
        (0..self.remote.bytes).step_by(self.size_bytes as usize)
    }

    /// What every write carries.
    pub fn payload(&self) -> Vec<u8> {
        vec![0x5a; self.size_bytes as usize]
    }

    /// Holds what a read gave against what is there.
    pub fn check(&self, offset: u64, data: &[u8]) -> Result<()> {
        ensure!(
            data.len() == self.size_bytes as usize,
            "{} bytes were read at byte {offset}",
            data.len()
        );
        if self.remote.verify {
            let offsets = (offset..).step_by(8);
            let right =
                data.chunks_exact(8).zip(offsets).all(|(word, at)| word == at.to_le_bytes());
            ensure!(right, "wrong bytes were read at byte {offset}");
        }
        Ok(())
    }
}

/// Carries an order out.
pub fn serve(client: &mut dyn Client, order: &Order, remote: &Remote) -> Result<Answer> {
    let transfer = Transfer::new(order, remote)?;
    let cost = client.serve(&transfer)?;
    let (bytes, requests) = (remote.bytes, remote.bytes / order.size_bytes);
    let round = RoundResult { bytes, requests, ..cost.round() };
    Ok(Answer { round, samples_ns: None })
}
