// SPDX-License-Identifier: MIT OR Apache-2.0
//! What can be wrong with a trace, and at which byte of it.

use std::io;
use std::path::{Path, PathBuf};

/// Result of this crate's operations.
pub type Result<T> = std::result::Result<T, Error>;

/// Why a trace could not be read, written or recorded.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused.
    #[error("{path}: {action}: {error}")]
    Io {
        /// What was being done, as in "read".
        action: &'static str,
        /// Of which file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file is no trace, or one of a version that this program does not know.
    #[error("{path}: {what}")]
    Foreign {
        /// Which file.
        path: PathBuf,
        /// What it is instead, as far as that can be told.
        what: String,
    },
    /// The file's bytes are not those that were written.
    #[error("{path}: damaged at byte {offset}: {what}")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// Where the damaged chunk, header or line begins.
        offset: u64,
        /// What does not fit.
        what: String,
    },
    /// What was asked for cannot be done; the text says what to do instead.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, error: io::Error) -> Self {
        Error::Io { action, path: path.to_owned(), error }
    }

    pub(crate) fn damaged(path: &Path, offset: u64, what: impl Into<String>) -> Self {
        Error::Damaged { path: path.to_owned(), offset, what: what.into() }
    }
}
