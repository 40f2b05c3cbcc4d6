// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that is mapped once and copied to and from, and what the kernel knows of the file
//! under it.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::ptr::NonNull;

use crate::queue::{Action, Io};

/// Largest transfer of one request: what read(2) and write(2) allow too, and what fits a result.
pub(crate) const MAX_TRANSFER_BYTES: u64 = 0x7fff_f000;

/// A mapping, of a file or of memory alone. Threads share it and copy without a lock: whoever
/// reads what another writes at that moment gets some old and some new bytes, as from a device.
#[derive(Debug)]
pub struct Mapping {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: it is only ever accessed by `copy`, whose races are defined.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory; pages take room only once they are written.
    pub(crate) fn anonymous(bytes: u64) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        Self::map(-1, bytes, libc::PROT_READ | libc::PROT_WRITE, flags)
    }

    /// The first `bytes` of a file.
    ///
    /// # Errors
    /// What mmap says.
    pub fn of_file(file: &File, bytes: u64, writable: bool) -> io::Result<Self> {
        let write = if writable { libc::PROT_WRITE } else { 0 };
        Self::map(file.as_raw_fd(), bytes, libc::PROT_READ | write, libc::MAP_SHARED)
    }

    fn map(fd: RawFd, bytes: u64, protection: i32, flags: i32) -> io::Result<Self> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        // SAFETY: the kernel chooses an address where nothing is mapped, and checks the rest.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, protection, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::AddrNotAvailable)?;
        Ok(Mapping { start, bytes })
    }

    /// Length in bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Where it lies. Others may write there at any time: nothing but [`copy`] reads or writes it.
    pub fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// How much of a read or write of `bytes` at `offset` lies within, or a negative error number:
    /// a read past the end has 0 bytes, a write there has no room. A request that begins within
    /// is cut at the end, as on a block device.
    pub(crate) fn within(&self, action: Action, offset: u64, bytes: u32) -> Result<u32, i32> {
        let room = self.bytes().saturating_sub(offset);
        let writes = matches!(action, Action::Write | Action::WriteVectored);
        if room == 0 && writes && bytes > 0 {
            return Err(-libc::ENOSPC);
        }
        Ok(u64::from(bytes).min(room).min(MAX_TRANSFER_BYTES) as u32)
    }

    /// Copies up to `limit` bytes for a read or a write, in the order of the request's pieces, and
    /// says how many. A sync copies nothing.
    pub(crate) fn transfer(&self, io: &Io, limit: u32) -> u32 {
        let reads = match io.action() {
            Action::Read | Action::ReadVectored => true,
            Action::Write | Action::WriteVectored => false,
            Action::Sync | Action::DataSync => return 0,
        };
        let Ok(offset) = usize::try_from(io.offset()) else { return 0 };
        let room = self.bytes.saturating_sub(offset).min(limit as usize);
        let mut copied = 0;
        for (memory, bytes) in io.each_piece() {
            let bytes = bytes.min(room - copied);
            if bytes == 0 {
                continue;
            }
            // SAFETY: `offset + copied + bytes <= self.bytes`, because `bytes <= room - copied`.
            let inside = unsafe { self.start.as_ptr().add(offset + copied) };
            // SAFETY: `bytes` bytes from `inside` are mapped; whoever made the request promised
            // as many at `memory`, which cannot overlap a mapping that no reference ever leaves.
            unsafe {
                if reads {
                    copy(inside, memory, bytes);
                } else {
                    copy(memory, inside, bytes);
                }
            }
            copied += bytes;
        }
        copied as u32
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length, and nothing borrows from it.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

/// Copies `bytes` bytes between shared and private memory.
///
/// Other threads and other processes may write the shared side meanwhile. A plain Rust copy would
/// then be a data race, which the language leaves undefined, and a copy of relaxed atomic words
/// is several times slower than the memory. A string instruction is both fast and defined: it
/// does no more than a loop of relaxed atomic byte accesses could do, and no optimiser looks
/// inside.
///
/// # Safety
/// Both ranges are valid for their direction, and do not overlap.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    // SAFETY: the caller's promise; the direction flag is clear by the calling convention.
    unsafe {
        std::arch::asm!(
            "rep movsb",
            inout("rcx") bytes => _,
            inout("rsi") from => _,
            inout("rdi") to => _,
            options(nostack, preserves_flags)
        );
    }
}

/// Copies `bytes` bytes between shared and private memory, each by a relaxed atomic access, since
/// others may write the shared side meanwhile. Correct on every processor, and slow.
///
/// # Safety
/// Both ranges are valid for their direction, and do not overlap.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
pub unsafe fn copy(from: *const u8, to: *mut u8, bytes: usize) {
    use std::sync::atomic::{AtomicU8, Ordering};
    for at in 0..bytes {
        // SAFETY: within both ranges, by the caller's promise; a byte is always aligned. The
        // source is only loaded from, so that it may be read-only.
        unsafe {
            let byte = AtomicU8::from_ptr(from.add(at).cast_mut()).load(Ordering::Relaxed);
            AtomicU8::from_ptr(to.add(at)).store(byte, Ordering::Relaxed);
        }
    }
}

/// Reserves room for the first `bytes` of a file and lengthens it if it is shorter, so that a store
/// to its mapping cannot run out of space (which would be a SIGBUS, not an error).
pub(crate) fn reserve(file: &File, bytes: u64) -> io::Result<()> {
    let bytes = libc::off64_t::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
    // SAFETY: an open descriptor and two numbers.
    match unsafe { libc::posix_fallocate64(file.as_raw_fd(), 0, bytes) } {
        0 => Ok(()),
        error => Err(io::Error::from_raw_os_error(error)),
    }
}

/// Whether a seal forbids, for ever, that the file becomes shorter. Only files in memory
/// (memfd_create, tmpfs, hugetlbfs) have seals.
pub(crate) fn sealed_against_shrinking(file: &File) -> bool {
    // SAFETY: F_GET_SEALS takes no argument.
    let seals = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GET_SEALS) };
    seals >= 0 && seals & libc::F_SEAL_SHRINK != 0
}

/// Whether loads and stores to a mapping of the file reach the storage itself: files in memory and
/// files on DAX do; others are copies in the page cache.
///
/// # Errors
/// What the system says of the descriptor.
pub fn is_memory(file: &File) -> io::Result<bool> {
    const TMPFS: u32 = 0x0102_1994;
    const RAMFS: u32 = 0x8584_58f6;
    const HUGETLBFS: u32 = 0x9584_58f6;
    const ATTRIBUTE_DAX: u64 = 0x0020_0000;
    // SAFETY: zero is a valid value of this structure of numbers.
    let mut system: libc::statfs64 = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor and a live structure.
    if unsafe { libc::fstatfs64(file.as_raw_fd(), &mut system) } != 0 {
        return Err(io::Error::last_os_error());
    }
    if matches!(system.f_type as u32, TMPFS | RAMFS | HUGETLBFS) {
        return Ok(true);
    }
    // SAFETY: zero is a valid value of this structure of numbers.
    let mut status: libc::statx = unsafe { std::mem::zeroed() };
    // SAFETY: an open descriptor, an empty path as AT_EMPTY_PATH wants, and a live structure.
    let rc =
        unsafe { libc::statx(file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH, 0, &mut status) };
    Ok(rc == 0 && status.stx_attributes & ATTRIBUTE_DAX != 0)
}

/// Makes a file durable, the stores to its mappings included: 0 or a negative error number.
pub(crate) fn sync(file: &File, data_only: bool) -> i32 {
    // SAFETY: an open descriptor.
    let rc = unsafe {
        if data_only { libc::fdatasync(file.as_raw_fd()) } else { libc::fsync(file.as_raw_fd()) }
    };
    if rc == 0 { 0 } else { -io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO) }
}
