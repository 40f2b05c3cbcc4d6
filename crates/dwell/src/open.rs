// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening: paths, and addresses of registered schemes.
#![allow(unsafe_code)]

mod facts;
mod schemes;

use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use dwell_policy::WaitPolicy;
use dwell_policy::policy::Adaptive;
use rustix::fs::OFlags;

use crate::any::AnySource;
use crate::error::{Error, ErrorKind, Result};
use crate::file::File;
use crate::kernel::{Descriptor, Kernel};
use crate::monitor::SystemMonitor;
use crate::parameters::DeviceParameters;
use crate::share::Share;
use facts::Facts;

pub use schemes::{
    EMULATED, MEMORY, Opened, Opener, PathOpener, is_scheme, register, register_paths,
};

/// Choices for opening a [`File`].
///
/// ```
/// use std::sync::Arc;
/// # fn main() -> Result<(), dwell::Error> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data");
/// let file = dwell::File::options()
///     .write(true)
///     .create(true)
///     .policy(Arc::new(dwell::policy::Block))
///     .open(&path)?;
/// file.write_all_at(b"hello", 0)?;
/// file.sync_data()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
#[non_exhaustive]
pub struct Options {
    /// Whether writes are wanted.
    pub write: bool,
    /// Whether a missing file is made.
    pub create: bool,
    /// Whether the file is made, and one that is there already is refused.
    pub create_new: bool,
    /// Whether the page cache is bypassed.
    pub direct: bool,
    /// Whether a write returns only when it is durable.
    pub sync: bool,
    /// The policy.
    pub policy: Arc<dyn WaitPolicy>,
    /// What a probe learned of the device.
    pub parameters: Option<DeviceParameters>,
    /// The system monitor to ask and to tell.
    pub monitor: Option<Arc<SystemMonitor>>,
    /// Whether decisions are only recorded.
    pub shadow: bool,
    /// Which part of the requests is steered; `None` for all.
    pub steer: Option<Share>,
    /// Whether a file without a monitor of its own is connected with the process's.
    shared_monitor: bool,
}

/// Opens `address` for reading: a path, or the address of a scheme (`emu:z-nand`, or one that
/// [`register`] made known).
///
/// The file has the default policy, `adaptive`, and the process's system monitor
/// ([`SystemMonitor::shared`]). The monitor's thread starts with the first file that needs it and
/// ends about a second after the last. What the policy learns of a device, other processes of the
/// user find too.
///
/// The library reads no environment variable, settings file or device profile: only commands and
/// the C library do. [`options`] has a choice for each.
///
/// ```
/// # fn main() -> Result<(), dwell::Error> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data");
/// # std::fs::write(&path, [7u8; 8192]).unwrap();
/// let mut buffer = [0u8; 4096];
/// let bytes = dwell::open(&path)?.read_at(&mut buffer, 4096)?;
/// assert_eq!((bytes, buffer[0]), (4096, 7));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// What the system refuses, with the path; directories, pipes and unknown presets.
pub fn open(address: impl AsRef<Path>) -> Result<File> {
    options().open(address)
}

/// Choices for opening, which begin as those of [`open`].
///
/// ```
/// # fn main() -> Result<(), dwell::Error> {
/// # let dir = tempfile::tempdir().unwrap();
/// # let path = dir.path().join("data");
/// let file = dwell::options().write(true).create_new(true).open(&path)?;
/// file.write_all_at(b"hello", 0)?;
/// file.sync_data()?;
/// # Ok(())
/// # }
/// ```
pub fn options() -> Options {
    Options { shared_monitor: true, ..Options::default() }
}

impl File {
    /// As [`dwell::open`](open).
    ///
    /// # Errors
    /// As [`open`].
    pub fn open(address: impl AsRef<Path>) -> Result<File> {
        open(address)
    }

    /// As [`dwell::options`](options).
    pub fn options() -> Options {
        options()
    }

    /// Takes a file or descriptor that is open already, with the choices of [`open`].
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("data");
    /// # std::fs::write(&path, [7u8; 8192])?;
    /// let file = dwell::File::from_descriptor(std::fs::File::open(&path)?)?;
    /// let mut buffer = [0; 4096];
    /// assert_eq!(file.read_at(&mut buffer, 4096)?, 4096);
    /// assert_eq!(file.path(), path);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Options::open_descriptor`].
    pub fn from_descriptor(descriptor: impl Into<OwnedFd>) -> Result<File> {
        options().open_descriptor(descriptor)
    }
}

impl Default for Options {
    fn default() -> Self {
        Options {
            write: false,
            create: false,
            create_new: false,
            direct: false,
            sync: false,
            policy: Arc::new(Adaptive::default()),
            parameters: None,
            monitor: None,
            shadow: false,
            steer: None,
            shared_monitor: false,
        }
    }
}

impl Options {
    /// Reads through the page cache by `adaptive`, without a profile and without a system monitor:
    /// nothing tells the policy how busy the machine is. [`options`] begins with a monitor.
    pub fn new() -> Self {
        Self::default()
    }

    /// Opens for writing too.
    #[must_use]
    pub fn write(mut self, on: bool) -> Self {
        self.write = on;
        self
    }

    /// Makes the file if it is missing.
    #[must_use]
    pub fn create(mut self, on: bool) -> Self {
        self.create = on;
        self
    }

    /// Makes the file, and refuses one that is there already (`EEXIST`). Files of the kernel only.
    #[must_use]
    pub fn create_new(mut self, on: bool) -> Self {
        self.create_new = on;
        self
    }

    /// Bypasses the page cache.
    #[must_use]
    pub fn direct(mut self, on: bool) -> Self {
        self.direct = on;
        self
    }

    /// Makes each write durable before it returns, as [`File::sync_data`] after it would.
    #[must_use]
    pub fn sync(mut self, on: bool) -> Self {
        self.sync = on;
        self
    }

    /// Chooses the policy.
    #[must_use]
    pub fn policy(mut self, policy: Arc<dyn WaitPolicy>) -> Self {
        self.policy = policy;
        self
    }

    /// Tells what a probe learned of the device.
    #[must_use]
    #[doc(hidden)]
    pub fn parameters(mut self, parameters: DeviceParameters) -> Self {
        self.parameters = Some(parameters);
        self
    }

    /// Connects the file with this system monitor.
    #[must_use]
    pub fn monitor(mut self, monitor: Arc<SystemMonitor>) -> Self {
        self.monitor = Some(monitor);
        self
    }

    /// Decides and records, and has every request go the kernel's own way.
    #[must_use]
    pub fn shadow(mut self, on: bool) -> Self {
        self.shadow = on;
        self
    }

    /// Steers only a part of the requests. The others go the kernel's own way, as `held-back`.
    #[must_use]
    #[doc(hidden)]
    pub fn steer(mut self, share: Share) -> Self {
        self.steer = Some(share);
        self
    }

    /// Opens a path, or an address of a registered scheme.
    ///
    /// # Errors
    /// What the system refuses, with the path; a directory; direct I/O where the file system has
    /// none; what a scheme's opener refuses.
    pub fn open(&self, address: impl AsRef<Path>) -> Result<File> {
        let path = address.as_ref();
        if self.create_new {
            return self.open_new(path);
        }
        if let Some(opened) = self.by_scheme(path).or_else(|| self.by_path(path)) {
            return self.other(opened?, path);
        }
        let (descriptor, facts) = self.descriptor(path)?;
        self.kernel(Descriptor::Own(descriptor), &facts, self.direct, path)
    }

    /// Takes a descriptor that is open already. How it was opened holds: for reading or writing,
    /// buffered or direct. The other choices are these.
    ///
    /// ```
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::sync::Arc;
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("data");
    /// # std::fs::write(&path, b"hello")?;
    /// let opened = std::fs::File::options().write(true).read(true).open(&path)?;
    /// let block = Arc::new(dwell::policy::Block);
    /// let file = dwell::options().policy(block).open_descriptor(opened)?;
    /// file.write_all_at(b"jello", 0)?;
    /// # assert_eq!(std::fs::read(&path)?, b"jello");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// A directory, a pipe, or anything else that is no storage. A descriptor that appends, because
    /// its writes would go to the end instead of their offset. What the system refuses. The
    /// descriptor is closed then.
    pub fn open_descriptor(&self, descriptor: impl Into<OwnedFd>) -> Result<File> {
        let descriptor = descriptor.into();
        let path = path_of(&descriptor);
        self.over_opened(Descriptor::Own(descriptor), &path)
    }

    /// As [`Options::open_descriptor`], over a descriptor that somebody else opened at `path`, and
    /// closes once the file is gone.
    ///
    /// # Errors
    /// As [`Options::open_descriptor`]; a descriptor that is not open.
    pub fn open_borrowed(
        &self,
        descriptor: BorrowedFd<'static>,
        path: impl AsRef<Path>,
    ) -> Result<File> {
        self.over_opened(Descriptor::Lent(descriptor), path.as_ref())
    }

    fn over_opened(&self, descriptor: Descriptor, path: &Path) -> Result<File> {
        let failed = |error| Error::io("open", path, None, error);
        let flags = rustix::fs::fcntl_getfl(&descriptor).map_err(|error| failed(error.into()))?;
        let facts = Facts::of(descriptor.as_fd()).map_err(failed)?;
        facts.check_kind(path)?;
        let refuse = |what| Err(Error::refused(ErrorKind::Unsupported, path, what));
        if flags.contains(OFlags::PATH) {
            return refuse("opened with O_PATH; open it for reading");
        }
        if flags.contains(OFlags::APPEND) {
            return refuse("opened for appending; open it without O_APPEND, so that offsets count");
        }
        self.kernel(descriptor, &facts, flags.contains(OFlags::DIRECT), path)
    }

    /// The file is made before openers of paths see it: none of them could refuse an old one.
    fn open_new(&self, path: &Path) -> Result<File> {
        if is_scheme(path) {
            let what = "create_new is for files of the kernel; use create";
            return Err(Error::refused(ErrorKind::Unsupported, path, what));
        }
        let (descriptor, facts) = self.descriptor(path)?;
        let made = Options { create_new: false, ..self.clone() };
        match made.by_path(path) {
            Some(opened) => made.other(opened?, path),
            None => self.kernel(Descriptor::Own(descriptor), &facts, self.direct, path),
        }
    }

    fn kernel(
        &self,
        descriptor: Descriptor,
        facts: &Facts,
        direct: bool,
        path: &Path,
    ) -> Result<File> {
        let parameters = self.parameters.unwrap_or_default();
        let alignment = if direct { facts.direct_alignment(descriptor.as_fd()) } else { 1 };
        let kernel =
            Kernel::over(descriptor, alignment, parameters.method, direct && parameters.polled);
        let source = AnySource::Kernel(match facts.length() {
            Some(bytes) => kernel.of_length(bytes),
            None => kernel,
        });
        self.over(source, path, &facts.device(), parameters)
    }

    fn other(&self, opened: Opened, path: &Path) -> Result<File> {
        let Opened { source, device, parameters } = opened;
        self.over(AnySource::Other(source), path, &device, self.parameters.unwrap_or(parameters))
    }

    fn over(
        &self,
        source: AnySource,
        path: &Path,
        device: &str,
        parameters: DeviceParameters,
    ) -> Result<File> {
        let (policy, monitor) = (self.policy.clone(), self.monitor_for(path, &parameters)?);
        let file = File::over(source, path, device, parameters, policy, monitor);
        Ok(file.in_shadow(self.shadow).in_part(self.steer))
    }

    /// Where no load can change a decision, nobody needs a monitor.
    fn monitor_for(
        &self,
        path: &Path,
        parameters: &DeviceParameters,
    ) -> Result<Option<Arc<SystemMonitor>>> {
        let needed = || self.policy.always_inline(parameters.profile.as_ref()).is_none();
        if self.monitor.is_some() || !self.shared_monitor || !needed() {
            return Ok(self.monitor.clone());
        }
        let started = SystemMonitor::shared();
        let failed = |error| Error::io("start the system monitor for", path, None, error);
        started.map(Some).map_err(failed)
    }

    fn descriptor(&self, path: &Path) -> Result<(OwnedFd, Facts)> {
        let name = CString::new(path.as_os_str().as_bytes())
            .map_err(|_| Error::invalid(path, "a path cannot contain a zero byte"))?;
        let mut flags = libc::O_CLOEXEC;
        flags |= if self.write { libc::O_RDWR } else { libc::O_RDONLY };
        flags |= if self.create { libc::O_CREAT } else { 0 };
        flags |= if self.create_new { libc::O_CREAT | libc::O_EXCL } else { 0 };
        flags |= if self.direct { libc::O_DIRECT } else { 0 };
        flags |= if self.sync { libc::O_DSYNC } else { 0 };
        // Opening a pipe would wait for its other end; it is refused below.
        let fd = loop {
            // SAFETY: a zero-terminated path and a mode, as O_CREAT wants.
            let fd = unsafe { libc::open(name.as_ptr(), flags | libc::O_NONBLOCK, 0o666) };
            // A file system that asks a server can be interrupted meanwhile.
            if fd >= 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                break fd;
            }
        };
        if fd < 0 {
            let error = std::io::Error::last_os_error();
            if self.direct && error.raw_os_error() == Some(libc::EINVAL) {
                let none = "this file system has no direct I/O; open the file buffered";
                let (kind, what) = match path.is_dir() {
                    true => (ErrorKind::NotStorage, facts::DIRECTORY),
                    false => (ErrorKind::Unsupported, none),
                };
                return Err(Error::refused(kind, path, what));
            }
            return Err(Error::io("open", path, None, error));
        }
        // SAFETY: a descriptor that was just opened and belongs to nobody else.
        let descriptor = unsafe { OwnedFd::from_raw_fd(fd) };
        let facts =
            Facts::of(descriptor.as_fd()).map_err(|error| Error::io("stat", path, None, error))?;
        facts.check_kind(path)?;
        // A ring would refuse what it cannot serve at once instead of waiting for it.
        // SAFETY: an open descriptor and the flags that it was opened with.
        match unsafe { libc::fcntl(fd, libc::F_SETFL, flags) } {
            0 => Ok((descriptor, facts)),
            _ => Err(Error::io("open", path, None, std::io::Error::last_os_error())),
        }
    }
}

/// The path by which an open descriptor is known, or its number.
fn path_of(descriptor: &OwnedFd) -> PathBuf {
    let number = descriptor.as_raw_fd();
    let link = std::fs::read_link(format!("/proc/self/fd/{number}"));
    link.unwrap_or_else(|_| format!("descriptor {number}").into())
}
