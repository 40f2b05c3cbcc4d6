// SPDX-License-Identifier: MIT OR Apache-2.0
//! Why a directory cannot be served.

use std::io;
use std::path::{Path, PathBuf};

/// What went wrong with serving a directory.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The system refused.
    #[error("{path}: {action}: {error}")]
    Io {
        /// What was being done.
        action: &'static str,
        /// Where.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It cannot be done so; the text says what to do.
    #[error("{path}: {what}")]
    Invalid {
        /// The directory.
        path: PathBuf,
        /// The fault and its remedy, in words.
        what: String,
    },
    /// Programs use it.
    #[error("{path}: in use{}; end them, or stop with --force: they get errors", by(.users))]
    Busy {
        /// The mount.
        path: PathBuf,
        /// Some of those that use it, as far as this user may know.
        users: Vec<String>,
    },
    /// What a daemon in another process said.
    #[error("{0}")]
    Refused(String),
}

fn by(users: &[String]) -> String {
    if users.is_empty() { String::new() } else { format!(" by {}", users.join(", ")) }
}

impl Error {
    pub(super) fn io(action: &'static str, path: &Path, error: impl Into<io::Error>) -> Self {
        Error::Io { action, path: path.to_owned(), error: error.into() }
    }

    pub(super) fn invalid(path: &Path, what: impl Into<String>) -> Self {
        Error::Invalid { path: path.to_owned(), what: what.into() }
    }
}
