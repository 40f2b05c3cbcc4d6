// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file that answers when the test says so: whatever is read of it or written to it stays in
//! flight in the kernel until then.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime};

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileHandle, FileType, Filesystem, FopenFlags,
    Generation, INodeNo, LockOwner, MountOption, OpenFlags, ReplyAttr, ReplyData, ReplyEmpty,
    ReplyEntry, ReplyOpen, ReplyWrite, Request, Session, WriteFlags,
};

const FILE: INodeNo = INodeNo(2);
const TTL: Duration = Duration::ZERO;

enum Asked {
    Read(usize, usize, ReplyData),
    Write(usize, Vec<u8>, ReplyWrite),
    Sync(ReplyEmpty),
}

struct State {
    open: bool,
    content: Vec<u8>,
    held: Vec<Asked>,
}

impl State {
    fn answer(&mut self, asked: Asked) {
        match asked {
            Asked::Read(at, bytes, reply) => {
                let end = self.content.len().min(at + bytes);
                reply.data(&self.content[at.min(end)..end]);
            }
            Asked::Sync(reply) => reply.ok(),
            Asked::Write(at, data, reply) => {
                let end = at + data.len();
                self.content.resize(self.content.len().max(end), 0);
                self.content[at..end].copy_from_slice(&data);
                reply.written(data.len() as u32);
            }
        }
    }
}

type Shared = Arc<(Mutex<State>, Condvar)>;

struct Slow(Shared);

impl Slow {
    fn asked(&self, asked: Asked) {
        let mut state = self.0.0.lock().unwrap();
        if state.open {
            return state.answer(asked);
        }
        state.held.push(asked);
        self.0.1.notify_all();
    }

    fn attr(&self, ino: INodeNo) -> FileAttr {
        let is_file = ino.0 >= FILE.0;
        let bytes = if is_file { self.0.0.lock().unwrap().content.len() as u64 } else { 0 };
        let time = SystemTime::UNIX_EPOCH;
        FileAttr {
            ino,
            size: bytes,
            blocks: bytes / 512,
            atime: time,
            mtime: time,
            ctime: time,
            crtime: time,
            kind: if is_file { FileType::RegularFile } else { FileType::Directory },
            perm: if is_file { 0o600 } else { 0o755 },
            nlink: 1,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            rdev: 0,
            flags: 0,
            blksize: 4096,
        }
    }
}

impl Filesystem for Slow {
    fn lookup(&self, _: &Request, _: INodeNo, name: &OsStr, reply: ReplyEntry) {
        match name.to_str() {
            Some("data") => reply.entry(&TTL, &self.attr(FILE), Generation(0)),
            // Other files with the same content.
            Some(name) if name.starts_with("more-") => match name[5..].parse::<u64>() {
                Ok(number) => {
                    let ino = INodeNo(FILE.0 + 1 + number);
                    reply.entry(&TTL, &self.attr(ino), Generation(0));
                }
                Err(_) => reply.error(Errno::ENOENT),
            },
            _ => reply.error(Errno::ENOENT),
        }
    }

    fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
        reply.attr(&TTL, &self.attr(ino));
    }

    /// Past the kernel's cache, which would answer by itself, and where a file system does as it
    /// likes about those who must not wait.
    fn open(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(FileHandle(1), FopenFlags::FOPEN_DIRECT_IO);
    }

    fn read(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        bytes: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        self.asked(Asked::Read(offset as usize, bytes as usize, reply));
    }

    fn fsync(&self, _: &Request, _: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        self.asked(Asked::Sync(reply));
    }

    fn write(
        &self,
        _: &Request,
        _: INodeNo,
        _: FileHandle,
        offset: u64,
        data: &[u8],
        _: WriteFlags,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        self.asked(Asked::Write(offset as usize, data.to_vec(), reply));
    }
}

/// The file, at first open.
pub struct Gate {
    shared: Shared,
    mount: tempfile::TempDir,
    session: Option<BackgroundSession>,
}

impl Gate {
    /// `None`, and said so, where nothing can be mounted.
    pub fn with(content: Vec<u8>) -> Option<Gate> {
        let state = State { open: true, content, held: Vec::new() };
        let shared: Shared = Arc::new((Mutex::new(state), Condvar::new()));
        let mount = tempfile::tempdir().unwrap();
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName("dwell-gate".into())];
        let session = Session::new(Slow(shared.clone()), mount.path(), &config);
        match session.and_then(Session::spawn) {
            Ok(session) => Some(Gate { shared, mount, session: Some(session) }),
            Err(error) => {
                println!("SKIP: nothing can be mounted: {error}");
                None
            }
        }
    }

    pub fn path(&self) -> PathBuf {
        self.mount.path().join("data")
    }

    /// From now on nothing is answered.
    pub fn close(&self) {
        self.shared.0.lock().unwrap().open = false;
    }

    /// Waits until a request is held.
    pub fn holds_some(&self) {
        self.holds(1);
    }

    /// Waits until so many requests are held.
    pub fn holds(&self, count: usize) {
        let state = self.shared.0.lock().unwrap();
        let limit = Duration::from_secs(20);
        let wait = self.shared.1.wait_timeout_while(state, limit, |state| state.held.len() < count);
        assert!(!wait.unwrap().1.timed_out(), "nothing is in flight");
    }

    /// Answers all that was held, and all that comes.
    pub fn open(&self) {
        let mut state = self.shared.0.lock().unwrap();
        state.open = true;
        for asked in std::mem::take(&mut state.held) {
            state.answer(asked);
        }
    }

    /// What the file holds.
    pub fn content(&self) -> Vec<u8> {
        self.shared.0.lock().unwrap().content.clone()
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        // A process that waits for an answer would keep the mount.
        self.open();
        drop(self.session.take());
        // And so does a child that a test beside this one is making at the moment.
        let mut unmount = Command::new("umount");
        let _ = unmount.arg("-l").arg(self.mount.path()).stderr(Stdio::null()).status();
    }
}
