// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files and devices that the kernel serves: synchronous calls, interrupt rings, polled rings.
#![allow(unsafe_code)]

mod descriptor;
mod refusals;
mod rings;

use std::cell::RefCell;
use std::fs::{File, Metadata};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use dwell_policy::{Backlog, Kind, Route, Routes};
use syscalls::{Errno, Sysno, syscall};

use crate::buffer::Pool;
use crate::queue::{Action, Completion, Full, InHandler, Io, Queue, Ticket, Wake, Watch};
use crate::ring::{self, Ring, SpinMethod};
use crate::source::{Fills, Source};
pub use descriptor::Descriptor;
use rings::{INLINE_RING, POLLED_RING, RING_SHIFT, Refused, Rings};

/// An open descriptor.
#[derive(Debug)]
pub struct Kernel {
    descriptor: Descriptor,
    alignment: u32,
    method: SpinMethod,
    polled: AtomicBool,
    /// A file system that refused RWF_NOWAIT once is not asked again.
    no_cache_first: AtomicBool,
    /// Length of a file as far as this opening of it knows, in bytes; [`u64::MAX`] where that does
    /// not matter.
    length: AtomicU64,
}

impl Kernel {
    /// A source over `descriptor`. `alignment` is what direct I/O demands, in bytes; 1 means that
    /// the descriptor is buffered. `polled` says that the device was seen to be really polled.
    pub fn new(descriptor: OwnedFd, alignment: u32, method: SpinMethod, polled: bool) -> Self {
        Self::over(Descriptor::Own(descriptor), alignment, method, polled)
    }

    /// As [`Kernel::new`], over a descriptor that may be somebody else's.
    pub fn over(descriptor: Descriptor, alignment: u32, method: SpinMethod, polled: bool) -> Self {
        Kernel {
            descriptor,
            alignment,
            method,
            polled: AtomicBool::new(polled),
            no_cache_first: AtomicBool::new(alignment > 1),
            length: AtomicU64::new(u64::MAX),
        }
    }

    /// Says that the descriptor is a file of so many bytes, which writes may make longer.
    #[must_use]
    pub fn of_length(self, bytes: u64) -> Self {
        Kernel { length: AtomicU64::new(bytes), ..self }
    }

    /// The descriptor.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }

    /// What the system says of the file.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn metadata(&self) -> io::Result<Metadata> {
        // A double would do too, but its close would give up the process's locks on the file.
        // SAFETY: an open descriptor, which is looked at and not closed.
        let file = ManuallyDrop::new(unsafe { File::from_raw_fd(self.target()) });
        file.metadata()
    }

    /// Makes the file so many bytes long.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn set_length(&self, bytes: u64) -> io::Result<()> {
        rustix::fs::ftruncate(&self.descriptor, bytes)?;
        self.length.store(bytes, Ordering::Relaxed);
        Ok(())
    }
}

impl AsFd for Kernel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// The routes that the kernel offers for direct I/O; `polled` says that the device was seen to be
/// really polled.
pub fn offered(polled: bool) -> Routes {
    match (ring::unavailable(), polled) {
        (Some(_), _) => Routes::INLINE,
        (None, false) => Routes::INLINE | Routes::INTERRUPT,
        (None, true) => Routes::INLINE | Routes::INTERRUPT | Routes::POLLED,
    }
}

/// Of these routes, the ones for a lone request. Syncs and writes to the page cache wait within the
/// file system, which io_uring leaves to a thread of the kernel's. So do reads through the cache
/// where the file system cannot say that it would wait.
pub(crate) fn alone(routes: Routes, kind: Kind, buffered: bool, refuses_nowait: bool) -> Routes {
    let by_thread = match kind {
        Kind::Sync => true,
        Kind::Write => buffered,
        Kind::Read => buffered && refuses_nowait,
    };
    if by_thread { Routes::INLINE } else { routes }
}

impl Source for Kernel {
    type Queue = KernelQueue;

    fn queue(&self, depth: u32) -> io::Result<KernelQueue> {
        KernelQueue::own(depth, self.method)
    }

    /// With all its rings made, and never one after that: without io_uring all that is asked of it
    /// is served by calls.
    fn handler_queue(&self, depth: u32) -> io::Result<Option<InHandler<KernelQueue>>> {
        let mut rings = Box::new(Rings::new(depth));
        if ring::unavailable().is_none() {
            let _ = rings.ring(self.method as usize);
            if self.routes().has(Route::Polled) {
                let _ = rings.ring(POLLED_RING);
            }
        }
        rings.sealed = true;
        let queue = KernelQueue { rings: Owner::Own(rings), method: self.method };
        // SAFETY: rings and lists have room for all that can be in flight, and a sealed set of
        // rings makes none. No lock is taken, no thread-local is touched, and nothing can panic:
        // indices are those of slots and of the four rings.
        Ok(Some(unsafe { InHandler::assume(queue) }))
    }

    fn call_queue(&self) -> io::Result<KernelQueue> {
        Ok(KernelQueue::of_thread(self.method))
    }

    /// Requests name their descriptor, so a ring serves any.
    fn shares(&self) -> Option<u64> {
        Some(self.method as u64)
    }

    fn routes(&self) -> Routes {
        offered(self.polled.load(Ordering::Relaxed))
    }

    #[inline]
    fn routes_alone(&self, kind: Kind) -> Routes {
        alone(self.routes(), kind, self.alignment <= 1, !self.caches())
    }

    #[inline(always)]
    fn call(&self, io: &Io) -> i32 {
        let result = call(io, 0);
        if result > 0 && self.grows(io) {
            self.length.fetch_max(io.offset() + result as u64, Ordering::Relaxed);
        }
        result
    }

    #[inline]
    fn grows(&self, io: &Io) -> bool {
        io.action().kind() == Kind::Write
            && io.offset() + u64::from(io.bytes()) > self.length.load(Ordering::Relaxed)
    }

    fn fills(&self) -> Option<Fills> {
        // SAFETY: the kernel says how many bytes it wrote, of calls and on rings.
        Some(unsafe { Fills::promise() })
    }

    fn caches(&self) -> bool {
        !self.no_cache_first.load(Ordering::Relaxed)
    }

    fn cached(&self, io: &Io) -> Option<i32> {
        found_in_cache(call(io, libc::RWF_NOWAIT), &self.no_cache_first)
    }

    fn refused(&self, route: Route) {
        if route == Route::Polled {
            self.polled.store(false, Ordering::Relaxed);
        }
    }

    fn target(&self) -> i32 {
        self.descriptor().as_raw_fd()
    }

    fn bytes(&self) -> io::Result<u64> {
        // SAFETY: a zeroed stat is a valid buffer for fstat.
        let mut status: libc::stat = unsafe { std::mem::zeroed() };
        // SAFETY: an open descriptor and a live buffer.
        if unsafe { libc::fstat(self.target(), &mut status) } != 0 {
            return Err(io::Error::last_os_error());
        }
        if status.st_mode & libc::S_IFMT != libc::S_IFBLK {
            return Ok(status.st_size as u64);
        }
        const BLKGETSIZE64: libc::Ioctl = 0x8008_1272u32 as libc::Ioctl;
        let mut bytes = 0u64;
        // SAFETY: BLKGETSIZE64 writes one u64.
        match unsafe { libc::ioctl(self.target(), BLKGETSIZE64, &mut bytes) } {
            0 => Ok(bytes),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn alignment(&self) -> u32 {
        self.alignment
    }
}

/// What a question to the page cache came to; `None` where the device has to be asked. A refusal is
/// noted: by the file system, by a kernel without such a call, or by a filter of system calls.
pub(crate) fn found_in_cache(result: i32, no_cache_first: &AtomicBool) -> Option<i32> {
    match -result {
        libc::EAGAIN => None,
        libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM => {
            no_cache_first.store(true, Ordering::Relaxed);
            None
        }
        _ => Some(result),
    }
}

/// The synchronous call for a request; EINTR before any byte moved is tried again.
///
/// Plain ones go past libc: after a system call each return is mispredicted, and its `pread` is
/// one more.
#[inline(always)]
fn call(io: &Io, flags: libc::c_int) -> i32 {
    let number = match (io.action(), flags) {
        (Action::Read, 0) => Sysno::pread64,
        (Action::Write, 0) => Sysno::pwrite64,
        _ => return less_usual_call(io, flags),
    };
    loop {
        // SAFETY: whoever made the Io promised that its memory is valid until the completion, which
        // here is the return of the call.
        let done = unsafe { syscall!(number, io.target(), io.memory(), io.bytes(), io.offset()) };
        match done {
            Ok(done) => return done as i32,
            Err(Errno::EINTR) => {}
            Err(errno) => return -errno.into_raw(),
        }
    }
}

#[inline(never)]
fn less_usual_call(io: &Io, flags: libc::c_int) -> i32 {
    let (fd, offset) = (io.target(), io.offset() as libc::off_t);
    let plain = libc::iovec { iov_base: io.memory().cast(), iov_len: io.bytes() as usize };
    let (pieces, count): (*const _, _) = match io.action() {
        Action::Read | Action::Write => (&plain, 1),
        _ => (io.iovecs(), io.pieces() as libc::c_int),
    };
    loop {
        // SAFETY: as of `call`.
        let done = unsafe {
            match (io.action(), flags) {
                (Action::Sync, _) => libc::fsync(fd) as isize,
                (Action::DataSync, _) => libc::fdatasync(fd) as isize,
                // What asks for no flag needs no call that may be missing, or forbidden.
                (Action::Read | Action::ReadVectored, 0) => libc::preadv(fd, pieces, count, offset),
                (Action::Write | Action::WriteVectored, 0) => {
                    libc::pwritev(fd, pieces, count, offset)
                }
                (Action::Read | Action::ReadVectored, _) => {
                    libc::preadv2(fd, pieces, count, offset, flags)
                }
                (Action::Write | Action::WriteVectored, _) => {
                    libc::pwritev2(fd, pieces, count, offset, flags)
                }
            }
        };
        if done >= 0 {
            return done as i32;
        }
        let errno = io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO);
        if errno != libc::EINTR {
            return -errno;
        }
    }
}

/// Requests in flight on the rings that a thread's blocking calls share. One: a signal handler that
/// interrupts a call finds the queue full and must not reap the completion of the call beneath.
const CALL_DEPTH: u32 = 1;

thread_local! {
    static THREAD: RefCell<Rings> = RefCell::new(Rings::new(CALL_DEPTH));
}

/// Makes the place of the calling thread's rings, though none of them yet.
pub(crate) fn prepare_thread() {
    // A thread that is ending makes nothing any more.
    let _ = THREAD.try_with(|_| ());
}

enum Owner {
    /// The calling thread's own rings, shared by its blocking calls on all files.
    Thread,
    Own(Box<Rings>),
}

/// A queue of kernel-served requests, over rings that are made when first needed.
pub struct KernelQueue {
    rings: Owner,
    method: SpinMethod,
}

impl KernelQueue {
    /// Over rings of its own, for `depth` requests.
    pub(crate) fn own(depth: u32, method: SpinMethod) -> io::Result<Self> {
        if let Some(why) = ring::unavailable() {
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        let mut rings = Box::new(Rings::new(depth));
        rings.ring(method as usize)?;
        Ok(KernelQueue { rings: Owner::Own(rings), method })
    }

    /// Over the calling thread's rings.
    pub(crate) fn of_thread(method: SpinMethod) -> Self {
        KernelQueue { rings: Owner::Thread, method }
    }

    /// Registers the calling thread's credentials of this moment with the ring of a route, as of
    /// [`Ring::personality`].
    ///
    /// # Errors
    /// What the kernel refuses; a route that no ring serves.
    pub fn personality(&mut self, route: Route) -> io::Result<u16> {
        let at = self.at(route).ok_or(io::ErrorKind::Unsupported)?;
        self.with(|rings| rings.ring(at)?.personality())
    }

    /// As [`Ring::forget_personality`].
    pub fn forget_personality(&mut self, route: Route, personality: u16) {
        if let Some(at) = self.at(route) {
            self.with(|rings| {
                if let Ok(ring) = rings.ring(at) {
                    ring.forget_personality(personality);
                }
            });
        }
    }

    fn at(&self, route: Route) -> Option<usize> {
        match route {
            Route::Inline => None,
            Route::Interrupt => Some(self.method as usize),
            Route::Polled => Some(POLLED_RING),
        }
    }

    /// For everything that follows a submission: the rings are there and not in use.
    #[inline]
    fn with<R>(&mut self, serve: impl FnOnce(&mut Rings) -> R) -> R {
        match &mut self.rings {
            Owner::Own(rings) => serve(rings),
            Owner::Thread => THREAD.with_borrow_mut(serve),
        }
    }
}

// SAFETY: a ring's completion comes from the kernel, which is done with the memory then, and so is
// a call that has returned. A forked child completes what its parent has in flight, but there the
// kernel writes to the parent's memory alone.
unsafe impl Queue for KernelQueue {
    type Op = Io;

    fn submit(&mut self, io: Io, route: Route) -> Result<Ticket, (Full, Io)> {
        let submitted = match &mut self.rings {
            // One of many requests is served here and now rather than lost; a lone one is given
            // back, and its caller counts it as what it becomes, an inline call.
            Owner::Own(rings) => match rings.submit(&io, route, self.method) {
                // A call would be carried out as this thread.
                Err(Refused::NoRing) if io.personality() == 0 => rings.serve(&io),
                submitted => submitted.map_err(|_| Full),
            },
            Owner::Thread => THREAD
                .try_with(|rings| match rings.try_borrow_mut() {
                    Ok(mut rings) if rings.backlog().requests == 0 => {
                        rings.submit(&io, route, self.method).map_err(|_| Full)
                    }
                    _ => Err(Full),
                })
                .unwrap_or(Err(Full)),
        };
        submitted.map_err(|full| (full, io))
    }

    fn flush(&mut self) {
        self.with(|rings| rings.busy().for_each(Ring::flush));
    }

    #[inline]
    fn poll(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        self.with(|rings| rings.poll(out))
    }

    fn arm(&mut self, min_complete: u32) -> Wake<'_> {
        self.with(|rings| rings.arm(min_complete))
    }

    fn arm_beside(&mut self, _: u32) -> Wake<'_> {
        self.with(Rings::arm_beside)
    }

    fn disarm(&mut self) {
        self.with(|rings| rings.busy().for_each(Ring::disarm));
    }

    fn watch(&mut self, descriptor: BorrowedFd<'_>) -> Watch {
        self.with(|rings| match rings.busy().next() {
            Some(ring) => ring.watch(descriptor),
            None => Watch::Cannot,
        })
    }

    fn register_pool(&mut self, pool: &Pool) -> io::Result<()> {
        self.with(|rings| rings.register_pool(pool))
    }

    fn register_target(&mut self, target: i32) -> io::Result<()> {
        self.with(|rings| rings.register_target(target))
    }

    fn cancel(&mut self, ticket: Ticket) {
        let at = (ticket.0 >> RING_SHIFT) as usize;
        self.with(|rings| {
            if let Some(Some(ring)) = rings.rings.get_mut(at) {
                ring.cancel(Ticket(ticket.0 & ((1 << RING_SHIFT) - 1)));
            }
        });
    }

    fn is_call(&self, ticket: Ticket) -> bool {
        ticket.0 >> RING_SHIFT == INLINE_RING
    }

    fn backlog(&self) -> Backlog {
        match &self.rings {
            Owner::Own(rings) => rings.backlog(),
            Owner::Thread => THREAD.with_borrow(Rings::backlog),
        }
    }

    fn is_lost(&self) -> bool {
        match &self.rings {
            Owner::Own(rings) => rings.is_lost(),
            Owner::Thread => THREAD.with_borrow(Rings::is_lost),
        }
    }

    fn give_up(&mut self) {
        self.with(Rings::give_up);
    }
}
