// SPDX-License-Identifier: MIT OR Apache-2.0
//! What actors leave behind, in memory that outlives them: a result per line, and whose turn it is.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64, Ordering};

use crate::operation::{PROCESSES, THREADS};

/// The line was not reached.
pub const NEVER: u32 = 0;
/// The line was begun.
pub const BEGUN: u32 = 1;
/// The line was carried out.
pub const DONE: u32 = 2;

/// Bytes behind the end of a buffer were written.
pub const SPILLED: u64 = 1 << 63;

/// What came of one line.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Slot {
    /// [`NEVER`], [`BEGUN`] or [`DONE`].
    pub state: AtomicU32,
    /// The error number; 0 if there is none.
    pub errno: AtomicI32,
    /// What the call returned.
    pub ret: AtomicI64,
    /// A digest of what was read.
    pub digest: AtomicU64,
    /// What else there is to say.
    pub more: AtomicU64,
}

/// What came of one line, as plain numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// What the call returned.
    pub ret: i64,
    /// The error number; 0 if there is none.
    pub errno: i32,
    /// A digest of what was read.
    pub digest: u64,
    /// What else there is to say.
    pub more: u64,
}

impl Seen {
    /// A call that returned `ret`.
    pub fn ok(ret: i64) -> Self {
        Seen { ret, ..Seen::default() }
    }

    /// A call that failed.
    pub fn error(errno: i32) -> Self {
        Seen { ret: -1, errno, ..Seen::default() }
    }

    /// Whether it failed.
    pub fn failed(&self) -> bool {
        self.ret < 0
    }
}

/// The words before the results.
#[repr(C)]
#[derive(Debug, Default)]
pub struct Head {
    /// The line whose turn it is.
    pub turn: AtomicU32,
    /// Lines carried out so far.
    pub beats: AtomicU32,
    /// How often the mount was made anew.
    pub mounts: AtomicU32,
    /// Processes that a kill ended, as their parent waited for them.
    pub killed: AtomicU32,
    /// Advances when somebody's turn comes, one word per actor.
    pub calls: [AtomicU32; PROCESSES * THREADS],
}

/// The memory of one run, of which every process of the run has a mapping.
#[derive(Debug)]
pub struct Records {
    memory: *mut libc::c_void,
    bytes: usize,
    lines: usize,
}

// SAFETY: all of the memory is atomic words.
unsafe impl Send for Records {}
// SAFETY: as above.
unsafe impl Sync for Records {}

const HEAD_BYTES: usize = 256;

impl Records {
    /// Maps the records of so many lines, in a file that is made or is there.
    ///
    /// # Errors
    /// What the file system or the kernel refuses.
    pub fn open(path: &Path, lines: usize) -> io::Result<Self> {
        assert!(size_of::<Head>() <= HEAD_BYTES);
        let file =
            File::options().read(true).write(true).create(true).truncate(false).open(path)?;
        let bytes = HEAD_BYTES + lines * size_of::<Slot>();
        if file.metadata()?.len() < bytes as u64 {
            file.set_len(bytes as u64)?;
        }
        // SAFETY: a new mapping of a file that is long enough.
        let memory = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                bytes,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Records { memory, bytes, lines })
    }

    /// The words before the results.
    pub fn head(&self) -> &Head {
        // SAFETY: the mapping begins with a head, all zeros or written by another process, and
        // lives as long as `self`.
        unsafe { &*self.memory.cast::<Head>() }
    }

    /// The result of a line.
    pub fn slot(&self, line: usize) -> &Slot {
        assert!(line < self.lines);
        // SAFETY: within the mapping, which holds so many slots after the head.
        unsafe { &*self.memory.byte_add(HEAD_BYTES).cast::<Slot>().add(line) }
    }

    /// The result of a line, if it was carried out.
    pub fn seen(&self, line: usize) -> Option<Seen> {
        let slot = self.slot(line);
        (slot.state.load(Ordering::Acquire) == DONE).then(|| Seen {
            ret: slot.ret.load(Ordering::Relaxed),
            errno: slot.errno.load(Ordering::Relaxed),
            digest: slot.digest.load(Ordering::Relaxed),
            more: slot.more.load(Ordering::Relaxed),
        })
    }

    /// Whether a line was begun and not carried out.
    pub fn is_begun(&self, line: usize) -> bool {
        self.slot(line).state.load(Ordering::Acquire) == BEGUN
    }

    /// Says what came of a line.
    pub fn tell(&self, line: usize, seen: Seen) {
        let slot = self.slot(line);
        slot.ret.store(seen.ret, Ordering::Relaxed);
        slot.errno.store(seen.errno, Ordering::Relaxed);
        slot.digest.store(seen.digest, Ordering::Relaxed);
        slot.more.store(seen.more, Ordering::Relaxed);
        slot.state.store(DONE, Ordering::Release);
        self.head().beats.fetch_add(1, Ordering::Relaxed);
    }

    /// Says that a line is begun.
    pub fn begin(&self, line: usize) {
        self.slot(line).state.store(BEGUN, Ordering::Release);
    }
}

impl Drop for Records {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and nothing borrowed from it outlives `self`.
        unsafe { libc::munmap(self.memory, self.bytes) };
    }
}

/// Sleeps until the word is woken, is no longer `value`, or some milliseconds are over.
pub fn sleep(word: &AtomicU32, value: u32) {
    let limit = libc::timespec { tv_sec: 0, tv_nsec: 200_000_000 };
    // SAFETY: the word and the limit outlive the call. Not private: processes share the word.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &raw const limit);
    }
}

/// Wakes all that sleep on the word.
pub fn wake(word: &AtomicU32) {
    // SAFETY: the word outlives the call.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX);
    }
}
