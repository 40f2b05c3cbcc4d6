// SPDX-License-Identifier: MIT OR Apache-2.0
//! One request of a file as a future.
#![allow(unsafe_code)]

use std::any::Any;
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll};

use dwell_policy::{Backlog, Route};

use super::inner::Inner;
use super::reactor::{Owner, State};
use crate::buffer::Filled;
use crate::error::{Error, ErrorKind, Result};
use crate::queue::{Action, Io};
use crate::source::Source;

/// A request's result with its buffer, which a kernel that hands out nothing any more may keep.
pub(super) fn whole<T: std::fmt::Debug, B>(
    (result, buffer): (Result<T>, Option<B>),
) -> (Result<T>, B) {
    match buffer {
        Some(buffer) => (result, buffer),
        None => {
            panic!("the kernel hands out no completions any more; the buffer is lost: {result:?}")
        }
    }
}

/// The memory that a request is about.
pub(super) struct Memory {
    pub action: Action,
    /// Start and length, in bytes.
    pub of: (*mut u8, usize),
    /// Bytes at its start that are done with.
    pub skip: usize,
}

pub(super) enum Stage {
    New,
    /// Under this name on the reactor.
    Asked(usize),
    Over,
}

/// One request. Its memory is the buffer's, which stays here until the request is over.
pub(super) struct Request<B: Send + 'static, S: Source + 'static>
where
    S::Queue: Send + 'static,
{
    pub inner: Rc<Inner<S>>,
    pub memory: Memory,
    pub offset: u64,
    pub buffer: Option<B>,
    /// Tells the buffer how much of it a read has filled.
    pub filled: Option<Filled<B>>,
    pub stage: Stage,
}

// What a buffer's memory must do, `IoBuf` demands, however the value is moved.
impl<B: Send + 'static, S: Source + 'static> Unpin for Request<B, S> where S::Queue: Send + 'static {}

impl<B: Send + 'static, S: Source + 'static> Request<B, S>
where
    S::Queue: Send + 'static,
{
    fn io(&self) -> Result<Io> {
        let file = &self.inner.file;
        let Memory { action, of: (start, bytes), skip } = self.memory;
        if self.buffer.is_none() {
            let data_only = action == Action::DataSync;
            // SAFETY: the target is the source's own, which a request in flight keeps open.
            return Ok(unsafe { Io::sync(file.source.target(), data_only) });
        }
        let skip = skip.min(bytes);
        let (memory, bytes) = (start.wrapping_add(skip), (bytes - skip).min(file.most_bytes()));
        file.queueable(memory, bytes, self.offset)?;
        // SAFETY: the memory is the buffer's, which is kept, here or by the reactor once this is
        // dropped, until the completion is out.
        Ok(unsafe { Io::plain(action, file.source.target(), memory, bytes as u32, self.offset) })
    }

    /// Tells the buffer of a read what has been read.
    fn told(&mut self, result: Result<usize>) -> Result<usize> {
        let Memory { of: (_, bytes), skip, .. } = self.memory;
        if let (Ok(done), Some(buffer), Some(filled)) = (&result, &mut self.buffer, self.filled) {
            // SAFETY: the source promised to have written so many, or the room was zeroed before;
            // those that were skipped are there from requests before this one.
            unsafe { filled(buffer, skip.saturating_add(*done).min(bytes)) };
        }
        result
    }

    /// Submits the request, or waits for room. Its result, where it has one already.
    fn begin(&mut self, granted: Option<usize>, context: &Context<'_>) -> Option<Result<usize>> {
        self.stage = Stage::Over;
        let io = match self.io() {
            Ok(io) => io,
            Err(error) => return Some(Err(error)),
        };
        let inner = self.inner.clone();
        let (file, core) = (&inner.file, &inner.core);
        if core.closed.get() {
            let what = "the executor that its requests were to be futures of has ended";
            return Some(Err(Error::refused(ErrorKind::Ended, file.path(), what)));
        }
        let mut reactor = core.reactor.borrow_mut();
        let sequence = inner.sequence.replace(inner.sequence.get() + 1);
        let Some(line) = inner.line else {
            let began = reactor.platform.now();
            drop(reactor);
            let estimator = inner.estimator.borrow();
            let (none, about) = (Backlog::default(), &estimator);
            let (decision, _) = file.decide_queued(&io, none, about, sequence, 1);
            let result = file.serve_unqueued(&io, &decision, began);
            return Some(file.outcome(&io, result));
        };
        if let Err(request) = reactor.admit(line, granted, context.waker()) {
            self.stage = Stage::Asked(request);
            return None;
        }
        let own = reactor.backlog(line);
        let depth = inner.in_flight.get() + 1;
        let about = &inner.estimator.borrow();
        let (decision, asked) = file.decide_queued(&io, own, about, sequence, depth);
        // SAFETY: the buffer outlives both; the other is served only after the completion of this
        // one, when the queue refused it.
        let kept = unsafe { io.again() };
        let owner: Rc<dyn Owner> = inner.clone();
        let began = reactor.platform.now();
        match reactor.submit(line, io, kept, (decision, asked), &owner, context.waker()) {
            Ok(request) => {
                self.stage = Stage::Asked(request);
                None
            }
            Err((Some(request), _)) => {
                self.stage = Stage::Asked(request);
                None
            }
            Err((None, io)) => {
                drop(reactor);
                core.settle();
                if !file.source.routes().has(Route::Inline) {
                    return Some(file.outcome(&io, -libc::EBUSY));
                }
                let result = file.serve_unqueued(&io, &decision, began);
                Some(file.outcome(&io, result))
            }
        }
    }

    fn step(&mut self, context: &Context<'_>) -> Option<Result<usize>> {
        let Stage::Asked(request) = self.stage else { return self.begin(None, context) };
        let state = self.inner.core.reactor.borrow_mut().ask(request, context.waker());
        match state {
            State::Waiting | State::InFlight(_) => None,
            // An executor that has ended brings nothing any more.
            State::GivenUp if self.inner.core.closed.get() => None,
            State::GivenUp => {
                // The device may write there for good.
                std::mem::forget(self.buffer.take());
                let lost = std::io::Error::from_raw_os_error(libc::ENOTRECOVERABLE);
                let (action, path) = (self.memory.action.as_str(), self.inner.file.path());
                Some(Err(Error::io(action, path, Some(self.offset), lost)))
            }
            State::Granted => self.begin(Some(request), context),
            State::Landed(result) => {
                self.stage = Stage::Over;
                let done = match self.io() {
                    Ok(io) => self.inner.file.outcome(&io, result),
                    Err(error) => Err(error),
                };
                Some(done)
            }
        }
    }
}

impl<B: Send + 'static, S: Source + 'static> Future for Request<B, S>
where
    S::Queue: Send + 'static,
{
    type Output = (Result<usize>, Option<B>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.step(context) {
            Some(result) => Poll::Ready((self.told(result), self.buffer.take())),
            None => Poll::Pending,
        }
    }
}

impl<B: Send + 'static, S: Source + 'static> Drop for Request<B, S>
where
    S::Queue: Send + 'static,
{
    fn drop(&mut self) {
        let (Stage::Asked(request), Some(line)) = (&self.stage, self.inner.line) else { return };
        // Until it is known that the request is over, the device may write there.
        let mut buffer = ManuallyDrop::new(self.buffer.take());
        let memory = || Box::new(buffer.take()) as Box<dyn Any>;
        let is_over = self.inner.core.reactor.borrow_mut().abandon(line, *request, memory);
        if is_over {
            drop(ManuallyDrop::into_inner(buffer));
        }
        self.inner.core.settle();
    }
}
