// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file as a stream of bytes.

use std::future::Future;
use std::io::{self, SeekFrom};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use dwell::source::Source;
use dwell::{Error, ErrorKind};
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};

use crate::driver::Dropped;
use crate::failed::Failed;
use crate::file::File;

/// Longest request of a stream, in bytes.
const MOST_BYTES: usize = 2 << 20;

type Request<T> = Pin<Box<dyn Future<Output = T> + Send>>;
type Read = Request<Result<(usize, Vec<u8>), Failed<Vec<u8>>>>;
type Write = Request<Result<Vec<u8>, Failed<Vec<u8>>>>;

/// A file with a position, by tokio's `AsyncRead`, `AsyncWrite` and `AsyncSeek`.
///
/// These traits lend memory only while they are polled, so a stream copies: what it reads or writes
/// lies in a buffer of its own. Requests at offsets ([`File::read_at`]) copy nothing.
///
/// As with tokio's own file, a write is accepted before it is made. A failure is told by the next
/// write, read, seek or flush. `flush` waits until all is written, and makes nothing durable. A
/// stream that is dropped before completes its write all the same.
///
/// ```
/// # async fn example(path: std::path::PathBuf) -> Result<(), Box<dyn std::error::Error>> {
/// use tokio::io::{AsyncReadExt, AsyncSeekExt, AsyncWriteExt};
///
/// let options = dwell::options().write(true).create_new(true);
/// let mut stream = dwell_tokio::File::open_with(options, &path).await?.stream()?;
/// stream.write_all(b"hello").await?;
/// stream.rewind().await?;
/// let mut text = String::new();
/// stream.read_to_string(&mut text).await?;
/// assert_eq!(text, "hello");
/// # Ok(())
/// # }
/// # let dir = tempfile::tempdir().unwrap();
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(example(dir.path().join("data"))).unwrap();
/// ```
pub struct Stream {
    file: File,
    /// Offset of the next byte that is handed out or accepted.
    position: u64,
    state: State,
    /// Bytes read ahead, and how many of them were handed out.
    ahead: Vec<u8>,
    handed: usize,
    seek: Option<SeekFrom>,
}

enum State {
    Idle,
    Reading(Read),
    Writing(Write),
    Asking(Request<dwell::Result<u64>>),
}

impl Stream {
    pub(crate) fn of(file: File) -> dwell::Result<Stream> {
        if file.file().source().alignment() > 1 {
            let what = "opened for direct I/O, which a stream cannot align; use read_at";
            return Err(Error::refused(ErrorKind::Unsupported, file.file().path(), what));
        }
        let (state, ahead) = (State::Idle, Vec::new());
        Ok(Stream { file, position: 0, state, ahead, handed: 0, seek: None })
    }

    /// The file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where the next byte is read or written.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Waits for a write that was accepted.
    fn poll_written(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let State::Writing(write) = &mut self.state else { return Poll::Ready(Ok(())) };
        let done = ready!(write.as_mut().poll(context));
        self.state = State::Idle;
        Poll::Ready(done.map(drop).map_err(io::Error::from))
    }

    fn forget_ahead(&mut self) {
        self.ahead.clear();
        self.handed = 0;
    }

    fn seek_to(&mut self, position: Option<u64>) -> io::Result<u64> {
        let negative = || {
            let (path, what) = (self.file.file().path(), "a seek to before the beginning");
            Error::refused(ErrorKind::OutOfRange, path, what)
        };
        self.position = position.ok_or_else(negative)?;
        Ok(self.position)
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        ready!(this.poll_written(context))?;
        loop {
            let ahead = &this.ahead[this.handed..];
            if !ahead.is_empty() || buffer.remaining() == 0 {
                let bytes = ahead.len().min(buffer.remaining());
                buffer.put_slice(&ahead[..bytes]);
                this.handed += bytes;
                this.position += bytes as u64;
                return Poll::Ready(Ok(()));
            }
            let read = match &mut this.state {
                State::Reading(read) => read,
                _ => {
                    let mut memory = std::mem::take(&mut this.ahead);
                    this.handed = 0;
                    memory.resize(buffer.remaining().min(MOST_BYTES), 0);
                    let read = this.file.read_at(memory, this.position);
                    this.state = State::Reading(Box::pin(read));
                    continue;
                }
            };
            let done = ready!(read.as_mut().poll(context));
            this.state = State::Idle;
            let (bytes, mut memory) = done?;
            memory.truncate(bytes);
            this.ahead = memory;
            if bytes == 0 {
                return Poll::Ready(Ok(()));
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        data: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = &mut *self;
        ready!(this.poll_written(context))?;
        // Bytes that were read ahead are older than this write.
        this.forget_ahead();
        let bytes = data.len().min(MOST_BYTES);
        if bytes == 0 {
            this.state = State::Idle;
            return Poll::Ready(Ok(0));
        }
        let write = this.file.writing(Dropped::GoesOn, data[..bytes].to_vec(), this.position);
        this.state = State::Writing(Box::pin(write));
        this.position += bytes as u64;
        // It begins when it is first polled; a failure that is known already is told at once.
        match this.poll_written(context) {
            Poll::Ready(Err(error)) => {
                this.position -= bytes as u64;
                Poll::Ready(Err(error))
            }
            Poll::Ready(Ok(())) | Poll::Pending => Poll::Ready(Ok(bytes)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_written(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll_flush(context)
    }
}

impl AsyncSeek for Stream {
    fn start_seek(mut self: Pin<&mut Self>, position: SeekFrom) -> io::Result<()> {
        self.seek = Some(position);
        Ok(())
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        let this = &mut *self;
        ready!(this.poll_written(context))?;
        let Some(seek) = this.seek else { return Poll::Ready(Ok(this.position)) };
        let back = match seek {
            SeekFrom::Start(position) => {
                (this.seek, this.state) = (None, State::Idle);
                this.forget_ahead();
                return Poll::Ready(this.seek_to(Some(position)));
            }
            SeekFrom::Current(by) => {
                (this.seek, this.state) = (None, State::Idle);
                this.forget_ahead();
                let position = this.position.checked_add_signed(by);
                return Poll::Ready(this.seek_to(position));
            }
            SeekFrom::End(by) => by,
        };
        loop {
            if let State::Asking(asked) = &mut this.state {
                let bytes = ready!(asked.as_mut().poll(context));
                (this.seek, this.state) = (None, State::Idle);
                this.forget_ahead();
                let position = bytes?.checked_add_signed(back);
                return Poll::Ready(this.seek_to(position));
            }
            let file = this.file.clone();
            this.state = State::Asking(Box::pin(async move { file.bytes().await }));
        }
    }
}
