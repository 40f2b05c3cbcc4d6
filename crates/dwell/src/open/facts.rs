// SPDX-License-Identifier: MIT OR Apache-2.0
//! The facts of an open descriptor: its kind, length, device and alignment.
#![allow(unsafe_code)]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;

use crate::error::{Error, ErrorKind, Result};

/// What the system says of an open descriptor, in one call.
pub(super) struct Facts(libc::statx);

/// Said of a directory.
pub const DIRECTORY: &str = "a directory; name a file or a block device in it";

impl Facts {
    pub fn of(descriptor: BorrowedFd<'_>) -> std::io::Result<Self> {
        // SAFETY: a zeroed statx is a valid buffer.
        let mut facts: libc::statx = unsafe { std::mem::zeroed() };
        // SAFETY: an open descriptor, an empty path and a live buffer.
        let rc = unsafe {
            libc::statx(
                descriptor.as_raw_fd(),
                c"".as_ptr(),
                libc::AT_EMPTY_PATH,
                libc::STATX_TYPE | libc::STATX_SIZE | libc::STATX_DIOALIGN,
                &mut facts,
            )
        };
        if rc == 0 { Ok(Facts(facts)) } else { Err(std::io::Error::last_os_error()) }
    }

    fn kind(&self) -> libc::mode_t {
        libc::mode_t::from(self.0.stx_mode) & libc::S_IFMT
    }

    /// Refuses what is neither a regular file nor a block device.
    pub fn check_kind(&self, path: &Path) -> Result<()> {
        let what = match self.kind() {
            libc::S_IFREG | libc::S_IFBLK => return Ok(()),
            libc::S_IFDIR => DIRECTORY,
            _ => "neither a regular file nor a block device",
        };
        Err(Error::refused(ErrorKind::NotStorage, path, what))
    }

    /// Length of a regular file, in bytes.
    pub fn length(&self) -> Option<u64> {
        (self.kind() == libc::S_IFREG).then_some(self.0.stx_size)
    }

    /// Tells the device that is open, or that the file is on, apart from others.
    pub fn device(&self) -> String {
        match self.kind() {
            libc::S_IFBLK => format!("{}:{}", self.0.stx_rdev_major, self.0.stx_rdev_minor),
            _ => format!("{}:{}", self.0.stx_dev_major, self.0.stx_dev_minor),
        }
    }

    /// What direct I/O demands of memory, offset and length, in bytes.
    pub fn direct_alignment(&self, descriptor: BorrowedFd<'_>) -> u32 {
        let told = self.0.stx_dio_mem_align.max(self.0.stx_dio_offset_align);
        if self.0.stx_mask & libc::STATX_DIOALIGN != 0 && told.is_power_of_two() {
            return told;
        }
        const BLKSSZGET: libc::Ioctl = 0x1268;
        let mut block_bytes: libc::c_int = 0;
        // SAFETY: BLKSSZGET writes one int; anything but a block device refuses.
        let rc = unsafe { libc::ioctl(descriptor.as_raw_fd(), BLKSSZGET, &mut block_bytes) };
        if rc == 0 && block_bytes > 0 { block_bytes as u32 } else { 512 }
    }
}
