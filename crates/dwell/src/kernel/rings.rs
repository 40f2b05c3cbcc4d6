// SPDX-License-Identifier: MIT OR Apache-2.0
//! The rings of one owner, and the requests that calls serve in their place.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::io;

use dwell_policy::{Backlog, Route};

use super::call;
use super::refusals::Refusals;
use crate::buffer::{Pool, PoolRef};
use crate::queue::{Completion, Full, Io, Ticket, Wake};
use crate::ring::{Completed, Ring, SpinMethod};

/// The rings of one owner, made on first use: one per spin method, and the polled one.
pub(super) struct Rings {
    depth: u32,
    pub rings: [Option<Box<Ring>>; 4],
    refusals: [Refusals; 4],
    /// Whether no ring is made any more.
    pub sealed: bool,
    /// What rings that are made later register too.
    pools: Vec<PoolRef>,
    target: Option<i32>,
    /// Completions of requests that were served inline.
    inline: VecDeque<Completion>,
    inline_tickets: u64,
}

/// Why rings did not take a request.
pub(super) enum Refused {
    Full,
    NoRing,
}

/// Bits of a ticket that name its ring; 7 names the inline list.
pub(super) const RING_SHIFT: u32 = 60;
pub(super) const INLINE_RING: u64 = 7;
/// Where the polled ring stands.
pub(super) const POLLED_RING: usize = 3;

impl Rings {
    pub fn new(depth: u32) -> Self {
        Rings {
            depth,
            rings: [const { None }; 4],
            refusals: [Refusals::default(); 4],
            sealed: false,
            pools: Vec::new(),
            target: None,
            inline: VecDeque::with_capacity(depth as usize),
            inline_tickets: 0,
        }
    }

    pub fn ring(&mut self, at: usize) -> io::Result<&mut Ring> {
        let worn_out = |ring: &Ring| !ring.usable() && ring.backlog().requests == 0;
        if self.rings[at].as_deref().is_none_or(worn_out) {
            if self.sealed {
                return Err(io::ErrorKind::Unsupported.into());
            }
            if self.refusals[at].is_too_soon() {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            let completed = match at {
                POLLED_RING => Completed::ByPolling,
                at => Completed::ByInterrupt(SpinMethod::ALL[at]),
            };
            let made = Ring::new(self.depth, completed);
            self.refusals[at].note(made.is_ok());
            let mut made = Box::new(made?);
            // What cannot be registered with this one too is looked up for each request.
            for pool in self.pools.iter().filter_map(PoolRef::pool) {
                let _ = made.register_pool(&pool);
            }
            if let Some(target) = self.target {
                let _ = made.register_file(target);
            }
            self.rings[at] = Some(made);
        }
        Ok(self.rings[at].as_mut().expect("made above"))
    }

    pub fn register_pool(&mut self, pool: &Pool) -> io::Result<()> {
        self.usable().try_for_each(|ring| ring.register_pool(pool))?;
        self.pools.retain(|other| other.is_used() && !other.is_of(pool));
        self.pools.push(pool.by_ref());
        Ok(())
    }

    pub fn register_target(&mut self, target: i32) -> io::Result<()> {
        self.usable().try_for_each(|ring| ring.register_file(target))?;
        self.target = Some(target);
        Ok(())
    }

    /// A ring that is not is made anew for the next request.
    fn usable(&mut self) -> impl Iterator<Item = &mut Ring> {
        self.rings.iter_mut().flatten().map(Box::as_mut).filter(|ring| ring.usable())
    }

    pub fn submit(&mut self, io: &Io, route: Route, method: SpinMethod) -> Result<Ticket, Refused> {
        let at = match route {
            Route::Inline => return self.serve(io).map_err(|Full| Refused::Full),
            Route::Interrupt => method as usize,
            Route::Polled => POLLED_RING,
        };
        let submitted = match self.ring(at) {
            // SAFETY: `io` came by value into `Queue::submit`, so it is here only once.
            Ok(ring) => unsafe { ring.submit(io) },
            // No ring to be had (a limit on locked memory or descriptors).
            Err(_) => return Err(Refused::NoRing),
        };
        submitted
            .map_err(|Full| Refused::Full)
            .map(|ticket| Ticket(ticket.0 | (at as u64) << RING_SHIFT))
    }

    pub fn serve(&mut self, io: &Io) -> Result<Ticket, Full> {
        if self.inline.len() >= self.depth as usize {
            return Err(Full);
        }
        self.inline_tickets = (self.inline_tickets + 1) & ((1 << RING_SHIFT) - 1);
        let ticket = Ticket(self.inline_tickets | INLINE_RING << RING_SHIFT);
        self.inline.push_back(Completion { ticket, result: call(io, 0) });
        Ok(ticket)
    }

    #[inline]
    pub fn poll(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        let mut handed = 0;
        while let Some(completion) = self.inline.pop_front() {
            handed += 1;
            out(completion);
        }
        for (at, ring) in self.rings.iter_mut().enumerate() {
            if let Some(ring) = ring
                && ring.backlog().requests > 0
            {
                handed += ring.poll(&mut |completion| {
                    out(Completion {
                        ticket: Ticket(completion.ticket.0 | (at as u64) << RING_SHIFT),
                        ..completion
                    });
                });
            }
        }
        handed
    }

    pub fn busy(&mut self) -> impl Iterator<Item = &mut Ring> {
        self.rings.iter_mut().flatten().map(Box::as_mut).filter(|ring| ring.backlog().requests > 0)
    }

    /// With requests on several rings at once only timed polling sees all of them.
    pub fn arm(&mut self, min_complete: u32) -> Wake<'static> {
        if self.has_served() {
            return Wake::At(0);
        }
        let mut busy = self.busy();
        match (busy.next(), busy.next()) {
            (Some(ring), None) => ring.arm(min_complete),
            _ => Wake::Never,
        }
    }

    /// Whether there is something already, of which no ring knows.
    fn has_served(&self) -> bool {
        !self.inline.is_empty()
    }

    pub fn arm_beside(&mut self) -> Wake<'static> {
        if self.has_served() {
            return Wake::At(0);
        }
        let mut busy = self.busy();
        match (busy.next(), busy.next()) {
            (Some(ring), None) => ring.arm_beside(),
            _ => Wake::Never,
        }
    }

    /// Whether nothing more comes out: all that is in flight is on rings that are lost.
    pub fn is_lost(&self) -> bool {
        let mut busy = self.rings.iter().flatten().filter(|ring| ring.backlog().requests > 0);
        self.inline.is_empty() && busy.clone().next().is_some() && busy.all(|ring| ring.is_lost())
    }

    pub fn give_up(&mut self) {
        self.busy().filter(|ring| ring.is_lost()).for_each(Ring::give_up);
    }

    pub fn backlog(&self) -> Backlog {
        let mut all = Backlog { bytes: 0, requests: self.inline.len() as u32 };
        for ring in self.rings.iter().flatten() {
            all.bytes += ring.backlog().bytes;
            all.requests += ring.backlog().requests;
        }
        all
    }
}
