// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening, listing and closing directories of a served tree.

use std::ffi::OsStr;

use fuser::{FileHandle, INodeNo};
use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use super::caller::Caller;
use super::directory::OpenDirectory;
use super::node::Room;
use super::tree::{Entry, Tree, entry_of, kind};

impl Tree {
    pub fn opendir(&self, caller: Caller, id: u64) -> Result<u64, Errno> {
        let node = self.nodes.get(id)?;
        let share = self.one_more(caller)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(node.path(), flags, Mode::empty())?;
        Ok(self.directories.insert(OpenDirectory::new(handle, node, share)))
    }

    /// `add` takes number, place behind it, kind and name, and says whether there was room.
    pub fn readdir(
        &self,
        handle: FileHandle,
        place: u64,
        mut add: impl FnMut(u64, u64, fuser::FileType, &OsStr) -> bool,
    ) -> Result<(), Errno> {
        let directory = self.directories.get(handle)?;
        directory.entries(place, |item| {
            Ok(add(item.shown(), item.next, kind(directory.kind(item)), &item.name))
        })
    }

    /// As [`Tree::readdir`], every entry with its attributes and looked up at once. It ends before
    /// a file that the kernel does not know yet and for which `room` has none.
    ///
    /// # Errors
    /// An error of the first entry alone: what was found before one is handed out first, and asked
    /// for the rest, it comes again. ENFILE: there is no room for that entry.
    pub fn readdirplus(
        &self,
        handle: FileHandle,
        place: u64,
        mut room: impl FnMut() -> Option<Room>,
        mut add: impl FnMut(u64, &OsStr, &Entry) -> bool,
    ) -> Result<(), Errno> {
        let mut any = false;
        let directory = self.directories.get(handle)?;
        let own: Stat = rustix::fs::fstat(&directory.node)?;
        let read = directory.entries(place, |item| {
            if item.is_dots() {
                // Neither is looked up; only number and kind are read.
                let mut entry = entry_of(&directory.node, &own, self.lifetime);
                entry.attr.ino = INodeNo(item.shown());
                let fits = add(item.next, &item.name, &entry);
                any |= fits;
                return Ok(fits);
            }
            match self.entry(&directory.node, &item.name, room()) {
                Ok((node, entry)) => {
                    let fits = add(item.next, &item.name, &entry);
                    any |= fits;
                    if !fits {
                        self.nodes.forget(node.id, 1);
                    }
                    Ok(fits)
                }
                // Gone since.
                Err(Errno::NOENT) => Ok(true),
                // The place of another mount, which is not served.
                Err(Errno::XDEV) => Ok(true),
                Err(error) => Err(error),
            }
        });
        if any { Ok(()) } else { read }
    }

    pub fn releasedir(&self, handle: FileHandle) {
        self.directories.remove(handle);
    }

    /// # Errors
    /// As of [`Tree::fsync`].
    pub fn fsyncdir(&self, handle: FileHandle, data_only: bool) -> Result<(), Errno> {
        if self.in_memory {
            return Err(Errno::NOSYS);
        }
        let directory = self.directories.get(handle)?;
        if data_only { rustix::fs::fdatasync(&*directory) } else { rustix::fs::fsync(&*directory) }
    }
}
