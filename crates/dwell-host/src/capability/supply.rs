// SPDX-License-Identifier: MIT OR Apache-2.0
//! What file systems and test devices can be made of: FUSE, loop, zram.

use std::fs::OpenOptions;
use std::io;
use std::path::Path;

use super::facts::Facts;
use super::{Capability, State};

/// Where distributions put the helper that mounts for users.
const FUSERMOUNT: [&str; 4] = [
    "/usr/bin/fusermount3",
    "/bin/fusermount3",
    "/usr/local/bin/fusermount3",
    "/usr/sbin/fusermount3",
];

fn open(node: &str) -> Result<(), io::Error> {
    OpenOptions::new().read(true).write(true).open(node).map(drop)
}

fn is_absent(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENODEV | libc::ENXIO))
}

pub(super) fn fuse(facts: &Facts) -> Capability {
    let helper = FUSERMOUNT.iter().find(|path| Path::new(path).exists());
    fuse_verdict(open("/dev/fuse"), helper.copied(), facts.sys_admin())
}

fn fuse_verdict(opened: io::Result<()>, helper: Option<&str>, may_mount: bool) -> Capability {
    const NAME: &str = "fuse";
    match (opened, helper) {
        (Err(error), _) if is_absent(&error) => {
            Capability::new(NAME, State::Missing, format!("/dev/fuse: {error}"))
                .remedy("modprobe fuse; in a container, pass --device /dev/fuse")
        }
        (Err(error), _) => Capability::new(NAME, State::Forbidden, format!("/dev/fuse: {error}"))
            .remedy("run as root, or in a container that is given /dev/fuse"),
        (Ok(()), Some(helper)) => {
            Capability::new(NAME, State::Works, format!("/dev/fuse opens, {helper} mounts"))
        }
        (Ok(()), None) if may_mount => {
            Capability::new(NAME, State::Works, "/dev/fuse opens, this process may mount")
        }
        (Ok(()), None) => {
            Capability::new(NAME, State::Limited, "/dev/fuse opens, nothing mounts for users")
                .remedy("apt-get install fuse3 (fusermount3)")
        }
    }
}

pub(super) fn loop_devices() -> Capability {
    const NAME: &str = "loop";
    match open("/dev/loop-control") {
        Ok(()) => Capability::new(NAME, State::Works, "/dev/loop-control opens"),
        Err(error) if is_absent(&error) => {
            Capability::new(NAME, State::Missing, format!("/dev/loop-control: {error}"))
                .remedy("modprobe loop")
        }
        Err(error) => {
            Capability::new(NAME, State::Forbidden, format!("/dev/loop-control: {error}"))
                .remedy("run as root, or join the group disk")
        }
    }
}

pub(super) fn zram(facts: &Facts) -> Capability {
    const NAME: &str = "zram";
    // Looked at only: to read `hot_add` in there makes a device.
    if !Path::new("/sys/class/zram-control").exists() {
        return Capability::new(NAME, State::Missing, "no /sys/class/zram-control")
            .remedy("modprobe zram");
    }
    if facts.euid != Some(0) {
        return Capability::new(NAME, State::Forbidden, "there, for root to set up")
            .remedy("run as root");
    }
    Capability::new(NAME, State::Works, "devices can be set up (zramctl)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_without_helper_is_told_which_package_brings_it() {
        let told = fuse_verdict(Ok(()), None, false);
        assert_eq!(told.state, State::Limited);
        assert!(told.remedy.unwrap().contains("fuse3"));
        assert_eq!(fuse_verdict(Ok(()), None, true).state, State::Works);
    }

    #[test]
    fn a_missing_node_and_a_closed_one_are_told_apart() {
        let refused = |errno| fuse_verdict(Err(io::Error::from_raw_os_error(errno)), None, true);
        assert_eq!(refused(libc::ENOENT).state, State::Missing);
        assert_eq!(refused(libc::EACCES).state, State::Forbidden);
    }
}
