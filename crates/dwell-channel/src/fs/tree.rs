// SPDX-License-Identifier: MIT OR Apache-2.0
//! What all requests share: the served tree, its open files, the channels, the way back to the
//! kernel.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{BackingId, FileAttr, FopenFlags, Generation, INodeNo, Notifier};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::caller::{Caller, Callers, Groups};
use super::counts::Counts;
use super::directory::OpenDirectory;
use super::node::{Node, Nodes, ROOT, Room, key};
use super::passthrough::{Passthrough, Register};
use super::watch::Watch;
use crate::grants::{DrainGuard, Grants, Inodes, OpenFile, Rights, Why};
use crate::shares::{Share, Shares};
use crate::slow::Slow;

/// Names and attributes stay known to the kernel for so long: it changes them itself where a
/// program changes them through the mount, and whoever changes the backing directory directly is
/// seen a little later.
const FRESH: Duration = Duration::from_secs(1);
/// The same where the backing directory is hidden, so that nobody changes it directly.
const FRESH_IF_HIDDEN: Duration = Duration::from_secs(60);

/// How long the kernel knows names and attributes.
pub(super) fn lifetime(is_hidden: bool) -> Duration {
    if is_hidden { FRESH_IF_HIDDEN } else { FRESH }
}

/// A served directory.
pub(super) struct Tree {
    pub nodes: Nodes,
    pub files: Table<File>,
    pub directories: Table<OpenDirectory>,
    pub inodes: Inodes,
    pub grants: Arc<dyn Grants>,
    pub counts: Counts,
    pub callers: Callers,
    pub passthrough: Passthrough,
    /// Files and directories that users may have open.
    pub open_files: Arc<Shares>,
    pub slow: Slow,
    /// Memory of users' writes that wait for a thread.
    pub waiting: Arc<Shares>,
    /// The daemon's own requests.
    pub watch: Watch,
    /// All of it is one tmpfs, since no name leads to another file system: nothing is ever more
    /// durable than it is.
    pub in_memory: bool,
    /// How long the kernel knows names and attributes.
    pub lifetime: Duration,
    /// How files are opened for direct I/O, which depends on the kernel.
    pub open_flags: OnceLock<FopenFlags>,
    /// Whether files can be mapped shared.
    pub shared_mappings: OnceLock<bool>,
    pub notifier: OnceLock<Notifier>,
    /// Says that the kernel should forget files.
    pub crowded: SyncSender<()>,
}

/// An open file, as the kernel sees it.
pub(super) struct File {
    pub open: Arc<OpenFile>,
    pub node: Arc<Node>,
    /// The program that opened it.
    pub by: Caller,
    /// The groups of that program's threads, once they were asked for.
    pub groups: Groups,
    /// Pages of it were given to the kernel: no channel reaches it any more.
    pub mapped: AtomicBool,
    /// A channel was granted it.
    pub granted: AtomicBool,
    /// Kept as long as the kernel passes requests through by it.
    _backing: Option<Arc<BackingId>>,
}

/// What the kernel is told of a file that was opened.
pub(super) struct Opened {
    pub handle: u64,
    /// `None`: it asks for each request.
    pub backing: Option<Arc<BackingId>>,
    pub flags: FopenFlags,
}

/// The caller that opens a file, and the function that tells the kernel of it.
#[derive(Clone, Copy)]
pub(super) struct By<'a> {
    pub caller: Caller,
    pub register: Register<'a>,
}

/// What a look-up, or anything that makes a name, answers.
pub(super) struct Entry {
    pub attr: FileAttr,
    pub generation: Generation,
    /// How long the attributes hold.
    pub fresh: Duration,
    /// How long the name does.
    pub kept: Duration,
}

impl Entry {
    /// There is no such name, and the kernel need not ask again for so long.
    pub fn none(kept: Duration) -> Entry {
        // The number that is no file's says so.
        Entry { attr: NO_ATTR, generation: Generation(0), fresh: Duration::ZERO, kept }
    }
}

/// Open things by their handle.
pub(super) struct Table<T> {
    open: RwLock<HashMap<u64, Arc<T>>>,
    next: AtomicU64,
}

impl<T> Default for Table<T> {
    fn default() -> Self {
        Table { open: RwLock::default(), next: AtomicU64::new(1) }
    }
}

impl<T> Table<T> {
    pub fn insert(&self, thing: T) -> u64 {
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(handle, Arc::new(thing));
        handle
    }

    /// # Errors
    /// EBADF: there is none such.
    pub fn get(&self, handle: fuser::FileHandle) -> Result<Arc<T>, Errno> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.get(&handle.0).cloned().ok_or(Errno::BADF)
    }

    pub fn remove(&self, handle: fuser::FileHandle) -> Option<Arc<T>> {
        self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&handle.0)
    }

    /// Has whoever looks for one wait.
    #[cfg(test)]
    pub fn hold(&self) -> impl Drop + '_ {
        self.open.write().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn len(&self) -> usize {
        self.open.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Tree {
    /// Room for one more file that the kernel knows by a user; `None` where that user has nearly
    /// all that one may have.
    pub fn room(&self, uid: u32) -> Option<Room> {
        let room = self.nodes.room(self.grants.account(uid));
        if room.is_none() {
            // Where it is being seen to already, that is enough.
            let _ = self.crowded.try_send(());
        }
        room
    }

    /// As [`Tree::room`], and waits a little for the kernel to forget others.
    ///
    /// # Errors
    /// ENFILE: the user has all that one may have.
    pub fn wait_for_room(&self, uid: u32) -> Result<Room, Errno> {
        let room = self.nodes.wait_for_room(self.grants.account(uid));
        // So that one who goes on like that finds some forgotten next time.
        let _ = self.crowded.try_send(());
        room
    }

    /// Finds a name and tells the kernel's answer to it. A file that the kernel knows already needs
    /// no room.
    pub fn entry(
        &self,
        parent: &Node,
        name: &OsStr,
        room: Option<Room>,
    ) -> Result<(Arc<Node>, Entry), Errno> {
        let (node, mut stat) = self.nodes.look_up(parent, name, room)?;
        let mut fresh = self.fresh_of(&node);
        if node.granted.load(Ordering::Acquire) > 0 {
            fresh = self.fresh(&node);
            stat = rustix::fs::fstat(&node)?;
        }
        let mut entry = entry_of(&node, &stat, self.lifetime);
        entry.fresh = unless_special(&stat, fresh);
        Ok((node, entry))
    }

    /// As [`Tree::entry`], of a name that was made just now.
    pub fn made(
        &self,
        parent: &Node,
        name: &OsStr,
        room: Option<Room>,
    ) -> Result<(Arc<Node>, Entry), Errno> {
        let (node, mut entry) = self.entry(parent, name, room)?;
        entry.fresh = unless_granted(&node, entry.fresh);
        Ok((node, entry))
    }

    /// Where channels may have written, lets the file's times say so.
    pub fn stamp(&self, node: &Node) {
        if node.granted.load(Ordering::Acquire) > 0
            && let Some(inode) = self.inodes.get(node.key)
        {
            inode.stamp(node);
        }
    }

    /// What stat shows of a node, and how long that stays so.
    pub fn attr(&self, node: &Node) -> Result<(FileAttr, Duration), Errno> {
        let fresh = self.fresh(node);
        let stat = rustix::fs::fstat(node)?;
        let fresh = unless_special(&stat, fresh);
        // The root's number in the protocol is not the one that it has.
        let shown = if node.id == ROOT { stat.st_ino } else { node.id };
        Ok((attr(shown, &stat), fresh))
    }

    /// How long what stat shows from now on stays so: the kernel is told when a channel changes a
    /// file. Where channels may have written, the file's times say so after this.
    fn fresh(&self, node: &Node) -> Duration {
        if node.granted.load(Ordering::Acquire) == 0 {
            return self.fresh_of(node);
        }
        let Some(inode) = self.inodes.get(node.key) else { return self.fresh_of(node) };
        let remembers = inode.remembers();
        inode.stamp(node);
        if remembers { self.fresh_of(node) } else { Duration::ZERO }
    }

    /// How long attributes hold of what no channel changes. A mapping that the kernel serves by
    /// itself changes times without its knowing.
    fn fresh_of(&self, node: &Node) -> Duration {
        if node.backing.is_written() { FRESH } else { self.lifetime }
    }

    /// Keeps channels off a file, if anybody has it open.
    pub fn drain(&self, key: (u64, u64), why: Why) -> DrainGuard {
        match self.inodes.get(key) {
            Some(inode) => self.grants.drain(&inode, why),
            None => DrainGuard::none(),
        }
    }

    /// Whether a channel may be at work on a file, be it that it only reads, and somebody who is to
    /// change it has to wait for that.
    pub fn is_granted(&self, key: (u64, u64)) -> bool {
        self.inodes.get(key).is_some_and(|inode| inode.was_granted())
    }

    /// The same of what has this name.
    pub fn is_name_granted(&self, parent: u64, name: &OsStr) -> bool {
        let Ok(parent) = self.nodes.get(parent) else { return false };
        let stat = rustix::fs::statat(&*parent, name, AtFlags::SYMLINK_NOFOLLOW);
        stat.is_ok_and(|stat| self.is_granted(key(&stat)))
    }

    /// Keeps channels off a file whose last name is about to go.
    pub fn drain_name(&self, parent: &Node, name: &OsStr) -> DrainGuard {
        match rustix::fs::statat(parent, name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) if stat.st_nlink <= 1 && FileType::from_raw_mode(stat.st_mode).is_file() => {
                self.drain(key(&stat), Why::Unlink)
            }
            _ => DrainGuard::none(),
        }
    }

    /// The caller's part of what users may have open, for one more.
    ///
    /// # Errors
    /// ENFILE: the caller has all of it.
    pub fn one_more(&self, caller: Caller) -> Result<Share, Errno> {
        self.open_files.take(self.grants.account(caller.uid), 1).ok_or(Errno::NFILE)
    }

    /// Takes an opened file of the backing directory in, as that part of what is open.
    pub fn open_file(
        &self,
        (file, share): (OwnedFd, Share),
        flags: i32,
        node: &Arc<Node>,
        by: By<'_>,
    ) -> Result<Opened, Errno> {
        let By { caller, register } = by;
        let backing = self.passthrough.id_of(&node.backing, &self.callers, &file, register)?;
        if backing.is_some() && flags & libc::O_DIRECT != 0 {
            // The kernel would say no more than EIO of a file system that has none.
            let flags =
                OFlags::from_bits_retain((flags & (libc::O_ACCMODE | libc::O_DIRECT)) as u32);
            rustix::fs::open(node.path(), flags | OFlags::CLOEXEC, Mode::empty())?;
        }
        let special = has_set_ids(&rustix::fs::fstat(&file)?);
        let file = std::fs::File::from(file);
        let inode = self.inodes.of(&file).map_err(|error| errno_of(&error))?;
        let open =
            OpenFile::new(file, flags, inode).opened_by(self.callers.opener(caller)).counted(share);
        let open = Arc::new(open);
        let (mapped, granted) = (AtomicBool::new(false), AtomicBool::new(false));
        // Only the server finds out which caller may keep such bits. And a backing file keeps the
        // flags that it was opened with, whatever the program does (F_SETFL). It would append for
        // ever, and refuse the last piece that dd writes.
        let Rights { read, write, append } = open.rights;
        let only_past_the_cache = flags & libc::O_DIRECT != 0 && !read;
        let asks = write && (append || special || only_past_the_cache);
        // A shared mapping is the kernel's whoever reads and writes by calls, and takes a
        // descriptor that may do both.
        let writes = backing.is_some() && write && (read || !asks);
        if writes
            && node.backing.lets_write()
            && self.lifetime > FRESH
            && let Some(notifier) = self.notifier.get()
        {
            // What the kernel was told before holds for longer than it may now. A file that it no
            // longer knows needs nothing.
            let _ = notifier.inval_inode(INodeNo(node.id), -1, 0);
        }
        let flags = match (&backing, asks) {
            (Some(_), false) => FopenFlags::empty(),
            _ => self.open_flags.get().copied().unwrap_or(FopenFlags::FOPEN_DIRECT_IO),
        };
        let (node, groups, _backing) = (node.clone(), Groups::default(), backing.clone());
        let file = File { open, node, by: caller, groups, mapped, granted, _backing };
        let handle = self.files.insert(file);
        Ok(Opened { handle, backing, flags })
    }
}

/// Where the kernel believes an answer even if it was made to forget the file meanwhile, what may
/// change is to be asked for again at once: only answers to GETATTR, LOOKUP and READDIRPLUS are
/// held against a later notification.
pub(super) fn unless_granted(node: &Node, fresh: Duration) -> Duration {
    if node.granted.load(Ordering::Acquire) > 0 { Duration::ZERO } else { fresh }
}

/// The directory entry of a node that no channel may write, for a reply to the kernel.
pub(super) fn entry_of(node: &Node, stat: &Stat, lifetime: Duration) -> Entry {
    let generation = Generation(node.generation);
    let fresh = unless_special(stat, lifetime);
    Entry { attr: attr(node.id, stat), generation, fresh, kept: lifetime }
}

pub(super) fn errno_of(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or(Errno::IO)
}

/// A write takes set-user-id away, and the kernel that carries it out does not look at the mode
/// again.
fn unless_special(stat: &Stat, fresh: Duration) -> Duration {
    let is_file = FileType::from_raw_mode(stat.st_mode).is_file();
    if is_file && has_set_ids(stat) { Duration::ZERO } else { fresh }
}

/// Whether a write by somebody without privilege changes the mode.
pub(super) fn has_set_ids(stat: &Stat) -> bool {
    Mode::from_raw_mode(stat.st_mode).intersects(Mode::SUID | Mode::SGID)
}

/// No file's.
const NO_ATTR: FileAttr = FileAttr {
    ino: INodeNo(0),
    size: 0,
    blocks: 0,
    atime: UNIX_EPOCH,
    mtime: UNIX_EPOCH,
    ctime: UNIX_EPOCH,
    crtime: UNIX_EPOCH,
    kind: fuser::FileType::RegularFile,
    perm: 0,
    nlink: 0,
    uid: 0,
    gid: 0,
    rdev: 0,
    blksize: 0,
    flags: 0,
};

/// A file's attributes as the protocol has them.
pub(super) fn attr(shown: u64, stat: &Stat) -> FileAttr {
    FileAttr {
        ino: INodeNo(shown),
        size: stat.st_size as u64,
        blocks: stat.st_blocks as u64,
        atime: time(stat.st_atime, stat.st_atime_nsec as u32),
        mtime: time(stat.st_mtime, stat.st_mtime_nsec as u32),
        ctime: time(stat.st_ctime, stat.st_ctime_nsec as u32),
        crtime: UNIX_EPOCH,
        kind: kind(FileType::from_raw_mode(stat.st_mode)),
        perm: (stat.st_mode & 0o7777) as u16,
        nlink: stat.st_nlink as u32,
        uid: stat.st_uid,
        gid: stat.st_gid,
        rdev: device_out(stat.st_rdev),
        blksize: stat.st_blksize as u32,
        flags: 0,
    }
}

fn time(seconds: i64, nanoseconds: u32) -> SystemTime {
    let whole = Duration::from_secs(seconds.unsigned_abs());
    let start =
        if seconds < 0 { UNIX_EPOCH.checked_sub(whole) } else { UNIX_EPOCH.checked_add(whole) };
    start.unwrap_or(UNIX_EPOCH) + Duration::from_nanos(nanoseconds.into())
}

pub(super) fn kind(kind: FileType) -> fuser::FileType {
    match kind {
        FileType::Directory => fuser::FileType::Directory,
        FileType::Symlink => fuser::FileType::Symlink,
        FileType::Fifo => fuser::FileType::NamedPipe,
        FileType::Socket => fuser::FileType::Socket,
        FileType::CharacterDevice => fuser::FileType::CharDevice,
        FileType::BlockDevice => fuser::FileType::BlockDevice,
        FileType::RegularFile | FileType::Unknown => fuser::FileType::RegularFile,
    }
}

/// A device number in the 32 bits that the protocol has for it.
fn device_out(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// And back.
pub(super) fn device_in(device: u32) -> u64 {
    rustix::fs::makedev((device & 0xfff00) >> 8, (device & 0xff) | ((device >> 12) & 0xfff00))
}

/// A node's descriptor, for calls that take one.
impl AsFd for File {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.open.file.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_numbers_survive_the_protocol() {
        for (major, minor) in [(0, 0), (1, 3), (259, 7), (0xfff, 0xfffff)] {
            let device = rustix::fs::makedev(major, minor);
            assert_eq!(device_in(device_out(device)), device, "{major}:{minor}");
        }
    }

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        assert_eq!(time(0, 5), UNIX_EPOCH + Duration::from_nanos(5));
        assert_eq!(time(-2, 250), UNIX_EPOCH - Duration::from_secs(2) + Duration::from_nanos(250));
    }

    #[test]
    fn handles_are_found_until_they_are_released() {
        let table = Table::default();
        let handle = fuser::FileHandle(table.insert("thing"));
        assert_eq!(*table.get(handle).unwrap(), "thing");
        assert!(table.remove(handle).is_some() && table.remove(handle).is_none());
        assert_eq!(table.get(handle).unwrap_err(), Errno::BADF);
    }
}
