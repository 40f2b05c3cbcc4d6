// SPDX-License-Identifier: MIT OR Apache-2.0
//! One thread's queue to the files of a served mount.
//!
//! A request becomes one or more commands on a channel. What no channel may do, and what it cannot
//! do at the moment, is asked of the kernel, which asks the same daemon.
#![allow(unsafe_code)]

mod commands;

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use dwell::clock;
use dwell::external::External;
use dwell::parameters::DeviceParameters;
use dwell::queue::{Completion, Full, Io, Queue, QueueHint, SignalSafe, Ticket, Wake};
use dwell::source::Source;
use dwell_policy::{Backlog, Ns, Route};

use super::ask::DaemonRoute;
use super::buffer::{Arena, ChannelBuffer};
use super::flight::Flight;
use super::grant::{Grant, NO_GRANT};
use super::inner::Inner;
use super::link::{Guest, Link, Shape};

/// Empty looks after which the daemon is looked for.
const LOOKS_PER_PULSE: u32 = 1 << 15;
/// How long a lost daemon is not looked for again, in nanoseconds.
const RETRY_NS: Ns = 50_000_000;
/// Requests on a file that go to the kernel when it cannot be granted, before that is asked for
/// again.
const REFUSED_FOR: u32 = 64;
/// Times that a command is tried again because its grant was taken back meanwhile.
const TRIES: u8 = 8;
/// Grants that are remembered.
const GRANTS: usize = 64;

/// Serves a request by a system call.
pub(crate) fn by_kernel(io: &Io) -> i32 {
    loop {
        let done = External::new(&DeviceParameters::default(), false).call(io);
        if done != -libc::EINTR {
            return done;
        }
    }
}

/// One thread's queue to the files of a served mount.
pub struct ChannelQueue {
    shape: Shape,
    route: DaemonRoute,
    file: Option<Arc<Inner>>,
    guest: Option<Guest>,
    link: Option<Link>,
    arena: Option<Arc<Arena>>,
    retry_at: Ns,
    /// Whether a channel that is lost is not looked for again: that allocates.
    sealed: bool,
    in_flight: Box<[Option<Flight>]>,
    free: Vec<u32>,
    grants: [Grant; GRANTS],
    /// Commands that were put in the ring and not submitted.
    unsent: u32,
    bytes: u64,
    done: VecDeque<Completion>,
    sequence: u64,
    idle_looks: u32,
}

impl ChannelQueue {
    pub(super) fn new(shape: Shape, route: DaemonRoute, file: Option<Arc<Inner>>) -> Self {
        let depth = shape.depth.clamp(1, Shape::MOST_DEPTH);
        ChannelQueue {
            shape: Shape { depth, ..shape },
            route,
            file,
            guest: None,
            link: None,
            arena: None,
            retry_at: 0,
            sealed: false,
            in_flight: (0..depth).map(|_| None).collect(),
            free: (0..depth).rev().collect(),
            grants: [NO_GRANT; GRANTS],
            unsent: 0,
            bytes: 0,
            done: VecDeque::with_capacity(depth as usize),
            sequence: 0,
            idle_looks: 0,
        }
    }

    /// As of [`Mount::for_guest`](super::Mount::for_guest).
    pub(crate) fn for_guest(self, guest: Option<Guest>) -> Self {
        ChannelQueue { guest, ..self }
    }

    /// Connects to the daemon that serves a descriptor's file.
    pub(crate) fn connect(&mut self, descriptor: RawFd) -> io::Result<()> {
        let place = match (self.route.place(descriptor), &self.file) {
            (Err(error), Some(file)) if error.raw_os_error() == Some(libc::ENOTCONN) => {
                file.reopen()?;
                self.route.place(descriptor)?
            }
            (place, _) => place?,
        };
        let link = Link::connect(&place, self.shape, self.guest)?;
        let slots = self.shape.depth * self.shape.slot_bytes;
        self.arena = (self.shape.arena_bytes > 0).then(|| Arena::new(link.shared().clone(), slots));
        self.link = Some(link);
        self.grants = [NO_GRANT; GRANTS];
        self.unsent = 0;
        Ok(())
    }

    /// Connects now if that can be, and never later: from here on nothing is allocated. Without a
    /// channel the kernel is asked.
    pub(crate) fn sealed(mut self, descriptor: RawFd) -> Self {
        self.linked(descriptor);
        self.sealed = true;
        self
    }

    /// A buffer that lives in the channel: requests on all of it, or on parts of it, copy nothing
    /// here. `None` where the channel was made without such memory, or all is given out.
    pub fn buffer(&self, bytes: u32) -> Option<ChannelBuffer> {
        self.arena.as_ref()?.buffer(bytes)
    }

    /// Whether requests take the channel at this moment.
    pub fn is_connected(&self) -> bool {
        self.link.is_some()
    }

    /// Sees to it that there is a channel, unless that has just failed.
    #[inline]
    fn linked(&mut self, descriptor: RawFd) -> bool {
        match &self.link {
            Some(link) if link.is_ours() => true,
            _ => self.relink(descriptor),
        }
    }

    #[cold]
    fn relink(&mut self, descriptor: RawFd) -> bool {
        self.lose();
        if clock::now() < self.retry_at || self.sealed {
            return false;
        }
        let linked = self.connect(descriptor).is_ok();
        if !linked {
            // From now on: a daemon that does not answer has taken its time already.
            self.retry_at = clock::now() + RETRY_NS;
        }
        linked
    }

    /// The daemon is dead, or ended the channel, of which it takes back all grants first. A command
    /// that it did not take will never be carried out, so the kernel does that.
    #[cold]
    fn mourn(&mut self) {
        let Some(taken) = self.link.as_ref().map(Link::taken) else { return };
        let untouched = |flight: &Flight| flight.place.wrapping_sub(taken) as i32 > 0;
        for at in 0..self.in_flight.len() {
            if self.in_flight[at].as_ref().is_some_and(untouched)
                && let Some(completion) = self.by_kernel(at as u32)
            {
                self.done.push_back(completion);
            }
        }
        self.lose();
    }

    /// The channel is over: nobody knows what became of what was in flight.
    #[cold]
    fn lose(&mut self) {
        self.link = None;
        self.unsent = 0;
        for at in 0..self.in_flight.len() {
            if let Some(flight) = self.in_flight[at].take() {
                self.free.push(at as u32);
                self.bytes -= u64::from(flight.io.bytes());
                self.done.push_back(Completion { ticket: flight.ticket, result: -libc::EIO });
            }
        }
    }

    /// A descriptor's epoch; where nobody counts, whoever makes requests keeps it open.
    #[inline]
    fn epoch(&self, descriptor: RawFd) -> u32 {
        self.guest.map_or(0, |guest| (guest.epoch)(descriptor))
    }

    /// The entry for a descriptor in this epoch; `None` where its file is to be asked of the
    /// kernel.
    #[inline]
    fn grant(&mut self, descriptor: RawFd, epoch: u32) -> Option<Grant> {
        let grant = &mut self.grants[descriptor as usize % GRANTS];
        if grant.descriptor == descriptor && grant.epoch == epoch {
            if grant.refused == 0 {
                return Some(*grant);
            }
            grant.refused -= 1;
            if grant.refused > 0 {
                return None;
            }
        }
        self.ask(descriptor, epoch)
    }

    /// Asks for it. The epoch is older than the question: a file that the number names since is no
    /// less a file of it.
    #[cold]
    fn ask(&mut self, descriptor: RawFd, epoch: u32) -> Option<Grant> {
        let asked = self.route.grant(descriptor, self.link.as_ref()?.token());
        let grant = match &asked {
            Ok(granted) => Grant::of(descriptor, epoch, granted),
            Err(_) => Grant { descriptor, epoch, refused: REFUSED_FOR, ..NO_GRANT },
        };
        self.grants[descriptor as usize % GRANTS] = grant;
        asked.ok().map(|_| grant)
    }

    fn in_flight(&self) -> usize {
        self.in_flight.len() - self.free.len()
    }
}

// SAFETY: a completion is handed out when the copy out of the channel, or the call that took its
// place, is over. Memory that lies in the channel itself is the daemon's to write at any time, and
// its makers know.
unsafe impl Queue for ChannelQueue {
    type Op = Io;

    fn submit(&mut self, io: Io, _: Route) -> Result<Ticket, (Full, Io)> {
        if self.done.len() + self.in_flight() >= self.in_flight.len() {
            return Err((Full, io));
        }
        let linked = self.linked(io.target());
        let Some(at) = self.free.pop() else { return Err((Full, io)) };
        // The low bits number the places, as users expect it of a queue's tickets.
        self.sequence = self.sequence.wrapping_add(1);
        let ticket = Ticket(self.sequence << 12 | u64::from(at));
        self.bytes += u64::from(io.bytes());
        let place = self.link.as_ref().filter(|_| self.arena.is_some() && io.pieces() == 0);
        let in_channel = place.and_then(|link| link.shared().place_of(io.memory(), io.bytes()));
        let epoch = self.epoch(io.target());
        let (moved, piece, generation, place, tries) = (0, 0, 0, 0, 0);
        let flight =
            Flight { io, ticket, moved, piece, in_channel, generation, epoch, place, tries };
        self.in_flight[at as usize] = Some(flight);
        let staged = if linked { self.stage(at) } else { Ok(false) };
        match staged {
            Ok(true) => {}
            Ok(false) => {
                if let Some(completion) = self.by_kernel(at) {
                    self.done.push_back(completion);
                }
            }
            Err(_) => self.lose(),
        }
        Ok(ticket)
    }

    fn flush(&mut self) {
        let alone = self.unsent == 1 && self.in_flight() == 1;
        if self.unsent > 0
            && let Some(link) = &mut self.link
            && link.is_ours()
        {
            self.unsent = 0;
            link.submit(alone);
        }
    }

    #[inline]
    fn poll(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        self.flush();
        let mut handed = 0;
        if self.in_flight() > 0 {
            if self.link.as_ref().is_some_and(|link| !link.is_ours()) {
                self.lose();
            }
            match self.reap(out) {
                Ok(0) => {
                    self.idle_looks += 1;
                    if self.idle_looks.is_multiple_of(LOOKS_PER_PULSE)
                        && self.link.as_ref().is_some_and(|link| !link.is_alive())
                    {
                        self.mourn();
                    }
                }
                Ok(reaped) => handed = reaped,
                Err(_) => self.lose(),
            }
            self.flush();
        }
        while let Some(completion) = self.done.pop_front() {
            handed += 1;
            out(completion);
        }
        handed
    }

    fn arm(&mut self, _: u32) -> Wake<'_> {
        self.flush();
        if !self.done.is_empty() {
            return Wake::At(0);
        }
        match &self.link {
            Some(link) if self.in_flight() > 0 && link.is_ours() => {
                link.arm();
                Wake::Descriptor(link.descriptor())
            }
            _ => Wake::Never,
        }
    }

    fn disarm(&mut self) {
        if self.link.as_ref().is_some_and(|link| link.is_ours() && !link.disarm()) {
            self.mourn();
        }
    }

    /// Too late: a command is nearly over when it is submitted.
    fn cancel(&mut self, _: Ticket) {}

    fn backlog(&self) -> Backlog {
        Backlog { bytes: self.bytes, requests: self.in_flight() as u32 }
    }

    #[inline]
    fn hint(&self, io: &Io) -> QueueHint {
        let Some(link) = self.link.as_ref().filter(|link| link.is_ours()) else {
            return QueueHint::DEVICE;
        };
        let grant = &self.grants[io.target() as usize % GRANTS];
        let is_here = grant.descriptor == io.target()
            && grant.epoch == self.epoch(io.target())
            && grant.refused == 0;
        QueueHint { awake: link.is_awake(), syncs_at_once: is_here && grant.in_memory }
    }
}

// SAFETY: submit, flush, poll, arm and disarm allocate nothing once there is a channel: what they
// fill was made with room for `depth`. They take no lock, do not panic, and touch no thread-local
// but libc's errno, which is not initialised on first use. Where there is no channel yet,
// connecting is a dozen system calls and does allocate: whoever needs the promise connects first.
unsafe impl SignalSafe for ChannelQueue {}
