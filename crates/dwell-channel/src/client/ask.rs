// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a client asks the daemon through a descriptor: the kernel passes the question to whoever
//! serves the file, and vouches for who asks.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

use crate::grants::ioctl::{
    GRANT, GRANT_BYTES, IDENTITY, IDENTITY_BYTES, IN_MEMORY, MAGIC, PLACE, PLACE_BYTES,
};
use crate::grants::{GrantReply, Token};

/// What was granted.
pub type Granted = GrantReply;

/// Asks for a grant in the kernel's place.
pub type Asker = Arc<dyn Fn(RawFd, &Token) -> io::Result<Granted> + Send + Sync>;

/// The route of a question to the daemon that serves the file.
#[derive(Clone, Default)]
pub(crate) enum DaemonRoute {
    /// The kernel, through the descriptor.
    #[default]
    Kernel,
    /// A daemon in this process, for files that are not mounted anywhere.
    Direct(Vec<u8>, Asker),
}

impl DaemonRoute {
    pub fn place(&self, descriptor: RawFd) -> io::Result<Vec<u8>> {
        match self {
            DaemonRoute::Kernel => place(descriptor),
            DaemonRoute::Direct(place, _) => Ok(place.clone()),
        }
    }

    pub fn grant(&self, descriptor: RawFd, token: &Token) -> io::Result<Granted> {
        match self {
            DaemonRoute::Kernel => grant(descriptor, token),
            DaemonRoute::Direct(_, ask) => ask(descriptor, token),
        }
    }
}

impl std::fmt::Debug for DaemonRoute {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if matches!(self, DaemonRoute::Kernel) { "Kernel" } else { "Direct" })
    }
}

/// What statfs says of a FUSE mount.
pub(crate) const FUSE: i64 = 0x6573_5546;

/// The name of the socket of the daemon that serves this file.
///
/// # Errors
/// ENOTTY where no daemon serves it; ENOTCONN where it is gone; what else the system says.
pub fn place(descriptor: RawFd) -> io::Result<Vec<u8>> {
    // Other file systems have ioctls of their own, under whatever numbers: only FUSE is asked.
    // SAFETY: zero bytes are a valid buffer.
    let mut facts: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: a live buffer.
    if unsafe { libc::fstatfs(descriptor, &mut facts) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if facts.f_type as i64 != FUSE {
        return Err(io::Error::from_raw_os_error(libc::ENOTTY));
    }
    let mut argument = [0u8; PLACE_BYTES];
    argument[..8].copy_from_slice(&MAGIC);
    ask(descriptor, PLACE, &mut argument)?;
    let length = usize::from(argument[8]);
    let name = argument.get(9..9 + length).filter(|name| !name.is_empty());
    match name {
        Some(name) if argument[..8] == MAGIC => Ok(name.to_vec()),
        _ => Err(io::Error::from_raw_os_error(libc::ENOTTY)),
    }
}

/// Which file is open, whatever its path: compared, not read.
pub(crate) type Identity = [u8; IDENTITY_BYTES];

/// Which file a descriptor of a served mount is open on.
///
/// # Errors
/// What the system says; ENOTTY of a daemon that knows no such question.
pub(crate) fn identity(descriptor: RawFd) -> io::Result<Identity> {
    let mut argument = [0u8; IDENTITY_BYTES];
    argument[..8].copy_from_slice(&MAGIC);
    ask(descriptor, IDENTITY, &mut argument)?;
    Ok(argument)
}

/// Asks for this open file to be granted to the channel of that token.
///
/// # Errors
/// EBUSY where the file has to be asked through the kernel for now; ENXIO where the daemon does not
/// know the channel; what else the system says.
pub fn grant(descriptor: RawFd, token: &Token) -> io::Result<Granted> {
    let mut argument = [0u8; GRANT_BYTES];
    argument[..16].copy_from_slice(token);
    ask(descriptor, GRANT, &mut argument)?;
    let four = |at: usize| u32::from_le_bytes(std::array::from_fn(|byte| argument[at + byte]));
    let eight = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| argument[at + byte]));
    let (open, entry, generation, bytes) = (eight(0), four(8), four(12), eight(16));
    Ok(GrantReply { open, entry, generation, bytes, in_memory: four(24) & IN_MEMORY != 0 })
}

/// A bare system call: nothing that stands in place of the C library's function sees it.
fn ask<const N: usize>(descriptor: RawFd, request: u32, argument: &mut [u8; N]) -> io::Result<()> {
    // SAFETY: the request's number says that it reads and writes N bytes there.
    let rc = unsafe { libc::syscall(libc::SYS_ioctl, descriptor, request, argument.as_mut_ptr()) };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
