// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors that say what was being done, where, and at which offset.

use std::io;
use std::path::{Path, PathBuf};

/// Result of the hall's operations.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed operation on a file, device or address.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The kernel, the device or the other side refused.
    #[error("{path}: {action}{}: {source}", at(*.offset))]
    Io {
        /// What was being done, as in "read".
        action: &'static str,
        /// The file, device or address.
        path: PathBuf,
        /// Where in it, in bytes.
        offset: Option<u64>,
        /// What the system said.
        source: io::Error,
    },
    /// The request itself cannot be served; the text says what to do.
    #[error("{path}: {what}")]
    Invalid {
        /// The file, device or address.
        path: PathBuf,
        /// What is wrong with the request, and what to do.
        what: String,
    },
}

fn at(offset: Option<u64>) -> String {
    offset.map_or_else(String::new, |offset| format!(" at byte {offset}"))
}

impl Error {
    /// An error of the system.
    pub fn io(action: &'static str, path: &Path, offset: Option<u64>, source: io::Error) -> Self {
        Error::Io { action, path: path.to_owned(), offset, source }
    }

    /// A request that cannot be served.
    pub fn invalid(path: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        Error::Invalid { path: path.into(), what: what.into() }
    }

    /// The system's error number, where there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Io { source, .. } => source.raw_os_error(),
            Error::Invalid { .. } => None,
        }
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::Io { source, .. } => source.kind(),
            Error::Invalid { .. } => io::ErrorKind::InvalidInput,
        };
        io::Error::new(kind, error)
    }
}
