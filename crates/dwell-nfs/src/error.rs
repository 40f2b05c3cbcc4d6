// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors: what was being done, to what, at which offset, and why it failed.

use std::io;
use std::path::Path;

use dwell_policy::Ns;

use crate::engine::Failure;
use crate::mount::MountError;
use crate::nfs3::Status;
use crate::xdr::Malformed;

/// Why something failed.
#[derive(Debug, thiserror::Error)]
pub enum Why {
    /// The server said so.
    #[error("{0}")]
    Status(Status),
    /// There is no usable answer.
    #[error(transparent)]
    Failure(#[from] Failure),
    /// There is no connection to the server, and none is tried any more.
    #[error("no connection to {server}: {error}")]
    NoConnection {
        /// Where it should be.
        server: String,
        /// What the system said.
        error: io::Error,
    },
    /// The server is silent.
    #[error("the server {server} did not answer for {} s", .after_ns / 1_000_000_000)]
    NoAnswer {
        /// Where it is.
        server: String,
        /// How long it was waited for.
        after_ns: Ns,
    },
    /// The export cannot be used.
    #[error(transparent)]
    Mount(#[from] MountError),
    /// This system said so.
    #[error(transparent)]
    System(#[from] io::Error),
    /// The request itself cannot be served; the text says what to do.
    #[error("{0}")]
    Invalid(String),
}

impl From<Malformed> for Why {
    fn from(malformed: Malformed) -> Self {
        Why::Failure(malformed.into())
    }
}

/// A failed operation.
#[derive(Debug)]
pub struct Error {
    /// What was being done, as in "write"; empty where that goes without saying.
    pub action: &'static str,
    /// To what.
    pub path: String,
    /// Where in it, in bytes.
    pub offset: Option<u64>,
    /// Why it failed.
    pub why: Why,
}

/// Result of operations on a server.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    /// An operation that failed.
    pub fn new(action: &'static str, path: impl ToString, why: impl Into<Why>) -> Self {
        Error { action, path: path.to_string(), offset: None, why: why.into() }
    }

    /// A request that cannot be served.
    pub fn invalid(path: impl ToString, what: impl Into<String>) -> Self {
        Error::new("", path, Why::Invalid(what.into()))
    }

    /// At a place in the file.
    #[must_use]
    pub fn at(mut self, offset: u64) -> Self {
        self.offset = Some(offset);
        self
    }

    /// What the server said, where it said something.
    pub fn status(&self) -> Option<Status> {
        match self.why {
            Why::Status(status) => Some(status),
            _ => None,
        }
    }

    /// The system's error number for it.
    pub fn errno(&self) -> i32 {
        match &self.why {
            Why::Status(status) => status.errno(),
            Why::NoAnswer { .. } | Why::Failure(Failure::NoAnswer { .. }) => libc::ETIMEDOUT,
            Why::Failure(Failure::TooLong { .. }) => libc::EMSGSIZE,
            Why::Failure(Failure::Refused(crate::rpc::Refusal::Credential(_))) => libc::EACCES,
            Why::Failure(_) => libc::EIO,
            Why::Mount(MountError::Denied) => libc::EACCES,
            Why::Mount(MountError::Missing) => libc::ENOENT,
            Why::Mount(MountError::NotDirectory) => libc::ENOTDIR,
            Why::Mount(_) => libc::EIO,
            Why::System(error) | Why::NoConnection { error, .. } => {
                error.raw_os_error().unwrap_or(libc::EIO)
            }
            Why::Invalid(_) => libc::EINVAL,
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: ", self.path)?;
        if !self.action.is_empty() {
            f.write_str(self.action)?;
            if let Some(offset) = self.offset {
                write!(f, " at byte {offset}")?;
            }
            f.write_str(": ")?;
        }
        write!(f, "{}", self.why)
    }
}

impl std::error::Error for Error {}

impl From<Error> for dwell::Error {
    fn from(error: Error) -> Self {
        let path = Path::new(&error.path);
        match error.why {
            Why::Invalid(what) => dwell::Error::invalid(path, what),
            Why::System(source) => dwell::Error::io(error.action, path, error.offset, source),
            Why::NoConnection { server, error: source } => {
                let path = format!("{} at {server}", error.path);
                dwell::Error::io(error.action, Path::new(&path), error.offset, source)
            }
            why => dwell::Error::invalid(path, format!("{}: {why}", error.action)),
        }
    }
}

pub(crate) fn system(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.display().to_string();
    move |error| Error::new(action, path, error)
}

pub(crate) fn engine(action: &'static str, path: &Path, error: dwell::Error) -> Error {
    match error {
        dwell::Error::Io { error, offset, .. } => {
            let error = Error::new(action, path.display(), error);
            match offset {
                Some(offset) => error.at(offset),
                None => error,
            }
        }
        dwell::Error::Invalid { what, .. } => {
            Error::new(action, path.display(), Why::Invalid(what))
        }
        other => Error::new(action, path.display(), Why::Invalid(other.to_string())),
    }
}
