// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files whose requests tasks of tokio's wait for.

mod stream;

use std::fmt;
use std::fs::Metadata;
use std::future::Future;
use std::path::Path;
use std::sync::Arc;

use dwell::buffer::{IoBuf, IoBufMut, Pool};
use dwell::executor::AsyncFile;
use dwell::{Error, ErrorKind, Options};
use tokio::runtime::Handle;

pub use stream::Stream;

use crate::driver::{Driver, Dropped, Key};
use crate::failed::Failed;

/// Opens a path or address for reading, as [`dwell::open()`] does.
///
/// # Errors
/// As [`dwell::open()`]; a thread that the system refuses.
pub async fn open(address: impl AsRef<Path>) -> dwell::Result<File> {
    File::open(address).await
}

/// An open file, device or address. Clones are the same file.
///
/// Its futures are `Send` and need no runtime of tokio's. A request begins when its future is first
/// polled. Its buffer belongs to the request and comes back with the result.
///
/// ```
/// # async fn example(path: std::path::PathBuf) -> Result<(), dwell::Error> {
/// let options = dwell::options().write(true).create(true);
/// let file = dwell_tokio::File::open_with(options, &path).await?;
/// file.write_all_at(b"hello".to_vec(), 4091).await?;
/// file.sync_data().await?;
/// let reads = (0..4).map(|at| tokio::spawn(file.read_at(vec![0; 1024], at * 1024)));
/// for read in reads.collect::<Vec<_>>() {
///     let (bytes, buffer) = read.await.unwrap()?;
///     println!("{:?}", &buffer[..bytes]);
/// }
/// # Ok(())
/// # }
/// # let dir = tempfile::tempdir().unwrap();
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(example(dir.path().join("data"))).unwrap();
/// ```
#[derive(Clone)]
pub struct File {
    inner: Arc<Inner>,
}

struct Inner {
    file: Arc<dwell::File>,
    driver: Arc<Driver>,
    key: Key,
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.driver.remove(self.key);
    }
}

impl Inner {
    fn ended(&self) -> Error {
        let what = "the thread that carries out requests has ended; open the file again";
        Error::refused(ErrorKind::Ended, self.file.path(), what)
    }
}

impl File {
    /// As [`open`].
    ///
    /// # Errors
    /// As [`open`].
    pub async fn open(address: impl AsRef<Path>) -> dwell::Result<File> {
        File::open_with(dwell::options(), address).await
    }

    /// Opens a path or address with these choices.
    ///
    /// # Errors
    /// As [`Options::open`]; a thread that the system refuses.
    pub async fn open_with(options: Options, address: impl AsRef<Path>) -> dwell::Result<File> {
        let path = address.as_ref().to_owned();
        let opened = {
            let path = path.clone();
            blocking(move || options.open(path))
        };
        match opened.await {
            Some(file) => File::of(Arc::new(file?)).await,
            None => Err(shut_down(&path)),
        }
    }

    /// Makes the requests of an open file futures.
    ///
    /// # Errors
    /// What the system refuses: a thread, a queue.
    pub async fn of(file: Arc<dwell::File>) -> dwell::Result<File> {
        let started = match blocking(Driver::shared).await {
            Some(started) => started,
            None => return Err(shut_down(file.path())),
        };
        let failed = |error| Error::io("start a thread for", file.path(), None, error);
        let driver = started.map_err(failed)?;
        match driver.add(file.clone()).await {
            Some(key) => Ok(File { inner: Arc::new(Inner { key: key?, file, driver }) }),
            None => Err(shut_down(file.path())),
        }
    }

    /// The file, for blocking calls, statistics and names.
    pub fn file(&self) -> &Arc<dwell::File> {
        &self.inner.file
    }

    /// Has the kernel pin the memory of `pool` once, instead of for each request, as
    /// [`AsyncFile::register`].
    ///
    /// # Errors
    /// As [`AsyncFile::register`].
    pub async fn register(&self, pool: &Pool) -> dwell::Result<()> {
        let pool = pool.clone();
        let register = move |file: AsyncFile| async move { file.register(&pool) };
        let registered = self.inner.driver.run(self.inner.key, Dropped::GoesOn, register).await;
        registered.unwrap_or_else(|| Err(self.inner.ended()))
    }

    /// Reads at `offset` to fill `buffer`. Gives the number of bytes read, fewer only at the end of
    /// the file, and the buffer.
    ///
    /// # Errors
    /// As [`dwell::File::read_at`]. Direct I/O cannot take a buffer, offset or length that is not
    /// aligned.
    pub fn read_at<B: IoBufMut>(
        &self,
        buffer: B,
        offset: u64,
    ) -> impl Future<Output = Result<(usize, B), Failed<B>>> + Send + use<B> {
        self.request(
            Dropped::Ends,
            move |file| async move { file.try_read_at(buffer, offset).await },
        )
    }

    /// Reads at `offset` until `buffer` is full.
    ///
    /// # Errors
    /// As [`File::read_at`]; the file ends before.
    pub async fn read_exact_at<B: IoBufMut>(&self, buffer: B, offset: u64) -> Result<B, Failed<B>> {
        let request =
            move |file: AsyncFile| async move { file.try_read_exact_at(buffer, offset).await };
        self.request(Dropped::Ends, request).await.map(|((), buffer)| buffer)
    }

    /// Writes `buffer` at `offset`. Gives the number of bytes written, and the buffer.
    ///
    /// # Errors
    /// As [`dwell::File::write_at`]. Direct I/O cannot take a buffer, offset or length that is not
    /// aligned.
    pub fn write_at<B: IoBuf>(
        &self,
        buffer: B,
        offset: u64,
    ) -> impl Future<Output = Result<(usize, B), Failed<B>>> + Send + use<B> {
        self.request(
            Dropped::Ends,
            move |file| async move { file.try_write_at(buffer, offset).await },
        )
    }

    /// Writes all of `buffer` at `offset`.
    ///
    /// # Errors
    /// As [`File::write_at`]; a device that takes no more.
    pub async fn write_all_at<B: IoBuf>(&self, buffer: B, offset: u64) -> Result<B, Failed<B>> {
        self.writing(Dropped::Ends, buffer, offset).await
    }

    pub(crate) fn writing<B: IoBuf>(
        &self,
        dropped: Dropped,
        buffer: B,
        offset: u64,
    ) -> impl Future<Output = Result<B, Failed<B>>> + Send + use<B> {
        let request =
            move |file: AsyncFile| async move { file.try_write_all_at(buffer, offset).await };
        let request = self.request(dropped, request);
        async move { request.await.map(|((), buffer)| buffer) }
    }

    /// Makes data and metadata durable of the writes that *completed* before.
    ///
    /// # Errors
    /// What the device reports.
    pub async fn sync(&self) -> dwell::Result<()> {
        let request = |file: AsyncFile| async move { (file.sync().await, Some(())) };
        Ok(self.request(Dropped::Ends, request).await.map(drop)?)
    }

    /// Makes data durable of the writes that *completed* before, and the metadata that reading it
    /// back needs.
    ///
    /// # Errors
    /// What the device reports.
    pub async fn sync_data(&self) -> dwell::Result<()> {
        let request = |file: AsyncFile| async move { (file.sync_data().await, Some(())) };
        Ok(self.request(Dropped::Ends, request).await.map(drop)?)
    }

    /// Length in bytes.
    ///
    /// # Errors
    /// What the system refuses.
    pub async fn bytes(&self) -> dwell::Result<u64> {
        self.asking(|file| file.bytes()).await
    }

    /// As [`dwell::File::metadata`].
    ///
    /// # Errors
    /// As [`dwell::File::metadata`].
    pub async fn metadata(&self) -> dwell::Result<Metadata> {
        self.asking(|file| file.metadata()).await
    }

    /// As [`dwell::File::set_len`].
    ///
    /// # Errors
    /// As [`dwell::File::set_len`].
    pub async fn set_len(&self, bytes: u64) -> dwell::Result<()> {
        self.asking(move |file| file.set_len(bytes)).await
    }

    /// The file as a stream of bytes from its beginning, for what reads and writes through tokio's
    /// traits.
    ///
    /// # Errors
    /// A file that was opened for direct I/O: a stream cannot align its requests.
    pub fn stream(&self) -> dwell::Result<Stream> {
        Stream::of(self.clone())
    }

    async fn asking<T: Send + 'static>(
        &self,
        call: impl FnOnce(&dwell::File) -> dwell::Result<T> + Send + 'static,
    ) -> dwell::Result<T> {
        let file = self.inner.file.clone();
        let answer = blocking(move || call(&file)).await;
        answer.unwrap_or_else(|| Err(shut_down(self.inner.file.path())))
    }

    fn request<T, B, F, R>(
        &self,
        dropped: Dropped,
        request: F,
    ) -> impl Future<Output = Result<(T, B), Failed<B>>> + Send + use<T, B, F, R>
    where
        T: Send + 'static,
        B: Send + 'static,
        F: FnOnce(AsyncFile) -> R + Send + 'static,
        R: Future<Output = (dwell::Result<T>, Option<B>)> + 'static,
    {
        let inner = self.inner.clone();
        async move {
            match inner.driver.run(inner.key, dropped, request).await {
                Some((Ok(done), Some(buffer))) => Ok((done, buffer)),
                Some((Err(error), buffer)) => Err(Failed { error, buffer }),
                Some((Ok(_), None)) | None => Err(Failed { error: inner.ended(), buffer: None }),
            }
        }
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.file.fmt(f)
    }
}

/// Makes a call that may block; `None` where the runtime shuts down.
async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    match Handle::try_current() {
        Ok(runtime) => runtime.spawn_blocking(call).await.ok(),
        Err(_) => Some(call()),
    }
}

fn shut_down(path: &Path) -> Error {
    let what = "the runtime is shutting down; open the file in another";
    Error::refused(ErrorKind::Ended, path, what)
}
