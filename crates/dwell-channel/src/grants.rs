// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the file system server and the channels share: open files, their inodes, and the grants
//! that let a channel reach them.

pub mod ioctl;
mod memory;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use self::memory::Memory;
use crate::credentials::Opener;
use crate::file_mapping::FileMapping;
use crate::shares::Share;

/// An error number, as the kernel passes it to a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl From<Errno> for io::Error {
    fn from(error: Errno) -> Self {
        io::Error::from_raw_os_error(error.0)
    }
}

/// Names a channel: random, told to its client alone.
pub type Token = [u8; 16];

/// What an open file was opened for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// It may be read.
    pub read: bool,
    /// It may be written.
    pub write: bool,
    /// Every write goes to the end: such writes are the kernel's to order, and no channel makes
    /// them.
    pub append: bool,
}

impl Rights {
    /// The rights that the flags of an open(2) ask for.
    pub fn of_flags(flags: i32) -> Rights {
        let mode = flags & libc::O_ACCMODE;
        Rights {
            read: mode == libc::O_RDONLY || mode == libc::O_RDWR,
            write: mode == libc::O_WRONLY || mode == libc::O_RDWR,
            append: flags & libc::O_APPEND != 0,
        }
    }
}

/// One open file of a served mount: what one open(2) of a program made.
#[derive(Debug)]
pub struct OpenFile {
    /// The file in the backing directory, opened with at least the rights below.
    pub file: File,
    /// What the program may do with it.
    pub rights: Rights,
    /// The flags that the program opened it with.
    pub flags: i32,
    /// The file it is open on.
    pub inode: Arc<Inode>,
    /// The user who opened it: writes of channels are made as that user.
    pub opener: Opener,
    id: u64,
    /// The file once more, past the page cache, for all channels that are granted it.
    pub(crate) direct: OnceLock<Option<(Arc<File>, u32)>>,
    /// The opener's part of the files that users may have open.
    share: Option<Share>,
    /// Whether any channel was ever granted it.
    pub(crate) granted: AtomicBool,
}

impl OpenFile {
    /// An open file with a number of its own.
    pub fn new(file: File, flags: i32, inode: Arc<Inode>) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        OpenFile {
            file,
            rights: Rights::of_flags(flags),
            flags,
            inode,
            opener: Opener::itself(),
            id,
            direct: OnceLock::new(),
            share: None,
            granted: AtomicBool::new(false),
        }
    }

    /// The same, opened by that user.
    #[must_use]
    pub fn opened_by(mut self, opener: Opener) -> Self {
        self.opener = opener;
        self
    }

    /// Counts as this part of the files that users may have open.
    #[must_use]
    pub(crate) fn counted(mut self, share: Share) -> Self {
        self.share = Some(share);
        self
    }

    /// A number that no other open file of this daemon ever has.
    pub fn id(&self) -> u64 {
        self.id
    }
}

/// Why channels are kept off a file for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// It becomes shorter, or loses blocks: a truncate, a hole, a collapsed or zeroed range.
    Shorten,
    /// Its last name goes.
    Unlink,
    /// Its owner, mode or times change.
    Attributes,
    /// It is mapped into memory: from now on until nobody has it open, the kernel alone serves it.
    Map,
}

/// A file in the backing directory. All open files on it share one.
#[derive(Debug)]
pub struct Inode {
    device: u64,
    number: u64,
    state: Mutex<State>,
    quiet: Condvar,
    /// How channels see it, while any does.
    mapping: Mutex<(u64, Weak<FileMapping>)>,
    /// When a channel last wrote to it without the file system's knowledge, in nanoseconds since
    /// 1970; 0 for never since its times were set.
    written_ns: AtomicU64,
    /// Held while its times are set for that.
    stamping: Mutex<()>,
    memory: Memory,
}

/// Whether channels may reach a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reach {
    Free,
    Held,
    Mapped,
}

#[derive(Debug, Default)]
struct State {
    /// Commands of channels that were taken up and are not over.
    in_flight: u64,
    /// Guards that keep new ones off.
    held: u32,
    mapped: bool,
    /// Whether any channel was ever granted it.
    granted: bool,
    /// How often it was held: what was found out before is not true any more.
    epoch: u64,
}

impl Inode {
    /// Device and number in the backing file system.
    pub fn key(&self) -> (u64, u64) {
        (self.device, self.number)
    }

    /// A command is taken up.
    pub(crate) fn enter(&self) {
        self.state().in_flight += 1;
    }

    /// A command is over.
    pub(crate) fn leave(&self) {
        let mut state = self.state();
        state.in_flight -= 1;
        if state.in_flight == 0 && state.held > 0 {
            self.quiet.notify_all();
        }
    }

    /// Keeps new grants off until it is let go; whether there can be any to take back.
    pub(crate) fn hold(&self, why: Why) -> bool {
        let mut state = self.state();
        state.held += 1;
        state.epoch += 1;
        state.mapped |= why == Why::Map;
        state.granted
    }

    /// Whether any channel was ever granted it: whoever is to change it may have to wait for one.
    pub fn was_granted(&self) -> bool {
        self.state().granted
    }

    /// Waits until no command is in flight; none is taken up any more, because its grants are gone
    /// and the inode is held.
    pub(crate) fn settle(&self) {
        let mut state = self.state();
        while state.in_flight > 0 {
            state = self.quiet.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn let_go(&self) {
        self.state().held -= 1;
        self.quiet.notify_all();
    }

    /// Waits until nobody holds the inode; how often it was held so far.
    pub(crate) fn wait_until_free(&self) -> u64 {
        let mut state = self.state();
        while state.held > 0 {
            state = self.quiet.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        state.epoch
    }

    /// Whether channels may reach it at this moment, by a way found when it had been held `epoch`
    /// times. The caller has the table locked that it will enter the file in, and whoever holds the
    /// inode will look there.
    pub(crate) fn reach(&self, epoch: u64) -> Reach {
        let mut state = self.state();
        match (state.mapped, state.held) {
            (true, _) => Reach::Mapped,
            (false, 0) if state.epoch == epoch => {
                state.granted = true;
                Reach::Free
            }
            _ => Reach::Held,
        }
    }

    /// The mapping that all channels share while the inode has been held `epoch` times; `None`
    /// where the file is not memory.
    pub(crate) fn mapping(
        &self,
        file: &File,
        epoch: u64,
        share: impl FnOnce(u64) -> Option<Share>,
    ) -> Option<Arc<FileMapping>> {
        let mut mapping = self.mapping.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = file.metadata().ok()?.len();
        let known = mapping
            .1
            .upgrade()
            .filter(|known| mapping.0 == epoch && known.reaches(bytes) && !known.is_lost());
        if known.is_some() {
            return known;
        }
        let fresh = Arc::new(FileMapping::of(file, share)?);
        *mapping = (epoch, Arc::downgrade(&fresh));
        Some(fresh)
    }

    /// Says how the kernel is made to forget what it was told of the file.
    pub(crate) fn forgotten_by(&self, clear: impl Fn() + Send + Sync + 'static) {
        self.memory.cleared_by(clear);
    }

    /// The kernel is about to be told of its attributes, which are looked at after this; whether it
    /// may remember them: where it cannot be made to forget, it must not.
    pub(crate) fn remembers(&self) -> bool {
        self.memory.may_hold()
    }

    /// A channel changed it. When this returns, the kernel asks before it says anything of its
    /// attributes: the command must not be over sooner.
    pub(crate) fn changed(&self) {
        self.memory.clear();
    }

    /// A channel wrote to it, past the file system.
    pub(crate) fn written(&self, at_ns: u64) {
        if self.written_ns.load(Ordering::Relaxed) < at_ns {
            self.written_ns.fetch_max(at_ns, Ordering::Relaxed);
        }
    }

    /// Sets the time of a file that channels wrote to since its times were set. The file system
    /// calls this before it tells or sets the times of a file, and when it is released. The
    /// descriptor may be one that was opened with O_PATH.
    pub fn stamp(&self, file: impl AsFd) {
        if self.written_ns.load(Ordering::Acquire) == 0 {
            return;
        }
        // A caller that is about to set the times itself waits for one that is at it: the later
        // time is the caller's.
        let _one = self.stamping.lock().unwrap_or_else(PoisonError::into_inner);
        let at_ns = self.written_ns.load(Ordering::Relaxed);
        if at_ns == 0 {
            return;
        }
        let at = Duration::from_nanos(at_ns);
        let is_earlier = |stat: rustix::fs::Stat| {
            (stat.st_mtime, stat.st_mtime_nsec) < (at.as_secs() as i64, at.subsec_nanos().into())
        };
        // Somebody may have written by the kernel since.
        if rustix::fs::fstat(&file).is_ok_and(is_earlier) {
            let special = |tv_nsec| rustix::fs::Timespec { tv_sec: 0, tv_nsec };
            // The kernel may write at this very moment, and the time of a channel's write would be
            // older than that. POSIX lets a write mark the time, and whoever asks for it set it.
            let times = rustix::fs::Timestamps {
                last_access: special(rustix::fs::UTIME_OMIT),
                last_modification: special(rustix::fs::UTIME_NOW),
            };
            // A time that cannot be set is no reason to refuse what the caller is about to do.
            let _ = rustix::fs::utimensat(file, "", &times, rustix::fs::AtFlags::EMPTY_PATH);
        }
        // Unless a channel wrote again meanwhile.
        let (done, not) = (Ordering::Release, Ordering::Relaxed);
        let _ = self.written_ns.compare_exchange(at_ns, 0, done, not);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All inodes that are open.
#[derive(Debug, Default)]
pub struct Inodes {
    open: Mutex<HashMap<(u64, u64), Weak<Inode>>>,
}

impl Inodes {
    /// The inode that a backing file is open on.
    ///
    /// # Errors
    /// What fstat says.
    pub fn of(&self, file: &File) -> io::Result<Arc<Inode>> {
        let facts = file.metadata()?;
        let key = (facts.dev(), facts.ino());
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(inode) = open.get(&key).and_then(Weak::upgrade) {
            return Ok(inode);
        }
        if open.len() >= 64 && open.len().is_power_of_two() {
            open.retain(|_, inode| inode.strong_count() > 0);
        }
        let inode = Arc::new(Inode {
            device: key.0,
            number: key.1,
            state: Mutex::default(),
            quiet: Condvar::new(),
            mapping: Mutex::default(),
            written_ns: AtomicU64::new(0),
            stamping: Mutex::default(),
            memory: Memory::default(),
        });
        open.insert(key, Arc::downgrade(&inode));
        Ok(inode)
    }

    /// The inode with this device and number, if somebody has it open.
    pub fn get(&self, key: (u64, u64)) -> Option<Arc<Inode>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).get(&key).and_then(Weak::upgrade)
    }
}

/// What a program learns when its open file is granted to its channel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GrantReply {
    /// [`OpenFile::id`]: tells a program that its descriptor has become another file.
    pub open: u64,
    /// The entry in the channel's permission table.
    pub entry: u32,
    /// Which use of the entry.
    pub generation: u32,
    /// Length of the file in bytes at this moment.
    pub bytes: u64,
    /// Whether the file is memory, so that a sync of it is over at once.
    pub in_memory: bool,
}

/// Keeps channels off a file until it is dropped.
#[derive(Debug)]
#[must_use]
pub struct DrainGuard(Option<Arc<Inode>>);

impl DrainGuard {
    /// Holds nothing.
    pub fn none() -> Self {
        DrainGuard(None)
    }

    /// Lets go of an inode that was held, when it is dropped.
    pub(crate) fn of(inode: Arc<Inode>) -> Self {
        DrainGuard(Some(inode))
    }
}

impl Drop for DrainGuard {
    fn drop(&mut self) {
        if let Some(inode) = &self.0 {
            inode.let_go();
        }
    }
}

/// The channels, as the file system server sees them. Every method may block for a moment; none
/// calls back into the file system.
pub trait Grants: Send + Sync {
    /// Where clients connect: the name of an abstract Unix socket, without its leading zero byte.
    fn place(&self) -> &[u8];

    /// Lets the channel of that token reach an open file. The kernel has vouched for the file: the
    /// request came as an ioctl on it.
    ///
    /// # Errors
    /// ENXIO: no such channel. EBUSY: the file cannot be reached by channels now; use the kernel's
    /// way.
    fn grant(&self, token: &Token, open: &Arc<OpenFile>) -> Result<GrantReply, Errno>;

    /// The user to whom it counts what this one takes.
    fn account(&self, uid: u32) -> u32 {
        uid
    }

    /// A descriptor of it was closed (FLUSH): what was granted has to be asked for again.
    fn suspect(&self, open: &Arc<OpenFile>);

    /// Nobody has it open any more (RELEASE). When this returns, no channel reaches it.
    fn release(&self, open: &Arc<OpenFile>);

    /// Takes back every grant on a file, waits for its commands in flight and keeps new ones off
    /// until the guard is dropped.
    fn drain(&self, inode: &Arc<Inode>, why: Why) -> DrainGuard;

    /// Takes back everything and ends all channels (unmount).
    fn revoke_all(&self);
}

/// A file system without channels.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoGrants;

impl Grants for NoGrants {
    fn place(&self) -> &[u8] {
        b""
    }

    fn grant(&self, _: &Token, _: &Arc<OpenFile>) -> Result<GrantReply, Errno> {
        Err(Errno(libc::ENXIO))
    }

    fn suspect(&self, _: &Arc<OpenFile>) {}

    fn release(&self, _: &Arc<OpenFile>) {}

    fn drain(&self, _: &Arc<Inode>, _: Why) -> DrainGuard {
        DrainGuard::none()
    }

    fn revoke_all(&self) {}
}
