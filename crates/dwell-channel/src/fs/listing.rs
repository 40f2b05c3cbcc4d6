// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening, listing and closing directories of a served tree.

use std::ffi::OsStr;

use fuser::{FileHandle, INodeNo};
use rustix::fs::{Mode, OFlags, Stat};
use rustix::io::Errno;

use super::caller::Caller;
use super::directory::OpenDirectory;
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

    /// As [`Tree::readdir`], every entry with its attributes and looked up at once.
    pub fn readdirplus(
        &self,
        handle: FileHandle,
        place: u64,
        mut add: impl FnMut(u64, &OsStr, &Entry) -> bool,
    ) -> Result<(), Errno> {
        let directory = self.directories.get(handle)?;
        let own: Stat = rustix::fs::fstat(&directory.node)?;
        directory.entries(place, |item| {
            if item.is_dots() {
                // Neither is looked up; only number and kind are read.
                let mut entry = entry_of(&directory.node, &own, self.lifetime);
                entry.attr.ino = INodeNo(item.shown());
                return Ok(add(item.next, &item.name, &entry));
            }
            match self.entry(&directory.node, &item.name) {
                Ok((node, entry)) => {
                    let room = add(item.next, &item.name, &entry);
                    if !room {
                        self.nodes.forget(node.id, 1);
                    }
                    Ok(room)
                }
                // Gone since.
                Err(Errno::NOENT) => Ok(true),
                // The place of another mount, which is not served.
                Err(Errno::XDEV) => Ok(true),
                Err(error) => Err(error),
            }
        })
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
