// SPDX-License-Identifier: MIT OR Apache-2.0
//! The ioctls by which a program asks the daemon through an open file of a served mount.

use std::fs::File;
use std::sync::Arc;

use rustix::fs::{AtFlags, StatxFlags};

use super::{Errno, GrantReply, Grants, OpenFile, Token};

const fn both(number: u32, bytes: u32) -> u32 {
    3 << 30 | bytes << 16 | 0xd7 << 8 | number
}

/// Bytes of [`GRANT`]'s argument: a token in, a reply out.
pub const GRANT_BYTES: usize = 32;
/// Bytes of [`PLACE`]'s argument: the protocol's number in, the socket's name out.
pub const PLACE_BYTES: usize = 64;
/// Grants the file to a channel: token (16 bytes), zeroes (16); back: open file (8), entry (4),
/// generation (4), length (8), bits (4: [`IN_MEMORY`]), zeroes (4), all little-endian.
pub const GRANT: u32 = both(1, GRANT_BYTES as u32);
/// Bit of [`GRANT`]'s answer: the file is memory.
pub const IN_MEMORY: u32 = 1;
/// Asks where to connect: [`MAGIC`] (8 bytes), zeroes (56); back: [`MAGIC`], length of the name
/// (1), the name.
pub const PLACE: u32 = both(2, PLACE_BYTES as u32);
/// Bytes of [`IDENTITY`]'s argument.
pub const IDENTITY_BYTES: usize = 32;
/// Asks which file is open, for ever: [`MAGIC`] (8 bytes), zeroes (24); back: device (8), inode
/// (8), time of creation (seconds (8), nanoseconds (8)), all little-endian.
pub const IDENTITY: u32 = both(4, IDENTITY_BYTES as u32);
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
        IDENTITY => {
            let asks = argument.len() == IDENTITY_BYTES && argument[..8] == MAGIC;
            if !asks {
                return Err(Errno(libc::EINVAL));
            }
            identity(&open.file).map(|bytes| bytes.to_vec())
        }
        _ => Err(Errno(libc::ENOTTY)),
    }
}

/// Tells a file in the backing directory from all others, those that have its inode number later
/// among them.
fn identity(file: &File) -> Result<[u8; IDENTITY_BYTES], Errno> {
    let asked = StatxFlags::INO | StatxFlags::BTIME;
    let facts = rustix::fs::statx(file, "", AtFlags::EMPTY_PATH, asked)
        .map_err(|error| Errno(error.raw_os_error()))?;
    let device = u64::from(facts.stx_dev_major) << 32 | u64::from(facts.stx_dev_minor);
    let has_birth = StatxFlags::from_bits_retain(facts.stx_mask).contains(StatxFlags::BTIME);
    let (seconds, nanoseconds) = match has_birth {
        true => (facts.stx_btime.tv_sec as u64, u64::from(facts.stx_btime.tv_nsec)),
        false => (0, 0),
    };
    let words = [device, facts.stx_ino, seconds, nanoseconds];
    let mut bytes = [0; IDENTITY_BYTES];
    for (eight, word) in bytes.chunks_exact_mut(8).zip(words) {
        eight.copy_from_slice(&word.to_le_bytes());
    }
    Ok(bytes)
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
