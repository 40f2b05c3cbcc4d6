// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files whose requests are futures.

use std::any::TypeId;
use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use dwell_policy::{Decision, Estimator, Ns, Outcome, Route, Routes};

use super::reactor::{Flight, Owner};
use super::request::{Memory, Request, Stage, whole};
use super::{Core, Handle};
use crate::admission::{Admission, Standing};
use crate::any::AnySource;
use crate::async_submission::Course;
use crate::buffer::{Filled, IoBuf, IoBufMut};
use crate::error::{Error, Result};
use crate::file::File;
use crate::learner::Asked;
use crate::parameters::Entered;
use crate::queue::{Action, Io};
use crate::source::Source;

impl Handle {
    /// A file's requests as futures of this executor. The estimates of its latencies are kept as
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
        let inner = Inner {
            file,
            core: self.core.clone(),
            line,
            estimator: RefCell::new(Estimator::new()),
            course: RefCell::default(),
            standing: RefCell::default(),
            sequence: Cell::new(0),
            in_flight: Cell::new(0),
        };
        Ok(AsyncFile { inner: Rc::new(inner) })
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

pub(super) struct Inner<S: Source>
where
    S::Queue: Send,
{
    pub file: Arc<File<S>>,
    pub core: Rc<Core>,
    pub line: Option<usize>,
    pub estimator: RefCell<Estimator>,
    course: RefCell<Course>,
    standing: RefCell<Standing>,
    pub sequence: Cell<u64>,
    pub in_flight: Cell<u32>,
}

impl<S: Source> Inner<S>
where
    S::Queue: Send,
{
    /// A request is out again, or never comes out.
    fn left(&self) {
        self.in_flight.set(self.in_flight.get() - 1);
    }
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
    fn admission(&self) -> Option<&Admission> {
        self.file.admission()
    }

    fn switch_ns(&self) -> Ns {
        self.file.switch_ns()
    }

    fn waited(&self, decision: &Decision, asked: Option<Asked>, outcome: &Outcome) {
        if let Some(counters) = self.file.counters() {
            counters.passed(outcome);
        }
        if let (Some(learner), Some(asked)) = (self.file.learner(), asked) {
            self.course.borrow_mut().waited(learner, asked, decision, outcome.ended);
        }
    }

    fn begin(&self, asked: Option<Asked>, now: Ns) {
        if self.in_flight.get() == 0 {
            self.course.borrow_mut().begin(self.file.learner(), asked, now);
        }
    }

    fn enter(&self, io: &Io) -> Entered {
        self.in_flight.set(self.in_flight.get() + 1);
        self.file.in_flight.enter(io.bytes())
    }

    fn landed(&self, flight: &Flight, result: i32, latency_ns: Option<Ns>, expired: bool) -> i32 {
        let mut estimator = self.estimator.borrow_mut();
        let learned = latency_ns.map(|latency_ns| (&mut *estimator, latency_ns));
        let Flight { io, decision, entered, wanted, .. } = flight;
        let standing = &mut self.standing.borrow_mut();
        let landed = self.file.landed(io, decision, *entered, result, learned, *wanted, standing);
        self.course.borrow_mut().landed(1);
        self.left();
        match landed.called {
            true => self.file.count_called(),
            false => self.file.count_queued(decision, expired),
        }
        landed.result
    }

    fn gave_up(&self, flight: &Flight) {
        self.file.in_flight.leave(flight.entered);
        self.left();
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
    /// While it is in flight, the system forbids what would bring its completion
    /// (`io_uring_enter`): the buffer, to which the device may still write, cannot be given back.
    pub async fn read_at<B: IoBufMut>(&self, buffer: B, offset: u64) -> (Result<usize>, B) {
        whole(self.reading(buffer, 0, offset).await)
    }

    /// As [`AsyncFile::read_at`], without the panic: `None` in place of a buffer to which the
    /// device may still write. The result is `ENOTRECOVERABLE` then.
    ///
    /// # Errors
    /// As [`AsyncFile::read_at`].
    pub async fn try_read_at<B: IoBufMut>(
        &self,
        buffer: B,
        offset: u64,
    ) -> (Result<usize>, Option<B>) {
        self.reading(buffer, 0, offset).await
    }

    /// As [`AsyncFile::write_at`], without the panic: `None` in place of a buffer from which the
    /// device may still read. The result is `ENOTRECOVERABLE` then.
    ///
    /// # Errors
    /// As [`AsyncFile::write_at`].
    pub async fn try_write_at<B: IoBuf>(
        &self,
        buffer: B,
        offset: u64,
    ) -> (Result<usize>, Option<B>) {
        self.writing(buffer, 0, offset).await
    }

    /// Reads at `offset` until `buffer` is full.
    ///
    /// # Errors
    /// As [`AsyncFile::read_at`]; the file ends before.
    pub async fn read_exact_at<B: IoBufMut>(&self, mut buffer: B, offset: u64) -> (Result<()>, B) {
        let bytes = buffer.room().1;
        whole(self.transfer_all(buffer, bytes, offset, Self::reading).await)
    }

    /// Writes `buffer` at `offset`: bytes written, and the buffer.
    ///
    /// # Errors
    /// As [`File::write_at`]; direct I/O cannot take the buffer.
    pub async fn write_at<B: IoBuf>(&self, buffer: B, offset: u64) -> (Result<usize>, B) {
        whole(self.writing(buffer, 0, offset).await)
    }

    /// Writes all of `buffer` at `offset`.
    ///
    /// # Errors
    /// As [`AsyncFile::write_at`]; a device that takes no more.
    pub async fn write_all_at<B: IoBuf>(&self, buffer: B, offset: u64) -> (Result<()>, B) {
        let bytes = buffer.data().1;
        whole(self.transfer_all(buffer, bytes, offset, Self::writing).await)
    }

    /// As [`AsyncFile::read_exact_at`], without the panic, as [`AsyncFile::try_read_at`].
    ///
    /// # Errors
    /// As [`AsyncFile::read_exact_at`].
    pub async fn try_read_exact_at<B: IoBufMut>(
        &self,
        mut buffer: B,
        offset: u64,
    ) -> (Result<()>, Option<B>) {
        let bytes = buffer.room().1;
        self.transfer_all(buffer, bytes, offset, Self::reading).await
    }

    /// As [`AsyncFile::write_all_at`], without the panic, as [`AsyncFile::try_write_at`].
    ///
    /// # Errors
    /// As [`AsyncFile::write_all_at`].
    pub async fn try_write_all_at<B: IoBuf>(
        &self,
        buffer: B,
        offset: u64,
    ) -> (Result<()>, Option<B>) {
        let bytes = buffer.data().1;
        self.transfer_all(buffer, bytes, offset, Self::writing).await
    }

    /// Makes data and metadata durable of the writes that *completed* before.
    ///
    /// # Errors
    /// What the device reports.
    pub async fn sync(&self) -> Result<()> {
        self.syncing(Action::Sync).await.0.map(drop)
    }

    /// Makes data durable of the writes that *completed* before, and the metadata that reading it
    /// back needs.
    ///
    /// # Errors
    /// What the device reports.
    pub async fn sync_data(&self) -> Result<()> {
        self.syncing(Action::DataSync).await.0.map(drop)
    }

    /// A read that fills the room of `buffer` from its byte `skip` on.
    fn reading<B: IoBufMut>(&self, mut buffer: B, skip: usize, offset: u64) -> Request<B, S> {
        if skip == 0 && self.inner.file.source.fills().is_none() {
            buffer.zero();
        }
        let memory = Memory { action: Action::Read, of: buffer.room(), skip };
        self.request(memory, Some(buffer), offset, Some(B::filled))
    }

    /// A write of the data of `buffer` from its byte `skip` on.
    fn writing<B: IoBuf>(&self, buffer: B, skip: usize, offset: u64) -> Request<B, S> {
        let (start, bytes) = buffer.data();
        let memory = Memory { action: Action::Write, of: (start.cast_mut(), bytes), skip };
        self.request(memory, Some(buffer), offset, None)
    }

    fn syncing(&self, action: Action) -> Request<(), S> {
        let memory = Memory { action, of: (std::ptr::null_mut(), 0), skip: 0 };
        self.request(memory, None, 0, None)
    }

    fn request<B: Send + 'static>(
        &self,
        memory: Memory,
        buffer: Option<B>,
        offset: u64,
        filled: Option<Filled<B>>,
    ) -> Request<B, S> {
        Request { inner: self.inner.clone(), memory, offset, buffer, filled, stage: Stage::New }
    }

    async fn transfer_all<B: Send + 'static>(
        &self,
        mut buffer: B,
        bytes: usize,
        offset: u64,
        part: impl Fn(&Self, B, usize, u64) -> Request<B, S>,
    ) -> (Result<()>, Option<B>) {
        let mut done = 0;
        while done < bytes {
            let at = offset.saturating_add(done as u64);
            let request = part(self, buffer, done, at);
            let action = request.memory.action;
            let (result, back) = request.await;
            buffer = match back {
                Some(buffer) => buffer,
                None => return (result.map(drop), None),
            };
            match result {
                Ok(0) => {
                    let kind = match action {
                        Action::Read => std::io::ErrorKind::UnexpectedEof,
                        _ => std::io::ErrorKind::WriteZero,
                    };
                    let path = self.inner.file.path();
                    let end = Error::io(action.as_str(), path, Some(at), kind.into());
                    return (Err(end), Some(buffer));
                }
                Ok(more) => done += more,
                Err(error) => return (Err(error), Some(buffer)),
            }
        }
        (Ok(()), Some(buffer))
    }
}
