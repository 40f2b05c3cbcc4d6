// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file on a server as a source: `File::open("nfs://server/export/path")`, and queues of requests
//! on it, each with a connection of its own.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::rc::Rc;

use bytes::Bytes;
use dwell::any::Boxed;
use dwell::clock;
use dwell::executor::Executor;
use dwell::open::{self, Opened};
use dwell::parameters::DeviceParameters;
use dwell::queue::{Action, Completion, Full, Io, Queue, Ticket, Wake};
use dwell::source::Source;
use dwell_policy::{Backlog, Ns, Route, Routes};
use slab::Slab;

use crate::client::Client;
use crate::connection::Connection;
use crate::engine::{Done, Failure, Settings};
use crate::error::{Error, Why};
use crate::link::{Link, TOGETHER_NS};
use crate::nfs3::{GetAttributes, Handle, Kind, Read, SetAttributes, Stable, Status, Write};
use crate::procedure::Procedure;
use crate::rpc::Refusal;
use crate::url::{SCHEME, Url};
use crate::xdr::Reader;

/// Before a request is made again that the server asked time for.
const LATER_NS: Ns = 20_000_000;
/// How often a request is made again that the server failed at.
const MOST_FAILURES: u8 = 5;
/// Largest queue.
const MOST_DEPTH: u32 = 1024;

/// Makes `File::open("nfs://…")` reach servers.
pub fn register() {
    open::register(SCHEME, Box::new(|address, options| Ok(opened(address, options)?)));
}

fn opened(address: &str, options: &open::Options) -> crate::Result<Opened> {
    let url: Url = address.parse()?;
    let executor = Executor::new().map_err(|error| Error::new("opening", &url, error))?;
    let tasks = executor.handle();
    let source = executor.block_on(async {
        let client = Client::mount(&tasks, &url).await?;
        find(&client, &url, options).await
    })?;
    let device = format!("nfs://{}", url.host);
    Ok(Opened { source: Box::new(Boxed(source)), device, parameters: DeviceParameters::default() })
}

async fn find(client: &Rc<Client>, url: &Url, options: &open::Options) -> crate::Result<NfsFile> {
    let found = match client.find_followed(url).await? {
        Some(found) => found,
        None if options.create => {
            let (parent, name) = client.parent(url).await?;
            let attributes = SetAttributes { mode: Some(0o644), ..SetAttributes::default() };
            client.create(parent, name.as_bytes(), attributes, url).await?;
            client.require(url).await?
        }
        None => return Err(Error::new("opening", url, Why::Status(Status::NOENT))),
    };
    match found.attributes.kind {
        Kind::File => {}
        Kind::Directory => return Err(Error::invalid(url, "a directory; name a file in it")),
        kind => return Err(Error::invalid(url, format!("a {}", kind.as_str()))),
    }
    Ok(NfsFile {
        server: client.server(),
        settings: client.settings(),
        handle: found.handle,
        read_bytes: client.read_bytes(),
        write_bytes: client.write_bytes(),
    })
}

/// An open file on a server.
///
/// A write is durable when it completes (`FILE_SYNC`), so that nothing has to be kept for a server
/// that is restarted. Copies use [`Writer`](crate::file::Writer), which does keep it and is faster.
#[derive(Debug)]
pub struct NfsFile {
    server: SocketAddr,
    settings: Settings,
    handle: Handle,
    read_bytes: u32,
    write_bytes: u32,
}

impl Source for NfsFile {
    type Queue = NfsQueue;

    fn queue(&self, depth: u32) -> io::Result<NfsQueue> {
        if depth == 0 || depth > MOST_DEPTH {
            let what = format!("queue depth {depth}: must be from 1 to {MOST_DEPTH}");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, what));
        }
        Ok(NfsQueue {
            link: Link::new(clock::now(), self.server, self.settings.clone())?,
            file: self.handle,
            read_bytes: self.read_bytes,
            write_bytes: self.write_bytes,
            in_flight: Slab::with_capacity(depth as usize),
            parts: Slab::with_capacity(depth as usize),
            later: VecDeque::new(),
            over: VecDeque::new(),
            answers: Vec::new(),
            depth: depth as usize,
            next: 0,
        })
    }

    fn routes(&self) -> Routes {
        Routes::INTERRUPT
    }

    fn call(&self, _: &Io) -> i32 {
        -libc::EOPNOTSUPP
    }

    fn target(&self) -> i32 {
        0
    }

    /// Asks the server: others may write to the file.
    fn bytes(&self) -> io::Result<u64> {
        let executor = Executor::new()?;
        let settings = self.settings.clone();
        let connection = Connection::open(&executor.handle(), self.server, settings)?;
        let call = GetAttributes(self.handle);
        let asked = connection.call(&call, None, |found| found.map(|found| found.bytes));
        let why = match executor.block_on(asked) {
            Ok(Ok(bytes)) => return Ok(bytes),
            Ok(Err(status)) => Why::Status(status),
            Err(why) => why,
        };
        Err(io::Error::from_raw_os_error(Error::new("stat", "", why).errno()))
    }
}

/// What a write sends: the memory of its request, or a copy where that lies in pieces.
#[derive(Debug)]
enum Sent {
    Lent(*const u8, usize),
    Copied(Vec<u8>),
}

// SAFETY: whoever made the request promised that its memory stays valid, from any thread, until the
// completion is out; what is sent is dropped before that.
unsafe impl Send for Sent {}

impl AsRef<[u8]> for Sent {
    fn as_ref(&self) -> &[u8] {
        match self {
            // SAFETY: as above; nobody writes to the memory of a write that is in flight.
            Sent::Lent(start, bytes) => unsafe { std::slice::from_raw_parts(*start, *bytes) },
            Sent::Copied(bytes) => bytes,
        }
    }
}

/// One request of the caller's.
#[derive(Debug)]
struct Flight {
    ticket: Ticket,
    io: Io,
    /// Calls that are not over.
    left: u32,
    /// Bytes from its beginning up to the first call that came up short or failed, and how that
    /// did.
    good_bytes: u32,
    error: Option<i32>,
}

/// One call of a request.
#[derive(Clone, Copy, Debug)]
struct Part {
    flight: usize,
    /// Where in the request, and how much, in bytes.
    at: u32,
    bytes: u32,
    /// How often the server has failed at it.
    failures: u8,
}

/// A thread's queue to a file on a server.
#[derive(Debug)]
pub struct NfsQueue {
    link: Link<Sent>,
    file: Handle,
    read_bytes: u32,
    write_bytes: u32,
    in_flight: Slab<Flight>,
    parts: Slab<Part>,
    /// Calls to be made again, and when.
    later: VecDeque<(Ns, Part)>,
    over: VecDeque<Completion>,
    /// The answers of one look at the link; empty in between.
    answers: Vec<(u64, Result<Bytes, Failure>)>,
    depth: usize,
    next: u64,
}

impl NfsQueue {
    fn submit_part(&mut self, now: Ns, part: Part) {
        let io = &self.in_flight[part.flight].io;
        let offset = io.offset() + u64::from(part.at);
        let tag = self.parts.insert(part) as u64;
        let file = self.file;
        match io.action() {
            Action::Write | Action::WriteVectored => {
                let sent = sent(io, part);
                let (bytes, stable) = (part.bytes, Stable::FileSync);
                let call = Write { file, offset, bytes, stable };
                self.link.engine_mut().submit(now, &call, Some(sent), tag);
            }
            _ => {
                let call = Read { file, offset, bytes: part.bytes };
                self.link.engine_mut().submit(now, &call, None, tag);
            }
        }
    }

    /// Ends a call: so many bytes of it were moved before the end or an error.
    fn end_part(&mut self, part: Part, moved: u32, error: Option<i32>) {
        let flight = &mut self.in_flight[part.flight];
        flight.left -= 1;
        let stops_at = part.at + moved;
        if (moved < part.bytes || error.is_some()) && stops_at <= flight.good_bytes {
            if stops_at < flight.good_bytes || flight.error.is_none() {
                flight.error = error;
            }
            flight.good_bytes = stops_at;
        }
        if flight.left > 0 {
            return;
        }
        let flight = self.in_flight.remove(part.flight);
        let result = match flight.error {
            Some(error) if flight.good_bytes == 0 => -error,
            _ => flight.good_bytes as i32,
        };
        self.over.push_back(Completion { ticket: flight.ticket, result });
    }

    fn answered(&mut self, now: Ns, tag: u64, results: Result<Bytes, Failure>) {
        let Some(part) = self.parts.try_remove(tag as usize) else { return };
        let bytes = match results {
            Ok(bytes) => bytes,
            Err(Failure::NoAnswer { .. }) => {
                return self.end_part(part, 0, Some(libc::ETIMEDOUT));
            }
            Err(Failure::TooLong { .. }) => return self.end_part(part, 0, Some(libc::EMSGSIZE)),
            // As in copies: out of memory, or still at the first of two equal requests.
            Err(Failure::Refused(Refusal::System)) if part.failures < MOST_FAILURES => {
                let again = Part { failures: part.failures + 1, ..part };
                return self.later.push_back((now + LATER_NS, again));
            }
            Err(_) => return self.end_part(part, 0, Some(libc::EIO)),
        };
        let flight = &self.in_flight[part.flight];
        let offset = flight.io.offset() + u64::from(part.at);
        let (file, wanted, stable) = (self.file, part.bytes, Stable::FileSync);
        let outcome = match flight.io.action() {
            Action::Write | Action::WriteVectored => {
                let call = Write { file, offset, bytes: wanted, stable };
                let answer = call.read(&mut Reader::new(&bytes));
                answer.map(|answer| answer.map(|w| (w.bytes, false)))
            }
            _ => {
                let call = Read { file, offset, bytes: wanted };
                call.read(&mut Reader::new(&bytes)).map(|answer| {
                    answer.map(|read| {
                        scatter(&flight.io, part.at, read.data);
                        (read.data.len() as u32, read.ends || read.data.is_empty())
                    })
                })
            }
        };
        match outcome {
            Ok(Ok((moved, ends))) if moved == wanted || ends => self.end_part(part, moved, None),
            // The server did less than it could: the rest is asked for.
            Ok(Ok((moved, _))) => {
                let rest = Part { at: part.at + moved, bytes: wanted - moved, ..part };
                self.submit_part(now, rest);
            }
            Ok(Err(Status::JUKEBOX)) => {
                self.link.engine_mut().congested(now);
                self.later.push_back((now + LATER_NS, part));
            }
            Ok(Err(status)) => self.end_part(part, 0, Some(status.errno())),
            Err(_) => self.end_part(part, 0, Some(libc::EIO)),
        }
    }

    fn broke(&mut self) {
        let Some(error) = self.link.broken() else { return };
        let number = error.raw_os_error().unwrap_or(libc::ENOTCONN);
        let parts: Vec<Part> =
            self.parts.drain().chain(self.later.drain(..).map(|(_, part)| part)).collect();
        for part in parts {
            self.end_part(part, 0, Some(number));
        }
    }
}

/// What a part of a write sends.
fn sent(io: &Io, part: Part) -> Sent {
    if io.pieces() == 0 {
        // SAFETY: the part lies within the request's memory.
        let start = unsafe { io.memory().add(part.at as usize) };
        return Sent::Lent(start, part.bytes as usize);
    }
    let mut copied = Vec::with_capacity(part.bytes as usize);
    each_slice(io, part.at, part.bytes as usize, &mut |start, bytes| {
        // SAFETY: a part of a piece of the request, which stays valid until its completion.
        copied.extend_from_slice(unsafe { std::slice::from_raw_parts(start, bytes) });
    });
    Sent::Copied(copied)
}

/// Copies what was read to where it belongs.
fn scatter(io: &Io, at: u32, data: &[u8]) {
    let mut rest = data;
    each_slice(io, at, data.len(), &mut |start, bytes| {
        let (now, later) = rest.split_at(bytes);
        rest = later;
        // SAFETY: a part of a piece of the request, which stays valid and unaliased until its
        // completion; `now` lies in a buffer of the link's own.
        unsafe { std::ptr::copy_nonoverlapping(now.as_ptr(), start, bytes) };
    });
}

/// The pieces of a request's memory from `at` on, `bytes` in all.
fn each_slice(io: &Io, at: u32, bytes: usize, take: &mut dyn FnMut(*mut u8, usize)) {
    let (mut skip, mut left) = (at as usize, bytes);
    for (start, length) in io.each_piece() {
        let skipped = skip.min(length);
        skip -= skipped;
        let taken = (length - skipped).min(left);
        if taken > 0 {
            take(start.wrapping_add(skipped), taken);
            left -= taken;
        }
    }
}

// SAFETY: a request's memory is copied to and from by `poll` and `submit` alone, on this thread,
// and by none of them once its completion is out.
unsafe impl Queue for NfsQueue {
    type Op = Io;

    fn submit(&mut self, io: Io, _: Route) -> Result<Ticket, (Full, Io)> {
        if self.in_flight.len() >= self.depth {
            return Err((Full, io));
        }
        let now = clock::now();
        let (action, bytes) = (io.action(), io.bytes());
        let most = match action {
            Action::Write | Action::WriteVectored => self.write_bytes,
            _ => self.read_bytes,
        };
        let left = bytes.div_ceil(most);
        let ticket = Ticket(self.next);
        self.next += 1;
        let flight = Flight { ticket, io, left, good_bytes: bytes, error: None };
        let key = self.in_flight.insert(flight);
        // Writes are durable already, and an empty request takes no call.
        if left == 0 || matches!(action, Action::Sync | Action::DataSync) {
            self.in_flight.remove(key);
            self.over.push_back(Completion { ticket, result: 0 });
            return Ok(ticket);
        }
        for place in 0..left {
            let at = place * most;
            self.submit_part(
                now,
                Part { flight: key, at, bytes: most.min(bytes - at), failures: 0 },
            );
        }
        Ok(ticket)
    }

    fn flush(&mut self) {
        self.link.send(clock::now());
    }

    fn poll(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        let now = clock::now();
        while self.later.front().is_some_and(|(at, _)| *at <= now)
            && let Some((_, part)) = self.later.pop_front()
        {
            self.submit_part(now, part);
        }
        if !self.in_flight.is_empty() {
            let mut answers = std::mem::take(&mut self.answers);
            self.link.turn(now, &mut |done: Done<Sent>| {
                drop(done.payload);
                answers.push((done.tag, done.results));
            });
            for (tag, results) in answers.drain(..) {
                self.answered(now, tag, results);
            }
            self.answers = answers;
            self.broke();
            self.link.send(now);
        }
        let found = self.over.len();
        self.over.drain(..).for_each(out);
        found
    }

    fn arm(&mut self, min_complete: u32) -> Wake<'_> {
        let interest = self.link.interest();
        self.link.set_low_water(self.link.low_water(min_complete));
        let together = (min_complete > 1).then(|| clock::now() + TOGETHER_NS);
        let later = self.later.front().map(|(at, _)| *at);
        let at = interest.at.into_iter().chain(together).chain(later).min();
        match interest.readable {
            Some(descriptor) => {
                Wake::Socket { fd: descriptor.as_raw_fd(), write: interest.writable, at }
            }
            None => Wake::At(at.unwrap_or_else(clock::now)),
        }
    }

    /// A call that was made cannot be taken back: it ends when the server answers.
    fn cancel(&mut self, _: Ticket) {}

    fn backlog(&self) -> Backlog {
        let requests = self.in_flight.len() as u32;
        Backlog {
            bytes: self.in_flight.iter().map(|(_, f)| u64::from(f.io.bytes())).sum(),
            requests,
        }
    }
}
