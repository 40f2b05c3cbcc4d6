// SPDX-License-Identifier: MIT OR Apache-2.0
//! A place where a request goes in and its completion comes out later.
#![allow(unsafe_code)]

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::AtomicU32;

use dwell_policy::{Backlog, Kind, Ns, Route};

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
        enough: u32,
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

    /// Sees to it that completions wake this thread, and says how: once `enough` of them are
    /// there, or earlier.
    fn arm(&mut self, enough: u32) -> Wake<'_>;

    /// As [`Queue::arm`], for a thread that sleeps in another queue's ring or in an epoll: never a
    /// [`Wake::Ring`].
    fn arm_beside(&mut self, enough: u32) -> Wake<'_> {
        self.flush();
        match self.arm(enough) {
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

    /// Asks to end a request early. Its buffers are free only when its completion is out.
    fn cancel(&mut self, ticket: Ticket);

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
    fn arm(&mut self, enough: u32) -> Wake<'_> {
        (**self).arm(enough)
    }
    fn arm_beside(&mut self, enough: u32) -> Wake<'_> {
        (**self).arm_beside(enough)
    }
    fn disarm(&mut self) {
        (**self).disarm();
    }
    fn watch(&mut self, descriptor: BorrowedFd<'_>) -> Watch {
        (**self).watch(descriptor)
    }
    fn cancel(&mut self, ticket: Ticket) {
        (**self).cancel(ticket);
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

/// What an [`Io`] does with its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// Device to several pieces of memory.
    ReadVectored,
    /// Several pieces of memory to device.
    WriteVectored,
    /// Make data and metadata durable.
    Sync,
    /// Make data durable.
    DataSync,
}

impl Action {
    /// The policy's word for it.
    pub const fn kind(self) -> Kind {
        match self {
            Action::Read | Action::ReadVectored => Kind::Read,
            Action::Write | Action::WriteVectored => Kind::Write,
            Action::Sync | Action::DataSync => Kind::Sync,
        }
    }

    /// The word used in errors.
    pub const fn as_str(self) -> &'static str {
        match self {
            Action::Read | Action::ReadVectored => "read",
            Action::Write | Action::WriteVectored => "write",
            Action::Sync => "fsync",
            Action::DataSync => "fdatasync",
        }
    }
}

/// One storage request: what every storage queue takes.
///
/// It names memory that it does not own, so making one is unsafe, and it can be neither changed nor
/// copied afterwards: whoever has an `Io` may serve it, once.
#[derive(Debug)]
pub struct Io {
    action: Action,
    target: i32,
    offset: u64,
    /// Length of what is written to, in bytes; [`u64::MAX`] where that does not matter.
    length: u64,
    /// The memory, or an array of `pieces` iovecs for vectored actions.
    memory: *mut u8,
    bytes: u32,
    pieces: u32,
    may_block: bool,
    personality: u16,
}

// SAFETY: an Io is a description; whoever made it promised that its memory stays valid, from any
// thread, until the completion is out.
unsafe impl Send for Io {}

impl Io {
    /// A read into, or a write from, `bytes` bytes at `memory`.
    ///
    /// # Safety
    /// The memory stays valid (and, for a read, unaliased) as long as the `Io` exists, and until
    /// its completion is out. `target` is as [`Io::sync`] demands.
    pub unsafe fn plain(
        action: Action,
        target: i32,
        memory: *mut u8,
        bytes: u32,
        offset: u64,
    ) -> Io {
        debug_assert!(matches!(action, Action::Read | Action::Write));
        Io {
            action,
            target,
            offset,
            length: u64::MAX,
            memory,
            bytes,
            pieces: 0,
            may_block: false,
            personality: 0,
        }
    }

    /// A vectored read or write.
    ///
    /// # Safety
    /// The iovecs and the memory they name stay valid (and, for a read, unaliased) as long as the
    /// `Io` exists, and until its completion is out; `bytes` is the sum of their lengths. `target`
    /// is as [`Io::sync`] demands.
    pub unsafe fn vectored(
        action: Action,
        target: i32,
        iovecs: *const libc::iovec,
        pieces: u32,
        bytes: u32,
        offset: u64,
    ) -> Io {
        debug_assert!(matches!(action, Action::ReadVectored | Action::WriteVectored));
        let memory = iovecs.cast_mut().cast();
        Io {
            action,
            target,
            offset,
            length: u64::MAX,
            memory,
            bytes,
            pieces,
            may_block: false,
            personality: 0,
        }
    }

    /// A sync; `data_only` leaves metadata that no read needs.
    ///
    /// # Safety
    /// `target` names an open object that the caller may use, in the sense of the queue that gets
    /// the `Io`. A descriptor stays open until the completion is out, or its number is one that the
    /// caller's own caller answers for.
    pub unsafe fn sync(target: i32, data_only: bool) -> Io {
        let action = if data_only { Action::DataSync } else { Action::Sync };
        let (memory, length) = (std::ptr::null_mut(), u64::MAX);
        Io {
            action,
            target,
            offset: 0,
            length,
            memory,
            bytes: 0,
            pieces: 0,
            may_block: false,
            personality: 0,
        }
    }

    /// Says how long the file is that is written to, in bytes, to sources that cannot know.
    #[must_use]
    pub fn of_length(self, bytes: u64) -> Io {
        Io { length: bytes, ..self }
    }

    /// Says that whatever serves it may block where it must not: a ring leaves it to a thread of
    /// the kernel's.
    #[must_use]
    pub fn that_may_block(self) -> Io {
        Io { may_block: true, ..self }
    }

    /// Says as whom a ring carries it out: what
    /// [`KernelQueue::personality`](crate::kernel::KernelQueue::personality) returned for the route
    /// that it takes. A call is carried out as the calling thread.
    #[must_use]
    pub fn as_personality(self, personality: u16) -> Io {
        Io { personality, ..self }
    }

    /// The same request once more, to be served in place of this one when a queue refused it.
    ///
    /// # Safety
    /// What was promised for this `Io` holds for the other too, and never are both in flight.
    pub unsafe fn again(&self) -> Io {
        Io { ..*self }
    }

    /// What to do.
    pub fn action(&self) -> Action {
        self.action
    }

    /// Which open object to do it on: a descriptor for kernel queues; other sources give the
    /// number a meaning of their own.
    pub fn target(&self) -> i32 {
        self.target
    }

    /// Where, in bytes; 0 for syncs.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Length of what is written to, in bytes; [`u64::MAX`] where that does not matter.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// As whom a ring carries it out; 0 for the thread that made the ring's calls.
    pub fn personality(&self) -> u16 {
        self.personality
    }

    /// Whether it may block who serves it.
    pub fn may_block(&self) -> bool {
        self.may_block
    }

    /// Bytes in all.
    pub fn bytes(&self) -> u32 {
        self.bytes
    }

    /// Number of iovecs; 0 for plain actions.
    pub fn pieces(&self) -> u32 {
        self.pieces
    }

    /// Start of the memory of a plain action; null for others.
    pub fn memory(&self) -> *mut u8 {
        if self.pieces == 0 { self.memory } else { std::ptr::null_mut() }
    }

    /// The iovecs of a vectored action; null for others.
    pub fn iovecs(&self) -> *const libc::iovec {
        if self.pieces == 0 { std::ptr::null() } else { self.memory.cast() }
    }

    /// The pieces of memory, whether plain or vectored: start and length.
    pub fn each_piece(&self) -> impl Iterator<Item = (*mut u8, usize)> {
        (0..self.pieces.max(1) as usize).map(|at| {
            if self.pieces == 0 {
                (self.memory, self.bytes as usize)
            } else {
                // SAFETY: `vectored` was promised `pieces` valid iovecs.
                let piece = unsafe { *self.memory.cast::<libc::iovec>().add(at) };
                (piece.iov_base.cast(), piece.iov_len)
            }
        })
    }
}
