// SPDX-License-Identifier: MIT OR Apache-2.0
//! The flags of files that lsattr and chattr know.
#![allow(unsafe_code)]

use std::os::fd::AsFd;

use rustix::fs::IFlags;
use rustix::io::Errno;
use rustix::ioctl::{Getter, ioctl};

pub(super) const FS_IOC_GETFLAGS: u32 = 0x8008_6601;
pub(super) const FS_IOC_SETFLAGS: u32 = 0x4008_6602;
/// The kernel asks by this what a file has before it sets flags.
pub(super) const FS_IOC_FSGETXATTR: u32 = 0x801c_581f;

pub(super) fn flags_out(file: impl AsFd) -> Result<Vec<u8>, Errno> {
    // The kernel's number says eight bytes and means four.
    Ok(u64::from(rustix::fs::ioctl_getflags(file)?.bits()).to_le_bytes().to_vec())
}

pub(super) fn flags_in(file: impl AsFd, argument: &[u8]) -> Result<Vec<u8>, Errno> {
    let flags = argument.first_chunk::<4>().ok_or(Errno::INVAL)?;
    rustix::fs::ioctl_setflags(file, IFlags::from_bits_retain(u32::from_ne_bytes(*flags)))?;
    Ok(Vec::new())
}

/// Flags, project and sizes of extents.
pub(super) fn extended_out(file: impl AsFd) -> Result<Vec<u8>, Errno> {
    // SAFETY: this command fills a `struct fsxattr` in, which has the size of seven such words.
    let told = unsafe { ioctl(file, Getter::<{ FS_IOC_FSGETXATTR }, [u32; 7]>::new())? };
    Ok(told.iter().flat_map(|word| word.to_ne_bytes()).collect())
}
