// SPDX-License-Identifier: MIT OR Apache-2.0
//! Attributes of files: length, owner, mode, times.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileHandle, TimeOrNow};
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, StatVfs, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
};
use rustix::io::Errno;

use super::caller::Caller;
use super::node::Node;
use super::tree::{Tree, has_set_ids, unless_granted};
use crate::grants::Why;

/// The attributes that a SETATTR changes; `None` stays.
#[derive(Debug, Default)]
pub(super) struct Change {
    pub bytes: Option<u64>,
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub accessed: Option<TimeOrNow>,
    pub modified: Option<TimeOrNow>,
}

/// Blocks of 512 bytes that take long to give back.
const MANY_BLOCKS: i64 = (64 << 20) / 512;

impl Tree {
    /// Whether a change waits for what channels have in flight, or gives many blocks back.
    pub fn setattr_may_take_long(&self, id: u64, bytes: Option<u64>) -> bool {
        let Ok(node) = self.nodes.get(id) else { return false };
        let many = || rustix::fs::fstat(&*node).is_ok_and(|stat| stat.st_blocks > MANY_BLOCKS);
        self.is_granted(node.key) || (bytes.is_some() && many())
    }

    /// What there is of the backing file system.
    ///
    /// # Errors
    /// ECANCELED: the daemon itself asks, which is content to be answered.
    pub fn statfs(&self, tid: u32, id: u64) -> Result<StatVfs, Errno> {
        if self.watch.asks(tid) {
            return Err(Errno::CANCELED);
        }
        rustix::fs::fstatvfs(&*self.nodes.get(id)?)
    }

    pub fn setattr(
        &self,
        caller: Caller,
        id: u64,
        handle: Option<FileHandle>,
        change: &Change,
    ) -> Result<(FileAttr, Duration), Errno> {
        let node = self.nodes.get(id)?;
        let why = if change.bytes.is_some() { Why::Shorten } else { Why::Attributes };
        let guard = self.drain(node.key, why);
        // The attributes set now are later than what channels wrote.
        self.stamp(&node);
        {
            // A caller outside the file's group loses set-group-id by these, and only the backing
            // file system knows when.
            let changes = change.bytes.is_some() || change.uid.is_some() || change.gid.is_some();
            let _acting = match changes && has_set_ids(&rustix::fs::fstat(&*node)?) {
                true => Some(self.callers.become_caller(caller)?),
                false => None,
            };
            if let Some(bytes) = change.bytes {
                self.set_length(&node, handle, bytes)?;
            }
            if change.uid.is_some() || change.gid.is_some() {
                let (uid, gid) = (change.uid.map(Uid::from_raw), change.gid.map(Gid::from_raw));
                rustix::fs::chownat(&*node, "", uid, gid, AtFlags::EMPTY_PATH)?;
            }
        }
        // After the owner, whose change takes set-user-id away.
        if let Some(mode) = change.mode {
            if node.is_symlink() {
                return Err(Errno::OPNOTSUPP);
            }
            rustix::fs::chmodat(
                CWD,
                node.path(),
                Mode::from_raw_mode(mode & 0o7777),
                AtFlags::empty(),
            )?;
        }
        if change.accessed.is_some() || change.modified.is_some() {
            let times = Timestamps {
                last_access: timespec(change.accessed),
                last_modification: timespec(change.modified),
            };
            rustix::fs::utimensat(&*node, "", &times, AtFlags::EMPTY_PATH)?;
        }
        drop(guard);
        let (attr, fresh) = self.attr(&node)?;
        Ok((attr, unless_granted(&node, fresh)))
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
    let split = |time: Duration| (time.as_secs() as i64, i64::from(time.subsec_nanos()));
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => {
            let (tv_sec, tv_nsec) = split(after);
            Timespec { tv_sec, tv_nsec }
        }
        // `fuser` takes both parts of a time before 1970 off, though the kernel counts nanoseconds
        // forward from a second: this undoes it.
        Err(before) => {
            let (seconds, tv_nsec) = split(before.duration());
            Timespec { tv_sec: seconds.wrapping_neg(), tv_nsec }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_are_what_the_kernel_sent() {
        for (seconds, nanoseconds) in [(0, 1), (-1, 0), (-7, 999_999_999), (i64::MIN, 0)] {
            // As `fuser` makes them.
            let parts = Duration::new(seconds.unsigned_abs(), nanoseconds);
            let time = if seconds < 0 { UNIX_EPOCH - parts } else { UNIX_EPOCH + parts };
            let found = exact(time);
            assert_eq!((found.tv_sec, found.tv_nsec), (seconds, nanoseconds.into()));
        }
    }
}
