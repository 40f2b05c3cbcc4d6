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
    /// What was served by a call.
    done: Vec<(Errand, i32)>,
}

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
            done: Vec::new(),
        }
    }

    /// Sends a request on its way.
    pub fn begin(&mut self, io: Io, mut errand: Errand) -> Begun {
        if self.errands.len() + self.done.len() >= self.depth as usize {
            return Begun::NoRoom;
        }
        if self.queue.is_none() && !self.none {
            self.queue = self.source.queue(self.depth).ok();
            self.none = self.queue.is_none();
        }
        errand.open.inode.enter();
        let Some(queue) = &mut self.queue else {
            let result = self.source.call(&io);
            self.done.push((errand, result));
            return Begun::InFlight;
        };
        let polls = errand.direct.is_some() && io.bytes() > 0 && !errand.may_block;
        errand.polled = polls && self.polled.routes().has(Route::Polled);
        let route = if errand.polled { Route::Polled } else { Route::Interrupt };
        let io = if errand.may_block { io.that_may_block() } else { io };
        match queue.submit(io, route) {
            Ok(ticket) => _ = self.errands.insert(ticket, errand),
            Err((_, io)) => {
                let result = self.source.call(&io);
                self.done.push((errand, result));
            }
        }
        Begun::InFlight
    }

    /// Tells what is over to `out`; whether anything was.
    #[inline]
    pub fn reap(&mut self, out: &mut dyn FnMut(u64, Done)) -> bool {
        if self.errands.is_empty() && self.done.is_empty() {
            return false;
        }
        let mut any = false;
        let mut over = |errand: Errand, result: i32| {
            any = true;
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
            let (errands, polled) = (&mut self.errands, &self.polled);
            queue.poll(&mut |Completion { ticket, result }| {
                if let Some(errand) = errands.remove(&ticket) {
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
