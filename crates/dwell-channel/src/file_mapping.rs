// SPDX-License-Identifier: MIT OR Apache-2.0
//! A backing file that is memory, mapped: reads and writes of what is surely there are copies, all
//! else is left to system calls.
//!
//! A load or store to a hole of a full tmpfs, or past the end of a file, is not an error but a
//! SIGBUS. So a page is only touched when it is known to have memory: a system call has just read
//! or written it. It keeps that memory until the file is shortened or a hole is made, and before
//! that channels are drained and their mappings are gone. If somebody shortens the file past the
//! daemon, the mapping is [lost](FileMapping::is_lost), and the command is to be tried again with a
//! fresh one.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicU64, Ordering};

use dwell::mapping::{self, Mapping};

use crate::guarded::{Guarded, LOOK_BYTES};
use crate::shares::Share;
use crate::wire::Done;

const PAGE_BYTES: u64 = 4096;
/// Least that is mapped, so that a growing file need not be mapped anew all the time.
const LEAST_BYTES: u64 = 16 << 20;

/// Most that is mapped: what is known of each page takes memory, and a file can be long without
/// taking any.
const MOST_BYTES: u64 = 128 << 30;

/// A mapped file of a tmpfs.
#[derive(Debug)]
pub struct FileMapping {
    file: File,
    memory: Guarded,
    writable: bool,
    /// Length of the file at least: it becomes no shorter while a mapping of it exists.
    bytes: AtomicU64,
    /// One bit a page: known to have memory.
    present: Box<[AtomicU64]>,
    _share: Share,
}

impl FileMapping {
    /// Maps an open file, if `share` finds that its opener may have so many bytes mapped; `None`
    /// where it is not memory, or cannot be mapped.
    pub(crate) fn of(file: &File, share: impl FnOnce(u64) -> Option<Share>) -> Option<FileMapping> {
        const TMPFS: i64 = 0x0102_1994;
        if rustix::fs::fstatfs(file).ok()?.f_type as i64 != TMPFS {
            return None;
        }
        // The file may have been opened for one thing only, and a mapping serves all who have it
        // open.
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let (file, writable) = match File::options().read(true).write(true).open(&path) {
            Ok(file) => (file, true),
            Err(_) => (File::open(&path).ok()?, false),
        };
        let bytes = file.metadata().ok()?.len();
        if bytes > MOST_BYTES / 2 {
            return None;
        }
        let reach = (bytes * 2).next_multiple_of(LEAST_BYTES).max(LEAST_BYTES);
        let share = share(reach)?;
        let memory = Guarded::new(Mapping::of_file(&file, reach, writable).ok()?);
        let words = reach.div_ceil(PAGE_BYTES * 64) as usize;
        let present = (0..words).map(|_| AtomicU64::new(0)).collect();
        Some(FileMapping {
            file,
            memory,
            writable,
            bytes: AtomicU64::new(bytes),
            present,
            _share: share,
        })
    }

    /// Whether pages of the file were taken away past the daemon: it is to be granted again.
    #[inline]
    pub fn is_lost(&self) -> bool {
        self.memory.is_lost()
    }

    /// Copies between the mapping and memory of a channel's: how many bytes, or [`Done::MISSING`]
    /// where the mapping is lost.
    ///
    /// # Safety
    /// Both ranges may be read and written respectively, and do not overlap.
    #[inline]
    unsafe fn copy(&self, from: *const u8, to: *mut u8, bytes: usize) -> i32 {
        let mut at = 0;
        while at < bytes && !self.is_lost() {
            let piece = (bytes - at).min(LOOK_BYTES);
            // SAFETY: parts of what the caller promised.
            unsafe { mapping::copy(from.add(at), to.add(at), piece) };
            at += piece;
        }
        if self.is_lost() { Done::MISSING } else { bytes as i32 }
    }

    /// Whether all of the file lies in it.
    pub fn reaches(&self, bytes: u64) -> bool {
        bytes <= self.memory.bytes()
    }

    /// Length of the file, if it is at least `wanted`; asks the system where that is not known.
    #[inline]
    pub fn length(&self, wanted: u64) -> u64 {
        let known = self.bytes.load(Ordering::Relaxed);
        if wanted <= known {
            return known;
        }
        let now = self.file.metadata().map_or(known, |facts| facts.len());
        self.bytes.fetch_max(now, Ordering::Relaxed).max(now)
    }

    /// Reads at most `bytes` bytes at `offset` to `into`: how many, a negative error number, or
    /// [`Done::MISSING`] where the file has outgrown this mapping, or the mapping is lost.
    ///
    /// # Safety
    /// `bytes` bytes at `into` may be written, and are no part of the file.
    #[inline]
    pub unsafe fn read(&self, into: *mut u8, bytes: u32, offset: u64) -> i32 {
        let Some(end) = offset.checked_add(u64::from(bytes)) else { return -libc::EINVAL };
        let bytes = u64::from(bytes).min(self.length(end).saturating_sub(offset));
        if bytes == 0 {
            return 0;
        }
        if self.is_present(offset, offset + bytes) {
            // SAFETY: the pages have memory, and lie within the mapping because they have bits;
            // `into` has room for more than this.
            return unsafe {
                let from = self.memory.start().add(offset as usize);
                self.copy(from, into, bytes as usize)
            };
        }
        if self.is_outgrown(offset + bytes) {
            return Done::MISSING;
        }
        // SAFETY: an open descriptor and memory with room, by the caller's promise.
        let done = unsafe {
            libc::pread(self.file.as_raw_fd(), into.cast(), bytes as usize, offset as i64)
        };
        if done > 0 {
            self.learn(offset, offset + done as u64);
        }
        returned(done)
    }

    /// Writes `bytes` bytes from `from` at `offset`, through `by` where a system call is needed:
    /// how many, or a negative error number or [`Done::MISSING`]; `None` where the file would
    /// become longer.
    ///
    /// # Safety
    /// `bytes` bytes at `from` may be read, and are no part of the file.
    #[inline]
    pub unsafe fn write(&self, from: *const u8, bytes: u32, offset: u64, by: &File) -> Option<i32> {
        let end = offset.checked_add(u64::from(bytes))?;
        if end > self.length(end) {
            return None;
        }
        if self.writable && self.is_present(offset, end) {
            // SAFETY: as in `read`, and mapped writable.
            return Some(unsafe {
                let to = self.memory.start().add(offset as usize);
                self.copy(from, to, bytes as usize)
            });
        }
        if self.is_outgrown(end) {
            return Some(Done::MISSING);
        }
        // SAFETY: by the caller's promise.
        Some(unsafe { self.write_by_call(from, bytes, offset, by) })
    }

    /// # Safety
    /// As of [`FileMapping::write`].
    unsafe fn write_by_call(&self, from: *const u8, bytes: u32, offset: u64, by: &File) -> i32 {
        // SAFETY: an open descriptor and readable memory, by the caller's promise.
        let done =
            unsafe { libc::pwrite(by.as_raw_fd(), from.cast(), bytes as usize, offset as i64) };
        if done > 0 {
            self.mark(offset, offset + done as u64);
        }
        returned(done)
    }

    /// Whether the file has become longer than what was mapped: it is to be granted again.
    fn is_outgrown(&self, end: u64) -> bool {
        end > self.memory.bytes()
    }

    /// Whether all pages from `offset` to `end`, which are not the same, are known to have memory.
    #[inline]
    fn is_present(&self, offset: u64, end: u64) -> bool {
        let (first, last) = (offset / PAGE_BYTES, (end - 1) / PAGE_BYTES);
        (first..=last).all(|page| {
            let word = self.present.get((page / 64) as usize);
            word.is_some_and(|word| word.load(Ordering::Relaxed) >> (page % 64) & 1 == 1)
        })
    }

    fn mark(&self, offset: u64, end: u64) {
        for page in offset / PAGE_BYTES..=(end - 1) / PAGE_BYTES {
            // What the mapping does not reach has no bit, or a last word's bits would lie beyond
            // it.
            if let Some(word) = self.present.get((page / 64) as usize)
                && (page + 1) * PAGE_BYTES <= self.memory.bytes()
            {
                word.fetch_or(1 << (page % 64), Ordering::Relaxed);
            }
        }
    }

    /// Marks those pages that have memory: a read of a hole gives none.
    fn learn(&self, offset: u64, end: u64) {
        let mut at = offset - offset % PAGE_BYTES;
        while at < end {
            // SAFETY: moves a descriptor of this mapping's own, which nobody reads by position.
            let data = unsafe { libc::lseek(self.file.as_raw_fd(), at as i64, libc::SEEK_DATA) };
            let Ok(data) = u64::try_from(data) else { return };
            if data == at {
                self.mark(at, at + 1);
            }
            at = data.max(at + PAGE_BYTES);
            at -= at % PAGE_BYTES;
        }
    }
}

fn returned(done: isize) -> i32 {
    match done {
        -1 => -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO),
        done => done as i32,
    }
}
