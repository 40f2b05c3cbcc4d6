// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files whose requests are futures.
#![allow(unsafe_code)]

use std::any::{Any, TypeId};
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::mem::ManuallyDrop;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll};

use dwell_policy::{Backlog, Estimator, Ns, Outcome, Route, Routes};

use super::reactor::{Flight, Owner, State};
use super::{Core, Handle};
use crate::any::AnySource;
use crate::buffer::Aligned;
use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::governed::Governor;
use crate::known::Entered;
use crate::pipeline::Owned;
use crate::queue::{Action, Io};
use crate::source::Source;

impl Handle {
    /// A file's requests as futures of this executor. What is learned of its latencies is kept as
    /// long as the result lives.
    ///
    /// # Errors
    /// What the system refuses: no queue can be set up.
    pub fn file<S>(&self, file: Arc<File<S>>) -> Result<AsyncFile<S>>
    where
        S: Source + 'static,
        S::Queue: Send + 'static,
    {
        let line = match file.source.routes().without(Route::Inline) {
            // No ring here: each request is served by a call.
            Routes::NONE => None,
            _ => Some(self.line(&file)?),
        };
        let (estimator, sequence) = (RefCell::new(Estimator::new()), Cell::new(0));
        let core = self.core.clone();
        Ok(AsyncFile { inner: Rc::new(Inner { file, core, line, estimator, sequence }) })
    }

    fn line<S>(&self, file: &File<S>) -> Result<usize>
    where
        S: Source + 'static,
        S::Queue: Send + 'static,
    {
        let key = file.source.shares().map(|number| (TypeId::of::<S::Queue>(), number));
        let mut reactor = self.core.reactor.borrow_mut();
        if let Some(line) = key.and_then(|key| reactor.shared_line(key)) {
            return Ok(line);
        }
        let depth = self.core.depth;
        let queue = file.source.queue(depth);
        let queue =
            queue.map_err(|error| Error::io("set up a queue for", file.path(), None, error))?;
        Ok(reactor.add_line(Box::new(queue), depth, key))
    }
}

/// A file whose requests are futures. Cloning it is cheap; clones share what they learn.
///
/// A request begins when its future is first polled. Its buffer belongs to it and comes back with
/// the result; a future that is dropped earlier asks the device to end the request, and the buffer
/// is freed once that is so.
///
/// ```
/// use std::sync::Arc;
/// use dwell::executor::Executor;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let dir = tempfile::tempdir()?;
/// # let path = dir.path().join("data");
/// # std::fs::write(&path, vec![7u8; 8192])?;
/// let executor = Executor::new()?;
/// let file = executor.file(Arc::new(dwell::File::open(&path)?))?;
/// let second = file.clone();
/// let reading = executor.spawn(async move { second.read_at(vec![0; 4096], 4096).await });
/// let (first, second) = executor.block_on(async { (file.read_at(vec![0; 4096], 0).await, reading.await) });
/// assert_eq!((first.0?, second.0?), (4096, 4096));
/// assert_eq!(first.1, second.1);
/// # Ok(())
/// # }
/// ```
pub struct AsyncFile<S: Source = AnySource>
where
    S::Queue: Send,
{
    inner: Rc<Inner<S>>,
}

impl<S: Source> Clone for AsyncFile<S>
where
    S::Queue: Send,
{
    fn clone(&self) -> Self {
        AsyncFile { inner: self.inner.clone() }
    }
}

struct Inner<S: Source>
where
    S::Queue: Send,
{
    file: Arc<File<S>>,
    core: Rc<Core>,
    line: Option<usize>,
    estimator: RefCell<Estimator>,
    sequence: Cell<u64>,
}

impl<S: Source> Drop for Inner<S>
where
    S::Queue: Send,
{
    fn drop(&mut self) {
        if let Some(line) = self.line {
            self.core.reactor.borrow_mut().leave_line(line);
        }
    }
}

impl<S: Source> Owner for Inner<S>
where
    S::Queue: Send,
{
    fn governor(&self) -> Option<&Governor> {
        self.file.governor()
    }

    fn switch_ns(&self) -> Ns {
        self.file.switch_ns()
    }

    fn waited(&self, outcome: &Outcome) {
        if let Some(counters) = self.file.counters() {
            counters.passed(outcome);
        }
    }

    fn enter(&self, io: &Io) -> Entered {
        self.file.in_flight.enter(io.bytes())
    }

    fn landed(&self, flight: &Flight, result: i32, latency_ns: Option<Ns>, expired: bool) -> i32 {
        let mut estimator = self.estimator.borrow_mut();
        let learned = latency_ns.map(|latency_ns| (&mut *estimator, latency_ns));
        let Flight { io, decision, entered, wanted, .. } = flight;
        let landed = self.file.landed(io, decision, *entered, result, learned, *wanted);
        match landed.called {
            true => self.file.count_called(),
            false => self.file.count_queued(decision, expired),
        }
        landed.result
    }

    fn gave_up(&self, flight: &Flight) {
        self.file.in_flight.leave(flight.entered);
    }
}

impl<S> AsyncFile<S>
where
    S: Source + 'static,
    S::Queue: Send + 'static,
{
    /// The file.
    pub fn file(&self) -> &Arc<File<S>> {
        &self.inner.file
    }

    /// Reads at `offset` to fill `buffer`: bytes read, fewer only at the end of the file, and the
    /// buffer.
    ///
    /// # Errors
    /// As [`File::read_at`]; direct I/O cannot take the buffer.
    ///
    /// # Panics
    /// While it is in flight, the system forbids what would bring its completion (`io_uring_enter`):
    /// the buffer, to which the device may still write, cannot be given back.
    pub async fn read_at<B: Owned>(&self, buffer: B, offset: u64) -> (Result<usize>, B) {
        self.transfer(Action::Read, buffer, 0, offset).await
    }

    /// Reads at `offset` until `buffer` is full.
    ///
    /// # Errors
    /// As [`AsyncFile::read_at`]; the file ends before.
    pub async fn read_exact_at<B: Owned>(&self, buffer: B, offset: u64) -> (Result<()>, B) {
        self.transfer_all(Action::Read, buffer, offset).await
    }

    /// Writes `buffer` at `offset`: bytes written, and the buffer.
    ///
    /// # Errors
    /// As [`File::write_at`]; direct I/O cannot take the buffer.
    pub async fn write_at<B: Owned>(&self, buffer: B, offset: u64) -> (Result<usize>, B) {
        self.transfer(Action::Write, buffer, 0, offset).await
    }

    /// Writes all of `buffer` at `offset`.
    ///
    /// # Errors
    /// As [`AsyncFile::write_at`]; a device that takes no more.
    pub async fn write_all_at<B: Owned>(&self, buffer: B, offset: u64) -> (Result<()>, B) {
        self.transfer_all(Action::Write, buffer, offset).await
    }

    /// Makes data and metadata durable of the writes that *completed* before.
    ///
    /// # Errors
    /// What the device reports.
    pub async fn sync(&self) -> Result<()> {
        self.request(Action::Sync, None::<Aligned>, 0, 0).await.0.map(drop)
    }

    /// Makes data durable of the writes that *completed* before, and the metadata that reading it
    /// back needs.
    ///
    /// # Errors
    /// What the device reports.
    pub async fn sync_data(&self) -> Result<()> {
        self.request(Action::DataSync, None::<Aligned>, 0, 0).await.0.map(drop)
    }

    fn request<B: Owned>(
        &self,
        action: Action,
        buffer: Option<B>,
        skip: usize,
        offset: u64,
    ) -> Request<B, S> {
        Request { inner: self.inner.clone(), action, offset, buffer, skip, stage: Stage::New }
    }

    async fn transfer<B: Owned>(
        &self,
        action: Action,
        buffer: B,
        skip: usize,
        offset: u64,
    ) -> (Result<usize>, B) {
        let (result, buffer) = self.request(action, Some(buffer), skip, offset).await;
        (result, buffer.expect("it was passed in"))
    }

    async fn transfer_all<B: Owned>(
        &self,
        action: Action,
        mut buffer: B,
        offset: u64,
    ) -> (Result<()>, B) {
        let (bytes, mut done) = (buffer.memory().1, 0);
        while done < bytes {
            let at = offset.saturating_add(done as u64);
            let (result, back) = self.transfer(action, buffer, done, at).await;
            buffer = back;
            match result {
                Ok(0) => {
                    let kind = match action {
                        Action::Read => std::io::ErrorKind::UnexpectedEof,
                        _ => std::io::ErrorKind::WriteZero,
                    };
                    let path = self.inner.file.path();
                    return (Err(Error::io(action.as_str(), path, Some(at), kind.into())), buffer);
                }
                Ok(more) => done += more,
                Err(error) => return (Err(error), buffer),
            }
        }
        (Ok(()), buffer)
    }
}

enum Stage {
    New,
    /// Under this name on the reactor.
    Asked(usize),
    Over,
}

/// One request. Its memory is the buffer's, which stays here until the request is over.
struct Request<B: Owned, S: Source + 'static>
where
    S::Queue: Send + 'static,
{
    inner: Rc<Inner<S>>,
    action: Action,
    offset: u64,
    buffer: Option<B>,
    /// Bytes at the buffer's start that are done with.
    skip: usize,
    stage: Stage,
}

// What a buffer's memory must do, `Owned` demands, however the value is moved.
impl<B: Owned, S: Source + 'static> Unpin for Request<B, S> where S::Queue: Send + 'static {}

impl<B: Owned, S: Source + 'static> Request<B, S>
where
    S::Queue: Send + 'static,
{
    fn io(&mut self) -> Result<Io> {
        let file = &self.inner.file;
        let Some(buffer) = &mut self.buffer else {
            let data_only = self.action == Action::DataSync;
            // SAFETY: the target is the source's own, which a request in flight keeps open.
            return Ok(unsafe { Io::sync(file.source.target(), data_only) });
        };
        let (memory, bytes) = buffer.memory();
        let skip = self.skip.min(bytes);
        let (memory, bytes) = (memory.wrapping_add(skip), bytes - skip);
        file.queueable(memory, bytes, self.offset)?;
        // SAFETY: the memory is the buffer's, which is kept, here or by the reactor once this is
        // dropped, until the completion is out.
        Ok(unsafe {
            Io::plain(self.action, file.source.target(), memory, bytes as u32, self.offset)
        })
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
            let began = reactor.world.now();
            drop(reactor);
            let estimator = inner.estimator.borrow();
            let (none, about) = (Backlog::default(), &estimator);
            let (decision, _) = file.decide_queued(&io, none, about, sequence, None);
            let result = file.serve_unqueued(&io, &decision, began);
            return Some(file.outcome(&io, result));
        };
        if let Err(request) = reactor.admit(line, granted, context.waker()) {
            self.stage = Stage::Asked(request);
            return None;
        }
        let own = reactor.backlog(line);
        let (decision, _) = file.decide_queued(&io, own, &inner.estimator.borrow(), sequence, None);
        // SAFETY: the buffer outlives both; the other is served only after the completion of this
        // one, when the queue refused it.
        let kept = unsafe { io.again() };
        let owner: Rc<dyn Owner> = inner.clone();
        let began = reactor.world.now();
        match reactor.submit(line, io, kept, decision, &owner, context.waker()) {
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
                std::mem::forget(self.buffer.take());
                let path = self.inner.file.path().display();
                panic!("{path}: the kernel hands out no completions any more; the buffer is lost")
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

impl<B: Owned, S: Source + 'static> Future for Request<B, S>
where
    S::Queue: Send + 'static,
{
    type Output = (Result<usize>, Option<B>);

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        match self.step(context) {
            Some(result) => Poll::Ready((result, self.buffer.take())),
            None => Poll::Pending,
        }
    }
}

impl<B: Owned, S: Source + 'static> Drop for Request<B, S>
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
