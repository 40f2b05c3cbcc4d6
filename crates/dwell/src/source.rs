// SPDX-License-Identifier: MIT OR Apache-2.0
//! An opened file, device or address: what requests are asked of.
#![allow(unsafe_code)]

use std::io;

use dwell_policy::{Kind, Route, Routes};

use crate::queue::{InHandler, Io, Queue};

/// A promise of a source: what a read's result says was read was written to the request's memory,
/// so that a read can be given memory that nobody has initialised.
#[derive(Clone, Copy, Debug)]
#[doc(hidden)]
pub struct Fills(());

impl Fills {
    /// Promises it.
    ///
    /// # Safety
    /// It holds for the source's calls and for all its queues.
    pub const unsafe fn promise() -> Fills {
        Fills(())
    }
}

/// Something that is open and can be read and written by offset. Threads share it; each thread
/// asks it for a queue of its own.
pub trait Source: Send + Sync {
    /// The queues it makes.
    type Queue: Queue<Op = Io>;

    /// A new queue for up to `depth` requests in flight, to be owned by the calling thread.
    ///
    /// # Errors
    /// What the system refuses.
    fn queue(&self, depth: u32) -> io::Result<Self::Queue>;

    /// A new queue for up to `depth` requests that a signal handler of the calling thread may use;
    /// `None` where the source has none that could. [`Source::call`] may be asked in a handler too
    /// where there is one.
    ///
    /// # Errors
    /// What the system refuses.
    fn handler_queue(&self, depth: u32) -> io::Result<Option<InHandler<Self::Queue>>> {
        let _ = depth;
        Ok(None)
    }

    /// The queue for the calling thread's blocking calls, one request at a time. Sources whose
    /// threads can share one queue among many files override this.
    ///
    /// # Errors
    /// What the system refuses.
    fn call_queue(&self) -> io::Result<Self::Queue> {
        self.queue(1)
    }

    /// Sources of one type that say the same number serve each other's requests on any of their
    /// queues, so one queue does for all of them. `None`: each needs its own.
    fn shares(&self) -> Option<u64> {
        None
    }

    /// The routes it offers at this moment.
    fn routes(&self) -> Routes;

    /// Those for a request whose caller waits for it alone. A request that a ring would hand to a
    /// thread of the kernel's goes by a call: the caller would wait for that thread, which may keep
    /// the file open until the ring is looked at again.
    fn routes_alone(&self, kind: Kind) -> Routes {
        let _ = kind;
        self.routes()
    }

    /// The inline route: serves the request before it returns. Bytes transferred, or a negative
    /// error number. Only asked where [`Source::routes`] has it.
    fn call(&self, io: &Io) -> i32;

    /// Whether reads may be served from a page cache.
    fn caches(&self) -> bool {
        false
    }

    /// Serves a read from memory the system already holds, or says with `None` that it would have
    /// to wait. Sources without a cache always say `None`.
    fn cached(&self, io: &Io) -> Option<i32> {
        let _ = io;
        None
    }

    /// Whether it promises to fill what it says. Reads into memory that is not initialised zero it
    /// first where it does not.
    fn fills(&self) -> Option<Fills> {
        None
    }

    /// Whether a read came up short because there is no more.
    fn ends(&self, io: &Io, result: i32) -> bool {
        self.bytes().is_ok_and(|bytes| io.offset() + result as u64 >= bytes)
    }

    /// Whether a write would make the file longer. File systems do that only where the caller may
    /// wait, so a queue would hand it to a thread of the kernel's that waits instead.
    fn grows(&self, io: &Io) -> bool {
        let _ = io;
        false
    }

    /// Whether another thread of this machine computes for as long as a request is in flight on a
    /// queue. That thread's time is charged to the queue where arms are compared.
    fn has_busy_server(&self) -> bool {
        false
    }

    /// A request on this route was refused as unsupported: it is not offered again.
    fn refused(&self, route: Route) {
        let _ = route;
    }

    /// The number that requests carry as their [`Io::target`].
    fn target(&self) -> i32;

    /// Length in bytes.
    ///
    /// # Errors
    /// What the system refuses.
    fn bytes(&self) -> io::Result<u64>;

    /// Alignment of memory, offset and length that it demands, in bytes; 1 where any will do.
    fn alignment(&self) -> u32 {
        1
    }
}
