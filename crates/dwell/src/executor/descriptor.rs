// SPDX-License-Identifier: MIT OR Apache-2.0
//! Sockets and other descriptors that can be waited for.

use std::fmt;
use std::future::poll_fn;
use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::rc::Rc;
use std::task::{Context, Poll};

use super::reactor::Reactor;
use super::readiness::{Direction, Readiness};
use super::{Core, Handle};
use crate::park;

impl Handle {
    /// Watches a socket, pipe or other descriptor that can be polled, which must be non-blocking.
    ///
    /// # Errors
    /// What the system refuses: a regular file cannot be watched, nor one descriptor twice.
    pub fn watch<T: AsFd>(&self, inner: T) -> io::Result<Watched<T>> {
        let mut reactor = self.core.reactor.borrow_mut();
        let Reactor { descriptors, platform, .. } = &mut *reactor;
        let entry = descriptors.vacant_entry();
        let key = entry.key();
        platform.watch(inner.as_fd(), key)?;
        let low_water = park::counts_bytes(inner.as_fd()).then_some(1);
        entry.insert(Readiness::new(low_water));
        Ok(Watched { core: self.core.clone(), key, inner: Some(inner) })
    }
}

/// A descriptor that tasks can wait for.
///
/// ```
/// use std::io::{Read, Write};
/// use dwell::executor::Executor;
///
/// # fn main() -> std::io::Result<()> {
/// let (near, mut far) = std::os::unix::net::UnixStream::pair()?;
/// near.set_nonblocking(true)?;
/// let executor = Executor::new()?;
/// let near = executor.watch(near)?;
/// far.write_all(b"hello")?;
/// let mut buffer = [0; 16];
/// let got = executor.block_on(near.read_with(|mut near| near.read(&mut buffer)))?;
/// assert_eq!(&buffer[..got], b"hello");
/// # Ok(())
/// # }
/// ```
pub struct Watched<T: AsFd> {
    core: Rc<Core>,
    key: usize,
    /// Taken by `into_inner` only.
    inner: Option<T>,
}

impl<T: AsFd> Watched<T> {
    /// The watched value.
    pub fn get(&self) -> &T {
        self.inner.as_ref().expect("only into_inner takes it, with the value")
    }

    /// Watches it no more and gives it back.
    pub fn into_inner(mut self) -> T {
        self.unwatch();
        self.inner.take().expect("only into_inner takes it, with the value")
    }

    /// Waits until at least so many bytes can be read, the other side has ended, or there is an
    /// error to be read. One wake-up then serves them all. Only TCP sockets count bytes
    /// (`SO_RCVLOWAT`); anything else is readable with whatever there is.
    ///
    /// The kernel counts what it holds: bytes that the caller has read already and keeps are to be
    /// taken off. A mark beyond the receive buffer is cut down to what fits. It stays for waits
    /// that ask for the same.
    pub async fn readable(&self, at_least: usize) {
        self.set_low_water(at_least);
        self.ready(Direction::Read).await;
    }

    /// Waits until something can be written, or there is an error to be had by trying.
    pub async fn writable(&self) {
        self.ready(Direction::Write).await;
    }

    /// Tries `read` until it does not say that it would block, and waits for something to read in
    /// between.
    ///
    /// # Errors
    /// What `read` fails with.
    pub async fn read_with<R>(&self, mut read: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        loop {
            match self.try_read_with(&mut read) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.readable(1).await;
                }
                done => return done,
            }
        }
    }

    /// Tries `write` until it does not say that it would block, and waits for room in between.
    ///
    /// # Errors
    /// What `write` fails with.
    pub async fn write_with<R>(&self, mut write: impl FnMut(&T) -> io::Result<R>) -> io::Result<R> {
        loop {
            match self.try_write_with(&mut write) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable().await,
                done => return done,
            }
        }
    }

    /// Tries `read` once. If it would block, the next [`Watched::readable`] waits.
    ///
    /// # Errors
    /// What `read` fails with.
    pub fn try_read_with<R>(&self, read: impl FnOnce(&T) -> io::Result<R>) -> io::Result<R> {
        self.attempt(Direction::Read, read)
    }

    /// Tries `write` once. If it would block, the next [`Watched::writable`] waits.
    ///
    /// # Errors
    /// What `write` fails with.
    pub fn try_write_with<R>(&self, write: impl FnOnce(&T) -> io::Result<R>) -> io::Result<R> {
        self.attempt(Direction::Write, write)
    }

    /// Says that a stream was read dry, as a read tells that brought less than asked for: the next
    /// [`Watched::readable`] waits for more, without an attempt that would block.
    pub fn drained(&self) {
        self.with(|descriptor| descriptor.readable &= descriptor.ended);
    }

    fn attempt<R>(
        &self,
        direction: Direction,
        what: impl FnOnce(&T) -> io::Result<R>,
    ) -> io::Result<R> {
        let done = what(self.get());
        if matches!(&done, Err(error) if error.kind() == io::ErrorKind::WouldBlock) {
            self.with(|descriptor| *descriptor.is_ready(direction) = false);
        }
        done
    }

    fn set_low_water(&self, at_least: usize) {
        let mark = at_least.clamp(1, i32::MAX as usize) as u32;
        let moves = self.with(|descriptor| {
            let moves = descriptor.low_water.is_some_and(|low_water| low_water != mark);
            if moves {
                // The kernel looks at its new mark at once and tells if that is reached already.
                descriptor.readable &= descriptor.ended;
                descriptor.low_water = Some(mark);
            }
            moves
        });
        if moves && !park::set_low_water(self.get().as_fd(), mark) {
            self.with(|descriptor| (descriptor.readable, descriptor.low_water) = (true, None));
        }
    }

    fn with<R>(&self, what: impl FnOnce(&mut Readiness) -> R) -> R {
        what(&mut self.core.reactor.borrow_mut().descriptors[self.key])
    }

    fn poll_ready(&self, direction: Direction, context: &mut Context<'_>) -> Poll<()> {
        self.with(|descriptor| {
            if *descriptor.is_ready(direction) {
                return Poll::Ready(());
            }
            let wakers = descriptor.wakers(direction);
            if !wakers.iter().any(|waker| waker.will_wake(context.waker())) {
                wakers.push(context.waker().clone());
            }
            Poll::Pending
        })
    }

    async fn ready(&self, direction: Direction) {
        poll_fn(|context| self.poll_ready(direction, context)).await;
    }

    fn unwatch(&mut self) {
        let Some(inner) = &self.inner else { return };
        let mut reactor = self.core.reactor.borrow_mut();
        reactor.platform.unwatch(inner.as_fd());
        let _wakers = reactor.descriptors.try_remove(self.key);
        drop(reactor);
    }
}

impl<T: AsFd> Drop for Watched<T> {
    fn drop(&mut self) {
        self.unwatch();
    }
}

impl<T: AsFd> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let descriptor = self.inner.as_ref().map(|inner| inner.as_fd().as_raw_fd());
        f.debug_struct("Watched").field("descriptor", &descriptor).finish()
    }
}
