// SPDX-License-Identifier: MIT OR Apache-2.0
//! The procedures, one type each: what it is called with, and what it answers.

use super::attributes::read_change;
use super::{
    Attributes, Handle, MAX_LINK_BYTES, MAX_NAME_BYTES, PROGRAM, SetAttributes, Stable, Status,
    VERSION, Verifier,
};
use crate::procedure::{Class, Procedure};
use crate::rpc::Target;
use crate::xdr::{self, Malformed, Reader, Writer};

/// Results, or the server's reason.
pub type Answer<T> = Result<T, Status>;

/// A status, a possible change (of a directory, of a file), a verifier.
const STATUS_BYTES: u32 = 4;
const NO_CHANGE_BYTES: u32 = 8;

const fn target(procedure: u32) -> Target {
    Target { program: PROGRAM, version: VERSION, procedure }
}

/// Reads the status, and what follows a success.
fn answer<'a, T>(
    results: &mut Reader<'a>,
    read: impl FnOnce(&mut Reader<'a>) -> xdr::Result<T>,
) -> xdr::Result<Answer<T>> {
    match results.u32("status")? {
        0 => read(results).map(Ok),
        status => Ok(Err(Status(status))),
    }
}

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

/// Does nothing: says that the server is there.
#[derive(Clone, Copy, Debug)]
pub struct Null;

impl Procedure for Null {
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
    procedure!(2, "SETATTR", Change, (), NO_CHANGE_BYTES);
    fn write(&self, out: &mut Writer<'_>) {
        self.file.write(out);
        self.to.write(out);
        out.bool(false);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<()>> {
        answer(results, |results| read_change(results).map(|_| ()))
    }
}

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'n> {
    /// The directory.
    pub directory: Handle,
    /// The name.
    pub name: &'n [u8],
}

impl Procedure for Lookup<'_> {
    procedure!(3, "LOOKUP", Metadata, (Handle, Option<Attributes>), 12);
    fn write(&self, out: &mut Writer<'_>) {
        self.directory.write(out);
        out.opaque(self.name);
    }
    fn read<'a>(
        &self,
        results: &mut Reader<'a>,
    ) -> xdr::Result<Answer<(Handle, Option<Attributes>)>> {
        answer(results, |results| {
            let found = (Handle::read(results)?, Attributes::read_optional(results)?);
            Attributes::read_optional(results)?;
            Ok(found)
        })
    }
}

/// What the caller may do with a file.
#[derive(Clone, Copy, Debug)]
pub struct Access {
    /// Which file.
    pub file: Handle,
    /// What is asked, as bits of [`super::access`].
    pub wanted: u32,
}

impl Procedure for Access {
    procedure!(4, "ACCESS", Metadata, u32, 8);
    fn write(&self, out: &mut Writer<'_>) {
        self.file.write(out);
        out.u32(self.wanted);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<u32>> {
        answer(results, |results| {
            Attributes::read_optional(results)?;
            results.u32("access")
        })
    }
}

/// Where a symbolic link leads.
#[derive(Clone, Copy, Debug)]
pub struct ReadLink(pub Handle);

impl Procedure for ReadLink {
    procedure!(5, "READLINK", Metadata, &'a [u8], 8);
    fn write(&self, out: &mut Writer<'_>) {
        self.0.write(out);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<&'a [u8]>> {
        answer(results, |results| {
            Attributes::read_optional(results)?;
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
            Attributes::read_optional(results)?;
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
            read_change(results)?;
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

/// What a new file has, and its handle where the server told it.
type Made = (Option<Handle>, Option<Attributes>);

fn made(results: &mut Reader<'_>) -> xdr::Result<Made> {
    let handle = match results.bool("handle follows")? {
        true => Some(Handle::read(results)?),
        false => None,
    };
    let attributes = Attributes::read_optional(results)?;
    read_change(results)?;
    Ok((handle, attributes))
}

/// Makes a file.
#[derive(Clone, Copy, Debug)]
pub struct Create<'n> {
    /// Where.
    pub directory: Handle,
    /// Its name.
    pub name: &'n [u8],
    /// What it has.
    pub attributes: SetAttributes,
    /// Whether one that exists already is an error.
    pub fresh: bool,
}

impl Procedure for Create<'_> {
    procedure!(8, "CREATE", Change, Made, 16);
    fn write(&self, out: &mut Writer<'_>) {
        self.directory.write(out);
        out.opaque(self.name);
        out.u32(u32::from(self.fresh));
        self.attributes.write(out);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<Made>> {
        answer(results, made)
    }
}

/// Makes a directory.
#[derive(Clone, Copy, Debug)]
pub struct MakeDirectory<'n> {
    /// Where.
    pub directory: Handle,
    /// Its name.
    pub name: &'n [u8],
    /// What it has.
    pub attributes: SetAttributes,
}

impl Procedure for MakeDirectory<'_> {
    procedure!(9, "MKDIR", Change, Made, 16);
    fn write(&self, out: &mut Writer<'_>) {
        self.directory.write(out);
        out.opaque(self.name);
        self.attributes.write(out);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<Made>> {
        answer(results, made)
    }
}

/// Makes a symbolic link.
#[derive(Clone, Copy, Debug)]
pub struct MakeLink<'n> {
    /// Where.
    pub directory: Handle,
    /// Its name.
    pub name: &'n [u8],
    /// What it has.
    pub attributes: SetAttributes,
    /// Where it leads.
    pub target: &'n [u8],
}

impl Procedure for MakeLink<'_> {
    procedure!(10, "SYMLINK", Change, Made, 16);
    fn write(&self, out: &mut Writer<'_>) {
        self.directory.write(out);
        out.opaque(self.name);
        self.attributes.write(out);
        out.opaque(self.target);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<Made>> {
        answer(results, made)
    }
}

fn changed(results: &mut Reader<'_>) -> xdr::Result<Answer<()>> {
    answer(results, |results| read_change(results).map(|_| ()))
}

/// Removes a file's name.
#[derive(Clone, Copy, Debug)]
pub struct Remove<'n> {
    /// Where.
    pub directory: Handle,
    /// Its name.
    pub name: &'n [u8],
}

impl Procedure for Remove<'_> {
    procedure!(12, "REMOVE", Change, (), NO_CHANGE_BYTES);
    fn write(&self, out: &mut Writer<'_>) {
        self.directory.write(out);
        out.opaque(self.name);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<()>> {
        changed(results)
    }
}

/// Removes a directory.
#[derive(Clone, Copy, Debug)]
pub struct RemoveDirectory<'n> {
    /// Where.
    pub directory: Handle,
    /// Its name.
    pub name: &'n [u8],
}

impl Procedure for RemoveDirectory<'_> {
    procedure!(13, "RMDIR", Change, (), NO_CHANGE_BYTES);
    fn write(&self, out: &mut Writer<'_>) {
        self.directory.write(out);
        out.opaque(self.name);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<()>> {
        changed(results)
    }
}

/// Gives a file another name.
#[derive(Clone, Copy, Debug)]
pub struct Rename<'n> {
    /// From where.
    pub from: (Handle, &'n [u8]),
    /// To where.
    pub to: (Handle, &'n [u8]),
}

impl Procedure for Rename<'_> {
    procedure!(14, "RENAME", Change, (), 2 * NO_CHANGE_BYTES);
    fn write(&self, out: &mut Writer<'_>) {
        for (directory, name) in [self.from, self.to] {
            directory.write(out);
            out.opaque(name);
        }
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<()>> {
        answer(results, |results| {
            read_change(results)?;
            read_change(results).map(|_| ())
        })
    }
}

/// A part of a directory's entries, with attributes and handles where the server has them at hand.
#[derive(Clone, Copy, Debug)]
pub struct List {
    /// Which directory.
    pub directory: Handle,
    /// After which entry; 0 for the first.
    pub cookie: u64,
    /// What the server gave with the part before; zeros for the first.
    pub verifier: [u8; 8],
    /// How long the answer may be, in bytes.
    pub bytes: u32,
}

/// One entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry<'a> {
    /// Its number.
    pub file: u64,
    /// Its name.
    pub name: &'a [u8],
    /// Where the next part begins after it.
    pub cookie: u64,
    /// What it is, where the server says so.
    pub attributes: Option<Attributes>,
    /// Its handle, where the server says so.
    pub handle: Option<Handle>,
}

/// A part of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entries<'a> {
    /// For the next part.
    pub verifier: [u8; 8],
    /// In the server's order.
    pub entries: Vec<Entry<'a>>,
    /// Whether this is the last part.
    pub ends: bool,
}

fn read_entries<'a>(results: &mut Reader<'a>, plus: bool) -> xdr::Result<Entries<'a>> {
    Attributes::read_optional(results)?;
    let verifier = results.fixed("cookie verifier")?;
    let mut entries = Vec::new();
    // Each takes more than 20 bytes of a message that is bounded.
    while results.bool("entry follows")? {
        let file = results.u64("fileid")?;
        let name = results.opaque("name", MAX_NAME_BYTES)?;
        let cookie = results.u64("cookie")?;
        let (mut attributes, mut handle) = (None, None);
        if plus {
            attributes = Attributes::read_optional(results)?;
            if results.bool("handle follows")? {
                handle = Some(Handle::read(results)?);
            }
        }
        entries.push(Entry { file, name, cookie, attributes, handle });
    }
    Ok(Entries { verifier, entries, ends: results.bool("end of directory")? })
}

impl List {
    /// The results of READDIR: names alone.
    pub fn read_names<'a>(results: &mut Reader<'a>) -> xdr::Result<Answer<Entries<'a>>> {
        answer(results, |results| read_entries(results, false))
    }
}

impl Procedure for List {
    procedure!(17, "READDIRPLUS", Listing, Entries<'a>, 20);
    fn write(&self, out: &mut Writer<'_>) {
        self.directory.write(out);
        out.u64(self.cookie);
        out.fixed(&self.verifier);
        out.u32(self.bytes / 4);
        out.u32(self.bytes);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<Entries<'a>>> {
        answer(results, |results| read_entries(results, true))
    }
    fn largest_results(&self) -> u32 {
        // Servers count in various ways what an answer may have.
        2 * self.bytes + 4096
    }
}

/// A part of a directory's names alone, for servers without [`List`].
#[derive(Clone, Copy, Debug)]
pub struct ListNames(pub List);

impl Procedure for ListNames {
    procedure!(16, "READDIR", Listing, Entries<'a>, 20);
    fn write(&self, out: &mut Writer<'_>) {
        self.0.directory.write(out);
        out.u64(self.0.cookie);
        out.fixed(&self.0.verifier);
        out.u32(self.0.bytes);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<Entries<'a>>> {
        List::read_names(results)
    }
    fn largest_results(&self) -> u32 {
        2 * self.0.bytes + 4096
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
    procedure!(18, "FSSTAT", Metadata, SpaceLeft, 56);
    fn write(&self, out: &mut Writer<'_>) {
        self.0.write(out);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<SpaceLeft>> {
        answer(results, |results| {
            Attributes::read_optional(results)?;
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
    procedure!(19, "FSINFO", Metadata, FileSystem, 52);
    fn write(&self, out: &mut Writer<'_>) {
        self.0.write(out);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<FileSystem>> {
        answer(results, |results| {
            Attributes::read_optional(results)?;
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
    procedure!(21, "COMMIT", Commit, Verifier, NO_CHANGE_BYTES + 8);
    fn write(&self, out: &mut Writer<'_>) {
        self.file.write(out);
        out.u64(self.offset);
        out.u32(self.bytes);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<Verifier>> {
        answer(results, |results| {
            read_change(results)?;
            results.fixed("verifier")
        })
    }
}
