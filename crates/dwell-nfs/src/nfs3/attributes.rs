// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes of files, as servers tell them and as clients set them.

use crate::xdr::{Malformed, Reader, Result, Writer};

/// What an entry of a directory is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A block device.
    Block,
    /// A character device.
    Character,
    /// A symbolic link.
    Link,
    /// A socket.
    Socket,
    /// A named pipe.
    Pipe,
}

impl Kind {
    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(match reader.u32("file type")? {
            1 => Kind::File,
            2 => Kind::Directory,
            3 => Kind::Block,
            4 => Kind::Character,
            5 => Kind::Link,
            6 => Kind::Socket,
            7 => Kind::Pipe,
            value => return Err(Malformed::Value { field: "file type", value }),
        })
    }

    /// Its number in the protocol (`ftype3`).
    pub(crate) const fn number(self) -> u32 {
        match self {
            Kind::File => 1,
            Kind::Directory => 2,
            Kind::Block => 3,
            Kind::Character => 4,
            Kind::Link => 5,
            Kind::Socket => 6,
            Kind::Pipe => 7,
        }
    }

    /// In words.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::File => "regular file",
            Kind::Directory => "directory",
            Kind::Block => "block device",
            Kind::Character => "character device",
            Kind::Link => "symbolic link",
            Kind::Socket => "socket",
            Kind::Pipe => "named pipe",
        }
    }

    /// The letter that `ls -l` begins a line with.
    pub const fn letter(self) -> char {
        match self {
            Kind::File => '-',
            Kind::Directory => 'd',
            Kind::Block => 'b',
            Kind::Character => 'c',
            Kind::Link => 'l',
            Kind::Socket => 's',
            Kind::Pipe => 'p',
        }
    }
}

/// A moment, since 1970.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time {
    /// Whole seconds.
    pub seconds: u32,
    /// The rest, in nanoseconds.
    pub nanoseconds: u32,
}

impl Time {
    fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Time { seconds: reader.u32("seconds")?, nanoseconds: reader.u32("nanoseconds")? })
    }

    fn write(self, out: &mut Writer<'_>) {
        out.u32(self.seconds);
        out.u32(self.nanoseconds);
    }
}

/// What a server says of a file (`fattr3`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// What it is.
    pub kind: Kind,
    /// Permission bits.
    pub mode: u32,
    /// Names it has.
    pub links: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Length, in bytes.
    pub bytes: u64,
    /// Space it takes, in bytes.
    pub used_bytes: u64,
    /// Device numbers, of devices.
    pub device: (u32, u32),
    /// Which file system of the server it is on.
    pub file_system: u64,
    /// Its number there.
    pub file: u64,
    /// Last read.
    pub accessed: Time,
    /// Last written.
    pub modified: Time,
    /// Attributes last changed.
    pub changed: Time,
}

impl Attributes {
    /// Length of what a server sends, in bytes.
    pub const BYTES: u32 = 84;

    pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Attributes {
            kind: Kind::read(reader)?,
            mode: reader.u32("mode")?,
            links: reader.u32("links")?,
            uid: reader.u32("uid")?,
            gid: reader.u32("gid")?,
            bytes: reader.u64("size")?,
            used_bytes: reader.u64("used")?,
            device: (reader.u32("major")?, reader.u32("minor")?),
            file_system: reader.u64("fsid")?,
            file: reader.u64("fileid")?,
            accessed: Time::read(reader)?,
            modified: Time::read(reader)?,
            changed: Time::read(reader)?,
        })
    }

    /// After an operation; a server may leave them out.
    pub(crate) fn read_optional(reader: &mut Reader<'_>) -> Result<Option<Self>> {
        match reader.bool("attributes follow")? {
            true => Attributes::read(reader).map(Some),
            false => Ok(None),
        }
    }
}

/// Attributes that may be there, and that nobody asked for.
pub(crate) fn skip_attributes(reader: &mut Reader<'_>) -> Result<()> {
    if reader.bool("attributes follow")? {
        reader.fixed::<{ Attributes::BYTES as usize }>("attributes")?;
    }
    Ok(())
}

/// Before and after a change (`wcc_data`): nothing of it is kept.
pub(crate) fn skip_change(reader: &mut Reader<'_>) -> Result<()> {
    if reader.bool("attributes before follow")? {
        // Size, and the times of the last write and change.
        reader.fixed::<24>("attributes before")?;
    }
    skip_attributes(reader)
}

/// How a time is set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SetTime {
    /// Left as it is.
    #[default]
    Keep,
    /// To the server's time.
    Now,
    /// To this.
    To(Time),
}

/// Attributes to set (`sattr3`); what is not named stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttributes {
    /// Permission bits.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length, in bytes.
    pub bytes: Option<u64>,
    /// Last read.
    pub accessed: SetTime,
    /// Last written.
    pub modified: SetTime,
}

impl SetAttributes {
    pub(crate) fn write(&self, out: &mut Writer<'_>) {
        out.optional(self.mode, Writer::u32);
        out.optional(self.uid, Writer::u32);
        out.optional(self.gid, Writer::u32);
        out.optional(self.bytes, Writer::u64);
        for time in [self.accessed, self.modified] {
            match time {
                SetTime::Keep => out.u32(0),
                SetTime::Now => out.u32(1),
                SetTime::To(time) => {
                    out.u32(2);
                    time.write(out);
                }
            }
        }
    }
}
