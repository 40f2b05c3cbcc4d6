// SPDX-License-Identifier: MIT OR Apache-2.0
//! The sources that an address can open, behind one type.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;

use dwell_policy::{Backlog, Kind, Route, Routes};

use crate::buffer::Pool;
use crate::kernel::{Kernel, KernelQueue};
use crate::queue::{Completion, Full, InHandler, Io, Queue, QueueHint, Ticket, Wake, Watch};
use crate::source::{Fills, Source};

/// A queue of a source that a subsystem brought.
pub type OtherQueue = Box<dyn Queue<Op = Io> + Send>;
/// A source that a subsystem brought.
pub type OtherSource = Box<dyn Source<Queue = OtherQueue>>;

/// Any opened source. The kernel's is a branch away; others are called through a pointer.
pub enum AnySource {
    /// A file or device that the kernel serves.
    Kernel(Kernel),
    /// Everything else: emulated devices, memory, and what subsystems register.
    Other(OtherSource),
}

/// A queue of [`AnySource`].
pub enum AnyQueue {
    /// The kernel's.
    Kernel(KernelQueue),
    /// Any other.
    Other(OtherQueue),
}

/// Hides the queue type of a source, so that [`AnySource::Other`] can hold it.
pub struct Boxed<S>(pub S);

macro_rules! each {
    ($self:expr, $inner:ident => $call:expr) => {
        match $self {
            Self::Kernel($inner) => $call,
            Self::Other($inner) => $call,
        }
    };
}

impl Source for AnySource {
    type Queue = AnyQueue;

    fn queue(&self, depth: u32) -> io::Result<AnyQueue> {
        Ok(match self {
            AnySource::Kernel(source) => AnyQueue::Kernel(source.queue(depth)?),
            AnySource::Other(source) => AnyQueue::Other(source.queue(depth)?),
        })
    }

    fn handler_queue(&self, depth: u32) -> io::Result<Option<InHandler<AnyQueue>>> {
        let queue = match self {
            AnySource::Kernel(source) => {
                source.handler_queue(depth)?.map(|queue| AnyQueue::Kernel(queue.into_inner()))
            }
            AnySource::Other(source) => {
                source.handler_queue(depth)?.map(|queue| AnyQueue::Other(queue.into_inner()))
            }
        };
        // SAFETY: the queue within is one, and a branch is all that comes before it.
        Ok(queue.map(|queue| unsafe { InHandler::assume(queue) }))
    }

    fn call_queue(&self) -> io::Result<AnyQueue> {
        Ok(match self {
            AnySource::Kernel(source) => AnyQueue::Kernel(source.call_queue()?),
            AnySource::Other(source) => AnyQueue::Other(source.call_queue()?),
        })
    }

    fn shares(&self) -> Option<u64> {
        match self {
            AnySource::Kernel(source) => source.shares(),
            AnySource::Other(_) => None,
        }
    }

    #[inline]
    fn routes(&self) -> Routes {
        each!(self, source => source.routes())
    }

    #[inline]
    fn routes_alone(&self, kind: Kind) -> Routes {
        each!(self, source => source.routes_alone(kind))
    }

    #[inline(always)]
    fn call(&self, io: &Io) -> i32 {
        each!(self, source => source.call(io))
    }

    fn fills(&self) -> Option<Fills> {
        each!(self, source => source.fills())
    }

    fn caches(&self) -> bool {
        each!(self, source => source.caches())
    }

    fn cached(&self, io: &Io) -> Option<i32> {
        each!(self, source => source.cached(io))
    }

    fn ends(&self, io: &Io, result: i32) -> bool {
        each!(self, source => source.ends(io, result))
    }

    #[inline]
    fn grows(&self, io: &Io) -> bool {
        each!(self, source => source.grows(io))
    }

    #[inline]
    fn has_busy_server(&self) -> bool {
        each!(self, source => source.has_busy_server())
    }

    fn refused(&self, route: Route) {
        each!(self, source => source.refused(route))
    }

    #[inline]
    fn target(&self) -> i32 {
        each!(self, source => source.target())
    }

    fn bytes(&self) -> io::Result<u64> {
        each!(self, source => source.bytes())
    }

    #[inline]
    fn alignment(&self) -> u32 {
        each!(self, source => source.alignment())
    }
}

// SAFETY: every method is that of the queue within.
unsafe impl Queue for AnyQueue {
    type Op = Io;

    fn submit(&mut self, io: Io, route: Route) -> Result<Ticket, (Full, Io)> {
        each!(self, queue => queue.submit(io, route))
    }

    fn flush(&mut self) {
        each!(self, queue => queue.flush())
    }

    #[inline]
    fn poll(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        each!(self, queue => queue.poll(out))
    }

    fn arm(&mut self, min_complete: u32) -> Wake<'_> {
        each!(self, queue => queue.arm(min_complete))
    }

    fn arm_beside(&mut self, min_complete: u32) -> Wake<'_> {
        each!(self, queue => queue.arm_beside(min_complete))
    }

    fn disarm(&mut self) {
        each!(self, queue => queue.disarm())
    }

    fn watch(&mut self, descriptor: BorrowedFd<'_>) -> Watch {
        each!(self, queue => queue.watch(descriptor))
    }

    fn register_pool(&mut self, pool: &Pool) -> io::Result<()> {
        each!(self, queue => queue.register_pool(pool))
    }

    fn register_target(&mut self, target: i32) -> io::Result<()> {
        each!(self, queue => queue.register_target(target))
    }

    fn cancel(&mut self, ticket: Ticket) {
        each!(self, queue => queue.cancel(ticket))
    }

    fn is_call(&self, ticket: Ticket) -> bool {
        each!(self, queue => queue.is_call(ticket))
    }

    fn backlog(&self) -> Backlog {
        each!(self, queue => queue.backlog())
    }

    fn is_lost(&self) -> bool {
        each!(self, queue => queue.is_lost())
    }

    fn give_up(&mut self) {
        each!(self, queue => queue.give_up())
    }

    #[inline]
    fn hint(&self, io: &Io) -> QueueHint {
        each!(self, queue => queue.hint(io))
    }
}

impl<S: Source> Source for Boxed<S>
where
    S::Queue: Send + 'static,
{
    type Queue = OtherQueue;

    fn queue(&self, depth: u32) -> io::Result<OtherQueue> {
        Ok(Box::new(self.0.queue(depth)?))
    }

    fn handler_queue(&self, depth: u32) -> io::Result<Option<InHandler<OtherQueue>>> {
        let queue = self.0.handler_queue(depth)?;
        // SAFETY: the queue within is one, and a call through a pointer is all that comes before
        // it.
        Ok(queue
            .map(|queue| unsafe { InHandler::assume(Box::new(queue.into_inner()) as OtherQueue) }))
    }

    fn call_queue(&self) -> io::Result<OtherQueue> {
        Ok(Box::new(self.0.call_queue()?))
    }

    fn routes(&self) -> Routes {
        self.0.routes()
    }

    fn routes_alone(&self, kind: Kind) -> Routes {
        self.0.routes_alone(kind)
    }

    fn call(&self, io: &Io) -> i32 {
        self.0.call(io)
    }

    fn fills(&self) -> Option<Fills> {
        self.0.fills()
    }

    fn caches(&self) -> bool {
        self.0.caches()
    }

    fn cached(&self, io: &Io) -> Option<i32> {
        self.0.cached(io)
    }

    fn ends(&self, io: &Io, result: i32) -> bool {
        self.0.ends(io, result)
    }

    fn grows(&self, io: &Io) -> bool {
        self.0.grows(io)
    }

    fn has_busy_server(&self) -> bool {
        self.0.has_busy_server()
    }

    fn refused(&self, route: Route) {
        self.0.refused(route);
    }

    fn target(&self) -> i32 {
        self.0.target()
    }

    fn bytes(&self) -> io::Result<u64> {
        self.0.bytes()
    }

    fn alignment(&self) -> u32 {
        self.0.alignment()
    }
}
