// SPDX-License-Identifier: MIT OR Apache-2.0
//! What hides a private backing directory: an empty file system on top of it that nobody may enter.
//! The daemon reaches what lies beneath by the directory that it opened before.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use dwell_mounts::{self as mounts, HIDDEN, How};
use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, INodeNo,
    MountOption, ReplyAttr, ReplyDirectory, ReplyEntry, Request, SessionACL,
};

/// A backing directory out of sight until this is dropped.
pub(super) struct Hidden {
    at: PathBuf,
    _session: BackgroundSession,
}

impl Hidden {
    /// Hides a directory from every process that shares this one's mounts.
    ///
    /// # Errors
    /// A process that may not mount there cannot hide it.
    pub fn hide(backing: &Path, everybody: bool) -> io::Result<Self> {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(mounts::source(HIDDEN, backing)),
            MountOption::Subtype("dwell".to_owned()),
            MountOption::DefaultPermissions,
            MountOption::RO,
            MountOption::NoExec,
        ];
        config.acl = if everybody { SessionACL::All } else { SessionACL::Owner };
        let session = fuser::spawn_mount(Empty, backing, &config)?;
        Ok(Hidden { at: backing.to_owned(), _session: session })
    }
}

impl Drop for Hidden {
    fn drop(&mut self) {
        // Nothing in it can be in use but as somebody's working directory.
        let _ = mounts::unmount(&self.at, How::Now);
    }
}

/// An empty directory.
struct Empty;

impl Filesystem for Empty {
    fn lookup(&self, _: &Request, _: INodeNo, _: &OsStr, reply: ReplyEntry) {
        reply.error(Errno::ENOENT);
    }

    fn getattr(&self, _: &Request, id: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        let attr = FileAttr {
            ino: id,
            size: 0,
            blocks: 0,
            atime: UNIX_EPOCH,
            mtime: UNIX_EPOCH,
            ctime: UNIX_EPOCH,
            crtime: UNIX_EPOCH,
            kind: FileType::Directory,
            perm: 0,
            nlink: 2,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            blksize: 4096,
            flags: 0,
        };
        reply.attr(&Duration::from_secs(3600), &attr);
    }

    fn readdir(&self, _: &Request, _: INodeNo, _: FileHandle, _: u64, reply: ReplyDirectory) {
        reply.ok();
    }
}
