// SPDX-License-Identifier: MIT OR Apache-2.0
//! The procedures on names in directories, one type each.

use super::attributes::{skip_attributes, skip_change};
use super::procedures::{Answer, NO_CHANGE_BYTES, STATUS_BYTES, answer, procedure, target};
use super::{Attributes, Handle, Kind, MAX_NAME_BYTES, SetAttributes, Verifier};
use crate::procedure::{Class, Procedure};
use crate::rpc::Target;
use crate::xdr::{self, Reader, Writer};

/// A name in a directory.
#[derive(Clone, Copy, Debug)]
pub struct Lookup<'n> {
    /// The directory.
    pub directory: Handle,
    /// The name.
    pub name: &'n [u8],
}

impl Procedure for Lookup<'_> {
    fn like(_: u32) -> Self {
        Lookup { directory: Handle::NONE, name: &[] }
    }
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
            skip_attributes(results)?;
            Ok(found)
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
    skip_change(results)?;
    Ok((handle, attributes))
}

/// Makes a file.
#[derive(Clone, Copy, Debug)]
pub struct Create<'n> {
    /// Where.
    pub directory: Handle,
    /// Its name.
    pub name: &'n [u8],
    /// What it has, and what is done about one that exists already.
    pub how: CreateHow,
}

/// How a file is made (`createhow3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CreateHow {
    /// With these attributes, unless it is there.
    Unchecked(SetAttributes),
    /// With these attributes; one that is there is an error.
    Guarded(SetAttributes),
    /// With attributes of the server's choice; one that is there is an error, unless it was made
    /// with this verifier: then it is the same call once more.
    Exclusive(Verifier),
}

impl Procedure for Create<'_> {
    fn like(_: u32) -> Self {
        Create {
            directory: Handle::NONE,
            name: &[],
            how: CreateHow::Unchecked(SetAttributes::default()),
        }
    }
    procedure!(8, "CREATE", Change, Made, 16);
    fn write(&self, out: &mut Writer<'_>) {
        self.directory.write(out);
        out.opaque(self.name);
        match &self.how {
            CreateHow::Unchecked(attributes) => {
                out.u32(0);
                attributes.write(out);
            }
            CreateHow::Guarded(attributes) => {
                out.u32(1);
                attributes.write(out);
            }
            CreateHow::Exclusive(verifier) => {
                out.u32(2);
                out.fixed(verifier);
            }
        }
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
    fn like(_: u32) -> Self {
        MakeDirectory { directory: Handle::NONE, name: &[], attributes: SetAttributes::default() }
    }
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
    fn like(_: u32) -> Self {
        MakeLink {
            directory: Handle::NONE,
            name: &[],
            attributes: SetAttributes::default(),
            target: &[],
        }
    }
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

/// Makes a device, a socket or a named pipe.
#[derive(Clone, Copy, Debug)]
pub struct MakeNode<'n> {
    /// Where.
    pub directory: Handle,
    /// Its name.
    pub name: &'n [u8],
    /// What it is: anything but a file, a directory or a link.
    pub kind: Kind,
    /// What it has.
    pub attributes: SetAttributes,
    /// Major and minor number, of a device.
    pub device: (u32, u32),
}

impl Procedure for MakeNode<'_> {
    fn like(_: u32) -> Self {
        MakeNode {
            directory: Handle::NONE,
            name: &[],
            kind: Kind::Pipe,
            attributes: SetAttributes::default(),
            device: (0, 0),
        }
    }
    procedure!(11, "MKNOD", Change, Made, 16);
    fn write(&self, out: &mut Writer<'_>) {
        self.directory.write(out);
        out.opaque(self.name);
        out.u32(self.kind.number());
        self.attributes.write(out);
        if matches!(self.kind, Kind::Block | Kind::Character) {
            out.u32(self.device.0);
            out.u32(self.device.1);
        }
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<Made>> {
        answer(results, made)
    }
}

/// Gives a file one more name.
#[derive(Clone, Copy, Debug)]
pub struct Link<'n> {
    /// Which file.
    pub file: Handle,
    /// Where.
    pub directory: Handle,
    /// The name.
    pub name: &'n [u8],
}

impl Procedure for Link<'_> {
    fn like(_: u32) -> Self {
        Link { file: Handle::NONE, directory: Handle::NONE, name: &[] }
    }
    procedure!(15, "LINK", Change, (), 4 + NO_CHANGE_BYTES);
    fn write(&self, out: &mut Writer<'_>) {
        self.file.write(out);
        self.directory.write(out);
        out.opaque(self.name);
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<()>> {
        answer(results, |results| {
            skip_attributes(results)?;
            skip_change(results)
        })
    }
}

fn changed(results: &mut Reader<'_>) -> xdr::Result<Answer<()>> {
    answer(results, skip_change)
}

/// REMOVE and RMDIR are alike but for their number.
macro_rules! removal {
    ($(#[$what:meta])* $type:ident, $number:literal, $name:literal) => {
        $(#[$what])*
        #[derive(Clone, Copy, Debug)]
        pub struct $type<'n> {
            /// Where.
            pub directory: Handle,
            /// Its name.
            pub name: &'n [u8],
        }

        impl Procedure for $type<'_> {
            fn like(_: u32) -> Self {
                $type { directory: Handle::NONE, name: &[] }
            }
            procedure!($number, $name, Change, (), NO_CHANGE_BYTES);
            fn write(&self, out: &mut Writer<'_>) {
                self.directory.write(out);
                out.opaque(self.name);
            }
            fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<()>> {
                changed(results)
            }
        }
    };
}

removal! {
    /// Removes a file's name.
    Remove, 12, "REMOVE"
}

removal! {
    /// Removes a directory.
    RemoveDirectory, 13, "RMDIR"
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
    fn like(_: u32) -> Self {
        Rename { from: (Handle::NONE, &[]), to: (Handle::NONE, &[]) }
    }
    procedure!(14, "RENAME", Change, (), 2 * NO_CHANGE_BYTES);
    fn write(&self, out: &mut Writer<'_>) {
        for (directory, name) in [self.from, self.to] {
            directory.write(out);
            out.opaque(name);
        }
    }
    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Answer<()>> {
        answer(results, |results| {
            skip_change(results)?;
            skip_change(results)
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
    fn like(_: u32) -> Self {
        List { directory: Handle::NONE, cookie: 0, verifier: [0; 8], bytes: 0 }
    }
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
    fn like(_: u32) -> Self {
        ListNames(List::like(0))
    }
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
