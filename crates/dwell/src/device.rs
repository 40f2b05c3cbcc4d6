// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which device lies beneath a path, and what the kernel tells of it.
//!
//! ```no_run
//! # use dwell::device::Device;
//! let device = Device::beneath("/var/lib/data.db".as_ref())?;
//! println!("{}: {device}", device.id);
//! # Ok::<(), dwell::device::DeviceError>(())
//! ```

mod attribute;
mod identity;
mod interrupts;
mod place;
mod queue;
mod statfs;
mod sysfs;
#[cfg(test)]
mod tests;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use dwell_policy::Ns;

use crate::clock;
use crate::fork::OfProcess;

#[doc(hidden)]
pub use interrupts::IrqName;
pub(crate) use queue::DiskQueue;
#[doc(hidden)]
pub use sysfs::Sysfs;

use place::{FilesIn, Locate, Machine, Mount, Place};

/// How many devices may lie on top of each other before the search gives up.
const DEEPEST: u32 = 16;

/// A storage device, or what stands for one beneath a path.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
pub struct Device {
    /// Identity that survives a reboot and a change of kernel name, such as
    /// `nvme:Samsung_SSD_980:S649NX0R:n1`, `virtio:pci-0000:00:02.0` or `loop:tmpfs`.
    pub id: String,
    /// Name the kernel gave it (`vda`), or the file system's type where no block device is known.
    pub kernel_name: String,
    /// What drives it.
    pub kind: DeviceKind,
    /// Device number: of the block device, or of the file system where no block device is known.
    pub dev_t: u64,
    /// Model, as the device reports it.
    pub model: Option<String>,
    /// Capacity in bytes; of the file system where no block device is known; 0 when unlimited.
    pub size_bytes: u64,
    /// Smallest unit of direct I/O, in bytes.
    pub logical_block_bytes: u32,
    /// Active I/O scheduler; `none` also where there is no request queue at all.
    pub scheduler: String,
    /// Whether the block layer offers polled completions (`queue/io_poll`).
    pub io_poll: bool,
    /// Whether the kernel takes it for a rotating disk.
    pub rotational: bool,
    /// Whether it can be mapped directly (`queue/dax`).
    pub dax: bool,
    /// Whether writes are refused.
    pub read_only: bool,
    /// Partition number, when it is a partition.
    pub partition: Option<u32>,
    /// Whether a kernel thread carries its requests out, so that they cost CPU time elsewhere.
    pub kernel_worker: bool,
    /// Type of the file system that holds the path; `None` when the path is the device itself.
    pub filesystem: Option<String>,
    /// Names in `/proc/interrupts` that count its completions; empty when none does.
    pub irqs: Vec<IrqName>,
    /// What it is made of: a loop's backing store, a mapping's or an array's members, a
    /// partition's whole disk.
    pub beneath: Vec<Device>,
}

/// What drives a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[cfg_attr(feature = "serde", serde(rename_all = "kebab-case"))]
#[non_exhaustive]
pub enum DeviceKind {
    /// NVMe namespace, local or over a fabric.
    Nvme,
    /// virtio-blk disk.
    Virtio,
    /// SCSI, SATA or USB disk.
    Scsi,
    /// Loop device: a file served as a disk by a kernel worker.
    Loop,
    /// Compressed memory.
    Zram,
    /// Memory (brd).
    Ram,
    /// Persistent memory.
    Pmem,
    /// The kernel's null block driver.
    NullBlk,
    /// Device mapper: LVM, dm-crypt, multipath.
    Dm,
    /// Software RAID.
    Md,
    /// Files kept in the page cache: tmpfs, ramfs.
    Tmpfs,
    /// A block driver or a file system without one block device of which no more is known.
    Other,
}

impl DeviceKind {
    /// The word used in tables and profiles.
    pub const fn as_str(self) -> &'static str {
        match self {
            DeviceKind::Nvme => "nvme",
            DeviceKind::Virtio => "virtio",
            DeviceKind::Scsi => "scsi",
            DeviceKind::Loop => "loop",
            DeviceKind::Zram => "zram",
            DeviceKind::Ram => "ram",
            DeviceKind::Pmem => "pmem",
            DeviceKind::NullBlk => "null-blk",
            DeviceKind::Dm => "dm",
            DeviceKind::Md => "md",
            DeviceKind::Tmpfs => "tmpfs",
            DeviceKind::Other => "other",
        }
    }
}

impl fmt::Display for DeviceKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Why no device was found beneath a path.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DeviceError {
    /// Nothing has that name.
    #[error(
        "{path}: no such file or device; name an existing file, or a block device such as /dev/nvme0n1"
    )]
    Missing {
        /// The path asked for.
        path: PathBuf,
    },
    /// It cannot be looked at.
    #[error("{path}: {error}; check that you may search the directories that lead to it")]
    Unreachable {
        /// The path asked for.
        path: PathBuf,
        /// What the kernel said.
        error: io::Error,
    },
    /// It holds no data that could be read in requests.
    #[error("{path}: is a {what}; {remedy}")]
    NotStorage {
        /// The path asked for.
        path: PathBuf,
        /// Directory, character device, socket or pipe.
        what: &'static str,
        /// What to name instead.
        remedy: &'static str,
    },
    /// A block device node that no driver answers for.
    #[error(
        "{path}: block device {major}:{minor} is unknown to {sysfs}; attach the device or load its driver"
    )]
    Unknown {
        /// The path asked for.
        path: PathBuf,
        /// Major device number.
        major: u32,
        /// Minor device number.
        minor: u32,
        /// Where sysfs was looked for.
        sysfs: PathBuf,
    },
    /// A block device without capacity: a free loop device, an empty drive.
    #[error(
        "{path}: {kernel_name} holds 0 bytes; attach a file or a medium to it first (losetup, zramctl)"
    )]
    Empty {
        /// The path asked for.
        path: PathBuf,
        /// Name the kernel gave the device.
        kernel_name: String,
    },
    /// sysfs said something that is no number.
    #[error("{file}: expected a number, found {found:?}; report this kernel's attribute")]
    Attribute {
        /// The attribute's file.
        file: PathBuf,
        /// Its content.
        found: String,
    },
}

impl Device {
    /// The device beneath a regular file or a block device.
    ///
    /// A file system that spreads over no single block device (btrfs, overlay, a network or FUSE
    /// file system) gives [`DeviceKind::Other`] under its own name, with what is known of the
    /// devices below in [`Device::beneath`](field@Device::beneath).
    pub fn beneath(path: &Path) -> Result<Device, DeviceError> {
        beneath(path, &Sysfs::default(), &Machine)
    }

    /// The device beneath the regular files of a directory.
    pub fn beneath_files_in(directory: &Path) -> Result<Device, DeviceError> {
        beneath(directory, &Sysfs::default(), &FilesIn)
    }

    /// All whole block devices that hold something, by kernel name. One whose attributes cannot
    /// be read is left out.
    pub fn all() -> Vec<Device> {
        let sysfs = Sysfs::default();
        let found = |name: String| sysfs.disk(&name, &Machine, DEEPEST).ok();
        sysfs.disks().into_iter().filter_map(found).filter(|disk| disk.size_bytes > 0).collect()
    }

    /// The device whose profile speaks for this one: a partition's whole disk, otherwise itself.
    pub fn whole(&self) -> &Device {
        match (self.partition, self.beneath.first()) {
            (Some(_), Some(disk)) => disk,
            _ => self,
        }
    }

    /// Completions that interrupted a CPU so far, over all CPUs; `None` when nothing counts them.
    ///
    /// The kernel counts in 32 bits a CPU: take differences over short spans.
    pub fn interrupts(&self) -> Option<u64> {
        interrupts::count(&std::fs::read_to_string("/proc/interrupts").ok()?, &self.irqs)
    }
}

impl Device {
    /// Whether it is a block device, rather than a file system that stands for one.
    pub fn is_block(&self) -> bool {
        let stands_for_one = self.filesystem.as_deref() == Some(&*self.kernel_name);
        self.kind != DeviceKind::Tmpfs && !(self.kind == DeviceKind::Other && stands_for_one)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Device { kernel_name, kind, filesystem, .. } = self;
        write!(f, "{kernel_name}")?;
        match (kind, filesystem) {
            (DeviceKind::Tmpfs, _) => write!(f, ", page cache only")?,
            (DeviceKind::Other, _) if !self.is_block() => {
                write!(f, ", a file system without one block device of its own")?;
            }
            (_, Some(fs)) => write!(f, " ({kind}) beneath {fs}")?,
            (_, None) => write!(f, " ({kind})")?,
        }
        if let Some(model) = &self.model {
            write!(f, ", {model}")?;
        }
        for (i, below) in self.beneath.iter().enumerate() {
            write!(f, "{}{below}", if i == 0 { ", on " } else { " and " })?;
        }
        Ok(())
    }
}

/// Whether a kernel thread may have to carry out the requests of the disk of this number
/// (`major:minor`), or of what has none. That none does is certain only of local NVMe and virtio.
pub(crate) fn may_need_worker(number: &str) -> bool {
    /// Another disk may get the number, but hardly within this.
    const KNOWN_FOR: Ns = 1_000_000_000;
    static KNOWN: OfProcess<Vec<(String, Ns, bool)>> = OfProcess::new();
    let mut known = KNOWN.lock();
    let now = clock::now();
    known.retain(|(_, at, _)| now - at < KNOWN_FOR);
    if let Some((_, _, may)) = known.iter().find(|(of, ..)| of == number) {
        return *may;
    }
    let may = Sysfs::default().may_need_worker(number);
    known.push((number.to_owned(), now, may));
    may
}

/// [`Device::beneath`] on a machine that a test may have made up.
fn beneath(path: &Path, sysfs: &Sysfs, places: &dyn Locate) -> Result<Device, DeviceError> {
    match places.locate(path)? {
        Place::Block { dev_t } => {
            let device = sysfs.block(dev_t, path, places, DEEPEST)?;
            if device.size_bytes == 0 {
                let kernel_name = device.kernel_name;
                return Err(DeviceError::Empty { path: path.to_owned(), kernel_name });
            }
            Ok(device)
        }
        Place::File(mount) => beneath_file(path, &mount, sysfs, places, DEEPEST),
    }
}

/// What holds a file on a mounted file system.
fn beneath_file(
    path: &Path,
    mount: &Mount,
    sysfs: &Sysfs,
    places: &dyn Locate,
    depth: u32,
) -> Result<Device, DeviceError> {
    let mut device = match mount.fs.as_str() {
        "tmpfs" | "ramfs" | "devtmpfs" | "rootfs" => without_block(mount, DeviceKind::Tmpfs),
        // fuseblk shows a block device, yet a process answers.
        fs if !fs.starts_with("fuse") && sysfs.has(mount.dev_t) => {
            sysfs.block(mount.dev_t, path, places, depth)?
        }
        _ => {
            let mut device = without_block(mount, DeviceKind::Other);
            if depth > 0
                && mount.source.starts_with('/')
                && let Ok(Place::Block { dev_t }) = places.locate(Path::new(&mount.source))
                && let Ok(below) = sysfs.block(dev_t, path, places, depth - 1)
            {
                device.id = format!("{}:{}", mount.fs, below.whole().id);
                device.beneath.push(below);
            }
            device
        }
    };
    device.filesystem = Some(mount.fs.clone());
    Ok(device)
}

/// A file system that stands for a device.
fn without_block(mount: &Mount, kind: DeviceKind) -> Device {
    Device {
        id: match kind {
            DeviceKind::Tmpfs => "tmpfs".into(),
            _ => format!("{}:{}", mount.fs, identity::tidy(&mount.source)),
        },
        kernel_name: mount.fs.clone(),
        kind,
        dev_t: mount.dev_t,
        model: None,
        size_bytes: mount.size_bytes,
        logical_block_bytes: 1,
        scheduler: "none".into(),
        io_poll: false,
        rotational: false,
        dax: false,
        read_only: mount.read_only,
        partition: None,
        kernel_worker: false,
        filesystem: None,
        irqs: Vec::new(),
        beneath: Vec::new(),
    }
}
