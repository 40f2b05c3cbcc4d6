// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands on files that are not memory: many in flight, on one queue of a serving thread, or
//! where no ring is to be had by calls of other threads.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs::File;
use std::sync::Arc;

use dwell::external::External;
use dwell::kernel::KernelQueue;
use dwell::parameters::DeviceParameters;
use dwell::queue::{Action, Completion, Io, Queue, Ticket, Wake};
use dwell::ring::SpinMethod;
use dwell::source::Source;
use dwell::{clock, wait};
use dwell_policy::{Decision, Mode, Reason, Route, WaitMachine};

use crate::calls::Calls;
use crate::channel::turn::Part;
use crate::credentials::Opener;
use crate::grants::OpenFile;
use crate::options::Options;
use crate::shared::Shared;
use crate::wire::Done;

/// What became of a command when it was taken up.
pub(crate) enum Begun {
    /// A piece of so many bytes is over, with this result.
    Over(u32, i32),
    /// The completion of a piece of so many bytes comes later.
    InFlight(u32),
    /// Too many are in flight; try again.
    NoRoom,
}

/// A command in flight, and all that it must not lose meanwhile.
pub(crate) struct Errand {
    /// The channel's number.
    pub channel: u64,
    /// The user whose share it is part of.
    pub account: u32,
    /// What it is the next piece of, and that piece's bytes.
    pub part: Part,
    pub piece: u32,
    pub open: Arc<OpenFile>,
    /// The file past the page cache, of a command that goes there.
    pub direct: Option<Arc<File>>,
    /// Changes it.
    pub writes: bool,
    /// May keep whoever submits it waiting.
    pub may_block: bool,
    /// Went out to be polled.
    pub polled: bool,
    /// Kept, not looked at: the kernel may still write there when the channel is long gone.
    pub _shared: Arc<Shared>,
}

/// The queue. It is made when it is first needed, by the thread that uses it.
pub(crate) struct Device {
    source: Arc<External>,
    polled: External,
    depth: u32,
    queue: Option<KernelQueue>,
    /// No queue is to be had.
    none: bool,
    /// The requests that it does not take.
    calls: Calls<Errand>,
    errands: HashMap<Ticket, Errand>,
    /// How many of them each user has.
    of_user: HashMap<u32, u32>,
    /// As whom requests of an opener are carried out on a route.
    personalities: HashMap<(Opener, Route), u16>,
    /// Errands that are over, which nobody was told yet.
    done: Vec<(Errand, i32)>,
}

/// Openers whose credentials a ring knows at a time.
const MOST_PERSONALITIES: usize = 256;

impl Device {
    pub fn new(options: &Options, calls: Calls<Errand>) -> Self {
        // The thread also sleeps outside the ring, on its clients' sockets. A ring that completes
        // only from within its own calls would not wake it there.
        let parameters = DeviceParameters { method: SpinMethod::CqPeek, ..options.parameters };
        Device {
            source: Arc::new(External::new(&parameters, false)),
            polled: External::new(&options.parameters, true),
            depth: options.device_depth.clamp(1, 4096),
            queue: None,
            none: false,
            calls,
            errands: HashMap::new(),
            of_user: HashMap::new(),
            personalities: HashMap::new(),
            done: Vec::new(),
        }
    }

    /// Whether a user may have one more in flight: no more than are free after it. So whoever comes
    /// when others' files do not answer finds room, however many those others are.
    fn has_room_for(&self, account: u32) -> bool {
        let taken = self.errands.len() + self.calls.in_flight() + self.done.len();
        let free = (self.depth as usize).saturating_sub(taken);
        let own = self.of_user.get(&account).copied().unwrap_or(0);
        free > 0 && (own as usize) < free
    }

    /// Sends a request on its way.
    pub fn begin(&mut self, io: Io, mut errand: Errand) -> Begun {
        if !self.has_room_for(errand.account) {
            return Begun::NoRoom;
        }
        if self.queue.is_none() && !self.none {
            self.queue = self.source.queue(self.depth).ok();
            self.none = self.queue.is_none();
        }
        errand.open.inode.enter();
        let piece = errand.piece;
        *self.of_user.entry(errand.account).or_default() += 1;
        let polls = errand.direct.is_some() && io.bytes() > 0 && !errand.may_block;
        errand.polled = polls && self.polled.routes().has(Route::Polled);
        let route = if errand.polled { Route::Polled } else { Route::Interrupt };
        let Some(personality) = self.personality(errand.open.opener, route) else {
            return self.call(io, errand);
        };
        let io = io.as_personality(personality);
        let io = if errand.may_block { io.that_may_block() } else { io };
        let Some(queue) = &mut self.queue else { return self.call(io, errand) };
        match queue.submit(io, route) {
            Ok(ticket) => _ = self.errands.insert(ticket, errand),
            Err((_, io)) => return self.call(io, errand),
        }
        Begun::InFlight(piece)
    }

    /// Serves a request by a call. It is made here if it does not wait for the device: whoever is
    /// served by this thread would wait with it.
    #[cold]
    fn call(&mut self, io: Io, errand: Errand) -> Begun {
        let piece = errand.piece;
        match self.found_in_cache(&io, &errand) {
            Some(result) => self.done.push((errand, result)),
            None => {
                let by = (errand.open.opener, errand.account);
                self.calls.make(&self.source, io, by, errand);
            }
        }
        Begun::InFlight(piece)
    }

    /// What a read comes to of which all is in the page cache.
    fn found_in_cache(&self, io: &Io, errand: &Errand) -> Option<i32> {
        let may_be = matches!(io.action(), Action::Read)
            && errand.direct.is_none()
            && !errand.may_block
            && self.source.caches();
        if !may_be {
            return None;
        }
        let _acting = errand.open.opener.act().ok()?;
        self.source.cached(io).filter(|result| *result == errand.piece as i32)
    }

    /// As whom a ring carries out an opener's requests; `None` where no ring can. 0 stands for this
    /// thread, which is what an opener may be too.
    fn personality(&mut self, opener: Opener, route: Route) -> Option<u16> {
        if opener.is_this_process() && self.queue.is_some() {
            return Some(0);
        }
        if let Some(known) = self.personalities.get(&(opener, route)) {
            return Some(*known);
        }
        if self.personalities.len() >= MOST_PERSONALITIES {
            self.forget_personalities();
        }
        let queue = self.queue.as_mut()?;
        let fresh = {
            let _acting = opener.act().ok()?;
            queue.personality(route).ok()?
        };
        self.personalities.insert((opener, route), fresh);
        Some(fresh)
    }

    fn forget_personalities(&mut self) {
        for ((_, route), personality) in self.personalities.drain() {
            if let Some(queue) = &mut self.queue {
                queue.forget_personality(route, personality);
            }
        }
    }

    /// Tells what is over to `out`, with the result; whether anything was.
    #[inline]
    pub fn reap(&mut self, out: &mut dyn FnMut(Errand, i32)) -> bool {
        self.done.extend(std::iter::from_fn(|| self.calls.over()));
        if self.errands.is_empty() && self.done.is_empty() {
            return false;
        }
        let (mut any, mut stale) = (false, false);
        let of_user = &mut self.of_user;
        let mut over = |errand: Errand, result: i32| {
            any = true;
            if errand.writes {
                errand.open.inode.changed();
            }
            errand.open.inode.leave();
            if let Entry::Occupied(mut own) = of_user.entry(errand.account) {
                *own.get_mut() -= 1;
                if *own.get() == 0 {
                    own.remove();
                }
            }
            out(errand, result);
        };
        for (errand, result) in self.done.drain(..) {
            over(errand, result);
        }
        if let Some(queue) = &mut self.queue {
            queue.flush();
            let (errands, polled, stale) = (&mut self.errands, &self.polled, &mut stale);
            queue.poll(&mut |Completion { ticket, result }| {
                if let Some(errand) = errands.remove(&ticket) {
                    if result == -libc::EINVAL && !errand.open.opener.is_this_process() {
                        // A ring that was made anew knows nobody yet: the kernel says whether it
                        // was that.
                        *stale = true;
                        return over(errand, Done::KERNEL);
                    }
                    let refused = [-libc::EOPNOTSUPP, -libc::EAGAIN].contains(&result);
                    if errand.polled && refused {
                        // The device does not poll, or no more: the kernel does it, and others are
                        // not polled for.
                        polled.refused(Route::Polled);
                        return over(errand, Done::KERNEL);
                    }
                    over(errand, result);
                }
            });
        }
        if stale {
            self.forget_personalities();
        }
        any
    }

    /// Whether it polls for aligned commands past the page cache.
    #[cfg(test)]
    pub fn polls(&self) -> bool {
        self.polled.routes().has(Route::Polled)
    }

    /// What wakes a thread that waits for the requests in flight; `None` where there are none but
    /// calls, which ring at its post.
    pub fn wake(&mut self) -> Option<Wake<'_>> {
        let queue = self.queue.as_mut().filter(|_| !self.errands.is_empty())?;
        queue.flush();
        Some(queue.arm(1))
    }

    /// Waits for all that is in flight: the kernel still has memory of it.
    pub fn settle(&mut self) {
        let Device { queue, errands, done, .. } = self;
        if let (Some(queue), false) = (queue, errands.is_empty()) {
            // Nobody is served meanwhile: the thread blocks.
            let decision = Decision::new(Route::Interrupt, Mode::Block, 0, Reason::Fixed);
            let now = clock::now();
            wait::wait(queue, WaitMachine::new(&decision, now, now), &mut |completion| {
                let errand = errands.remove(&completion.ticket);
                done.extend(errand.map(|errand| (errand, completion.result)));
                errands.is_empty()
            });
        }
        self.done.extend(std::iter::from_fn(|| self.calls.wait()));
        self.reap(&mut |_, _| {});
    }
}
