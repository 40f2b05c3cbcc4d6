// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file under a served mount that can be opened again under the same number.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::ask::{self, Identity};

/// What a file and its queues share.
#[derive(Debug)]
pub(super) struct Inner {
    /// The number is this file's until nobody can make a request on it any more: queues hold this
    /// too.
    pub file: File,
    /// Where it was opened, whatever the current directory is later.
    pub path: PathBuf,
    pub identity: Identity,
    pub place: Vec<u8>,
    pub flags: i32,
    pub write: bool,
}

impl Inner {
    /// Opens the file again under the same descriptor when its mount has come back: what was open
    /// of the old one never comes back.
    ///
    /// # Errors
    /// ESTALE where another file, or none, lies where it was; what else the system says.
    pub fn reopen(&self) -> io::Result<()> {
        // The kernel says where the file is now: it may have another name since. For a mount that
        // was taken out of the way the path is wrong, and the check of the file found there shows
        // it.
        let link = format!("/proc/self/fd/{}", self.file.as_raw_fd());
        let places = [std::fs::read_link(link).ok(), Some(self.path.clone())];
        let fresh = places.into_iter().flatten().find_map(|path| self.again(&path).ok());
        let fresh = fresh.ok_or_else(|| io::Error::from_raw_os_error(libc::ESTALE))?;
        // SAFETY: both are open; the number stays so throughout, whatever other threads do with it
        // now.
        let rc = unsafe { libc::dup3(fresh.as_raw_fd(), self.file.as_raw_fd(), libc::O_CLOEXEC) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// The same file, opened again by a path where it may lie.
    fn again(&self, path: &Path) -> io::Result<File> {
        // What lies there may be a pipe by now, or a device: looking at it must neither block nor
        // change it.
        let found = File::options().read(true).custom_flags(libc::O_PATH).open(path)?;
        if !found.metadata()?.is_file() {
            return Err(io::Error::from_raw_os_error(libc::ESTALE));
        }
        let fresh = File::options()
            .read(true)
            .write(self.write)
            .custom_flags(self.flags)
            .open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
        ask::place(fresh.as_raw_fd())?;
        match ask::identity(fresh.as_raw_fd())? == self.identity {
            true => Ok(fresh),
            false => Err(io::Error::from_raw_os_error(libc::ESTALE)),
        }
    }
}
