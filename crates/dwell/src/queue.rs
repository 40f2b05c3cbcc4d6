// SPDX-License-Identifier: MIT OR Apache-2.0
//! A place where a request goes in and its completion comes out later.
#![allow(unsafe_code)]

mod io;

use std::io::Result as IoResult;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::AtomicU32;

use dwell_policy::{Backlog, Ns, Route};

use crate::buffer::Pool;

pub use io::{Action, Io};

/// Names a request in flight on its queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// The queue has no room; reap completions and submit again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The result of one request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// Which request.
    pub ticket: Ticket,
    /// Bytes transferred, or a negative error number, as the kernel reports it.
    pub result: i32,
}

/// How soon whoever serves a queue can answer a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub struct QueueHint {
    /// Whether it is on a CPU. A thread that sleeps is woken by the request.
    pub awake: bool,
    /// Whether a sync is over as soon as it is looked at: there is nothing to flush.
    pub syncs_at_once: bool,
}

impl QueueHint {
    /// A device is always awake, and flushes for as long as it likes.
    pub const DEVICE: QueueHint = QueueHint { awake: true, syncs_at_once: false };
}

/// How a thread that wants to block is woken when the queue has something for it.
#[derive(Debug)]
pub enum Wake<'a> {
    /// Nobody wakes it: it spins, polls by a timer, or takes another route.
    Never,
    /// This io_uring: the kernel wakes whoever waits inside it for completions. It looks before it
    /// puts anyone to sleep, so no look of one's own is needed first.
    Ring {
        /// The ring.
        fd: RawFd,
        /// Entries that the waiting call is to send first.
        unsent: u32,
        /// So many completions end the wait.
        min_complete: u32,
    },
    /// This descriptor becomes readable.
    Descriptor(RawFd),
    /// Another party changes this word from `seen` and wakes its futex.
    Word {
        /// The futex word.
        word: &'a AtomicU32,
        /// Its value when the queue was armed.
        seen: u32,
    },
    /// Time alone: something is due at this moment.
    At(Ns),
    /// A connection: this descriptor becomes readable, or the moment comes.
    Socket {
        /// The descriptor. A queue of several connections gives an epoll of them.
        fd: RawFd,
        /// Whether it matters too that it becomes writable.
        write: bool,
        /// When something is due in any case, a resend say.
        at: Option<Ns>,
    },
}

/// Whether a queue's ring watches a descriptor of others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(hidden)]
pub enum Watch {
    /// It cannot.
    Cannot,
    /// It does, until the descriptor is readable.
    Waiting,
    /// The descriptor has become readable since; it is watched again when asked again.
    Fired,
}

/// A queue of requests. One thread owns it.
///
/// Parking on it takes three steps, so that no completion is slept through: [`Queue::arm`], one
/// more [`Queue::poll`], then sleep on what `arm` returned, and [`Queue::disarm`] afterwards. See
/// [`park::park`](crate::park::park).
///
/// # Safety
/// Callers lend memory to a request and use it again once its completion is out, so an implementor
/// sees to five things:
/// - [`Queue::poll`] hands out a completion only when neither device, kernel nor thread touches the
///   memory of its request any more.
/// - [`Queue::submit`] gives a request back only in the same state.
/// - No two requests in flight have the same ticket, and no completion is handed out twice.
/// - No method unwinds while a request is in flight.
/// - The descriptors and words that [`Queue::arm`] names stay what they are until
///   [`Queue::disarm`], unless a forked child looks at them.
///
/// A request whose completion never came out keeps its memory for good, also when the queue is
/// dropped.
///
/// Safe code cannot make a queue that completes early:
/// ```compile_fail,E0200
/// # use dwell::{Route, queue::*, dwell_policy::Backlog};
/// struct Early(Vec<Io>, u64);
/// impl Queue for Early {
///     type Op = Io;
///     fn submit(&mut self, io: Io, _: Route) -> Result<Ticket, (Full, Io)> {
///         self.0.push(io);
///         Ok(Ticket(self.0.len() as u64))
///     }
///     fn poll(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
///         self.1 += 1;
///         out(Completion { ticket: Ticket(self.1), result: 4096 });
///         1
///     }
/// #   fn flush(&mut self) {}
/// #   fn arm(&mut self, _: u32) -> Wake<'_> { Wake::Never }
/// #   fn cancel(&mut self, _: Ticket) {}
/// #   fn backlog(&self) -> Backlog { Backlog::default() }
/// }
/// ```
pub unsafe trait Queue {
    /// A request. It owns or pins its buffers: they stay put until the completion is out.
    type Op;

    /// Takes a request in, on a route that this queue offers. It may be held back until
    /// [`Queue::flush`].
    ///
    /// # Errors
    /// [`Full`], with the request given back.
    fn submit(&mut self, op: Self::Op, route: Route) -> Result<Ticket, (Full, Self::Op)>;

    /// Sends everything that was held back: one doorbell for the batch.
    fn flush(&mut self);

    /// Sends what was held back, hands out the completions that are there, and says how many. Cheap
    /// when there is nothing to do: it is what a spinning thread calls.
    fn poll(&mut self, out: &mut dyn FnMut(Completion)) -> usize;

    /// Sees to it that completions wake this thread, and says how: once `min_complete` of them are
    /// there, or earlier.
    fn arm(&mut self, min_complete: u32) -> Wake<'_>;

    /// As [`Queue::arm`], for a thread that sleeps in another queue's ring or in an epoll: never a
    /// [`Wake::Ring`].
    fn arm_beside(&mut self, min_complete: u32) -> Wake<'_> {
        self.flush();
        match self.arm(min_complete) {
            Wake::Ring { fd, .. } => Wake::Descriptor(fd),
            wake => wake,
        }
    }

    /// Undoes [`Queue::arm`].
    fn disarm(&mut self) {}

    /// Has this descriptor, once readable, end a sleep in [`Wake::Ring`] too, so that a thread can
    /// sleep in the ring and yet be woken by others. To be asked before [`Queue::arm`].
    fn watch(&mut self, descriptor: BorrowedFd<'_>) -> Watch {
        let _ = descriptor;
        Watch::Cannot
    }

    /// Has the system pin a pool's memory once, and not for each request. A queue that gains
    /// nothing by it does nothing.
    ///
    /// # Errors
    /// What the system refuses. Requests are served as before then.
    fn register_pool(&mut self, pool: &Pool) -> IoResult<()> {
        let _ = pool;
        Ok(())
    }

    /// As [`Queue::register_pool`], of the target of requests, to be looked up once. It has to stay
    /// open as long as the queue lives.
    ///
    /// # Errors
    /// As [`Queue::register_pool`].
    fn register_target(&mut self, target: i32) -> IoResult<()> {
        let _ = target;
        Ok(())
    }

    /// Asks to end a request early. Its buffers are free only when its completion is out.
    fn cancel(&mut self, ticket: Ticket);

    /// Whether a request in flight was served by a call as it was submitted, whatever its route:
    /// there was no ring for it.
    #[doc(hidden)]
    fn is_call(&self, ticket: Ticket) -> bool {
        let _ = ticket;
        false
    }

    /// The requests in flight.
    fn backlog(&self) -> Backlog;

    /// Whether the queue will hand out nothing more of what is in flight, as the system refuses
    /// what would bring it out. The memory of those requests stays lent for good.
    fn is_lost(&self) -> bool {
        false
    }

    /// Forgets what is in flight on a queue that is lost, so that it can take requests again.
    fn give_up(&mut self) {}

    /// How soon an answer to a request can be expected of whoever serves this queue.
    fn hint(&self, op: &Self::Op) -> QueueHint {
        let _ = op;
        QueueHint::DEVICE
    }
}

// SAFETY: every method is that of the queue in the box.
unsafe impl<Q: Queue + ?Sized> Queue for Box<Q> {
    type Op = Q::Op;
    fn submit(&mut self, op: Self::Op, route: Route) -> Result<Ticket, (Full, Self::Op)> {
        (**self).submit(op, route)
    }
    fn flush(&mut self) {
        (**self).flush();
    }
    fn poll(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        (**self).poll(out)
    }
    fn arm(&mut self, min_complete: u32) -> Wake<'_> {
        (**self).arm(min_complete)
    }
    fn arm_beside(&mut self, min_complete: u32) -> Wake<'_> {
        (**self).arm_beside(min_complete)
    }
    fn disarm(&mut self) {
        (**self).disarm();
    }
    fn watch(&mut self, descriptor: BorrowedFd<'_>) -> Watch {
        (**self).watch(descriptor)
    }
    fn register_pool(&mut self, pool: &Pool) -> IoResult<()> {
        (**self).register_pool(pool)
    }
    fn register_target(&mut self, target: i32) -> IoResult<()> {
        (**self).register_target(target)
    }
    fn cancel(&mut self, ticket: Ticket) {
        (**self).cancel(ticket);
    }
    fn is_call(&self, ticket: Ticket) -> bool {
        (**self).is_call(ticket)
    }
    fn backlog(&self) -> Backlog {
        (**self).backlog()
    }
    fn is_lost(&self) -> bool {
        (**self).is_lost()
    }
    fn give_up(&mut self) {
        (**self).give_up();
    }
    fn hint(&self, op: &Self::Op) -> QueueHint {
        (**self).hint(op)
    }
}

/// A queue whose `submit`, `flush`, `poll`, `arm` and `disarm` may run inside a signal handler.
///
/// # Safety
/// These methods allocate nothing, take no lock, do not panic, and touch no thread-local that is
/// initialised on first use.
#[doc(hidden)]
pub unsafe trait SignalSafe: Queue {}

/// A queue that may be used inside a signal handler, as [`SignalSafe`] says. Not the queue's type
/// alone makes it so, but also how it was made: nothing is left to be made on first use.
#[derive(Debug)]
#[doc(hidden)]
pub struct InHandler<Q>(Q);

impl<Q: Queue> InHandler<Q> {
    /// A queue of a type of which all are.
    pub fn new(queue: Q) -> Self
    where
        Q: SignalSafe,
    {
        InHandler(queue)
    }

    /// A queue that was made so.
    ///
    /// # Safety
    /// What [`SignalSafe`] demands holds for this queue.
    pub unsafe fn assume(queue: Q) -> Self {
        InHandler(queue)
    }

    /// The queue, to be used by one thread at a time.
    pub fn into_inner(self) -> Q {
        self.0
    }
}
