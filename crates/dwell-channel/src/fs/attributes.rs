// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes of files: length, owner, mode, times, and extended ones.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileHandle, TimeOrNow};
use rustix::fs::{AtFlags, CWD, Gid, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags};
use rustix::io::Errno;

use super::caller::Caller;
use super::node::Node;
use super::tree::Tree;
use crate::grants::Why;

/// What is to change; `None` stays.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub bytes: Option<u64>,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub accessed: Option<TimeOrNow>,
    pub modified: Option<TimeOrNow>,
}

impl Tree {
    pub fn setattr(
        &self,
        id: u64,
        handle: Option<FileHandle>,
        change: &Change,
    ) -> Result<(FileAttr, Duration), Errno> {
        let node = self.nodes.get(id)?;
        let why = if change.bytes.is_some() { Why::Shorten } else { Why::Attributes };
        let guard = self.drain(node.key, why);
        if let Some(bytes) = change.bytes {
            self.set_length(&node, handle, bytes)?;
        }
        if change.uid.is_some() || change.gid.is_some() {
            let (uid, gid) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
            rustix::fs::chownat(&*node, "", uid, gid, AtFlags::EMPTY_PATH)?;
        }
        // After the owner, whose change takes set-user-id away.
        if let Some(mode) = change.mode {
            if node.is_symlink() {
                return Err(Errno::OPNOTSUPP);
            }
            rustix::fs::chmodat(CWD, node.path(), Mode::from_raw_mode(mode & 0o7777), AtFlags::empty())?;
        }
        if change.accessed.is_some() || change.modified.is_some() {
            let times = Timestamps {
                last_access: timespec(change.accessed),
                last_modification: timespec(change.modified),
            };
            rustix::fs::utimensat(&*node, "", &times, AtFlags::EMPTY_PATH)?;
        }
        drop(guard);
        self.attr(&node)
    }

    fn set_length(&self, node: &Node, handle: Option<FileHandle>, bytes: u64) -> Result<(), Errno> {
        let open = handle.and_then(|handle| self.files.get(handle).ok());
        match open.filter(|file| file.open.rights.write) {
            // Right also where the mode no longer lets anybody write.
            Some(file) => rustix::fs::ftruncate(&*file, bytes),
            None => {
                let flags = rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
                let file = rustix::fs::open(node.path(), flags, Mode::empty())?;
                rustix::fs::ftruncate(file, bytes)
            }
        }
    }

    pub fn setxattr(
        &self,
        caller: Caller,
        id: u64,
        name: &OsStr,
        value: &[u8],
        flags: i32,
    ) -> Result<(), Errno> {
        let node = self.nodes.get(id)?;
        no_links(&node)?;
        // An access list may change the mode, and whose group it is decides about set-group-id.
        let acl = name.as_bytes().starts_with(b"system.posix_acl_");
        let _acting = acl.then(|| self.callers.become_caller(caller)).transpose()?;
        let flags = XattrFlags::from_bits_retain(flags as u32);
        rustix::fs::setxattr(node.path(), name, value, flags)
    }

    /// The value, or with a `room` of 0 as many zeroes as it has bytes.
    pub fn getxattr(&self, id: u64, name: &OsStr, room: usize) -> Result<Vec<u8>, Errno> {
        let node = self.nodes.get(id)?;
        if node.is_symlink() {
            return Err(Errno::NODATA);
        }
        let mut value = vec![0; room];
        match rustix::fs::getxattr(node.path(), name, &mut value[..]) {
            Ok(bytes) => {
                value.resize(bytes, 0);
                Ok(value)
            }
            // The kernel asks for access lists whenever it checks rights: a file system that has none says
            // that this file has none.
            Err(Errno::OPNOTSUPP) if name.as_bytes().starts_with(b"system.posix_acl_") => {
                Err(Errno::NODATA)
            }
            Err(error) => Err(error),
        }
    }

    /// All names, each ended by a zero byte.
    pub fn listxattr(&self, caller: Caller, id: u64) -> Result<Vec<u8>, Errno> {
        let node = self.nodes.get(id)?;
        if node.is_symlink() {
            return Ok(Vec::new());
        }
        let path = node.path();
        loop {
            let mut names = vec![0; rustix::fs::listxattr(&path, &mut [0_u8; 0][..])?];
            if names.is_empty() {
                return Ok(names);
            }
            match rustix::fs::listxattr(&path, &mut names[..]) {
                // It grew meanwhile.
                Err(Errno::RANGE) => continue,
                Err(error) => return Err(error),
                Ok(bytes) => names.truncate(bytes),
            }
            if caller.uid == 0 {
                return Ok(names);
            }
            // What only the privileged may read, only they see.
            let visible = names.split_inclusive(|byte| *byte == 0);
            return Ok(visible.filter(|name| !name.starts_with(b"trusted.")).flatten().copied().collect());
        }
    }

    pub fn removexattr(&self, id: u64, name: &OsStr) -> Result<(), Errno> {
        let node = self.nodes.get(id)?;
        no_links(&node)?;
        rustix::fs::removexattr(node.path(), name)
    }
}

/// A symbolic link cannot be reached by its descriptor's path: that leads to where the link leads.
fn no_links(node: &Node) -> Result<(), Errno> {
    if node.is_symlink() { Err(Errno::OPNOTSUPP) } else { Ok(()) }
}

fn timespec(time: Option<TimeOrNow>) -> Timespec {
    let special = |nanoseconds| Timespec { tv_sec: 0, tv_nsec: nanoseconds };
    match time {
        None => special(UTIME_OMIT),
        Some(TimeOrNow::Now) => special(UTIME_NOW),
        Some(TimeOrNow::SpecificTime(time)) => exact(time),
    }
}

fn exact(time: SystemTime) -> Timespec {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timespec { tv_sec: after.as_secs() as i64, tv_nsec: after.subsec_nanos().into() },
        Err(before) => {
            let before = before.duration();
            let (seconds, nanoseconds) = (before.as_secs() as i64, i64::from(before.subsec_nanos()));
            match nanoseconds {
                0 => Timespec { tv_sec: -seconds, tv_nsec: 0 },
                _ => Timespec { tv_sec: -seconds - 1, tv_nsec: 1_000_000_000 - nanoseconds },
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_count_back() {
        for (nanoseconds, seconds, rest) in
            [(1_i64, 0, 1), (-1, -1, 999_999_999), (-1_000_000_000, -1, 0), (-1_500_000_000, -2, 500_000_000)]
        {
            let duration = Duration::from_nanos(nanoseconds.unsigned_abs());
            let time = if nanoseconds < 0 { UNIX_EPOCH - duration } else { UNIX_EPOCH + duration };
            let found = exact(time);
            assert_eq!((found.tv_sec, found.tv_nsec), (seconds, rest), "{nanoseconds}");
        }
    }
}
