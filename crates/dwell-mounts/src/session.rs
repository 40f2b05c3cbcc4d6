// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mounting at a place where a killed daemon's mount may still be.

use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use fuser::{Config, Filesystem, MountOption, Session, SessionACL};
use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::Errno;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, fsconfig_create, fsconfig_set_flag,
    fsconfig_set_string, fsmount, fsopen, move_mount,
};
use rustix::process::{getgid, getuid};

use crate::{EXPORT, HIDDEN, How, SERVED, mounted_at, unmount};

/// Mounts a file system, in the stead of what a killed daemon of Dwell left there. What somebody
/// serves there stays beneath.
///
/// With the right to mount, on Linux 6.5 and newer, the place shows one of the two at any moment.
/// Otherwise it is bare for a moment between them.
///
/// # Errors
/// What the system or fusermount3 says.
pub fn session<F: Filesystem>(filesystem: F, at: &Path, config: &Config) -> io::Result<Session<F>> {
    if !is_left_behind(at)? {
        return Session::new(filesystem, at, config);
    }
    match detached(config) {
        Ok((device, mount)) => {
            let session = Session::from_fd(filesystem, device, config.acl, config.clone())?;
            put_in_the_stead_of_what_is(at, &mount)?;
            Ok(session)
        }
        Err(Errno::PERM) => {
            while is_left_behind(at)? {
                unmount(at, How::Now)?;
            }
            Session::new(filesystem, at, config)
        }
        Err(error) => Err(error.into()),
    }
}

fn is_left_behind(at: &Path) -> io::Result<bool> {
    let ours = [SERVED, HIDDEN, EXPORT];
    Ok(mounted_at(at)?.is_some_and(|there| there.is_from(&ours) && there.is_stale()))
}

/// A connection to the kernel, and its mount, which is nowhere yet.
fn detached(config: &Config) -> Result<(OwnedFd, OwnedFd), Errno> {
    let device = rustix::fs::open("/dev/fuse", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    let making = fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    let making = making.as_fd();
    let set = |key: &str, value: &str| fsconfig_set_string(making, key, value);
    set("fd", &device.as_raw_fd().to_string())?;
    // A directory; the rest is asked for.
    set("rootmode", "40000")?;
    set("user_id", &getuid().as_raw().to_string())?;
    set("group_id", &getgid().as_raw().to_string())?;
    for option in &config.mount_options {
        match option {
            MountOption::FSName(name) => set("source", name)?,
            MountOption::Subtype(name) => set("subtype", name)?,
            MountOption::DefaultPermissions => fsconfig_set_flag(making, "default_permissions")?,
            _ => return Err(Errno::OPNOTSUPP),
        }
    }
    if config.acl != SessionACL::Owner {
        fsconfig_set_flag(making, "allow_other")?;
    }
    fsconfig_create(making)?;
    let powerless = MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV;
    let mount = fsmount(making, FsMountFlags::FSMOUNT_CLOEXEC, powerless)?;
    Ok((device, mount))
}

fn put_in_the_stead_of_what_is(at: &Path, mount: &OwnedFd) -> io::Result<()> {
    let put = |more| move_mount(mount, "", CWD, at, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | more);
    if put(MoveMountFlags::MOVE_MOUNT_BENEATH).is_ok() {
        return unmount(at, How::Now);
    }
    // Before Linux 6.5, and where the kernel puts nothing beneath what is mounted.
    unmount(at, How::Now)?;
    Ok(put(MoveMountFlags::empty())?)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use fuser::{FileAttr, FileHandle, FileType, INodeNo, ReplyAttr, Request};

    use super::*;
    use crate::{all, source};

    struct Empty;

    impl Filesystem for Empty {
        fn getattr(&self, _: &Request, ino: INodeNo, _: Option<FileHandle>, reply: ReplyAttr) {
            let attr = FileAttr {
                ino,
                size: 0,
                blocks: 0,
                atime: UNIX_EPOCH,
                mtime: UNIX_EPOCH,
                ctime: UNIX_EPOCH,
                crtime: UNIX_EPOCH,
                kind: FileType::Directory,
                perm: 0o755,
                nlink: 2,
                uid: 0,
                gid: 0,
                rdev: 0,
                blksize: 4096,
                flags: 0,
            };
            reply.attr(&Duration::ZERO, &attr);
        }
    }

    #[test]
    fn a_mount_that_is_served_stays_beneath() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().canonicalize().unwrap();
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName(source(EXPORT, "served"))];
        let mounts = || all().unwrap().iter().filter(|there| there.at == at).count();
        let served = match session(Empty, &at, &config) {
            Ok(session) => session.spawn().unwrap(),
            Err(error) => return println!("SKIP: nothing can be mounted: {error}"),
        };
        let above = session(Empty, &at, &config).unwrap().spawn().unwrap();
        let both = mounts();
        // That unmounts it, and what is beneath is served still.
        drop(above);
        let one = mounts();
        drop(served);
        assert_eq!((both, one), (2, 1));
    }
}
