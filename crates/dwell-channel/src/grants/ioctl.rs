// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ioctls by which a program asks the controller through an open file of a served mount.

use std::sync::Arc;

use super::{Errno, GrantReply, Grants, OpenFile, Token};

const fn both(number: u32, bytes: u32) -> u32 {
    3 << 30 | bytes << 16 | 0xd7 << 8 | number
}

/// Bytes of [`GRANT`]'s argument: a token in, a reply out.
pub const GRANT_BYTES: usize = 32;
/// Bytes of [`PLACE`]'s argument: the protocol's number in, the socket's name out.
pub const PLACE_BYTES: usize = 64;
/// Grants the file to a channel: token (16 bytes), zeroes (16); back: open file (8), entry (4), generation
/// (4), length (8), bits (4: [`IN_MEMORY`]), zeroes (4), all little-endian.
pub const GRANT: u32 = both(1, GRANT_BYTES as u32);
/// Bit of [`GRANT`]'s answer: the file is memory.
pub const IN_MEMORY: u32 = 1;
/// Asks where to connect: [`MAGIC`] (8 bytes), zeroes (56); back: [`MAGIC`], length of the name (1), the
/// name.
pub const PLACE: u32 = both(2, PLACE_BYTES as u32);
/// Tells a served mount from other file systems, and this protocol from later ones.
pub const MAGIC: [u8; 8] = *b"dwell\0\0\x02";

/// Answers an ioctl on an open file, as a file system server is to do: the bytes to hand back.
///
/// # Errors
/// ENOTTY for an ioctl of another kind; EINVAL for a malformed one; what [`Grants::grant`] says.
pub fn answer(
    grants: &dyn Grants,
    open: &Arc<OpenFile>,
    command: u32,
    argument: &[u8],
) -> Result<Vec<u8>, Errno> {
    match command {
        GRANT => {
            let (token, rest) = argument.split_first_chunk::<16>().ok_or(Errno(libc::EINVAL))?;
            if argument.len() != GRANT_BYTES || rest.iter().any(|byte| *byte != 0) {
                return Err(Errno(libc::EINVAL));
            }
            let token: &Token = token;
            Ok(reply(&grants.grant(token, open)?))
        }
        PLACE => {
            let name = grants.place();
            if argument.len() != PLACE_BYTES
                || argument[..8] != MAGIC
                || name.len() > PLACE_BYTES - 9
            {
                return Err(Errno(libc::EINVAL));
            }
            let mut out = vec![0; PLACE_BYTES];
            out[..8].copy_from_slice(&MAGIC);
            out[8] = name.len() as u8;
            out[9..9 + name.len()].copy_from_slice(name);
            Ok(out)
        }
        _ => Err(Errno(libc::ENOTTY)),
    }
}

fn reply(reply: &GrantReply) -> Vec<u8> {
    let mut out = Vec::with_capacity(GRANT_BYTES);
    out.extend_from_slice(&reply.open.to_le_bytes());
    out.extend_from_slice(&reply.entry.to_le_bytes());
    out.extend_from_slice(&reply.generation.to_le_bytes());
    out.extend_from_slice(&reply.bytes.to_le_bytes());
    out.extend_from_slice(&if reply.in_memory { IN_MEMORY } else { 0 }.to_le_bytes());
    out.resize(GRANT_BYTES, 0);
    out
}
