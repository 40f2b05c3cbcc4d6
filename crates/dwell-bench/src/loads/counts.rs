// SPDX-License-Identifier: MIT OR Apache-2.0
//! Numbers in memory that a process shares with those it started: one writes, the other reads.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use anyhow::{Context, Result, ensure};

/// A cache line: writers do not disturb each other.
#[repr(C, align(64))]
struct Slot(AtomicU64);

/// Numbers of a memory file without a name.
#[derive(Debug)]
pub(super) struct Counts {
    file: File,
    start: NonNull<Slot>,
    slots: usize,
}

// SAFETY: the mapping belongs to the value, which any thread may drop; it is only ever seen as
// atomic words.
unsafe impl Send for Counts {}

impl Counts {
    /// `slots` numbers, all zero.
    pub(super) fn new(slots: usize) -> Result<Self> {
        // SAFETY: the name ends with NUL and is copied.
        let fd = unsafe { libc::memfd_create(c"dwell-counts".as_ptr(), libc::MFD_CLOEXEC) };
        ensure!(fd >= 0, "cannot make a file in memory: {}", std::io::Error::last_os_error());
        // SAFETY: memfd_create has just opened it, and nobody else owns it.
        let file = File::from(unsafe { OwnedFd::from_raw_fd(fd) });
        file.set_len(bytes(slots) as u64).context("cannot lengthen a file in memory")?;
        Self::map(file, slots)
    }

    /// The numbers that another process has, by their path there.
    pub(super) fn open(path: &Path, slots: usize) -> Result<Self> {
        let name = path.display();
        let file = File::options().read(true).write(true).open(path);
        let file = file.with_context(|| format!("open {name}"))?;
        let length = file.metadata().with_context(|| name.to_string())?.len();
        ensure!(length >= bytes(slots) as u64, "{name}: holds fewer than {slots} counts");
        Self::map(file, slots)
    }

    fn map(file: File, slots: usize) -> Result<Self> {
        // SAFETY: the kernel chooses an address where nothing is mapped, and checks the rest.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes(slots),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        let start = NonNull::new(start.cast()).filter(|_| start != libc::MAP_FAILED);
        let start = start.context("cannot map a file in memory")?;
        Ok(Counts { file, start, slots })
    }

    /// Where other processes of this user find them while this one lives.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd()).into()
    }

    fn slots(&self) -> &[Slot] {
        // SAFETY: so many slots are mapped for as long as `self` lives, page-aligned; any bytes
        // are a valid slot, and the file, which has no name, is never shortened.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.slots) }
    }

    pub(super) fn set(&self, slot: usize, count: u64) {
        self.slots()[slot].0.store(count, Relaxed);
    }

    pub(super) fn sum(&self) -> u64 {
        self.slots().iter().map(|slot| slot.0.load(Relaxed)).sum()
    }
}

/// Length of the mapping; not even no slot maps nothing.
fn bytes(slots: usize) -> usize {
    slots.max(1) * size_of::<Slot>()
}

impl Drop for Counts {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length, and no reference outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), bytes(self.slots)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_set_by_one_are_summed_by_the_other() {
        let ours = Counts::new(3).unwrap();
        assert_eq!(ours.sum(), 0);
        let theirs = Counts::open(&ours.path(), 2).unwrap();
        theirs.set(0, 5);
        theirs.set(1, 7);
        assert_eq!((ours.sum(), theirs.sum()), (12, 12));
        assert_eq!(Counts::new(0).unwrap().sum(), 0);
    }

    #[test]
    fn a_file_that_is_too_short_is_refused() {
        let short = tempfile::NamedTempFile::new().unwrap();
        let error = Counts::open(short.path(), 1).unwrap_err().to_string();
        assert!(error.contains("fewer than 1"), "{error}");
        assert!(Counts::open(Path::new("/nonexistent"), 1).is_err());
    }
}
