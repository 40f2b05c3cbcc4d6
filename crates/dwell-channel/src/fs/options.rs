// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a server of a directory is told.

use std::path::PathBuf;

/// What to serve, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// The directory whose files are served.
    pub backing: PathBuf,
    /// Where: a directory. It may be the backing one.
    pub mount: PathBuf,
    /// Whether other processes are to be kept off the backing directory.
    pub private: bool,
    /// Threads that answer the kernel.
    pub threads: usize,
    /// Whether the kernel is to carry out reads and writes by itself where it can.
    pub passthrough: bool,
}
