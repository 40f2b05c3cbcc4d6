// SPDX-License-Identifier: MIT OR Apache-2.0
//! Before a directory is served: what a killed daemon left is cleared away, and what is needed is
//! there.

use std::ffi::OsStr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::thread;

use rustix::fs::{Access, FileType, Mode, OFlags};

use super::caller::take_umask;
use super::error::Error;
use super::options::Options;
use dwell_mounts::{self as mounts, How};

/// Readies directories that a killed daemon served for the next one: what hid the backing directory
/// is cleared away. The mount stays until [`super::Server::start`] puts its own in its stead, so
/// that nobody sees the bare directory. Says what was there.
///
/// # Errors
/// Somebody serves there; what is missing or no directory; a mount that cannot be cleared away.
pub fn take_over(options: &Options) -> Result<Vec<String>, Error> {
    let (backing, mount) = places(options)?;
    let note = |at: &Path| format!("{}: took over from a daemon that was killed", at.display());
    let mut notes = Vec::new();
    if backing != mount && is_left_behind(&mount)? {
        notes.push(note(&mount));
    }
    while is_left_behind(&backing)? {
        mounts::unmount(&backing, How::Now).map_err(|error| {
            Error::io("a killed daemon's mount cannot be cleared away", &backing, error)
        })?;
        notes.push(note(&backing));
    }
    open_directory(&backing)?;
    open_mount(&mount)?;
    Ok(notes)
}

/// The backing directory and the mount as absolute paths.
pub(super) fn places(options: &Options) -> Result<(PathBuf, PathBuf), Error> {
    let found = |path: &Path| {
        mounts::absolute(path).map_err(|error| Error::io("cannot be found", path, error))
    };
    Ok((found(&options.backing)?, found(&options.mount)?))
}

/// Whether a killed daemon's mount is there.
fn is_left_behind(at: &Path) -> Result<bool, Error> {
    let found =
        mounts::mounted_at(at).map_err(|error| Error::io("mounts cannot be read", at, error))?;
    let Some(found) = found.filter(mounts::Mounted::is_ours) else { return Ok(false) };
    if !found.is_stale() {
        let what = "is served already (dwell serve status tells by whom; dwell serve stop ends it)";
        return Err(Error::invalid(at, what));
    }
    Ok(true)
}

/// Sees that something can be mounted there.
pub(super) fn open_mount(at: &Path) -> Result<(), Error> {
    if !is_left_behind(at)? {
        open_directory(at)?;
    }
    Ok(())
}

pub(super) fn open_directory(path: &Path) -> Result<OwnedFd, Error> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, Mode::empty())
        .map_err(|error| Error::io("cannot be opened", path, error))?;
    let stat = rustix::fs::fstat(&opened)
        .map_err(|error| Error::io("cannot be looked at", path, error))?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Ok(opened),
        _ => Err(Error::invalid(path, "is no directory")),
    }
}

/// The oldest kernel whose FUSE leaves nothing for a server to check: from 5.13 on it sees to it
/// that only owners set flags (`chattr`), and 5.15 is the oldest that is maintained.
const OLDEST_KERNEL: (u32, u32) = (5, 15);

/// Whether a kernel's release (`uname -r`) is old enough to be refused.
fn is_too_old(release: &str) -> bool {
    let mut numbers =
        release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    match (numbers.next().flatten(), numbers.next().flatten()) {
        (Some(major), Some(minor)) => (major, minor) < OLDEST_KERNEL,
        // A release of another form is none of an old kernel.
        _ => false,
    }
}

/// What every request will need.
pub(super) fn check_system(mount: &Path) -> Result<(), Error> {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    if is_too_old(&release) {
        let (major, minor) = OLDEST_KERNEL;
        let what = format!(
            "is not served on Linux {release}, which does not check all rights; Linux {major}.{minor} or newer is needed"
        );
        return Err(Error::invalid(mount, what));
    }
    let need = |what: &'static str| move |error: rustix::io::Errno| Error::io(what, mount, error);
    rustix::fs::stat("/dev/fuse").map_err(need(
        "/dev/fuse is needed to serve it (modprobe fuse; in a container, pass the device in)",
    ))?;
    rustix::fs::access("/dev/fuse", Access::READ_OK | Access::WRITE_OK).map_err(need(
        "this user may not open /dev/fuse, which is needed to serve it (its mode is 666 elsewhere)",
    ))?;
    rustix::fs::stat("/proc/self/fd").map_err(need("/proc is needed to serve it"))?;
    super::node::open_at(rustix::fs::CWD, OsStr::new("."), OFlags::PATH, Mode::empty())
        .map_err(need("openat2 is needed to serve it (Linux 5.6)"))?;
    thread::spawn(|| take_umask(0o077)).join().unwrap_or(Err(rustix::io::Errno::AGAIN)).map_err(
        need("threads need a umask of their own to serve it (unshare of CLONE_FS is refused)"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_below_5_15_are_refused() {
        for old in ["5.8.0", "5.10.0-28-amd64", "4.19.0", "5.14.21-150500.55-default"] {
            assert!(is_too_old(old), "{old}");
        }
        for new in ["5.15.0", "5.15", "6.1.0-18-amd64", "6.18.44-fc-v669", "10.0.1", "unknown"] {
            assert!(!is_too_old(new), "{new}");
        }
    }
}
