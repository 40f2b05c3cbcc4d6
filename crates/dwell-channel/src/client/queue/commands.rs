// SPDX-License-Identifier: MIT OR Apache-2.0
//! A request as commands of a channel, one piece after the other, and what the daemon says of them.
#![allow(unsafe_code)]

use dwell::queue::{Action, Completion};

use super::{ChannelQueue, GRANTS, TRIES, by_kernel};
use crate::client::copies::{careful, gather, scatter};
use crate::client::grant::{Grant, NO_GRANT};
use crate::ring::Broken;
use crate::wire::{Command, Done, Opcode};

impl ChannelQueue {
    /// Puts the next command of a flight in the ring; `false` where its file is to be asked of the
    /// kernel.
    #[inline]
    pub(super) fn stage(&mut self, at: u32) -> Result<bool, Broken> {
        let Some(target) = self.in_flight[at as usize].as_ref().map(|flight| flight.io.target())
        else {
            return Ok(false);
        };
        let epoch = self.epoch(target);
        if let Some(flight) = &mut self.in_flight[at as usize] {
            if flight.moved > 0 && flight.epoch != epoch {
                return Ok(false);
            }
            flight.epoch = epoch;
        }
        let Some(Grant { entry, generation, .. }) = self.grant(target, epoch) else {
            return Ok(false);
        };
        let (Some(flight), Some(link)) = (&mut self.in_flight[at as usize], &mut self.link) else {
            return Ok(false);
        };
        let io = &flight.io;
        let left = io.bytes() - flight.moved;
        let (place, piece) = match flight.in_channel {
            Some(place) => (place + flight.moved, left),
            None => (at * self.shape.slot_bytes, left.min(self.shape.slot_bytes)),
        };
        let opcode = match io.action() {
            Action::Read | Action::ReadVectored => Opcode::Read,
            Action::Write | Action::WriteVectored => Opcode::Write,
            Action::Sync => Opcode::Sync,
            Action::DataSync => Opcode::DataSync,
        };
        if opcode == Opcode::Write && flight.in_channel.is_none() {
            let Some(slot) = link.shared().data(place, piece) else { return Ok(false) };
            // SAFETY: the slot is this flight's, and so long; whoever made the request lends its
            // memory.
            let whole = unsafe {
                match self.guest {
                    Some(_) => careful::gather(link.process(), io, flight.moved, slot, piece),
                    None => gather(io, flight.moved, slot, piece),
                }
            };
            if !whole {
                return Ok(false);
            }
        }
        flight.piece = piece;
        flight.generation = generation;
        let command = Command {
            opcode,
            tag: at,
            entry,
            generation,
            offset: io.offset().wrapping_add(u64::from(flight.moved)),
            bytes: piece,
            place: if matches!(opcode, Opcode::Sync | Opcode::DataSync) { 0 } else { place },
        };
        if !link.put(&command)? {
            return Ok(false);
        }
        flight.place = link.place();
        self.unsent += 1;
        Ok(true)
    }

    /// Ends a flight.
    #[inline]
    pub(super) fn finish(&mut self, at: u32, result: i32) -> Option<Completion> {
        let flight = self.in_flight[at as usize].take()?;
        self.free.push(at);
        self.bytes -= u64::from(flight.io.bytes());
        let result = match result {
            // What was moved was moved.
            result if result < 0 && flight.moved > 0 => flight.moved as i32,
            result if result < 0 => result,
            result => (flight.moved + result as u32) as i32,
        };
        Some(Completion { ticket: flight.ticket, result })
    }

    /// Lets the kernel do all, or the rest, of a flight.
    #[cold]
    pub(super) fn by_kernel(&mut self, at: u32) -> Option<Completion> {
        let guest = self.guest;
        let flight = self.in_flight[at as usize].as_mut()?;
        let renewed = guest.is_some_and(|guest| (guest.epoch)(flight.io.target()) != flight.epoch);
        if flight.moved > 0 && renewed {
            // The number may name another file now: what was moved was moved.
            return self.finish(at, 0);
        }
        // Whole: what was moved before is moved again, to the same place.
        flight.moved = 0;
        let result = by_kernel(&flight.io);
        self.finish(at, result)
    }

    /// Takes up what the daemon says of one command.
    #[inline]
    fn heard(&mut self, done: Done) -> Result<Option<Completion>, Broken> {
        let out_of_place = Broken { cursor: done.tag, first: 0, last: self.shape.depth - 1 };
        let flight = self.in_flight.get_mut(done.tag as usize).and_then(Option::as_mut);
        let flight = flight.ok_or(out_of_place)?;
        match done.result {
            Done::MISSING if flight.tries < TRIES => {
                flight.tries += 1;
                let target = flight.io.target();
                let grant = &mut self.grants[target as usize % GRANTS];
                // Another command may have asked again already.
                if grant.descriptor == target && grant.generation == flight.generation {
                    *grant = NO_GRANT;
                }
                match self.stage(done.tag)? {
                    true => Ok(None),
                    false => Ok(self.by_kernel(done.tag)),
                }
            }
            Done::MISSING | Done::KERNEL => Ok(self.by_kernel(done.tag)),
            result if result < 0 => Ok(self.finish(done.tag, result.max(-4095))),
            result if result as u32 > flight.piece => Err(out_of_place),
            result => {
                let moved = result as u32;
                let reads = matches!(flight.io.action(), Action::Read | Action::ReadVectored);
                if reads
                    && flight.in_channel.is_none()
                    && let Some(link) = &self.link
                {
                    let place = done.tag * self.shape.slot_bytes;
                    if let Some(slot) = link.shared().data(place, moved) {
                        let io = &flight.io;
                        // SAFETY: as in `stage`, the other way round.
                        let whole = unsafe {
                            match self.guest {
                                Some(_) => {
                                    careful::scatter(link.process(), io, flight.moved, slot, moved)
                                }
                                None => scatter(io, flight.moved, slot, moved),
                            }
                        };
                        if !whole {
                            return Ok(self.by_kernel(done.tag));
                        }
                    }
                }
                let whole = moved == flight.piece && moved > 0;
                if whole && flight.moved + moved < flight.io.bytes() {
                    flight.moved += moved;
                    flight.tries = 0;
                    return match self.stage(done.tag)? {
                        true => Ok(None),
                        false => Ok(self.by_kernel(done.tag)),
                    };
                }
                Ok(self.finish(done.tag, result))
            }
        }
    }

    pub(super) fn reap(&mut self, out: &mut dyn FnMut(Completion)) -> Result<usize, Broken> {
        let Some(link) = &mut self.link else { return Ok(0) };
        let ready = link.ready()?;
        let mut handed = 0;
        for _ in 0..ready {
            let Some(link) = &mut self.link else { break };
            let done = link.take();
            if let Some(completion) = self.heard(done)? {
                handed += 1;
                out(completion);
            }
        }
        if ready > 0
            && let Some(link) = &self.link
        {
            link.release();
        }
        Ok(handed)
    }
}
