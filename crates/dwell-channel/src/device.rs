// SPDX-License-Identifier: MIT OR Apache-2.0
//! Commands on files that are not memory: many in flight, on one queue of the serving thread.

use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

use dwell::adopted::Adopted;
use dwell::kernel::KernelQueue;
use dwell::known::Known;
use dwell::queue::{Completion, Io, Queue, Ticket, Wake};
use dwell::ring::SpinMethod;
use dwell::source::Source;
use dwell_policy::Route;

use crate::controller::Options;
use crate::credentials::Opener;
use crate::grants::OpenFile;
use crate::lane::Begun;
use crate::shared::Shared;
use crate::wire::Done;

/// A command in flight, and all that it must not lose meanwhile.
pub(crate) struct Errand {
    pub lane: u64,
    pub tag: u32,
    pub open: Arc<OpenFile>,
    pub direct: Option<Arc<File>>,
    /// Makes the file longer.
    pub grows: bool,
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
    source: Adopted,
    polled: Adopted,
    depth: u32,
    queue: Option<KernelQueue>,
    /// No queue is to be had: requests are synchronous calls.
    none: bool,
    errands: HashMap<Ticket, Errand>,
    /// As whom requests of an opener are carried out on a route.
    personalities: HashMap<(Opener, Route), u16>,
    /// What was served by a call.
    done: Vec<(Errand, i32)>,
}

/// Openers whose credentials a ring knows at a time.
const MOST_PERSONALITIES: usize = 256;

impl Device {
    pub fn new(options: &Options) -> Self {
        // The thread also sleeps outside the ring, on its clients' sockets. A ring that completes only from
        // within its own calls would not wake it there.
        let known = Known { method: SpinMethod::CqPeek, ..options.known };
        Device {
            source: Adopted::new(&known, false),
            polled: Adopted::new(&options.known, true),
            depth: options.device_depth.clamp(1, 4096),
            queue: None,
            none: false,
            errands: HashMap::new(),
            personalities: HashMap::new(),
            done: Vec::new(),
        }
    }

    /// Sends a request on its way.
    pub fn begin(&mut self, io: Io, mut errand: Errand) -> Begun {
        if self.errands.len() + self.done.len() >= self.depth as usize {
            return Begun::NoRoom;
        }
        if errand.grows && !errand.open.inode.begins_to_grow() {
            return Begun::Over(Done::KERNEL);
        }
        if self.queue.is_none() && !self.none {
            self.queue = self.source.queue(self.depth).ok();
            self.none = self.queue.is_none();
        }
        errand.open.inode.enter();
        let waits = errand.may_block || errand.grows;
        let polls = errand.direct.is_some() && io.bytes() > 0 && !waits;
        errand.polled = polls && self.polled.routes().has(Route::Polled);
        let route = if errand.polled { Route::Polled } else { Route::Interrupt };
        let Some(personality) = self.personality(errand.open.opener, route) else {
            return self.call(&io, errand);
        };
        let io = io.as_personality(personality);
        let io = if errand.may_block { io.that_may_block() } else { io };
        let Some(queue) = &mut self.queue else { return self.call(&io, errand) };
        match queue.submit(io, route) {
            Ok(ticket) => _ = self.errands.insert(ticket, errand),
            Err((_, io)) => return self.call(&io, errand),
        }
        Begun::InFlight
    }

    /// Serves a request by a call, as the opener of its file.
    #[cold]
    fn call(&mut self, io: &Io, errand: Errand) -> Begun {
        let result = match errand.open.opener.act() {
            Ok(_acting) => self.source.call(io),
            Err(error) => -error.raw_os_error(),
        };
        self.done.push((errand, result));
        Begun::InFlight
    }

    /// As whom a ring carries out an opener's requests; `None` where no ring can. 0 stands for this thread, which is what an
    /// opener may be too.
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

    /// Tells what is over to `out`; whether anything was.
    #[inline]
    pub fn reap(&mut self, out: &mut dyn FnMut(u64, Done)) -> bool {
        if self.errands.is_empty() && self.done.is_empty() {
            return false;
        }
        let (mut any, mut stale) = (false, false);
        let mut over = |errand: Errand, result: i32| {
            any = true;
            if errand.grows {
                errand.open.inode.growth.end();
            }
            if errand.writes {
                errand.open.inode.changed();
            }
            errand.open.inode.leave();
            out(errand.lane, Done { tag: errand.tag, result });
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
                        // A ring that was made anew knows nobody yet: the kernel says whether it was that.
                        *stale = true;
                        return over(errand, Done::KERNEL);
                    }
                    let refused = [-libc::EOPNOTSUPP, -libc::EAGAIN].contains(&result);
                    if errand.polled && refused {
                        // The device does not poll, or no more: the kernel does it, and others are not polled for.
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

    /// What wakes a thread that waits for the requests in flight; `None` where there are none.
    pub fn wake(&mut self) -> Option<Wake<'_>> {
        let queue = self.queue.as_mut().filter(|_| !self.errands.is_empty())?;
        queue.flush();
        Some(queue.arm(1))
    }

    /// Waits for all that is in flight: the kernel still has memory of it.
    pub fn settle(&mut self) {
        while !(self.errands.is_empty() && self.done.is_empty()) {
            if !self.reap(&mut |_, _| {}) {
                dwell::clock::sleep_until(dwell::clock::now() + 1_000_000);
            }
        }
    }
}
