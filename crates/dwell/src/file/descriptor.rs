// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file as the system sees it: its descriptor, its metadata, its length.

use std::fmt;
use std::fs::Metadata;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use crate::any::AnySource;
use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::kernel::Kernel;
use crate::source::Source;

impl File {
    /// Its descriptor, where the kernel serves it; `None` for addresses of other schemes. A file
    /// that is always the kernel's, `File<Kernel>`, is [`AsFd`] and [`AsRawFd`] too.
    ///
    /// ```
    /// # fn main() -> Result<(), dwell::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("data");
    /// # std::fs::write(&path, b"hello").unwrap();
    /// assert!(dwell::open(&path)?.descriptor().is_some());
    /// assert!(dwell::open("emu:z-nand")?.descriptor().is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match &self.source {
            AnySource::Kernel(kernel) => Some(kernel.as_fd()),
            AnySource::Other(_) => None,
        }
    }

    fn kernel(&self, action: &str) -> Result<&Kernel> {
        match &self.source {
            AnySource::Kernel(kernel) => Ok(kernel),
            AnySource::Other(_) => {
                let what = format!("{action} is for files of the kernel; this address is not one");
                Err(Error::refused(ErrorKind::Unsupported, self.path(), what))
            }
        }
    }

    /// What the system says of the file: length in bytes, owner, times. [`File::bytes`] has the
    /// length of addresses and devices too.
    ///
    /// # Errors
    /// What the system refuses; an address that is no file of the kernel.
    pub fn metadata(&self) -> Result<Metadata> {
        let found = self.kernel("metadata")?.metadata();
        found.map_err(|error| Error::io("stat", self.path(), None, error))
    }

    /// Makes the file `bytes` bytes long: cuts off what is behind, or appends zeros.
    ///
    /// ```
    /// # fn main() -> Result<(), dwell::Error> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let path = dir.path().join("data");
    /// let file = dwell::options().write(true).create_new(true).open(&path)?;
    /// file.set_len(5000)?;
    /// assert_eq!((file.bytes()?, file.metadata()?.len()), (5000, 5000));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// What the system refuses, as for a block device or a file that was opened for reading; an
    /// address that is no file of the kernel.
    pub fn set_len(&self, bytes: u64) -> Result<()> {
        self.reachable(bytes)?;
        let set = self.kernel("set_len")?.set_length(bytes);
        set.map_err(|error| Error::io("truncate", self.path(), Some(bytes), error))
    }
}

impl TryFrom<std::fs::File> for File {
    type Error = Error;

    /// As [`File::from_descriptor`].
    fn try_from(file: std::fs::File) -> Result<File> {
        File::from_descriptor(file)
    }
}

impl TryFrom<OwnedFd> for File {
    type Error = Error;

    /// As [`File::from_descriptor`].
    fn try_from(descriptor: OwnedFd) -> Result<File> {
        File::from_descriptor(descriptor)
    }
}

impl<S: Source + AsFd> AsFd for File<S>
where
    S::Queue: Send,
{
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.source.as_fd()
    }
}

impl<S: Source + AsFd> AsRawFd for File<S>
where
    S::Queue: Send,
{
    fn as_raw_fd(&self) -> RawFd {
        self.source.as_fd().as_raw_fd()
    }
}

impl<S: Source> fmt::Debug for File<S>
where
    S::Queue: Send,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("path", &self.path)
            .field("device", &self.device)
            .field("policy", &self.policy.name())
            .field("alignment", &self.source.alignment())
            .finish_non_exhaustive()
    }
}
