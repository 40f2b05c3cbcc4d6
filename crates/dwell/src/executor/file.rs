// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files whose requests are futures.

use std::any::TypeId;
use std::rc::Rc;
use std::sync::Arc;

use dwell_policy::{Route, Routes};

use super::Handle;
use super::inner::Inner;
use super::request::{Memory, Request, Stage, whole};
use crate::any::AnySource;
use crate::buffer::{Filled, IoBuf, IoBufMut, Pool};
use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::queue::Action;
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
        Ok(AsyncFile { inner: Rc::new(Inner::new(file, self.core.clone(), line)) })
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

impl<S> AsyncFile<S>
where
    S: Source + 'static,
    S::Queue: Send + 'static,
{
    /// The file.
    pub fn file(&self) -> &Arc<File<S>> {
        &self.inner.file
    }

    /// Has the kernel pin the memory of `pool` once, instead of for each request: io_uring's
    /// registered buffers. Files of the executor share queues, so other files can gain by it too.
    /// On a device or address that no ring serves, this changes nothing.
    ///
    /// # Errors
    /// As [`Pipeline::register`](crate::pipeline::Pipeline::register); the executor has ended.
    pub fn register(&self, pool: &Pool) -> Result<()> {
        let path = self.file().path();
        if self.inner.core.closed.get() {
            return Err(Error::refused(ErrorKind::Ended, path, "the executor has ended"));
        }
        let Some(line) = self.inner.line else { return Ok(()) };
        let queue = &mut self.inner.core.reactor.borrow_mut().lines[line].queue;
        queue.register_pool(pool).map_err(|error| Error::registering(path, error))
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
        whole(self.fill(buffer, offset).await)
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
        self.fill(buffer, offset).await
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

    /// Reads as many bytes as there are, by several requests where one cannot move so many.
    async fn fill<B: IoBufMut>(&self, mut buffer: B, offset: u64) -> (Result<usize>, Option<B>) {
        let (bytes, most) = (buffer.room().1, self.inner.file.most_bytes());
        let mut done = 0;
        loop {
            let at = offset.saturating_add(done as u64);
            let (result, back) = self.reading(buffer, done, at).await;
            let Some(back) = back else { return (result, None) };
            let more = match result {
                Ok(more) => more,
                Err(error) => return (Err(error), Some(back)),
            };
            done += more;
            if more < most || done == bytes {
                return (Ok(done), Some(back));
            }
            buffer = back;
        }
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
