// SPDX-License-Identifier: MIT OR Apache-2.0
//! A page that processes share by naming the same file, and which of them live.
//!
//! Each has a number, which is a lock of the kernel's on one byte of the file. The lock ends with
//! the process, however it ends. A process id would not do: processes in other PID namespaces have
//! other ids.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use dwell::fork::ForkMark;
use dwell::{Error, Result};

use crate::memory::{Area, PAGE_BYTES};

/// Processes that share one file, and more.
const MOST: u32 = 4096;
/// Where a file says what it is: at the end of its page.
pub(crate) const MARK_AT: usize = PAGE_BYTES - 8;

/// The processes that share a file, seen from one of them.
pub(crate) struct Peers {
    file: File,
    number: u32,
    /// The mapping keeps the open file that has the lock, which forked children do not inherit.
    held: Area,
    mark: ForkMark,
}

impl Peers {
    /// The page of a file, which is made where it is missing. `mark` says what it is: another file
    /// is refused as no `what`. Bytes before the mark are the caller's, 0 at the beginning.
    ///
    /// # Errors
    /// What the system says of the file; a file that is something else.
    pub fn open(path: &Path, what: &str, mark: [u8; 8]) -> Result<(Area, Peers)> {
        let failed = |error| Error::io("opening", path, None, error);
        let mut options = File::options();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path).map_err(failed)?;
        let told = file.metadata().map_err(failed)?;
        if told.is_file() && told.len() == 0 {
            // Of several processes that come to this at once, each writes the same.
            file.write_all_at(&mark, MARK_AT as u64).map_err(failed)?;
        }
        let mut found = [0; 8];
        let is_ours = told.is_file()
            && file.metadata().is_ok_and(|told| told.len() == PAGE_BYTES as u64)
            && file.read_exact_at(&mut found, MARK_AT as u64).is_ok()
            && found == mark;
        if !is_ours {
            let what = format!("is no {what} of this version of Dwell; name another file");
            return Err(Error::invalid(path, what));
        }
        let area = Area::of_file(file.as_raw_fd(), PAGE_BYTES, true, true).map_err(failed)?;
        let mark = ForkMark::new().map_err(failed)?;
        let (number, held) = numbered(&file).map_err(failed)?;
        Ok((area, Peers { file, number, held, mark }))
    }

    /// The number of this one. Whatever the page says of that number from before is of somebody who
    /// lives no more.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Whether the process of a number lives.
    pub fn is_alive(&self, number: u32) -> bool {
        // Where the kernel does not say, nobody is taken for dead.
        asked(&self.file, libc::F_OFD_GETLK, number)
            .map_or(true, |lock| i32::from(lock.l_type) != libc::F_UNLCK)
    }
}

impl Drop for Peers {
    fn drop(&mut self) {
        if !self.mark.same_process() {
            self.held.forget();
        }
    }
}

/// The first number that nobody has, and what holds it.
fn numbered(file: &File) -> io::Result<(u32, Area)> {
    // A lock is an open file's.
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let own = File::options().read(true).write(true).open(path)?;
    for number in 1..=MOST {
        match asked(&own, libc::F_OFD_SETLK, number) {
            Ok(_) => {
                let held = Area::of_file(own.as_raw_fd(), PAGE_BYTES, false, true)?;
                held.advise_range(0, 1, libc::MADV_DONTFORK)?;
                return Ok((number, held));
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::Error::from_raw_os_error(libc::ENOLCK))
}

/// What the kernel answers to a command on the lock of a number.
fn asked(file: &File, command: libc::c_int, number: u32) -> io::Result<libc::flock> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: number.into(),
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: an open file, a command on locks and the live structure that it takes.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &mut lock) } {
        0 => Ok(lock),
        _ => Err(io::Error::last_os_error()),
    }
}
