// SPDX-License-Identifier: MIT OR Apache-2.0
//! NFS version 3 (RFC 1813): its nouns and its procedures.

mod attributes;
mod names;
mod procedures;
mod status;

pub use attributes::{Attributes, Kind, SetAttributes, SetTime, Time};
pub use names::*;
pub use procedures::*;
pub use status::Status;

use crate::xdr::{Malformed, Reader, Result, Writer};

/// The program's number.
pub const PROGRAM: u32 = 100_003;
/// Its version.
pub const VERSION: u32 = 3;
/// Longest name in a directory that is taken from a server, in bytes.
pub const MAX_NAME_BYTES: u32 = 1024;
/// Longest target of a symbolic link, in bytes.
pub const MAX_LINK_BYTES: u32 = 4096;

/// What a server calls a file by.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Handle {
    length: u8,
    bytes: [u8; Handle::MAX_BYTES as usize],
}

impl Handle {
    /// Longest handle, in bytes.
    pub const MAX_BYTES: u32 = 64;
    /// No file's: none has an empty one.
    pub const NONE: Handle = Handle { length: 0, bytes: [0; Handle::MAX_BYTES as usize] };

    /// From its bytes; `None` when there are too many.
    pub fn new(bytes: &[u8]) -> Option<Self> {
        let mut handle = Handle { length: bytes.len() as u8, bytes: [0; 64] };
        handle.bytes.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(handle)
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        let bytes = reader.opaque("file handle", Self::MAX_BYTES)?;
        let (length, most) = (bytes.len() as u32, Self::MAX_BYTES);
        Handle::new(bytes).ok_or(Malformed::TooLong { field: "file handle", length, most })
    }

    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.opaque(self.bytes());
    }
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.bytes().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// What a server gives with its answer to a write and to a commit; a restarted server gives
/// another.
pub type Verifier = [u8; 8];

/// How durable a write is when it is answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stable {
    /// Not at all: a COMMIT makes it so.
    Unstable,
    /// Its data is.
    DataSync,
    /// Its data and all metadata are.
    FileSync,
}

impl Stable {
    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        match reader.u32("stability")? {
            0 => Ok(Stable::Unstable),
            1 => Ok(Stable::DataSync),
            2 => Ok(Stable::FileSync),
            value => Err(Malformed::Value { field: "stability", value }),
        }
    }
}

/// What a user may do with a file, as bits of [`Access`].
pub mod access {
    /// Read data, list a directory.
    pub const READ: u32 = 0x01;
    /// Look up a name in a directory.
    pub const LOOKUP: u32 = 0x02;
    /// Change data.
    pub const MODIFY: u32 = 0x04;
    /// Add data, make files.
    pub const EXTEND: u32 = 0x08;
    /// Remove names.
    pub const DELETE: u32 = 0x10;
    /// Run.
    pub const EXECUTE: u32 = 0x20;
}
