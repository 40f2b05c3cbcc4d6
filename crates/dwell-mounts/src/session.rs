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

use crate::{EXPORT, HIDDEN, How, SERVED, all, unmount};

/// Mounts a file system, in the stead of what a killed daemon of Dwell left there.
///
/// With the right to mount, on Linux 6.5 and newer, the place shows one of the two at any moment.
/// Otherwise it is bare for a moment between them.
///
/// # Errors
/// What the system or fusermount3 says.
pub fn session<F: Filesystem>(filesystem: F, at: &Path, config: &Config) -> io::Result<Session<F>> {
    let ours = [SERVED, HIDDEN, EXPORT];
    let left = all()?.iter().filter(|there| there.at == at && there.is_from(&ours)).count();
    if left == 0 {
        return Session::new(filesystem, at, config);
    }
    match detached(config) {
        Ok((device, mount)) => {
            let session = Session::from_fd(filesystem, device, config.acl, config.clone())?;
            for _ in 1..left {
                unmount(at, How::Now)?;
            }
            put_in_the_stead_of_what_is(at, &mount)?;
            Ok(session)
        }
        Err(Errno::PERM) => {
            for _ in 0..left {
                unmount(at, How::Now)?;
            }
            Session::new(filesystem, at, config)
        }
        Err(error) => Err(error.into()),
    }
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
