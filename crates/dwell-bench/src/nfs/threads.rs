// SPDX-License-Identifier: MIT OR Apache-2.0
//! The baseline: blocking threads, each with one request at a time, by the same encoding. Each has
//! a connection of its own, or all share one.

use std::io::{self, IoSlice, Read as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use anyhow::{Context, Result, bail, ensure};
use dwell::executor::Executor;
use dwell_nfs::client::Client;
use dwell_nfs::engine::Transport;
use dwell_nfs::nfs3::{Answer, Commit, Handle, Read, SetAttributes, Stable, Verifier, Write};
use dwell_nfs::procedure::Procedure;
use dwell_nfs::rpc::record::{self, Records};
use dwell_nfs::rpc::{self, Credential};
use dwell_nfs::xdr::{Reader, Writer};

use super::Job;
use super::wire::{Wire, datagrams, send_all, stream};
use crate::result::Direction;
use crate::usage::{Cost, Meter, Scope};

enum Socket {
    Stream(TcpStream, Records),
    Datagram(UdpSocket, Vec<u8>),
    /// With others; its place there.
    Shared(Arc<Wire>, usize),
}

/// A thread that has one request at a time.
pub(super) struct Caller {
    socket: Socket,
    credential: Credential,
    xid: u32,
    head: Vec<u8>,
}

impl Caller {
    pub fn connect(
        transport: Transport,
        to: SocketAddr,
        largest: u32,
        xid: u32,
    ) -> io::Result<Self> {
        Ok(Caller::new(
            xid,
            match transport {
                Transport::Stream => Socket::Stream(stream(to)?, Records::new(largest)),
                Transport::Datagram => Socket::Datagram(datagrams(to)?, vec![0; 1 << 16]),
            },
        ))
    }

    fn new(xid: u32, socket: Socket) -> Self {
        Caller { socket, credential: Credential::own(), xid, head: Vec::new() }
    }

    pub fn call<C, T, K>(
        &mut self,
        call: &C,
        payload: &[u8],
        keep: impl FnOnce(T) -> K,
    ) -> Result<K>
    where
        C: for<'a> Procedure<Results<'a> = Answer<T>>,
    {
        self.with_results(call, payload, |results| {
            let answer = call.read(results)?;
            answer.map(keep).map_err(|status| anyhow::anyhow!("{}: {status}", C::NAME))
        })
    }

    fn with_results<C: Procedure, K>(
        &mut self,
        call: &C,
        payload: &[u8],
        take: impl FnOnce(&mut Reader<'_>) -> Result<K>,
    ) -> Result<K> {
        self.xid = self.xid.wrapping_add(1);
        let xid = self.xid;
        let head = &mut self.head;
        write_head(head, xid, call, &self.credential, payload.len());
        let (answer, record);
        let message = match &mut self.socket {
            Socket::Shared(wire, place) => {
                answer = wire.exchange(*place, head, payload)?;
                &answer[..]
            }
            Socket::Stream(stream, records) => {
                send_all(stream, &mut [IoSlice::new(head), IoSlice::new(payload)])?;
                record = loop {
                    if let Some(record) = records.take_next()? {
                        break record;
                    }
                    match stream.read(records.room())? {
                        0 => bail!("the server closed the connection"),
                        bytes => records.filled(bytes),
                    }
                };
                &record[..]
            }
            Socket::Datagram(socket, buffer) => {
                head.extend_from_slice(payload);
                let bytes = loop {
                    socket.send(&head[record::MARK_BYTES..])?;
                    let received = loop {
                        match socket.recv(buffer) {
                            Ok(bytes) if rpc::xid(&buffer[..bytes]) == Some(xid) => {
                                break Some(bytes);
                            }
                            Ok(_) => {}
                            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break None,
                            Err(error) => return Err(error.into()),
                        }
                    };
                    if let Some(bytes) = received {
                        break bytes;
                    }
                };
                &buffer[..bytes]
            }
        };
        let reply = rpc::read_reply(message)?;
        ensure!(reply.xid == xid, "an answer to another request");
        take(&mut reply.outcome?)
    }
}

/// Writes a call down, as it stands before its payload in a stream.
pub(super) fn write_head<C: Procedure>(
    head: &mut Vec<u8>,
    xid: u32,
    call: &C,
    credential: &Credential,
    payload_bytes: usize,
) {
    head.clear();
    head.extend_from_slice(&[0; record::MARK_BYTES]);
    rpc::write_call(head, xid, C::TARGET, credential);
    call.write(&mut Writer::new(head));
    let length = (head.len() - record::MARK_BYTES + payload_bytes) as u32;
    head[..record::MARK_BYTES].copy_from_slice(&record::mark(length));
}

/// Finds the file, as any client would.
pub(super) fn open(job: &Job) -> Result<Handle> {
    let executor = Executor::new().context("setting up the executor")?;
    let tasks = executor.handle();
    Ok(executor.block_on(async {
        let client = Client::mount(&tasks, &job.url).await?;
        let (parent, name) = client.parent(&job.url).await?;
        let attributes = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
        match job.direction {
            Direction::Write => client.create(parent, name.as_bytes(), attributes, &job.url).await,
            Direction::Read => client.require(&job.url).await.map(|found| found.handle),
        }
    })?)
}

/// Moves the file once, by so many threads, on one connection together or on one each.
pub fn run(job: &Job, threads: u32, together: bool) -> Result<Cost> {
    ensure!(job.size_bytes.is_multiple_of(4), "requests of a multiple of 4 bytes are measured");
    let file = open(job)?;
    let to = job.url.address(job.url.port.unwrap_or(2049))?;
    let next = AtomicU64::new(0);
    let begin = Barrier::new(threads as usize + 1);
    let end = Barrier::new(threads as usize + 1);
    let largest = job.size_bytes + 4096;
    let wire = || Wire::connect(job.url.transport, to, largest, threads as usize + 1);
    let wire = together.then(wire).transpose().context("connecting")?.map(Arc::new);
    let connect = |number: u32| match &wire {
        Some(wire) => Ok(Caller::new(number << 20, Socket::Shared(wire.clone(), number as usize))),
        None => Caller::connect(job.url.transport, to, largest, number << 20).context("connecting"),
    };
    let mut last = connect(threads)?;
    // All are there before any thread waits for the others.
    let callers = (0..threads).map(connect).collect::<Result<Vec<_>>>()?;
    std::thread::scope(|scope| {
        let mut handles = Vec::new();
        for mut caller in callers {
            let (next, begin, end) = (&next, &begin, &end);
            handles.push(scope.spawn(move || {
                begin.wait();
                let done = transfer(job, file, &mut caller, next);
                end.wait();
                done
            }));
        }
        begin.wait();
        let meter = Meter::start(Scope::Process);
        end.wait();
        let commit = Commit { file, offset: 0, bytes: 0 };
        let last_verifier: Option<Verifier> = match job.direction {
            Direction::Write => Some(last.call(&commit, &[], |verifier| verifier)?),
            Direction::Read => None,
        };
        let cost = meter.stop();
        for handle in handles {
            let verifier = match handle.join() {
                Ok(done) => done?,
                Err(panic) => std::panic::resume_unwind(panic),
            };
            ensure!(
                verifier.is_none() || verifier == last_verifier,
                "the server was restarted meanwhile"
            );
        }
        Ok(cost)
    })
}

/// Takes requests until there are none; the verifier that the writes were answered with.
fn transfer(
    job: &Job,
    file: Handle,
    caller: &mut Caller,
    next: &AtomicU64,
) -> Result<Option<Verifier>> {
    let payload = vec![0x5a; job.size_bytes as usize];
    let mut seen = None;
    loop {
        let offset = next.fetch_add(u64::from(job.size_bytes), Ordering::Relaxed);
        if offset >= job.bytes {
            return Ok(seen);
        }
        let bytes = u64::from(job.size_bytes).min(job.bytes - offset) as u32;
        match job.direction {
            Direction::Write => {
                let call = Write { file, offset, bytes, stable: Stable::Unstable };
                let written = caller.call(&call, &payload[..bytes as usize], |written| written)?;
                ensure!(written.bytes == bytes, "a short write");
                ensure!(
                    seen.is_none() || seen == Some(written.verifier),
                    "the server was restarted meanwhile"
                );
                seen = Some(written.verifier);
            }
            Direction::Read => {
                let call = Read { file, offset, bytes };
                let got = caller.with_results(&call, &[], |results| {
                    let answer = call.read(results)?;
                    answer.map(|read| read.data.len()).map_err(|status| anyhow::anyhow!("{status}"))
                })?;
                ensure!(got == bytes as usize, "a short read");
            }
        }
    }
}
