// SPDX-License-Identifier: MIT OR Apache-2.0
//! The procedures on files and their data, one type each: what it is called with, and what it
//! answers.

use super::attributes::{skip_attributes, skip_change};
use super::{
    Attributes, Handle, MAX_LINK_BYTES, PROGRAM, SetAttributes, Stable, Status, VERSION, Verifier,
};
use crate::procedure::{Class, Procedure};
use crate::rpc::Target;
use crate::xdr::{self, Malformed, Reader, Writer};

/// Results, or the server's reason.
pub type Answer<T> = Result<T, Status>;

/// A status, and a change that is not told.
pub(super) const STATUS_BYTES: u32 = 4;
pub(super) const NO_CHANGE_BYTES: u32 = 8;

pub(super) const fn target(procedure: u32) -> Target {
    Target { program: PROGRAM, version: VERSION, procedure }
}

/// Reads the status, and what follows a success.
pub(super) fn answer<'a, T>(
    results: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> xdr::Result<T>,
) -> xdr::Result<Answer<T>> {
    match results.u32("status")? {
        0 => read(results).map(Ok),
        status => Ok(Err(Status(status))),
    }
}

/// What most procedures have in common; the last is the shortest results after the status, in
/// bytes.
macro_rules! procedure {
    ($number:literal, $name:literal, $class:ident, $results:ty, $smallest:expr) => {
        const TARGET: Target = target($number);
        const NAME: &'static str = $name;
        const CLASS: Class = Class::$class;
        type Results<'a> = Answer<$results>;
        fn smallest_results(&self) -> u32 {
            STATUS_BYTES + $smallest
        }
    };
}

pub(super) use procedure;

/// Does nothing: says that the server is there.
#[derive(Clone, Copy, Debug)]
pub struct Null;

impl Procedure for Null {
    fn like(_: u32) -> Self {
        Null
    }
    const TARGET: Target = target(0);
    const NAME: &'static str = "NULL";
    const CLASS: Class = Class::Metadata;
    type Results<'a> = ();
    fn write(&self, _: &mut Writer<'_>) {}
    fn read<'a>(&self, _: &mut Reader<'a>) -> xdr::Result<()> {
        Ok(())
    }
    fn smallest_results(&self) -> u32 {
        0
    }
}

/// Attributes of a file.
#[derive(Clone, Copy, Debug)]
pub struct GetAttributes(pub Handle);

impl Procedure for GetAttributes {
    fn like(_: u32) -> Self {
        GetAttributes(Handle::NONE)
    }
    procedure!(1, "GETATTR", Metadata, Attributes, Attributes::BYTES);
    fn write(&self, out: &mut Writer<'_>) {
        self.0.write(out);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<Attributes>> {
        answer(results, Attributes::read)
    }
}

/// Sets attributes of a file.
#[derive(Clone, Copy, Debug)]
pub struct ChangeAttributes {
    /// Which file.
    pub file: Handle,
    /// To what.
    pub to: SetAttributes,
}

impl Procedure for ChangeAttributes {
    fn like(_: u32) -> Self {
        ChangeAttributes { file: Handle::NONE, to: SetAttributes::default() }
    }
    procedure!(2, "SETATTR", Change, (), NO_CHANGE_BYTES);
    fn write(&self, out: &mut Writer<'_>) {
        self.file.write(out);
        self.to.write(out);
        out.bool(false);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<()>> {
        answer(results, skip_change)
    }
}

/// What the caller may do with a file.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Which file.
    pub file: Handle,
    /// The rights asked about, as bits of [`super::access`].
    pub wanted: u32,
}

impl Procedure for Access {
    fn like(_: u32) -> Self {
        Access { file: Handle::NONE, wanted: 0 }
    }
    procedure!(4, "ACCESS", Metadata, u32, 8);
    fn write(&self, out: &mut Writer<'_>) {
        self.file.write(out);
        out.u32(self.wanted);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<u32>> {
        answer(results, |results| {
            skip_attributes(results)?;
            results.u32("access")
        })
    }
}

/// Where a symbolic link leads.
#[derive(Clone, Copy, Debug)]
pub struct ReadLink(pub Handle);

impl Procedure for ReadLink {
    fn like(_: u32) -> Self {
        ReadLink(Handle::NONE)
    }
    procedure!(5, "READLINK", Metadata, &'a [u8], 8);
    fn write(&self, out: &mut Writer<'_>) {
        self.0.write(out);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<&'a [u8]>> {
        answer(results, |results| {
            skip_attributes(results)?;
            results.opaque("link", MAX_LINK_BYTES)
        })
    }
    fn largest_results(&self) -> u32 {
        MAX_LINK_BYTES + 1024
    }
}

/// Data of a file.
#[derive(Clone, Copy, Debug)]
pub struct Read {
    /// Which file.
    pub file: Handle,
    /// From where, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub bytes: u32,
}

/// What was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadData<'a> {
    /// The data: at most as much as was asked for.
    pub data: &'a [u8],
    /// Whether the file ends after it.
    pub ends: bool,
}

impl Procedure for Read {
    fn like(bytes: u32) -> Self {
        Read { file: Handle::NONE, offset: 0, bytes }
    }
    fn moves_bytes(&self) -> u32 {
        self.bytes
    }
    const TARGET: Target = target(6);
    const NAME: &'static str = "READ";
    const CLASS: Class = Class::Read;
    type Results<'a> = Answer<ReadData<'a>>;
    fn smallest_results(&self) -> u32 {
        STATUS_BYTES + 16 + self.bytes
    }
    fn write(&self, out: &mut Writer<'_>) {
        self.file.write(out);
        out.u64(self.offset);
        out.u32(self.bytes);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<ReadData<'a>>> {
        answer(results, |results| {
            skip_attributes(results)?;
            let count = results.count("count", self.bytes)?;
            let ends = results.bool("end of file")?;
            let data = results.opaque("data", self.bytes)?;
            // A server that counts otherwise than it sends would leave bytes undefined.
            match count == data.len() {
                true => Ok(ReadData { data, ends }),
                false => Err(Malformed::Value { field: "count", value: count as u32 }),
            }
        })
    }
    fn largest_results(&self) -> u32 {
        self.bytes + 1024
    }
}

/// Data to a file. The data itself is the call's payload.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// Which file.
    pub file: Handle,
    /// To where, in bytes.
    pub offset: u64,
    /// How much, in bytes.
    pub bytes: u32,
    /// How durable it is to be.
    pub stable: Stable,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// How much, in bytes: at least one, at most what was asked for.
    pub bytes: u32,
    /// How durable it is.
    pub stable: Stable,
    /// Of which life of the server.
    pub verifier: Verifier,
}

impl Procedure for Write {
    fn like(bytes: u32) -> Self {
        Write { file: Handle::NONE, offset: 0, bytes, stable: Stable::Unstable }
    }
    fn moves_bytes(&self) -> u32 {
        self.bytes
    }
    procedure!(7, "WRITE", Write, Written, NO_CHANGE_BYTES + 16);
    fn write(&self, out: &mut Writer<'_>) {
        self.file.write(out);
        out.u64(self.offset);
        out.u32(self.bytes);
        out.u32(self.stable as u32);
        out.u32(self.bytes);
    }
    fn payload_bytes(&self) -> usize {
        self.bytes as usize
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<Written>> {
        answer(results, |results| {
            skip_change(results)?;
            let bytes = results.count("count", self.bytes)? as u32;
            if bytes == 0 && self.bytes > 0 {
                return Err(Malformed::Value { field: "count", value: 0 });
            }
            let (stable, verifier) = (Stable::read(results)?, results.fixed("verifier")?);
            // Less durable than asked for would be lost in silence.
            match stable >= self.stable {
                true => Ok(Written { bytes, stable, verifier }),
                false => Err(Malformed::Value { field: "stability", value: stable as u32 }),
            }
        })
    }
}

/// How full a file system is.
#[derive(Clone, Copy, Debug)]
pub struct Space(pub Handle);

/// How full a file system is, in bytes and files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceLeft {
    /// Size, in bytes.
    pub total_bytes: u64,
    /// Free, in bytes.
    pub free_bytes: u64,
    /// Free for this user, in bytes.
    pub available_bytes: u64,
    /// Files it can hold.
    pub total_files: u64,
    /// Files it can still hold.
    pub free_files: u64,
}

impl Procedure for Space {
    fn like(_: u32) -> Self {
        Space(Handle::NONE)
    }
    procedure!(18, "FSSTAT", Metadata, SpaceLeft, 56);
    fn write(&self, out: &mut Writer<'_>) {
        self.0.write(out);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<SpaceLeft>> {
        answer(results, |results| {
            skip_attributes(results)?;
            let space = SpaceLeft {
                total_bytes: results.u64("tbytes")?,
                free_bytes: results.u64("fbytes")?,
                available_bytes: results.u64("abytes")?,
                total_files: results.u64("tfiles")?,
                free_files: results.u64("ffiles")?,
            };
            results.u64("afiles")?;
            results.u32("invarsec")?;
            Ok(space)
        })
    }
}

/// What a file system can do.
#[derive(Clone, Copy, Debug)]
pub struct Limits(pub Handle);

/// The server's limits (`FSINFO`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// Largest read, in bytes.
    pub most_read_bytes: u32,
    /// Largest write, in bytes.
    pub most_write_bytes: u32,
    /// Preferred length of a listing, in bytes.
    pub listing_bytes: u32,
    /// Longest file, in bytes.
    pub most_file_bytes: u64,
}

impl Procedure for Limits {
    fn like(_: u32) -> Self {
        Limits(Handle::NONE)
    }
    procedure!(19, "FSINFO", Metadata, FileSystem, 52);
    fn write(&self, out: &mut Writer<'_>) {
        self.0.write(out);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<FileSystem>> {
        answer(results, |results| {
            skip_attributes(results)?;
            let most_read_bytes = results.u32("rtmax")?;
            results.u64("rtpref, rtmult")?;
            let most_write_bytes = results.u32("wtmax")?;
            results.u64("wtpref, wtmult")?;
            let listing_bytes = results.u32("dtpref")?;
            let most_file_bytes = results.u64("maxfilesize")?;
            results.fixed::<12>("time_delta, properties")?;
            Ok(FileSystem { most_read_bytes, most_write_bytes, listing_bytes, most_file_bytes })
        })
    }
}

/// What names and links can be (`PATHCONF`).
#[derive(Clone, Copy, Debug)]
pub struct NameLimits(pub Handle);

/// What names and links can be on a file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Names {
    /// Most names that a file can have.
    pub most_links: u32,
    /// Longest name, in bytes.
    pub most_name_bytes: u32,
    /// Whether a longer name is an error, and not cut.
    pub refuses_long_names: bool,
    /// Whether only root may give files away.
    pub keeps_owners: bool,
    /// Whether names that differ in case alone are one name.
    pub ignores_case: bool,
    /// Whether names keep the case that they were given.
    pub keeps_case: bool,
}

impl Procedure for NameLimits {
    fn like(_: u32) -> Self {
        NameLimits(Handle::NONE)
    }
    procedure!(20, "PATHCONF", Metadata, Names, 28);
    fn write(&self, out: &mut Writer<'_>) {
        self.0.write(out);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<Names>> {
        answer(results, |results| {
            skip_attributes(results)?;
            Ok(Names {
                most_links: results.u32("linkmax")?,
                most_name_bytes: results.u32("name_max")?,
                refuses_long_names: results.bool("no_trunc")?,
                keeps_owners: results.bool("chown_restricted")?,
                ignores_case: results.bool("case_insensitive")?,
                keeps_case: results.bool("case_preserving")?,
            })
        })
    }
}

/// Makes what was written durable.
#[derive(Clone, Copy, Debug)]
pub struct Commit {
    /// Which file.
    pub file: Handle,
    /// From where, in bytes.
    pub offset: u64,
    /// How much, in bytes; 0 for all after it.
    pub bytes: u32,
}

impl Procedure for Commit {
    fn like(_: u32) -> Self {
        Commit { file: Handle::NONE, offset: 0, bytes: 0 }
    }
    procedure!(21, "COMMIT", Commit, Verifier, NO_CHANGE_BYTES + 8);
    fn write(&self, out: &mut Writer<'_>) {
        self.file.write(out);
        out.u64(self.offset);
        out.u32(self.bytes);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<Verifier>> {
        answer(results, |results| {
            skip_change(results)?;
            results.fixed("verifier")
        })
    }
}
