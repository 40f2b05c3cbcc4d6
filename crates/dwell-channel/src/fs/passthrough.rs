// SPDX-License-Identifier: MIT OR Apache-2.0
//! How reads, writes and mappings of regular files reach the backing file: the kernel carries them
//! out by itself (FUSE passthrough), or asks the daemon for each (direct I/O).

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};

use fuser::BackingId;
use rustix::io::Errno;
use rustix::thread::CapabilitySet;
use serde::{Deserialize, Serialize};

use super::caller::Callers;

/// How reads, writes and mappings of regular files reach the backing file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "path", rename_all = "kebab-case")]
pub enum DataPath {
    /// The kernel carries them out on the backing file (FUSE passthrough).
    Passthrough,
    /// The kernel asks the daemon for each.
    DirectIo {
        /// Why the kernel does not pass them through.
        why: String,
    },
}

/// The data path of a daemon that says nothing of it.
impl Default for DataPath {
    fn default() -> Self {
        direct("the daemon is of an older version")
    }
}

/// Registers a backing file with the kernel.
pub(super) type Register<'a> = &'a dyn Fn(BorrowedFd<'_>) -> io::Result<BackingId>;

/// What the kernel does with one inode by itself.
#[derive(Debug, Default)]
pub(super) struct Backing {
    /// While somebody has it open: all its opens share one id, or the kernel answers EIO.
    id: Mutex<Weak<BackingId>>,
    /// Whether it may write. A mapping may outlive what it was made of, so that never ends.
    writes: AtomicBool,
}

impl Backing {
    /// The kernel is about to write by itself; whether that is new.
    pub fn lets_write(&self) -> bool {
        !self.writes.swap(true, Ordering::AcqRel)
    }

    /// Whether pages that the kernel is given may be old a moment later, without anybody knowing.
    pub fn is_written(&self) -> bool {
        self.writes.load(Ordering::Acquire)
    }
}

/// Whether files of this mount are passed through.
pub(super) struct Passthrough {
    path: RwLock<DataPath>,
    /// The backing file system stands on another itself.
    stacked: bool,
}

/// Numbers of file systems.
const OVERLAY: i64 = 0x794c_7630;
pub(super) const TMPFS: i64 = 0x0102_1994;

/// The number of a directory's file system.
pub(super) fn kind_of(root: impl AsFd) -> Option<i64> {
    Some(rustix::fs::fstatfs(root).ok()?.f_type as i64)
}

/// Whether a file system leaves it to the kernel to check who may do what, and checks nobody who
/// reads and writes what is open. A server of files may not. Those on a block device do, and these,
/// which have none of their own.
fn is_local(kind: i64, root: impl AsFd) -> bool {
    const BCACHEFS: i64 = 0xca45_1a4e;
    const BTRFS: i64 = 0x9123_683e;
    const FUSE: i64 = 0x6573_5546;
    const RAM: i64 = 0x8584_58f6;
    const ZFS: i64 = 0x2fc1_2fc1;
    let on_device = || rustix::fs::fstat(root).is_ok_and(|stat| rustix::fs::major(stat.st_dev) > 0);
    [BCACHEFS, BTRFS, OVERLAY, RAM, TMPFS, ZFS].contains(&kind) || kind != FUSE && on_device()
}

fn direct(why: &str) -> DataPath {
    DataPath::DirectIo { why: why.to_owned() }
}

impl Passthrough {
    /// The state before the kernel is asked: passthrough, or the reason why it is impossible.
    /// `backing` is the directory whose files are served.
    pub fn new(wanted: bool, callers: &Callers, backing: impl AsFd) -> Self {
        let may = rustix::thread::capabilities(None)
            .is_ok_and(|own| own.effective.contains(CapabilitySet::SYS_ADMIN));
        let kind = kind_of(&backing).unwrap_or(0);
        let path = match callers {
            _ if !wanted => direct("switched off (--no-passthrough)"),
            Callers::One { .. } => direct("the daemon is not root's"),
            _ if !may => direct("the daemon has no CAP_SYS_ADMIN"),
            _ if !is_local(kind, &backing) => {
                direct("the backing file system may ask who reads and writes")
            }
            Callers::All { .. } => DataPath::Passthrough,
        };
        Passthrough { path: RwLock::new(path), stacked: kind == OVERLAY }
    }

    /// How it is done at this moment.
    pub fn path(&self) -> DataPath {
        self.path.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn is_on(&self) -> bool {
        *self.path.read().unwrap_or_else(PoisonError::into_inner) == DataPath::Passthrough
    }

    /// File systems that may stand on each other, the mount included. No more than needed: the
    /// kernel allows two, and somebody may want to put an overlay on the mount.
    pub fn stack_depth(&self) -> u32 {
        1 + u32::from(self.stacked)
    }

    /// From now on files are opened for direct I/O.
    pub fn give_up(&self, why: &str) {
        let mut path = self.path.write().unwrap_or_else(PoisonError::into_inner);
        // The first reason is the cause of those that follow.
        if *path == DataPath::Passthrough {
            *path = direct(why);
        }
    }

    /// The id by which the kernel knows a backing file; `None` where it is to ask the daemon.
    ///
    /// The kernel opens the backing file anew for each open of the program, with that open's own
    /// mode and flags, and takes only the path from `file`. Rights of the file system were checked
    /// when the program opened it. The requests then run as whoever registered the file: nobody,
    /// without any capability that a file system heeds. So writes take set-user-id away, and quotas
    /// and the superuser's reserve hold for everybody.
    ///
    /// # Errors
    /// The kernel lacks memory or descriptors.
    pub fn id_of(
        &self,
        backing: &Backing,
        callers: &Callers,
        file: impl AsFd,
        register: Register<'_>,
    ) -> Result<Option<Arc<BackingId>>, Errno> {
        let mut known = backing.id.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(id) = known.upgrade() {
            return Ok(Some(id));
        }
        if !self.is_on() {
            return Ok(None);
        }
        let nobody = callers.become_nobody(CapabilitySet::SYS_ADMIN).map_err(io::Error::from);
        match nobody.and_then(|_acting| register(file.as_fd())) {
            Ok(id) => {
                let id = Arc::new(id);
                *known = Arc::downgrade(&id);
                Ok(Some(id))
            }
            Err(error) => match Errno::from_io_error(&error) {
                Some(short @ (Errno::NOMEM | Errno::NFILE | Errno::MFILE)) => Err(short),
                Some(Errno::PERM) => {
                    self.give_up("the kernel wants CAP_SYS_ADMIN outside of all user namespaces");
                    Ok(None)
                }
                Some(Errno::LOOP) => {
                    self.give_up("the backing file system stands on too many others");
                    Ok(None)
                }
                _ => {
                    self.give_up(&format!("the kernel refuses the backing file: {error}"));
                    Ok(None)
                }
            },
        }
    }
}
