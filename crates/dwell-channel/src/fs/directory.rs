// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open directories: entries in the backing file system's own order, so that a place in it stays
//! right while names come and go.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Mutex, PoisonError};

use fuser::{FileHandle, INodeNo};
use rustix::fs::{AtFlags, FileType, Mode, OFlags, RawDir, SeekFrom, Stat};
use rustix::io::Errno;

use super::caller::Caller;
use super::node::{Node, ROOT};
use super::tree::{Entry, Tree, entry_of, kind};
use crate::shares::Share;

/// Bytes of entries asked for at a time.
const BATCH: usize = 32 << 10;

/// A directory that somebody has open.
pub(super) struct OpenDirectory {
    handle: OwnedFd,
    node: Arc<Node>,
    reading: Mutex<Reading>,
    _share: Share,
}

#[derive(Default)]
struct Reading {
    /// The place of the next entry that will be handed out.
    place: u64,
    /// Read and not yet handed out.
    ahead: VecDeque<Item>,
}

struct Item {
    number: u64,
    /// The place behind it.
    next: u64,
    kind: FileType,
    name: OsString,
}

impl AsFd for OpenDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl OpenDirectory {
    /// Hands out entries from a place on, until `take` has no room for one.
    fn entries(
        &self,
        place: u64,
        mut take: impl FnMut(&Item) -> Result<bool, Errno>,
    ) -> Result<(), Errno> {
        let mut reading = self.reading.lock().unwrap_or_else(PoisonError::into_inner);
        if place != reading.place || place == 0 {
            reading.ahead.clear();
            reading.place = place;
            rustix::fs::seek(&self.handle, SeekFrom::Start(place))?;
        }
        loop {
            if reading.ahead.is_empty() && !self.read_ahead(&mut reading.ahead)? {
                return Ok(());
            }
            while let Some(item) = reading.ahead.front() {
                if !take(item)? {
                    return Ok(());
                }
                reading.place = item.next;
                reading.ahead.pop_front();
            }
        }
    }

    /// Whether there was anything more.
    fn read_ahead(&self, ahead: &mut VecDeque<Item>) -> Result<bool, Errno> {
        let mut buffer = [const { MaybeUninit::uninit() }; BATCH];
        let mut entries = RawDir::new(&self.handle, &mut buffer);
        while let Some(entry) = entries.next() {
            let entry = entry?;
            let name = OsStr::from_bytes(entry.file_name().to_bytes()).to_owned();
            ahead.push_back(Item {
                number: entry.ino(),
                next: entry.next_entry_cookie(),
                kind: entry.file_type(),
                name,
            });
            if entries.is_buffer_empty() {
                break;
            }
        }
        Ok(!ahead.is_empty())
    }

    /// What it is, also where the file system does not say so in passing.
    fn kind(&self, item: &Item) -> FileType {
        if item.kind != FileType::Unknown {
            return item.kind;
        }
        rustix::fs::statat(&self.handle, &*item.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
    }
}

impl Item {
    fn is_dots(&self) -> bool {
        matches!(self.name.as_bytes(), b"." | b"..")
    }

    /// The kernel keeps 0 for names that are gone, and the root's own number for the root.
    fn shown(&self) -> u64 {
        if self.number <= ROOT { u64::MAX } else { self.number }
    }
}

impl Tree {
    pub fn opendir(&self, caller: Caller, id: u64) -> Result<u64, Errno> {
        let node = self.nodes.get(id)?;
        let _share =
            self.open_files.take(self.grants.account(caller.uid), 1).ok_or(Errno::NFILE)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let handle = rustix::fs::open(node.path(), flags, Mode::empty())?;
        let reading = Mutex::default();
        Ok(self.directories.insert(OpenDirectory { handle, node, reading, _share }))
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
