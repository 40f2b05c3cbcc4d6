// SPDX-License-Identifier: MIT OR Apache-2.0
//! A request that failed, with its buffer.

use std::{error, fmt, io};

use dwell::Error;

/// A request that failed. The operator `?` turns it into a [`dwell::Error`] or an `io::Error`.
///
/// ```
/// # async fn example(path: std::path::PathBuf) -> Result<(), dwell::Error> {
/// let file = dwell_tokio::open(&path).await?;
/// let failed = file.write_at(vec![0; 10], 0).await.unwrap_err();
/// assert_eq!(failed.error.errno(), Some(9)); // EBADF: it is open for reading.
/// assert_eq!(failed.buffer.unwrap().len(), 10);
/// # Ok(())
/// # }
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data");
/// # std::fs::write(&path, [7; 9000]).unwrap();
/// # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
/// # runtime.block_on(example(path)).unwrap();
/// ```
pub struct Failed<B> {
    /// What went wrong, with path and offset.
    pub error: Error,
    /// The buffer. `None` where the device may still use it, as the kernel hands out no completions
    /// any more (`ENOTRECOVERABLE`), and where the thread that had the request has ended.
    pub buffer: Option<B>,
}

impl<B> fmt::Debug for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let has_buffer = self.buffer.is_some();
        f.debug_struct("Failed").field("error", &self.error).field("buffer", &has_buffer).finish()
    }
}

impl<B> fmt::Display for Failed<B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<B> error::Error for Failed<B> {}

impl<B> From<Failed<B>> for Error {
    fn from(failed: Failed<B>) -> Self {
        failed.error
    }
}

impl<B> From<Failed<B>> for io::Error {
    /// As an [`Error`] does: an error of the system keeps its number.
    fn from(failed: Failed<B>) -> Self {
        failed.error.into()
    }
}
