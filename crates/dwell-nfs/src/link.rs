// SPDX-License-Identifier: MIT OR Apache-2.0
//! The engine over a socket: connects, sends and receives as far as it goes without waiting, and
//! says what to wait for.

use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use bytes::BytesMut;
use dwell_policy::Ns;

use crate::engine::{Done, Engine, Settings, Transport};
use crate::memory::Memory;
use crate::socket::{Socket, Tried, buffer_bytes};

/// Between attempts to connect again, growing from the first to the second.
const RETRY_NS: (Ns, Ns) = (10_000_000, 1_000_000_000);
/// One attempt.
const CONNECTING_NS: Ns = 5_000_000_000;
/// Longest datagram, and the memory that datagrams are received into at a time, in bytes.
const DATAGRAM_BYTES: usize = 1 << 16;
const DATAGRAMS_BYTES: usize = 16 * DATAGRAM_BYTES;
/// A server of another machine is given so long at least before a datagram is sent again, in
/// nanoseconds: a switch or a scheduler may hold an answer back as long. On this machine nothing
/// but the server does.
const LEAST_RESEND_NS: Ns = 10_000_000;
/// How long an answer that is there may be kept waiting for others, in nanoseconds. It only bounds
/// what a server that stalls does to the requests it has answered.
pub const TOGETHER_NS: Ns = 2_000_000;

#[derive(Debug)]
enum State {
    Connecting { until: Ns },
    Up,
    Down { retry_at: Ns },
}

/// What a connection waits for.
#[derive(Clone, Debug)]
pub struct Interest {
    /// Bytes from this socket; none while there is no connection.
    pub readable: Option<Arc<OwnedFd>>,
    /// Whether it also waits for room to send.
    pub writable: bool,
    /// A moment in any case.
    pub at: Option<Ns>,
}

/// A connection to a server and the requests on it. Nothing here waits.
#[derive(Debug)]
pub struct Link<P> {
    /// The requests.
    engine: Engine<P>,
    transport: Transport,
    to: SocketAddr,
    socket: Option<Socket>,
    state: State,
    port: Option<u16>,
    retry_ns: Ns,
    blocked: bool,
    /// What the next datagram is received into, and where that memory comes from.
    datagram: BytesMut,
    datagrams: Memory,
    /// Until the first byte from the server, an error of the connection is final.
    heard: bool,
    broken: Option<io::Error>,
}

impl<P: AsRef<[u8]>> Link<P> {
    /// Begins to connect to a server.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn new(now: Ns, to: SocketAddr, mut settings: Settings) -> io::Result<Self> {
        let (transport, heard) = (settings.transport, settings.has_answered);
        let (send_bytes, receive_bytes) = buffer_bytes(transport);
        settings.send_bytes = settings.send_bytes.min(send_bytes);
        settings.receive_bytes = settings.receive_bytes.min(receive_bytes);
        settings.first_xid = crate::random::random();
        if !to.ip().is_loopback() {
            settings.least_resend_ns = settings.least_resend_ns.max(LEAST_RESEND_NS);
        }
        let socket = Socket::connect(transport, to, None)?;
        let port = socket.port();
        Ok(Link {
            engine: Engine::new(settings),
            transport,
            to,
            socket: Some(socket),
            state: State::Connecting { until: now + CONNECTING_NS },
            port,
            retry_ns: RETRY_NS.0,
            blocked: false,
            datagram: BytesMut::new(),
            datagrams: Memory::new(DATAGRAMS_BYTES),
            heard,
            broken: None,
        })
    }

    /// The requests.
    pub fn engine(&self) -> &Engine<P> {
        &self.engine
    }

    /// The requests, to add some.
    pub fn engine_mut(&mut self) -> &mut Engine<P> {
        &mut self.engine
    }

    /// Where the server is.
    pub fn server(&self) -> SocketAddr {
        self.to
    }

    /// Why there is no connection, where none was ever made: it is not tried again.
    pub fn broken(&self) -> Option<&io::Error> {
        self.broken.as_ref()
    }

    /// Whether it was lost and is not being made again.
    pub fn is_down(&self) -> bool {
        matches!(self.state, State::Down { .. })
    }

    /// Does all that can be done now: connects, looks at timers, sends, receives. Requests that are
    /// over go to `done`.
    pub fn turn(&mut self, now: Ns, done: &mut dyn FnMut(Done<P>)) {
        self.advance(now);
        if matches!(self.state, State::Up)
            && let Err(error) = self.receive(now, done)
        {
            self.lost(now, error);
        }
        if !self.engine.timers(now, done) {
            self.lost(now, io::ErrorKind::TimedOut.into());
        }
        self.send(now);
    }

    /// Sends what there is to send.
    pub fn send(&mut self, now: Ns) {
        if matches!(self.state, State::Up) {
            if !self.engine.is_up() {
                return self.lost(now, io::ErrorKind::TimedOut.into());
            }
            if let Err(error) = self.push(now) {
                self.lost(now, error);
            }
        }
    }

    fn advance(&mut self, now: Ns) {
        if self.broken.is_some() {
            return;
        }
        if let State::Down { retry_at } = self.state {
            // A server may close what is idle: without requests there is nothing to connect for.
            if now < retry_at || self.engine.pending() == 0 {
                return;
            }
            match Socket::connect(self.transport, self.to, self.port) {
                Ok(socket) => {
                    self.port = socket.port();
                    self.socket = Some(socket);
                    self.state = State::Connecting { until: now + CONNECTING_NS };
                }
                Err(error) => return self.lost(now, error),
            }
        }
        if let (State::Connecting { until }, Some(socket)) = (&self.state, &self.socket) {
            match socket.is_connected() {
                Ok(true) => {
                    self.state = State::Up;
                    self.blocked = false;
                    self.engine.connected(now);
                }
                Ok(false) if now < *until => {}
                Ok(false) => self.lost(now, io::ErrorKind::TimedOut.into()),
                Err(error) => self.lost(now, error),
            }
        }
    }

    fn lost(&mut self, now: Ns, error: io::Error) {
        self.socket = None;
        self.engine.disconnected();
        self.state = State::Down { retry_at: now + self.retry_ns };
        self.retry_ns = (self.retry_ns * 2).min(RETRY_NS.1);
        if !self.heard {
            self.broken = Some(error);
        }
    }

    fn receive(&mut self, now: Ns, done: &mut dyn FnMut(Done<P>)) -> io::Result<()> {
        let Some(socket) = &self.socket else { return Ok(()) };
        loop {
            let (room, tried) = match self.transport {
                Transport::Stream => {
                    let room = self.engine.room();
                    (room.len(), socket.receive(room)?)
                }
                Transport::Datagram => {
                    if self.datagram.len() < DATAGRAM_BYTES {
                        self.datagrams.give_back(std::mem::take(&mut self.datagram));
                        self.datagram = self.datagrams.chunk(DATAGRAM_BYTES);
                    }
                    (0, socket.receive(&mut self.datagram[..DATAGRAM_BYTES])?)
                }
            };
            let bytes = match tried {
                Tried::Bytes(bytes) => bytes,
                Tried::Later | Tried::TooLong => return Ok(()),
                Tried::Closed => return Err(io::ErrorKind::ConnectionReset.into()),
            };
            self.heard = true;
            self.retry_ns = RETRY_NS.0;
            match self.transport {
                Transport::Stream => (self.engine.received(now, bytes, done))
                    .map_err(|unreadable| io::Error::other(unreadable.to_string()))?,
                Transport::Datagram => {
                    let message = self.datagram.split_to(bytes).freeze();
                    self.engine.datagram(now, &message, done);
                }
            }
            // Less than there was room for: there is no more.
            if bytes < room {
                return Ok(());
            }
        }
    }

    fn push(&mut self, now: Ns) -> io::Result<()> {
        self.blocked = false;
        let Some(socket) = &self.socket else { return Ok(()) };
        while self.engine.wants_to_send() {
            let mut slices = Vec::with_capacity(64);
            self.engine.outgoing(&mut slices);
            if slices.is_empty() {
                // Requests that ended before they were sent.
                drop(slices);
                self.engine.sent(now, 0);
                continue;
            }
            match socket.send(&slices)? {
                Tried::Bytes(bytes) => {
                    drop(slices);
                    self.engine.sent(now, bytes);
                }
                Tried::TooLong => {
                    drop(slices);
                    self.engine.too_long();
                }
                Tried::Later | Tried::Closed => {
                    self.blocked = true;
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// What to wait for until about `answers` requests are answered.
    pub fn interest(&self) -> Interest {
        let timer = self.engine.next_timer();
        let (writable, at) = match self.state {
            _ if self.broken.is_some() => (false, Some(0)),
            State::Connecting { until } => (true, sooner(timer, until)),
            State::Up => (self.blocked, timer),
            State::Down { .. } if self.engine.pending() == 0 => (false, None),
            State::Down { retry_at } => (false, sooner(timer, retry_at)),
        };
        let readable = self.socket.as_ref().map(|socket| socket.descriptor().clone());
        Interest { readable, writable, at }
    }

    /// How many bytes to sleep for, so that about `answers` requests are answered: 1 while
    /// connecting.
    pub fn low_water(&self, answers: u32) -> usize {
        if matches!(self.state, State::Up) { self.engine.low_water(answers) } else { 1 }
    }

    /// Has the socket count as readable only once so many bytes are there.
    pub fn set_low_water(&mut self, bytes: usize) {
        if let Some(socket) = &mut self.socket {
            socket.set_low_water(bytes);
        }
    }
}

fn sooner(timer: Option<Ns>, at: Ns) -> Option<Ns> {
    Some(timer.map_or(at, |timer| timer.min(at)))
}
