// SPDX-License-Identifier: MIT OR Apache-2.0
//! Address space: the region a program sees, the frames behind it, and tables as large as they.
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Bytes of a page: what is read, moved in and moved out at once.
pub const PAGE_BYTES: usize = 4096;

/// A range of address space whose pages come and go by the pager's hand. Children do not inherit
/// it.
#[derive(Debug)]
pub(crate) struct Area {
    start: usize,
    pages: usize,
    bytes: usize,
    mapped: AtomicBool,
}

impl Area {
    /// Absent pages, nowhere in particular.
    pub fn new(pages: usize) -> io::Result<Area> {
        let bytes = pages.checked_mul(PAGE_BYTES).ok_or(io::ErrorKind::OutOfMemory)?;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let start = map(bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1)?;
        let area = Area { start, pages, bytes, mapped: AtomicBool::new(true) };
        area.advise(libc::MADV_DONTFORK)?;
        // Pages are moved one by one; a kernel without huge pages refuses to be told so.
        let _ = area.advise(libc::MADV_NOHUGEPAGE);
        area.unlock();
        area.advise(libc::MADV_DONTNEED)?;
        Ok(area)
    }

    /// The kernel's mapping of a descriptor.
    pub fn of_file(fd: i32, bytes: usize, write: bool, shared: bool) -> io::Result<Area> {
        let prot = libc::PROT_READ | if write { libc::PROT_WRITE } else { 0 };
        let flags = if shared { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
        let start = map(bytes, prot, flags, fd)?;
        let pages = bytes.div_ceil(PAGE_BYTES);
        Ok(Area { start, pages, bytes, mapped: AtomicBool::new(true) })
    }

    /// No memory.
    pub fn none() -> Area {
        Area { start: 0, pages: 0, bytes: 0, mapped: AtomicBool::new(false) }
    }

    /// A process that locks all its memory would have the pages present, and never absent again.
    pub fn unlock(&self) {
        // SAFETY: the range is the mapping, which is the pager's own.
        unsafe { libc::munlock(self.start as *const libc::c_void, self.pages * PAGE_BYTES) };
    }

    fn advise(&self, advice: libc::c_int) -> io::Result<()> {
        self.advise_range(0, self.pages, advice)
    }

    /// Advises the kernel of some pages.
    pub fn advise_range(&self, first: usize, pages: usize, advice: libc::c_int) -> io::Result<()> {
        debug_assert!(first + pages <= self.pages);
        let (start, bytes) = (self.at(first), pages * PAGE_BYTES);
        // SAFETY: within the mapping, which is the pager's own.
        match unsafe { libc::madvise(start as *mut libc::c_void, bytes, advice) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Has the kernel write a range of a shared file mapping back.
    pub fn flush(&self, first: usize, pages: usize) -> io::Result<()> {
        // SAFETY: within the mapping.
        let rc = unsafe {
            libc::msync(self.at(first) as *mut libc::c_void, pages * PAGE_BYTES, libc::MS_SYNC)
        };
        if rc == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    pub fn start(&self) -> usize {
        self.start
    }

    /// Bytes that were asked for; the pages may be more.
    pub fn bytes_asked(&self) -> usize {
        self.bytes
    }

    pub fn pages(&self) -> usize {
        self.pages
    }

    /// Address of a page.
    pub fn at(&self, page: usize) -> usize {
        self.start + page * PAGE_BYTES
    }

    /// The page of an address.
    pub fn page_of(&self, address: usize) -> Option<usize> {
        let page = address.checked_sub(self.start)? / PAGE_BYTES;
        (page < self.pages).then_some(page)
    }

    /// Unmaps it, once.
    pub fn unmap(&self) {
        if self.mapped.swap(false, Ordering::AcqRel) {
            // SAFETY: the mapping is the pager's own, and goes away once.
            unsafe { libc::munmap(self.start as *mut libc::c_void, self.pages * PAGE_BYTES) };
        }
    }

    /// Puts the kernel's mapping of a file in its place, for reading. It stays until somebody
    /// unmaps it.
    pub fn replace_by(&self, fd: i32) -> io::Result<()> {
        let (bytes, flags) = (self.pages * PAGE_BYTES, libc::MAP_SHARED | libc::MAP_FIXED);
        // SAFETY: the range is the mapping, which is the pager's own until now.
        let start = unsafe {
            libc::mmap(self.start as *mut libc::c_void, bytes, libc::PROT_READ, flags, fd, 0)
        };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        self.forget();
        Ok(())
    }

    /// In a forked child nothing lies there, or something else.
    pub fn forget(&self) {
        self.mapped.store(false, Ordering::Release);
    }

    /// The bytes of present pages that nobody else writes now.
    ///
    /// # Safety
    /// The pages are present and the caller's alone until it is done with the slice.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn bytes(&self, first: usize, pages: usize) -> &mut [u8] {
        debug_assert!(first + pages <= self.pages);
        // SAFETY: within the mapping; the caller promises the rest.
        unsafe { std::slice::from_raw_parts_mut(self.at(first) as *mut u8, pages * PAGE_BYTES) }
    }

    /// A present page that nobody writes.
    pub fn page(&self, page: usize) -> &[u8] {
        debug_assert!(page < self.pages);
        // SAFETY: within the mapping. Asked for frames that are out and have memory: only their
        // holder, who asks, writes to them.
        unsafe { std::slice::from_raw_parts(self.at(page) as *const u8, PAGE_BYTES) }
    }

    /// Copies a present page that others may write meanwhile.
    pub fn snapshot(&self, page: usize, into: &mut [u8]) {
        debug_assert!(page < self.pages && into.len() == PAGE_BYTES);
        // SAFETY: a present page within the mapping, and as much room. A write to it at this moment
        // is seen or not; the caller compares with what the page held later.
        unsafe {
            let from = self.at(page) as *const u8;
            std::ptr::copy_nonoverlapping(
                std::hint::black_box(from),
                into.as_mut_ptr(),
                PAGE_BYTES,
            );
        }
    }
}

fn map(bytes: usize, prot: i32, flags: i32, fd: i32) -> io::Result<usize> {
    // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, fd, 0) };
    if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(start as usize) }
}

impl Drop for Area {
    fn drop(&mut self) {
        self.unmap();
    }
}

/// Whether a page of the pager's memory is present.
pub(crate) fn is_there(address: usize) -> bool {
    let mut there = 0u8;
    // SAFETY: asks about one page, with room for one answer.
    unsafe {
        libc::mincore(address as *mut libc::c_void, PAGE_BYTES, &mut there) == 0 && there & 1 != 0
    }
}

/// Words that begin as 0 and take memory where they are first written.
pub(crate) fn words(count: usize) -> Box<[AtomicU32]> {
    let words = vec![0u32; count].into_boxed_slice();
    // SAFETY: an AtomicU32 has the size, alignment and values of a u32, and the box is given over
    // whole.
    unsafe { Box::from_raw(Box::into_raw(words) as *mut [AtomicU32]) }
}

/// Has the cache line at an address fetched; an absent page is not an error.
#[inline]
pub(crate) fn warm(address: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch reads nothing that the program could see, and never faults.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address as *const i8);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}
