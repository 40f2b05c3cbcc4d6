// SPDX-License-Identifier: MIT OR Apache-2.0
//! Dwell's files on tokio: storage requests as futures that are `Send` and cancel-safe.
//!
//! ```
//! # async fn example(path: std::path::PathBuf) -> Result<(), dwell::Error> {
//! let file = dwell_tokio::open(&path).await?;
//! let (bytes, buffer) = file.read_at(vec![0; 4096], 8192).await?;
//! println!("{:?}", &buffer[..bytes]);
//! # Ok(())
//! # }
//! # let dir = tempfile::tempdir().unwrap();
//! # let path = dir.path().join("data");
//! # std::fs::write(&path, [7; 9000]).unwrap();
//! # let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
//! # runtime.block_on(example(path)).unwrap();
//! ```
//!
//! # What waits where
//!
//! One thread of Dwell's own, named `dwell-tokio`, carries out the requests of all files of the
//! process. It runs Dwell's [executor](dwell::executor): when nothing else is to be done, the wait
//! machine says whether this thread spins, naps or blocks, as the policy decided for the request
//! due first. The thread starts with the first file and ends with the last.
//!
//! A task of tokio's never spins and never blocks on a request. It hands the request over, and its
//! waker is called once the request is over. No worker thread of tokio's waits for a device.
//!
//! Opening a file, asking for its length and changing it are calls that may block. They go to
//! tokio's pool for blocking calls, or, where no runtime of tokio's is entered, to the calling
//! thread.
//!
//! # What is decided
//!
//! The file's policy decides each request as it does for the executor. The default, `adaptive`,
//! compares nothing for such requests: it decides as `smartcon`, and blocks for a device without a
//! profile.
//!
//! # Cancelling
//!
//! A request begins when its future is first polled, and owns its buffer. If you drop the future,
//! the device is asked to end the request. The buffer is freed once the kernel no longer uses it.
//! A write whose future was dropped may have been made in whole, in part or not at all.

mod driver;
mod failed;
mod file;

pub use dwell::Options;
pub use failed::Failed;
pub use file::{File, Stream, open};
