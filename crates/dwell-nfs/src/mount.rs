// SPDX-License-Identifier: MIT OR Apache-2.0
//! MOUNT version 3 (RFC 1813 appendix I) and the portmapper, version 2 (RFC 1833 §3): how an export
//! and its ports are found.

use crate::nfs3::Handle;
use crate::procedure::{Class, Procedure};
use crate::rpc::Target;
use crate::xdr::{self, Malformed, Reader, Writer};

/// The mount program's number.
pub const PROGRAM: u32 = 100_005;
/// Its version.
pub const VERSION: u32 = 3;
/// The portmapper's port.
pub const PORTMAPPER_PORT: u16 = 111;

const MAX_PATH_BYTES: u32 = 1024;
const MAX_EXPORTS: usize = 4096;
const MAX_GROUPS: usize = 4096;

/// Why an export was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MountError {
    /// Not for this user or this machine.
    #[error("the server does not let this machine or user mount it")]
    Denied,
    /// There is none of this name.
    #[error("the server exports no such directory")]
    Missing,
    /// Not a directory.
    #[error("what the server has there is no directory")]
    NotDirectory,
    /// The server does not do this.
    #[error("the server does not serve it with NFS version 3")]
    NotSupported,
    /// Any other reason.
    #[error("the server refused (MOUNT status {0})")]
    Other(u32),
}

/// The handle of an export.
#[derive(Clone, Copy, Debug)]
pub struct Mount<'n>(pub &'n [u8]);

impl Procedure for Mount<'_> {
    fn like(_: u32) -> Self {
        Mount(&[])
    }
    const TARGET: Target = Target { program: PROGRAM, version: VERSION, procedure: 1 };
    const NAME: &'static str = "MNT";
    const CLASS: Class = Class::Metadata;
    type Results<'a> = Result<Handle, MountError>;

    fn write(&self, out: &mut Writer<'_>) {
        out.opaque(self.0);
    }

    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Self::Results<'a>> {
        Ok(Err(match results.u32("status")? {
            0 => {
                let handle = Handle::read(results)?;
                // The flavours the server takes; AUTH_SYS is tried whatever they are.
                for _ in 0..results.count("flavours", 64)? {
                    results.u32("flavour")?;
                }
                return Ok(Ok(handle));
            }
            1 | 13 => MountError::Denied,
            2 => MountError::Missing,
            20 => MountError::NotDirectory,
            10004 => MountError::NotSupported,
            other => MountError::Other(other),
        }))
    }

    fn smallest_results(&self) -> u32 {
        4
    }
}

/// Tells the server that an export is no longer used.
#[derive(Clone, Copy, Debug)]
pub struct Unmount<'n>(pub &'n [u8]);

impl Procedure for Unmount<'_> {
    fn like(_: u32) -> Self {
        Unmount(&[])
    }
    const TARGET: Target = Target { program: PROGRAM, version: VERSION, procedure: 3 };
    const NAME: &'static str = "UMNT";
    const CLASS: Class = Class::Metadata;
    type Results<'a> = ();

    fn write(&self, out: &mut Writer<'_>) {
        out.opaque(self.0);
    }

    fn read<'a>(&self, _: &mut Reader<'a>) -> xdr::Result<()> {
        Ok(())
    }

    fn smallest_results(&self) -> u32 {
        0
    }
}

/// The directories that a server exports.
#[derive(Clone, Copy, Debug)]
pub struct Exports;

impl Procedure for Exports {
    fn like(_: u32) -> Self {
        Exports
    }
    const TARGET: Target = Target { program: PROGRAM, version: VERSION, procedure: 5 };
    const NAME: &'static str = "EXPORT";
    const CLASS: Class = Class::Metadata;
    type Results<'a> = Vec<&'a [u8]>;

    fn write(&self, _: &mut Writer<'_>) {}

    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Vec<&'a [u8]>> {
        let mut exports = Vec::new();
        while results.bool("export follows")? {
            bounded("exports", exports.len(), MAX_EXPORTS)?;
            exports.push(results.opaque("directory", MAX_PATH_BYTES)?);
            let mut groups = 0;
            while results.bool("group follows")? {
                bounded("groups", groups, MAX_GROUPS)?;
                results.opaque("group", 255)?;
                groups += 1;
            }
        }
        Ok(exports)
    }

    fn smallest_results(&self) -> u32 {
        4
    }

    fn largest_results(&self) -> u32 {
        1 << 20
    }
}

fn bounded(field: &'static str, count: usize, most: usize) -> xdr::Result<()> {
    match count < most {
        true => Ok(()),
        false => Err(Malformed::TooLong { field, length: count as u32 + 1, most: most as u32 }),
    }
}

/// The port of a program.
#[derive(Clone, Copy, Debug)]
pub struct GetPort {
    /// Which program.
    pub program: u32,
    /// Which version.
    pub version: u32,
    /// Over UDP rather than TCP.
    pub udp: bool,
}

impl Procedure for GetPort {
    fn like(_: u32) -> Self {
        GetPort { program: 0, version: 0, udp: false }
    }
    const TARGET: Target = Target { program: 100_000, version: 2, procedure: 3 };
    const NAME: &'static str = "GETPORT";
    const CLASS: Class = Class::Metadata;
    /// `None` where the server has no such program.
    type Results<'a> = Option<u16>;

    fn write(&self, out: &mut Writer<'_>) {
        const TCP: u32 = 6;
        const UDP: u32 = 17;
        for word in [self.program, self.version, if self.udp { UDP } else { TCP }, 0] {
            out.u32(word);
        }
    }

    fn read<'a>(&self, results: &mut Reader<'a>) -> xdr::Result<Option<u16>> {
        let port = results.u32("port")?;
        match u16::try_from(port) {
            Ok(0) => Ok(None),
            Ok(port) => Ok(Some(port)),
            Err(_) => Err(Malformed::Value { field: "port", value: port }),
        }
    }

    fn smallest_results(&self) -> u32 {
        4
    }
}
