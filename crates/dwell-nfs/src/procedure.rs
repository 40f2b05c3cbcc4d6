// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all remote procedures have in common: how a call is written and a reply is read.

use crate::rpc::Target;
use crate::xdr::{Reader, Result, Writer};

/// Procedures that take about as long as each other: round-trip times are estimated for each class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Attributes, names: what a server answers from memory.
    Metadata,
    /// Changes of directories, which a server makes durable.
    Change,
    /// A directory's entries.
    Listing,
    /// Data from the server.
    Read,
    /// Data to the server.
    Write,
    /// Making data durable.
    Commit,
}

impl Class {
    /// How many there are.
    pub const COUNT: usize = 6;

    /// Whether requests of this class change something, so that a late copy of one could undo a
    /// later one.
    pub const fn changes(self) -> bool {
        matches!(self, Class::Change | Class::Write)
    }

    /// Whether requests of this class move data, so that the window follows them.
    pub const fn is_data(self) -> bool {
        matches!(self, Class::Read | Class::Write)
    }
}

/// A call of one procedure. Its arguments end with `payload` bytes (and their padding), where there
/// are any.
pub trait Procedure: Sized {
    /// Program, version, number.
    const TARGET: Target;
    /// Its name, as the protocol's document writes it.
    const NAME: &'static str;
    /// What it takes about as long as.
    const CLASS: Class;
    /// Its results.
    type Results<'a>;

    /// Appends the arguments, without a payload.
    fn write(&self, out: &mut Writer<'_>);

    /// Bytes at the end of the arguments that lie elsewhere.
    fn payload_bytes(&self) -> usize {
        0
    }

    /// Reads the results.
    ///
    /// # Errors
    /// Bytes that are no result of this procedure.
    fn read<'a>(&self, results: &mut Reader<'a>) -> Result<Self::Results<'a>>;

    /// A call whose results are read as those of this one, where that moves up to `bytes` bytes.
    fn like(bytes: u32) -> Self;

    /// Bytes that it moves; 0 where its results do not depend on that.
    fn moves_bytes(&self) -> u32 {
        0
    }

    /// The shortest results of a success, in bytes.
    fn smallest_results(&self) -> u32;

    /// The longest results, in bytes.
    fn largest_results(&self) -> u32 {
        1 << 12
    }
}

/// Whether these are whole results of a procedure, of a call that moves up to `bytes` bytes.
pub fn is_whole<C: Procedure>(bytes: u32, results: &[u8]) -> bool {
    C::like(bytes).read(&mut Reader::new(results)).is_ok()
}
