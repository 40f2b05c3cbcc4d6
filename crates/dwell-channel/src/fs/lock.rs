// SPDX-License-Identifier: MIT OR Apache-2.0
//! One daemon on a backing directory.

use std::os::fd::OwnedFd;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::error::Error;

/// How long a daemon that is ending may take to let its backing directory go.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);

/// Locks a backing directory until the result is closed, or this process is gone: of two daemons on
/// one directory, neither knows what the other's channels may reach. `None` where its file system
/// has no such locks.
pub(super) fn lock(root: &OwnedFd, backing: &Path) -> Result<Option<OwnedFd>, Error> {
    let failed = |error: Errno| Error::io("cannot be locked", backing, error);
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let dir = rustix::fs::openat(root, ".", flags, Mode::empty()).map_err(failed)?;
    let until = Instant::now() + LOCK_PATIENCE;
    let locked = loop {
        match rustix::fs::flock(&dir, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) if Instant::now() < until => {
                thread::sleep(Duration::from_millis(10));
            }
            done => break done,
        }
    };
    match locked {
        Ok(()) => Ok(Some(dir)),
        Err(Errno::WOULDBLOCK) => {
            let by = locked_by(&dir).map_or_else(String::new, |pid| format!(" by process {pid}"));
            let what = format!(
                "is locked{by}: another daemon serves it (dwell serve status, dwell serve stop)"
            );
            Err(Error::invalid(backing, what))
        }
        // NFS locks only what can be written, and others nothing.
        Err(Errno::BADF | Errno::OPNOTSUPP | Errno::NOLCK | Errno::NOSYS | Errno::INVAL) => {
            Ok(None)
        }
        Err(error) => Err(failed(error)),
    }
}

/// The process that has a directory locked, as far as the kernel says.
fn locked_by(dir: &OwnedFd) -> Option<u32> {
    let stat = rustix::fs::fstat(dir).ok()?;
    let (major, minor) = (rustix::fs::major(stat.st_dev), rustix::fs::minor(stat.st_dev));
    let file = format!("{major:02x}:{minor:02x}:{}", stat.st_ino);
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let mut lines = locks.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines
        .find(|words| words.get(1) == Some(&"FLOCK") && words.get(5) == Some(&file.as_str()))?;
    line.get(4)?.parse().ok().filter(|pid| *pid > 0)
}
