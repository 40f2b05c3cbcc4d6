// SPDX-License-Identifier: MIT OR Apache-2.0
//! A daemon in this process, and files that it grants without a mount.
#![allow(dead_code)]

pub mod disk;
pub mod gate;
pub mod program;
pub mod scene;

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use dwell_channel::client::Mount;
use dwell_channel::credentials::Opener;
use dwell_channel::daemon::{Daemon, Options};
use dwell_channel::grants::{Grants, Inodes, OpenFile};
use rustix::fs::{Gid, Uid};

pub struct House {
    pub daemon: Arc<Daemon>,
    pub inodes: Inodes,
    opens: Arc<Mutex<HashMap<RawFd, Arc<OpenFile>>>>,
}

/// An open file: what a program has, and what the daemon has.
pub struct Opened {
    pub program: File,
    pub open: Arc<OpenFile>,
}

impl House {
    pub fn new(options: Options) -> House {
        let daemon = Arc::new(Daemon::start(options).unwrap());
        House { daemon, inodes: Inodes::default(), opens: Arc::default() }
    }

    pub fn mount(&self) -> Mount {
        let (daemon, opens) = (self.daemon.clone(), self.opens.clone());
        Mount::direct(
            self.daemon.place(),
            Arc::new(move |descriptor, token| {
                let open = opens.lock().unwrap().get(&descriptor).cloned();
                let open = open.ok_or(std::io::ErrorKind::NotFound)?;
                Ok(daemon.grant(token, &open)?)
            }),
        )
    }

    pub fn open(&self, path: &Path, flags: i32) -> Opened {
        self.open_as(Opener::itself(), path, flags)
    }

    /// As that user opened it.
    pub fn open_as(&self, opener: Opener, path: &Path, flags: i32) -> Opened {
        let program = opened(path, flags);
        let backing = opened(path, flags);
        let inode = self.inodes.of(&backing).unwrap();
        let open = Arc::new(OpenFile::new(backing, flags, inode).opened_by(opener));
        self.opens.lock().unwrap().insert(program.as_raw_fd(), open.clone());
        Opened { program, open }
    }

    /// Grants what another descriptor of a program asks for as if it were this one.
    pub fn speak_for(&self, opened: &Opened, program: File) -> File {
        self.opens.lock().unwrap().insert(program.as_raw_fd(), opened.open.clone());
        program
    }

    pub fn close(&self, opened: Opened) {
        self.opens.lock().unwrap().remove(&opened.program.as_raw_fd());
        self.daemon.suspect(&opened.open);
        self.daemon.release(&opened.open);
    }
}

fn opened(path: &Path, flags: i32) -> File {
    use std::os::unix::fs::OpenOptionsExt;
    let access = flags & libc::O_ACCMODE;
    File::options()
        .read(access != libc::O_WRONLY)
        .write(access != libc::O_RDONLY)
        .custom_flags(flags & !(libc::O_ACCMODE | libc::O_DIRECT))
        .open(path)
        .unwrap()
}

/// A file of `bytes` bytes, each the low byte of a mix of its number; in memory or not.
pub fn filled(memory: bool, bytes: usize) -> tempfile::NamedTempFile {
    let file = empty(memory);
    let data: Vec<u8> = (0..bytes).map(byte_at).collect();
    std::fs::write(file.path(), data).unwrap();
    file
}

pub fn empty(memory: bool) -> tempfile::NamedTempFile {
    let dir = if memory { "/dev/shm" } else { "/var/tmp" };
    tempfile::Builder::new().prefix("dwell-channel-test-").tempfile_in(dir).unwrap()
}

/// Maps so much of a file, lets `with` have it, and unmaps it again.
pub fn mapped(file: &File, bytes: usize, with: impl FnOnce(&mut [u8])) -> std::io::Result<()> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a fresh mapping of an open file, unmapped below; nobody shortens the file meanwhile.
    unsafe {
        let start =
            libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, file.as_raw_fd(), 0);
        if start == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        with(std::slice::from_raw_parts_mut(start.cast(), bytes));
        libc::munmap(start, bytes);
    }
    Ok(())
}

pub fn byte_at(at: usize) -> u8 {
    (at ^ at >> 8 ^ at >> 16) as u8
}

/// A user without rights.
pub const USER: u32 = 54_321;

/// Runs something in a thread that acts as that user. Only root can.
pub fn as_user<T: Send>(uid: u32, what: impl FnOnce() -> T + Send) -> T {
    let act = || {
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(group, group, group).unwrap();
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        what()
    };
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}
