// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open files: reading, writing, space, and the requests by which a channel is granted one.

use std::cell::RefCell;
use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::Ordering;

use fuser::{CopyFileRangeFlags, FileHandle, INodeNo, WriteFlags};
use rustix::fs::{FallocateFlags, Mode, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};

use super::caller::Caller;
use super::flags::{FS_IOC_FSGETXATTR, FS_IOC_GETFLAGS, FS_IOC_SETFLAGS};
use super::flags::{extended_out, flags_in, flags_out};
use super::tree::{By, File, Opened, Tree};
use crate::grants::{Why, ioctl};
use crate::shares::Share;

/// What a backing file is opened with. Appending is decided write by write, because pages of a
/// mapping have to land where they belong; truncating is a request of its own; and alignment is no
/// matter of the client's.
pub(super) fn backing_flags(flags: i32) -> OFlags {
    let kept = libc::O_ACCMODE | libc::O_SYNC | libc::O_DSYNC | libc::O_NOATIME;
    OFlags::from_bits_retain((flags & kept) as u32) | OFlags::CLOEXEC
}

thread_local! {
    /// Each thread's room for what it reads.
    static ROOM: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What a user writes, as long as it waits for a thread.
pub(super) struct Kept {
    pub data: Vec<u8>,
    _share: Share,
}

impl Tree {
    /// Copies what a user writes.
    ///
    /// # Errors
    /// ENOMEM: that user's writes hold as much memory as they may.
    pub fn keep(&self, caller: Caller, data: &[u8]) -> Result<Kept, Errno> {
        let bytes = data.len() as u64;
        let share = self.waiting.take(self.grants.account(caller.uid), bytes);
        Ok(Kept { _share: share.ok_or(Errno::NOMEM)?, data: data.to_owned() })
    }

    pub fn open(&self, id: u64, flags: i32, by: By<'_>) -> Result<Opened, Errno> {
        let node = &self.nodes.get(id)?;
        // A pipe would block, a device do who knows what; the kernel opens both by itself.
        if !node.kind.is_file() {
            return Err(Errno::NXIO);
        }
        let share = self.one_more(by.caller)?;
        let open = |flags| rustix::fs::open(node.path(), flags, Mode::empty());
        let flags_below = backing_flags(flags);
        let file = match open(flags_below) {
            // Only its owner may leave the time of access alone, and it is a wish.
            Err(Errno::PERM) if flags_below.contains(OFlags::NOATIME) => {
                open(flags_below - OFlags::NOATIME)
            }
            opened => opened,
        }?;
        self.open_file((file, share), flags, node, by)
    }

    /// Whether a read without an owner waits for what channels have in flight: it is the first by
    /// which the file is mapped.
    pub fn mapping_may_take_long(&self, handle: FileHandle) -> bool {
        self.files
            .get(handle)
            .is_ok_and(|file| !file.mapped.load(Ordering::Acquire) && file.open.inode.was_granted())
    }

    /// Hands `reply` what was read.
    ///
    /// A read without `owner` fills the kernel's pages: somebody maps the file, and what channels
    /// did to it would not be seen in that memory.
    pub fn read(
        &self,
        handle: FileHandle,
        offset: u64,
        bytes: usize,
        owner: bool,
        reply: impl FnOnce(Result<&[u8], Errno>),
    ) {
        let file = match self.files.get(handle) {
            Ok(file) => file,
            Err(error) => return reply(Err(error)),
        };
        if !owner && file.node.backing.is_written() {
            // Where the kernel writes by itself it has no pages of its own, but for `sendfile` and
            // `splice` on a descriptor whose reads are the server's. Better no bytes than old ones.
            return reply(Err(Errno::INVAL));
        }
        if !owner && !file.mapped.load(Ordering::Acquire) {
            drop(self.grants.drain(&file.open.inode, Why::Map));
            file.mapped.store(true, Ordering::Release);
        }
        ROOM.with_borrow_mut(|room| {
            if room.len() < bytes {
                room.resize(bytes, 0);
            }
            match read_fully(&file, &mut room[..bytes], offset) {
                Ok(got) => reply(Ok(&room[..got])),
                Err(error) => reply(Err(error)),
            }
        });
    }

    /// Writes as the caller, so that quotas hold and set-user-id goes as on any file system.
    /// `flags` are those of this one write: it may append or be durable (`RWF_DSYNC`) where the
    /// descriptor is not.
    pub fn write(
        &self,
        caller: Caller,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        how: WriteFlags,
        flags: i32,
    ) -> Result<u32, Errno> {
        let file = self.files.get(handle)?;
        let is_page = how.contains(WriteFlags::FUSE_WRITE_CACHE);
        let mut with = ReadWriteFlags::empty();
        // Pages of a mapping go where they belong, whatever the descriptor that carries them.
        if flags & libc::O_APPEND != 0 && !is_page {
            with |= ReadWriteFlags::APPEND;
        }
        // O_SYNC has the bit of O_DSYNC in it.
        if flags & libc::O_SYNC == libc::O_SYNC {
            with |= ReadWriteFlags::SYNC;
        } else if flags & libc::O_DSYNC != 0 {
            with |= ReadWriteFlags::DSYNC;
        }
        // The kernel itself brings pages; the opener wrote them.
        let caller = if is_page { file.by } else { caller };
        let _acting = self.callers.become_writer(caller, file.by, &file.groups)?;
        if how.contains(WriteFlags::FUSE_WRITE_KILL_SUIDGID) && caller.uid == 0 {
            // Root without the right to keep them.
            self.drop_set_ids(&file)?;
        }
        loop {
            match rustix::io::pwritev2(&*file, &[IoSlice::new(data)], offset, with) {
                Err(Errno::INTR) => {}
                written => return Ok(written? as u32),
            }
        }
    }

    /// Takes set-user-id away, which root's own write would leave.
    fn drop_set_ids(&self, file: &File) -> Result<(), Errno> {
        let mode = Mode::from_raw_mode(rustix::fs::fstat(file)?.st_mode & 0o7777);
        let mut kept = mode - Mode::SUID;
        if mode.contains(Mode::XGRP) {
            kept -= Mode::SGID;
        }
        if kept != mode {
            rustix::fs::fchmod(file, kept)?;
        }
        Ok(())
    }

    pub fn flush(&self, handle: FileHandle) -> Result<(), Errno> {
        let file = self.files.get(handle)?;
        self.grants.suspect(&file.open);
        Ok(())
    }

    pub fn release(&self, handle: FileHandle) {
        let Some(file) = self.files.remove(handle) else { return };
        self.grants.release(&file.open);
        if file.granted.load(Ordering::Acquire) {
            file.node.granted.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// # Errors
    /// ENOSYS: there is nothing to sync. The kernel then answers all that follow by itself.
    pub fn fsync(&self, handle: FileHandle, data_only: bool) -> Result<(), Errno> {
        if self.in_memory {
            return Err(Errno::NOSYS);
        }
        let file = self.files.get(handle)?;
        if data_only { rustix::fs::fdatasync(&*file) } else { rustix::fs::fsync(&*file) }
    }

    pub fn fallocate(
        &self,
        caller: Caller,
        handle: FileHandle,
        offset: u64,
        bytes: u64,
        mode: i32,
    ) -> Result<(), Errno> {
        let file = self.files.get(handle)?;
        let mode = FallocateFlags::from_bits_retain(mode as u32);
        let _guard = (!(mode - FallocateFlags::KEEP_SIZE).is_empty())
            .then(|| self.grants.drain(&file.open.inode, Why::Shorten));
        let _acting = self.callers.become_writer(caller, file.by, &file.groups)?;
        rustix::fs::fallocate(&*file, mode, offset, bytes)
    }

    pub fn lseek(&self, handle: FileHandle, offset: i64, whence: i32) -> Result<i64, Errno> {
        let file = self.files.get(handle)?;
        let offset = u64::try_from(offset).map_err(|_| Errno::NXIO)?;
        let to = match whence {
            libc::SEEK_DATA => SeekFrom::Data(offset),
            libc::SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(Errno::INVAL),
        };
        Ok(rustix::fs::seek(&*file, to)? as i64)
    }

    pub fn copy_file_range(
        &self,
        caller: Caller,
        (from, from_offset): (FileHandle, u64),
        (to, to_offset): (FileHandle, u64),
        bytes: u64,
        _: CopyFileRangeFlags,
    ) -> Result<u32, Errno> {
        let (from, to) = (self.files.get(from)?, self.files.get(to)?);
        let (mut from_offset, mut to_offset) = (from_offset, to_offset);
        // What the answer has room for.
        let bytes = bytes.min(0x7fff_f000) as usize;
        let _acting = self.callers.become_writer(caller, to.by, &to.groups)?;
        rustix::fs::copy_file_range(
            &*from,
            Some(&mut from_offset),
            &*to,
            Some(&mut to_offset),
            bytes,
        )
        .map(|copied| copied as u32)
    }

    /// Answers an ioctl on an open file: those of channels, and the flags that lsattr and chattr
    /// know.
    pub fn ioctl(
        &self,
        caller: Caller,
        id: INodeNo,
        handle: FileHandle,
        command: u32,
        argument: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        let file = self.files.get(handle)?;
        match command {
            FS_IOC_GETFLAGS => flags_out(&*file),
            FS_IOC_FSGETXATTR => extended_out(&*file),
            FS_IOC_SETFLAGS => {
                // The file system checks whose file it is and what they may set. A user who may not
                // takes no grant back.
                let set = {
                    let _as_caller = self.callers.opener(caller).act()?;
                    flags_in(&*file, argument)?
                };
                drop(self.grants.drain(&file.open.inode, Why::Attributes));
                Ok(set)
            }
            _ => {
                let answer = ioctl::answer(&*self.grants, &file.open, command, argument)
                    .map_err(|error| Errno::from_raw_os_error(error.0))?;
                if command == ioctl::GRANT && file.open.rights.write {
                    self.granted(&file, id);
                }
                Ok(answer)
            }
        }
    }

    /// As [`Tree::ioctl`], on a directory: no channel reaches one.
    pub fn ioctl_on_directory(
        &self,
        caller: Caller,
        handle: FileHandle,
        command: u32,
        argument: &[u8],
    ) -> Result<Vec<u8>, Errno> {
        let directory = self.directories.get(handle)?;
        match command {
            FS_IOC_GETFLAGS => flags_out(&*directory),
            FS_IOC_FSGETXATTR => extended_out(&*directory),
            FS_IOC_SETFLAGS => {
                let _as_caller = self.callers.opener(caller).act()?;
                flags_in(&*directory, argument)
            }
            _ => Err(Errno::NOTTY),
        }
    }

    /// From now on a channel may change the file: the kernel forgets its attributes, and each time
    /// that it does again.
    fn granted(&self, file: &File, id: INodeNo) {
        if file.granted.swap(true, Ordering::AcqRel) {
            return;
        }
        file.node.granted.fetch_add(1, Ordering::AcqRel);
        if let Some(notifier) = self.notifier.get().cloned() {
            // Attributes only: that waits for nothing. A kernel that no longer knows the file needs
            // none.
            let clear = move || _ = notifier.inval_inode(id, -1, 0);
            clear();
            file.open.inode.forgotten_by(clear);
        }
    }
}

/// A short answer would mean the end of the file.
fn read_fully(file: &File, room: &mut [u8], offset: u64) -> Result<usize, Errno> {
    let mut got = 0;
    while got < room.len() {
        let rest = &mut [IoSliceMut::new(&mut room[got..])];
        match rustix::io::preadv(file, rest, offset + got as u64) {
            Ok(0) => break,
            Ok(bytes) => got += bytes,
            Err(Errno::INTR) => {}
            Err(_) if got > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(got)
}
