// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mapped memory that is shared with other processes, or must not be shared with a child.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// Mapped memory, seen only as atomic words. A forked child writes words that its parent shares
/// with others for itself alone: it may have given up its parent's rights.
#[derive(Debug)]
pub struct SharedAtomics {
    start: NonNull<AtomicU64>,
    len: usize,
    /// What a child has in place of words that are shared with others.
    apart: Option<Box<Apart>>,
}

/// The same words, as they are until somebody writes to them here, and one that is zero in a child.
#[derive(Debug)]
struct Apart {
    words: SharedAtomics,
    mark: SharedAtomics,
}

// SAFETY: the mapping lives as long as the value, and every access to it is atomic.
unsafe impl Send for SharedAtomics {}
// SAFETY: as above.
unsafe impl Sync for SharedAtomics {}

impl SharedAtomics {
    fn map(len: usize, flags: i32, fd: i32) -> io::Result<SharedAtomics> {
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len * 8,
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                fd,
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(SharedAtomics { start, len, apart: None })
    }

    /// `len` words of a file that is at least that long, shared with its other users.
    ///
    /// Should somebody truncate the file, an access raises SIGBUS: the caller admits only files
    /// that nobody less trusted may write.
    pub fn of_file(file: &File, len: usize) -> io::Result<SharedAtomics> {
        let apart = Apart {
            words: SharedAtomics::map(len, libc::MAP_PRIVATE, file.as_raw_fd())?,
            mark: SharedAtomics::wiped_on_fork(512)?,
        };
        apart.mark[0].store(1, Ordering::Relaxed);
        let mut words = SharedAtomics::map(len, libc::MAP_SHARED, file.as_raw_fd())?;
        words.advise(libc::MADV_DONTFORK)?;
        words.apart = Some(Box::new(apart));
        Ok(words)
    }

    /// `len` private words that read zero after a fork, in the child.
    pub fn wiped_on_fork(len: usize) -> io::Result<SharedAtomics> {
        let words = SharedAtomics::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        words.advise(libc::MADV_WIPEONFORK)?;
        Ok(words)
    }

    fn advise(&self, advice: i32) -> io::Result<()> {
        // SAFETY: the range is this mapping; nothing of this process changes.
        let rc = unsafe { libc::madvise(self.start.as_ptr().cast(), self.len * 8, advice) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// What a child has instead.
    #[inline]
    fn instead(&self) -> Option<&SharedAtomics> {
        let apart = self.apart.as_deref()?;
        (apart.mark[0].load(Ordering::Relaxed) == 0).then_some(&apart.words)
    }
}

impl Deref for SharedAtomics {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        if let Some(instead) = self.instead() {
            return instead;
        }
        // SAFETY: `start` is page-aligned and `len` words from it stay mapped while `self` lives;
        // zero bytes, or whatever bytes another process wrote, are valid words.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for SharedAtomics {
    fn drop(&mut self) {
        // In a child something else may lie there.
        if self.instead().is_none() {
            // SAFETY: the mapping is ours, and no reference into it outlives `self`.
            unsafe { libc::munmap(self.start.as_ptr().cast(), self.len * 8) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forked_child_finds_its_words_wiped() {
        use std::sync::atomic::Ordering::Relaxed;
        let words = SharedAtomics::wiped_on_fork(8).unwrap();
        words[3].store(7, Relaxed);
        // SAFETY: the child calls nothing but an atomic load and `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(words[3].load(Relaxed) as i32) };
        }
        let mut status = -1;
        // SAFETY: `status` is a valid place to write to.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!((status, words[3].load(Relaxed)), (0, 7));
    }

    #[test]
    fn writes_of_a_forked_child_to_words_that_its_parent_shares_are_its_own() {
        use std::sync::atomic::Ordering::Relaxed;
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        let words = SharedAtomics::of_file(&file, 512).unwrap();
        words[3].store(7, Relaxed);
        // What others of the file's users see.
        let others = SharedAtomics::of_file(&file, 512).unwrap();
        // SAFETY: the child uses atomics, unmaps and calls `_exit`.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let seen = words[3].swap(9, Relaxed) == 7 && words[3].load(Relaxed) == 9;
            drop(words);
            // SAFETY: ends the child at once.
            unsafe { libc::_exit(i32::from(!seen)) };
        }
        let mut status = -1;
        // SAFETY: `status` is a valid place to write to.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        assert_eq!((status, words[3].load(Relaxed), others[3].load(Relaxed)), (0, 7, 7));
    }

    #[test]
    fn fresh_words_are_zero() {
        let words = SharedAtomics::wiped_on_fork(64).unwrap();
        assert!(
            words.len() == 64
                && words.iter().all(|w| w.load(std::sync::atomic::Ordering::Relaxed) == 0)
        );
    }
}
