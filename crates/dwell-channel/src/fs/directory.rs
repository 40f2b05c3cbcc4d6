// SPDX-License-Identifier: MIT OR Apache-2.0
//! Open directories: entries in the backing file system's own order, so that a place in it stays
//! right while names come and go.

use std::collections::VecDeque;
use std::ffi::{OsStr, OsString};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{AtFlags, FileType, RawDir, SeekFrom};
use rustix::io::Errno;

use super::node::{Node, ROOT};
use crate::shares::Share;

/// Bytes of entries asked for at a time.
const BATCH: usize = 32 << 10;

/// A directory that somebody has open.
pub(super) struct OpenDirectory {
    handle: OwnedFd,
    pub node: Arc<Node>,
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

pub(super) struct Item {
    number: u64,
    /// The place behind it.
    pub next: u64,
    kind: FileType,
    pub name: OsString,
}

impl AsFd for OpenDirectory {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.handle.as_fd()
    }
}

impl OpenDirectory {
    pub fn new(handle: OwnedFd, node: Arc<Node>, share: Share) -> Self {
        OpenDirectory { handle, node, reading: Mutex::default(), _share: share }
    }

    /// Hands out entries from a place on, until `take` has no room for one.
    pub fn entries(
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
    pub fn kind(&self, item: &Item) -> FileType {
        if item.kind != FileType::Unknown {
            return item.kind;
        }
        rustix::fs::statat(&self.handle, &*item.name, AtFlags::SYMLINK_NOFOLLOW)
            .map_or(FileType::Unknown, |stat| FileType::from_raw_mode(stat.st_mode))
    }
}

impl Item {
    pub fn is_dots(&self) -> bool {
        matches!(self.name.as_bytes(), b"." | b"..")
    }

    /// The kernel keeps 0 for names that are gone, and the root's own number for the root.
    pub fn shown(&self) -> u64 {
        if self.number <= ROOT { u64::MAX } else { self.number }
    }
}
