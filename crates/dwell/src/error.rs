// SPDX-License-Identifier: MIT OR Apache-2.0
//! Errors that say what was being done, where, and at which offset.

use std::io;
use std::path::{Path, PathBuf};

/// Result of the engine's operations.
pub type Result<T> = std::result::Result<T, Error>;

/// A failed operation on a file, device or address. [`Error::kind`] says what to match. The text
/// holds the whole cause, so there is no [`source`](std::error::Error::source).
///
/// ```
/// use dwell::ErrorKind;
///
/// let error = dwell::open("/").map(drop).unwrap_err();
/// assert_eq!((error.kind(), error.errno()), (ErrorKind::NotStorage, None));
/// let error = dwell::open("/nowhere").map(drop).unwrap_err();
/// assert_eq!((error.kind(), error.errno()), (ErrorKind::System, Some(2)));
/// assert_eq!(error.path(), "/nowhere");
/// ```
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel, the device or the other side refused.
    #[error("{path}: {action}{}: {error}", at(*.offset))]
    Io {
        /// What was being done, as in "read".
        action: &'static str,
        /// The file, device or address.
        path: PathBuf,
        /// Where in it, in bytes.
        offset: Option<u64>,
        /// What the system said.
        error: io::Error,
    },
    /// The request itself cannot be served; the text says what to do.
    #[error("{path}: {what}")]
    Invalid {
        /// The kind of fault, to be matched.
        kind: ErrorKind,
        /// The file, device or address.
        path: PathBuf,
        /// The fault of the request and its remedy, in words.
        what: String,
    },
}

/// What sort of failure an [`Error`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The kernel, the device or the other side refused; [`Error::errno`] says why.
    System,
    /// Direct I/O whose memory, offset or length is not a multiple of the alignment.
    Unaligned,
    /// An offset, a length or a number of buffers that no request can have.
    OutOfRange,
    /// A directory, a pipe or anything else that is neither a regular file nor a block device.
    NotStorage,
    /// What this file, address or file system does not have.
    Unsupported,
    /// As many requests are in flight as were asked for.
    Full,
    /// The executor or thread that was to carry out the request has ended.
    Ended,
    /// Anything else that is wrong with what was asked.
    Invalid,
}

impl ErrorKind {
    fn of_io(self) -> io::ErrorKind {
        match self {
            ErrorKind::Unsupported => io::ErrorKind::Unsupported,
            ErrorKind::Full => io::ErrorKind::ResourceBusy,
            ErrorKind::Ended => io::ErrorKind::BrokenPipe,
            _ => io::ErrorKind::InvalidInput,
        }
    }
}

fn at(offset: Option<u64>) -> String {
    offset.map_or_else(String::new, |offset| format!(" at byte {offset}"))
}

impl Error {
    /// An error of the system.
    pub fn io(action: &'static str, path: &Path, offset: Option<u64>, error: io::Error) -> Self {
        Error::Io { action, path: path.to_owned(), offset, error }
    }

    /// A request that cannot be served, of no kind that has a name.
    pub fn invalid(path: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        Self::refused(ErrorKind::Invalid, path, what)
    }

    /// A request that cannot be served.
    pub fn refused(kind: ErrorKind, path: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        Error::Invalid { kind, path: path.into(), what: what.into() }
    }

    /// A pool that a queue's ring could not register.
    pub(crate) fn registering(path: &Path, error: io::Error) -> Self {
        match error.kind() {
            _ if error.raw_os_error().is_some() => Self::io("register", path, None, error),
            io::ErrorKind::Unsupported => {
                Self::refused(ErrorKind::Unsupported, path, error.to_string())
            }
            _ => Self::refused(ErrorKind::OutOfRange, path, error.to_string()),
        }
    }

    /// What sort of failure it is.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Error::Io { .. } => ErrorKind::System,
            Error::Invalid { kind, .. } => *kind,
        }
    }

    /// The file, device or address.
    pub fn path(&self) -> &Path {
        match self {
            Error::Io { path, .. } | Error::Invalid { path, .. } => path,
        }
    }

    /// The system's error number, where there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Error::Io { error, .. } => error.raw_os_error(),
            Error::Invalid { .. } => None,
        }
    }
}

impl From<Error> for io::Error {
    /// An error of the system keeps its number, so that `raw_os_error` has it, and loses path and
    /// offset. Any other keeps its text.
    fn from(error: Error) -> Self {
        match error {
            Error::Io { error, .. } if error.raw_os_error().is_some() => error,
            Error::Io { error: ref cause, .. } => io::Error::new(cause.kind(), error),
            Error::Invalid { kind, .. } => io::Error::new(kind.of_io(), error),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What prints an error with its sources, as `{:#}` of anyhow does, would say them twice.
    #[test]
    fn an_error_that_says_its_cause_has_no_source() {
        let system = io::Error::from_raw_os_error(libc::EPERM);
        let error = Error::io("open", Path::new("data"), None, system);
        assert!(error.to_string().contains("not permitted"), "{error}");
        assert!(std::error::Error::source(&error).is_none());
    }

    #[test]
    fn an_io_error_keeps_the_errno_or_else_the_text() {
        let path = Path::new("data");
        let system = io::Error::from_raw_os_error(libc::ENOSPC);
        let error = io::Error::from(Error::io("write", path, Some(7), system));
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC));

        let end = io::ErrorKind::UnexpectedEof;
        let error = io::Error::from(Error::io("read", path, Some(7), end.into()));
        assert_eq!((error.kind(), error.raw_os_error()), (end, None));
        assert!(error.to_string().starts_with("data: read at byte 7: "), "{error}");

        let error = io::Error::from(Error::refused(ErrorKind::Unsupported, path, "no such thing"));
        assert_eq!(error.kind(), io::ErrorKind::Unsupported);
        assert_eq!(error.to_string(), "data: no such thing");
    }
}
