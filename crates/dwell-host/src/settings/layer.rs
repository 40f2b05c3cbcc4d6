// SPDX-License-Identifier: MIT OR Apache-2.0
//! One settings file, as it lies there.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::{Settings, SettingsError};

/// Nobody writes this much by hand; what is longer was never a settings file.
const LONGEST_BYTES: u64 = 1 << 20;

/// Why a settings file says nothing.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LayerError {
    /// It cannot be read.
    #[error("{path}: cannot be read as settings: {error}")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It is malformed.
    #[error(transparent)]
    Malformed(#[from] SettingsError),
}

impl Settings {
    /// What a file says; `None` when it is not there.
    ///
    /// # Errors
    /// What cannot be read, is longer than 1 MiB, or is malformed.
    pub fn of_file(path: &Path) -> Result<Option<Settings>, LayerError> {
        match text(path) {
            Ok(text) => Ok(Some(Settings::parse(&text, path)?)),
            Err(error) if is_absent(&error) => Ok(None),
            Err(error) => Err(LayerError::Unreadable { path: path.to_owned(), error }),
        }
    }
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory)
}

fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    let read = File::open(path)?.take(LONGEST_BYTES + 1).read_to_string(&mut text)?;
    match read as u64 > LONGEST_BYTES {
        true => Err(io::Error::other("it is longer than 1 MiB")),
        false => Ok(text),
    }
}
