// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files and directories here, reached from a directory that is held open: no symbolic link that a
//! server lists, or that another program puts in a directory's place, leads out of it.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use rustix::fs::{
    AtFlags, CWD, Dir, Gid, Mode, OFlags, ResolveFlags, Statx, StatxFlags, StatxTimestamp,
    Timestamps, Uid, chmodat, chownat, fchmod, fchown, futimens, linkat, mkdirat, mknodat, openat,
    openat2, readlinkat, renameat, statx, symlinkat, unlinkat, utimensat,
};
use rustix::fs::{FileType, makedev};
use rustix::io::Errno;

use super::Facts;
use crate::nfs3::{Kind, Time};

type Done<T> = rustix::io::Result<T>;

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

/// Something here.
#[derive(Clone)]
pub struct Local {
    held: Rc<OwnedFd>,
    /// Its path from the directory that is held; nothing where it is that one.
    below: PathBuf,
    /// As a person calls it.
    path: PathBuf,
    /// The file itself, where it was opened to be written: whatever has its name by now.
    itself: Option<Rc<File>>,
}

impl Local {
    /// The directory at a path, whose links are followed.
    ///
    /// # Errors
    /// What the system says.
    pub fn directory(path: &Path) -> io::Result<Local> {
        let held = Rc::new(openat(CWD, path, DIRECTORY, Mode::empty())?);
        Ok(Local { held, below: PathBuf::new(), path: path.to_owned(), itself: None })
    }

    /// The file or directory at a path. A link at its end is not followed.
    ///
    /// # Errors
    /// What the system says.
    pub fn at(path: &Path) -> io::Result<Local> {
        let name = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/"));
        let Some(name) = name else { return Self::directory(path) };
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let parent = Self::directory(parent.unwrap_or(Path::new(".")))?;
        Ok(Local { below: name.into(), path: path.to_owned(), ..parent })
    }

    /// The directory that a descriptor holds.
    pub(super) fn holding(held: OwnedFd) -> Local {
        let (below, path) = (PathBuf::new(), PathBuf::new());
        Local { held: Rc::new(held), below, path, itself: None }
    }

    /// One more descriptor of the directory that is held.
    pub(super) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.held.try_clone()
    }

    /// Something by its path from the directory that is held, and as a person calls it.
    pub(super) fn reached(&self, below: PathBuf, path: PathBuf) -> Local {
        Local { held: self.held.clone(), below, path, itself: None }
    }

    /// What [`Local::reached`] knows it by.
    pub(super) fn into_paths(self) -> (PathBuf, PathBuf) {
        (self.below, self.path)
    }

    /// As a person calls it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Something in this directory, there or not.
    pub fn inner(&self, name: &[u8]) -> Local {
        let name = OsStr::from_bytes(name);
        self.reached(self.below.join(name), self.path.join(name))
    }

    /// Does something in a directory below the one that is held.
    fn within<T>(&self, below: &Path, act: impl FnOnce(BorrowedFd<'_>) -> Done<T>) -> Done<T> {
        if below.as_os_str().is_empty() {
            return act(self.held.as_fd());
        }
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS;
        let there = match openat2(&*self.held, below, DIRECTORY, Mode::empty(), resolve) {
            // An older kernel, or a container that lets nobody ask for it.
            Err(Errno::NOSYS | Errno::PERM) => walk(self.held.as_fd(), below)?,
            there => there?,
        };
        act(there.as_fd())
    }

    /// Does something to its name, in its directory.
    fn by_name<T>(&self, act: impl FnOnce(BorrowedFd<'_>, &OsStr) -> Done<T>) -> io::Result<T> {
        let name = self.below.file_name().unwrap_or(OsStr::new("."));
        let parent = self.below.parent().unwrap_or(Path::new(""));
        Ok(self.within(parent, |directory| act(directory, name))?)
    }

    fn open(&self, flags: OFlags, mode: u32) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        self.by_name(|at, name| openat(at, name, flags, Mode::from_raw_mode(mode)))
    }

    pub(crate) fn facts(&self) -> io::Result<Facts> {
        match &self.itself {
            Some(file) => Ok(facts_of(file)?),
            None => self.by_name(facts),
        }
    }

    pub(super) fn list(&self) -> io::Result<Vec<(Vec<u8>, Local, Facts)>> {
        let mut entries = Dir::new(self.open(OFlags::RDONLY | OFlags::DIRECTORY, 0)?)?;
        let mut found = Vec::new();
        while let Some(entry) = entries.read() {
            let name = entry?.file_name().to_bytes().to_vec();
            if name == b"." || name == b".." {
                continue;
            }
            match facts(entries.fd()?, OsStr::from_bytes(&name)) {
                Ok(facts) => found.push((name.clone(), self.inner(&name), facts)),
                // Removed since it was listed.
                Err(Errno::NOENT) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(found)
    }

    pub(super) fn make_directory(&self, mode: u32) -> io::Result<()> {
        self.by_name(|at, name| mkdirat(at, name, Mode::from_raw_mode(mode)))
    }

    fn with(&self, itself: OwnedFd) -> Local {
        Local { itself: Some(Rc::new(itself.into())), ..self.clone() }
    }

    /// Makes a file, and holds it open.
    pub(super) fn create(&self, mode: u32) -> io::Result<Local> {
        let made = self.open(OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode)?;
        Ok(self.with(made))
    }

    /// Holds the file open that was `found` here, and that has no other name. Something else may
    /// have its name by now; opening a pipe would wait for its other end.
    pub(super) fn hold(&self, found: &Facts) -> io::Result<Local> {
        let opened = self.open(OFlags::RDWR | OFlags::NONBLOCK, 0)?;
        let there = facts_of(&opened)?;
        let id = |facts: &Facts| (facts.kind, facts.links, facts.file_system, facts.file);
        if id(&there) != (Kind::File, 1, found.file_system, found.file) {
            let what = "another program has replaced it, or has given it another name";
            return Err(io::Error::other(what));
        }
        rustix::fs::fcntl_setfl(&opened, OFlags::empty())?;
        Ok(self.with(opened))
    }

    pub(super) fn open_to_write(&self) -> io::Result<File> {
        let not_held = || io::Error::other("is not held open to be written");
        self.itself.as_ref().ok_or_else(not_held)?.try_clone()
    }

    /// Something else may have its name by now; opening a pipe would wait for its other end.
    pub(super) fn open_to_read(&self) -> io::Result<File> {
        match &self.itself {
            Some(file) => file.try_clone(),
            None => self.open(OFlags::RDONLY | OFlags::NONBLOCK, 0).map(File::from),
        }
    }

    pub(super) fn remove(&self) -> io::Result<()> {
        self.by_name(|at, name| unlinkat(at, name, AtFlags::empty()))
    }

    /// Gives a name in this directory to what has another name there.
    pub(super) fn rename(&self, from: &[u8], to: &[u8]) -> io::Result<()> {
        let rename = |at: BorrowedFd<'_>| renameat(at, from, at, to);
        Ok(self.within(&self.below, rename)?)
    }

    pub(super) fn link(&self) -> io::Result<Vec<u8>> {
        self.by_name(|at, name| readlinkat(at, name, Vec::new())).map(|target| target.into_bytes())
    }

    pub(crate) fn make_link(&self, target: &[u8]) -> io::Result<()> {
        self.by_name(|at, name| symlinkat(target, at, name))
    }

    pub(crate) fn make_special(&self, of: &Facts) -> io::Result<()> {
        let kind = match of.kind {
            Kind::Block => FileType::BlockDevice,
            Kind::Character => FileType::CharacterDevice,
            Kind::Socket => FileType::Socket,
            _ => FileType::Fifo,
        };
        let (device, mode) =
            (makedev(of.device.0, of.device.1), Mode::from_raw_mode(of.mode & 0o777));
        self.by_name(|at, name| mknodat(at, name, kind, mode, device))
    }

    /// Makes it one more name of a file.
    pub(crate) fn make_name(&self, of: &Local) -> io::Result<()> {
        let (held, below) = (of.below.parent().unwrap_or(Path::new("")), of.below.file_name());
        let old = OsString::from(below.unwrap_or(OsStr::new(".")));
        self.by_name(|at, name| {
            of.within(held, |there| linkat(there, &old, at, name, AtFlags::empty()))
        })
    }

    pub(crate) fn set_mode(&self, mode: u32) -> io::Result<()> {
        if let Some(file) = &self.itself {
            return Ok(fchmod(file, Mode::from_raw_mode(mode))?);
        }
        // The system changes the mode of what a path leads to, not of a link: so by a descriptor.
        let itself = self.open(OFlags::PATH, 0)?;
        let itself = format!("/proc/self/fd/{}", itself.as_raw_fd());
        Ok(chmodat(CWD, itself, Mode::from_raw_mode(mode), AtFlags::empty())?)
    }

    pub(crate) fn set_times(&self, times: &Timestamps) -> io::Result<()> {
        if let Some(file) = &self.itself {
            return Ok(futimens(file, times)?);
        }
        self.by_name(|at, name| utimensat(at, name, times, AtFlags::SYMLINK_NOFOLLOW))
    }

    pub(crate) fn set_owner(&self, uid: Option<u32>, gid: Option<u32>) -> io::Result<()> {
        let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
        if let Some(file) = &self.itself {
            return Ok(fchown(file, uid, gid)?);
        }
        self.by_name(|at, name| chownat(at, name, uid, gid, AtFlags::SYMLINK_NOFOLLOW))
    }

    /// Makes the names in this directory durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        File::from(self.open(OFlags::RDONLY | OFlags::DIRECTORY, 0)?).sync_all()
    }
}

/// Opens a directory below another one name after the other, none of which may be a link.
fn walk(from: BorrowedFd<'_>, below: &Path) -> Done<OwnedFd> {
    let mut there = openat(from, ".", DIRECTORY, Mode::empty())?;
    for component in below.components() {
        let Component::Normal(name) = component else { return Err(Errno::XDEV) };
        there = openat(&there, name, DIRECTORY | OFlags::NOFOLLOW, Mode::empty())?;
    }
    Ok(there)
}

fn facts(at: BorrowedFd<'_>, name: &OsStr) -> Done<Facts> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    statx(at, name, flags, StatxFlags::BASIC_STATS).map(|found| (&found).into())
}

fn facts_of(file: impl AsFd) -> Done<Facts> {
    statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS).map(|found| (&found).into())
}

impl From<&Statx> for Facts {
    fn from(found: &Statx) -> Self {
        let kind = match u32::from(found.stx_mode) & libc::S_IFMT {
            libc::S_IFDIR => Kind::Directory,
            libc::S_IFLNK => Kind::Link,
            libc::S_IFBLK => Kind::Block,
            libc::S_IFCHR => Kind::Character,
            libc::S_IFSOCK => Kind::Socket,
            libc::S_IFIFO => Kind::Pipe,
            _ => Kind::File,
        };
        let is_one = |at: StatxTimestamp| u32::try_from(at.tv_sec).is_ok();
        let time = |at: StatxTimestamp| match u32::try_from(at.tv_sec) {
            Ok(seconds) => Time { seconds, nanoseconds: at.tv_nsec },
            Err(_) if at.tv_sec < 0 => Time::default(),
            Err(_) => Time { seconds: u32::MAX, nanoseconds: 0 },
        };
        Facts {
            kind,
            mode: u32::from(found.stx_mode) & 0o7777,
            uid: found.stx_uid,
            gid: found.stx_gid,
            bytes: found.stx_size,
            used_bytes: found.stx_blocks * 512,
            links: found.stx_nlink,
            file_system: makedev(found.stx_dev_major, found.stx_dev_minor),
            file: found.stx_ino,
            device: (found.stx_rdev_major, found.stx_rdev_minor),
            modified: time(found.stx_mtime),
            accessed: time(found.stx_atime),
            changed: time(found.stx_ctime),
            times_fit: is_one(found.stx_mtime) && is_one(found.stx_atime),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_finds_directories_below_and_follows_no_link() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("a/b")).unwrap();
        std::fs::write(dir.path().join("a/b/x"), b"").unwrap();
        std::os::unix::fs::symlink("b", dir.path().join("a/link")).unwrap();
        let held = Local::directory(&dir.path().join("a")).unwrap().held;
        let walked = |below: &str| walk(held.as_fd(), Path::new(below));
        let there = walked("b").unwrap();
        assert!(facts(there.as_fd(), OsStr::new("x")).is_ok());
        assert_eq!(walked("link").err(), Some(Errno::NOTDIR));
        assert_eq!(walked("link/b").err(), Some(Errno::NOTDIR));
        assert_eq!(walked("../a").err(), Some(Errno::XDEV));
        assert_eq!(walked("/").err(), Some(Errno::XDEV));
        assert_eq!(walked("b/none").err(), Some(Errno::NOENT));
    }
}
