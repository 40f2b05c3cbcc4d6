// SPDX-License-Identifier: MIT OR Apache-2.0
//! Names in directories: found, made, moved, taken away.

use std::ffi::OsStr;
use std::os::fd::AsFd as _;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::caller::{Caller, take_umask};
use super::node::{Node, Room, key, open_at};
use super::tree::{By, Entry, Opened, Tree, device_in};

/// Times that a name is tried which somebody else has made since the kernel looked.
const CREATE_TRIES: usize = 4;

impl Tree {
    /// # Errors
    /// ENFILE: there is no room, and the kernel does not know the file yet.
    pub fn lookup(&self, parent: u64, name: &OsStr, room: Option<Room>) -> Result<Entry, Errno> {
        let parent = self.nodes.get(parent)?;
        match self.entry(&parent, name, room) {
            Ok((_, entry)) => Ok(entry),
            // The kernel remembers that there is no such name, until somebody makes one through the
            // mount.
            Err(Errno::NOENT) => Ok(Entry::none(self.lifetime)),
            Err(error) => Err(error),
        }
    }

    pub fn readlink(&self, id: u64) -> Result<Vec<u8>, Errno> {
        let node = self.nodes.get(id)?;
        Ok(rustix::fs::readlinkat(&*node, "", Vec::new())?.into_bytes())
    }

    pub fn mknod(
        &self,
        caller: Caller,
        (parent, name): (u64, &OsStr),
        (mode, umask): (u32, u32),
        device: u32,
        room: Room,
    ) -> Result<Entry, Errno> {
        let parent = self.nodes.get(parent)?;
        self.make((caller, room), &parent, name, |parent| {
            take_umask(umask)?;
            let (kind, bits) = (FileType::from_raw_mode(mode), Mode::from_raw_mode(mode));
            rustix::fs::mknodat(parent, name, kind, bits, device_in(device))
        })
    }

    pub fn mkdir(
        &self,
        caller: Caller,
        (parent, name): (u64, &OsStr),
        (mode, umask): (u32, u32),
        room: Room,
    ) -> Result<Entry, Errno> {
        let parent = self.nodes.get(parent)?;
        self.make((caller, room), &parent, name, |parent| {
            take_umask(umask)?;
            rustix::fs::mkdirat(parent, name, Mode::from_raw_mode(mode))
        })
    }

    pub fn symlink(
        &self,
        caller: Caller,
        (parent, name): (u64, &OsStr),
        target: &Path,
        room: Room,
    ) -> Result<Entry, Errno> {
        let parent = self.nodes.get(parent)?;
        self.make((caller, room), &parent, name, |parent| {
            rustix::fs::symlinkat(target, parent, name)
        })
    }

    /// Makes a name as the caller, once there is room, and tells the kernel's answer to it.
    fn make(
        &self,
        (caller, room): (Caller, Room),
        parent: &Node,
        name: &OsStr,
        make: impl FnOnce(&Node) -> Result<(), Errno>,
    ) -> Result<Entry, Errno> {
        {
            let _acting = self.callers.become_caller(caller)?;
            make(parent)?;
        }
        self.give_group(caller, parent, name);
        Ok(self.made(parent, name, Some(room))?.1)
    }

    /// A program of the same user may have another group. What it may not have, it does not get.
    fn give_group(&self, caller: Caller, parent: &Node, name: &OsStr) {
        let Some(group) = self.callers.other_group(caller) else { return };
        let inherits = rustix::fs::fstat(parent)
            .is_ok_and(|stat| Mode::from_raw_mode(stat.st_mode).contains(Mode::SGID));
        if !inherits {
            let _ = rustix::fs::chownat(parent, name, None, Some(group), AtFlags::SYMLINK_NOFOLLOW);
        }
    }

    /// Makes and opens a file that the kernel has just looked up in vain.
    ///
    /// If the name was made beneath the mount meanwhile, nobody has checked what the caller may do
    /// with that file, so it is not opened here.
    ///
    /// # Errors
    /// ESTALE: somebody else made the name. The kernel then looks it up again, once, and checks
    /// what it finds. ENFILE: the caller may open no more, and nothing was made.
    pub fn create(
        &self,
        (parent, name): (u64, &OsStr),
        (mode, umask): (u32, u32),
        flags: i32,
        by: By<'_>,
        room: Room,
    ) -> Result<(Entry, Opened), Errno> {
        let caller = by.caller;
        let parent = self.nodes.get(parent)?;
        // A file that then could not be opened would be there all the same.
        let share = self.one_more(caller)?;
        let open = super::data::backing_flags(flags);
        let made = {
            let _acting = self.callers.become_caller(caller)?;
            take_umask(umask)?;
            let flags = open | OFlags::CREATE | OFlags::EXCL;
            let mode = Mode::from_raw_mode(mode & 0o7777);
            let mut tries = (0..CREATE_TRIES).map(|_| open_at(&*parent, name, flags, mode));
            // A name that comes and goes may be free the next time.
            tries.find(|made| !matches!(made, Err(Errno::EXIST))).unwrap_or(Err(Errno::EXIST))
        };
        let file = match made {
            Err(Errno::EXIST) if flags & libc::O_EXCL == 0 => return Err(Errno::STALE),
            made => made?,
        };
        self.give_group(caller, &parent, name);
        let (node, entry) = self.made(&parent, name, Some(room))?;
        if key(&rustix::fs::fstat(&file)?) != node.key {
            // Replaced beneath the mount, between two system calls.
            self.nodes.forget(node.id, 1);
            return Err(Errno::STALE);
        }
        let opened = self
            .open_file((file, share), flags, &node, by)
            .inspect_err(|_| self.nodes.forget(node.id, 1))?;
        Ok((entry, opened))
    }

    pub fn unlink(&self, parent: u64, name: &OsStr) -> Result<(), Errno> {
        let parent = self.nodes.get(parent)?;
        let _guard = self.drain_name(&parent, name);
        rustix::fs::unlinkat(&*parent, name, AtFlags::empty())
    }

    pub fn rmdir(&self, parent: u64, name: &OsStr) -> Result<(), Errno> {
        let parent = self.nodes.get(parent)?;
        rustix::fs::unlinkat(&*parent, name, AtFlags::REMOVEDIR)
    }

    pub fn rename(
        &self,
        (parent, name): (u64, &OsStr),
        (new_parent, new_name): (u64, &OsStr),
        flags: u32,
    ) -> Result<(), Errno> {
        let from = self.nodes.get(parent)?;
        let to = self.nodes.get(new_parent)?;
        let flags = RenameFlags::from_bits_retain(flags);
        let _guard =
            (!flags.contains(RenameFlags::EXCHANGE)).then(|| self.drain_name(&to, new_name));
        if flags.is_empty() {
            // Also where a file system knows no flags.
            rustix::fs::renameat(&*from, name, &*to, new_name)?;
        } else {
            rustix::fs::renameat_with(&*from, name, &*to, new_name, flags)?;
        }
        self.seen(&to, new_name);
        if flags.contains(RenameFlags::EXCHANGE) {
            self.seen(&from, name);
        }
        Ok(())
    }

    /// Remembers where a file went.
    fn seen(&self, parent: &Arc<Node>, name: &OsStr) {
        let stat = rustix::fs::statat(&**parent, name, AtFlags::SYMLINK_NOFOLLOW);
        if let Some(node) = stat.ok().and_then(|stat| self.nodes.known(key(&stat))) {
            node.moved(parent.id, name);
        }
    }

    pub fn link(&self, id: u64, parent: u64, name: &OsStr) -> Result<Entry, Errno> {
        let node = self.nodes.get(id)?;
        let parent = self.nodes.get(parent)?;
        // By its own descriptor: no name of it can be swapped meanwhile.
        rustix::fs::linkat(CWD, node.path(), parent.as_fd(), name, AtFlags::SYMLINK_FOLLOW)?;
        // The kernel knows the file by its other name.
        Ok(self.made(&parent, name, None)?.1)
    }
}
