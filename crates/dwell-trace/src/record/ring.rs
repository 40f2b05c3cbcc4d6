// SPDX-License-Identifier: MIT OR Apache-2.0
//! The recorder's end of the memory that it shares with one traced process: see `valgrind/ring.h`.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

const MAGIC: u64 = 0x3247_4e49_5257_5544;
const SLOTS: usize = 8;
const SLOT_WORDS: usize = 32768;
const HEADER_BYTES: usize = 4096;
const BYTES: usize = HEADER_BYTES + SLOTS * SLOT_WORDS * 8;
/// The tool hands over no more.
const CLOSED: u32 = 1 << 31;

/// Places in the header.
const PID: usize = 16;
const PARENT_PID: usize = 20;
const SKIPPED: usize = 24;
const EXECUTING: usize = 32;
const RECORDING: usize = 36;
const PRODUCED: usize = 64;
const CONSUMED: usize = 128;
const STOP: usize = 192;
const USED: usize = 256;
const COMMAND_BYTES: usize = 320;
const COMMAND: usize = 324;

/// One process's ring, mapped. Its words are atomics, because the process may write them at any
/// time: each is read once, and what was read is checked.
pub(super) struct Ring {
    start: NonNull<u8>,
    file: File,
    consumed: u32,
}

// SAFETY: the mapping belongs to this value alone, and all access to it is atomic.
unsafe impl Send for Ring {}

/// What the process has handed over.
pub(super) enum Handed<'a> {
    /// The words of one slot; [`Ring::give_back`] it.
    Slot(&'a [AtomicU64]),
    /// All there was, and the process said so, or runs another program from here on.
    Closed,
    /// All there was: the process ended without a word.
    Died,
}

impl Ring {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let file = File::options().read(true).write(true).open(path)?;
        if file.metadata()?.len() != BYTES as u64 {
            return Err(io::Error::other("a ring of another size: the tool is of another version"));
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let (null, shared) = (std::ptr::null_mut(), libc::MAP_SHARED);
        // SAFETY: a new mapping of a file that is open and as long as this.
        let start = unsafe { libc::mmap(null, BYTES, access, shared, file.as_raw_fd(), 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at zero"))?;
        let ring = Ring { start, file, consumed: 0 };
        if ring.long(0).load(Ordering::Acquire) != MAGIC {
            return Err(io::Error::other("no ring of this version: make trace-tool"));
        }
        Ok(ring)
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= HEADER_BYTES);
        // SAFETY: within the mapping, aligned, and only ever used as an atomic.
        unsafe { &*self.start.as_ptr().add(at).cast() }
    }

    fn long(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= HEADER_BYTES);
        // SAFETY: within the mapping, aligned, and only ever used as an atomic.
        unsafe { &*self.start.as_ptr().add(at).cast() }
    }

    pub(super) fn pid(&self) -> u32 {
        self.word(PID).load(Ordering::Relaxed)
    }

    pub(super) fn parent_pid(&self) -> u32 {
        self.word(PARENT_PID).load(Ordering::Relaxed)
    }

    /// The program and its arguments.
    pub(super) fn command(&self) -> Vec<String> {
        let bytes = self.word(COMMAND_BYTES).load(Ordering::Relaxed) as usize;
        let end = COMMAND + bytes.min(HEADER_BYTES - COMMAND);
        let words = (COMMAND..end).step_by(4);
        let told = words.flat_map(|at| self.word(at).load(Ordering::Relaxed).to_ne_bytes());
        let told: Vec<u8> = told.take(end - COMMAND).collect();
        let words = told
            .split_inclusive(|&byte| byte == 0)
            .map(|word| word.strip_suffix(b"\0").unwrap_or(word));
        words.map(|word| String::from_utf8_lossy(word).into_owned()).collect()
    }

    /// Whether the tool leaves out no more. Until then slots only define blocks.
    pub(super) fn recording(&self) -> bool {
        self.word(RECORDING).load(Ordering::Acquire) != 0
    }

    /// Instructions that the tool left out.
    pub(super) fn skipped(&self) -> u64 {
        self.long(SKIPPED).load(Ordering::Relaxed)
    }

    /// The next slot, as soon as there is one.
    pub(super) fn next(&self) -> Handed<'_> {
        let mut dead = false;
        loop {
            let produced = self.word(PRODUCED).load(Ordering::Acquire);
            if (produced & !CLOSED) != self.consumed {
                return Handed::Slot(self.slot());
            }
            if produced & CLOSED != 0 {
                return Handed::Closed;
            }
            if dead {
                let executing = self.word(EXECUTING).load(Ordering::Relaxed) != 0;
                return if executing { Handed::Closed } else { Handed::Died };
            }
            wait(self.word(PRODUCED), produced, Duration::from_millis(100));
            // Looked at once more after this: a last slot may have come before the end.
            dead = self.word(PRODUCED).load(Ordering::Acquire) == produced && self.is_free();
        }
    }

    fn slot(&self) -> &[AtomicU64] {
        let slot = self.consumed as usize % SLOTS;
        let used = self.word(USED + 4 * slot).load(Ordering::Relaxed) as usize;
        let at = HEADER_BYTES + slot * SLOT_WORDS * 8;
        // SAFETY: `used` was read once and limited to the slot, which lies within the mapping.
        unsafe {
            std::slice::from_raw_parts(self.start.as_ptr().add(at).cast(), used.min(SLOT_WORDS))
        }
    }

    /// The slot last handed over can be filled again.
    pub(super) fn give_back(&mut self) {
        self.consumed += 1;
        self.word(CONSUMED).store(self.consumed, Ordering::Release);
        wake(self.word(CONSUMED));
    }

    /// The process is to end at its next slot.
    pub(super) fn stop(&self) {
        self.word(STOP).store(1, Ordering::Release);
        wake(self.word(CONSUMED));
    }

    /// Whether the process, which locked the file, no longer lives.
    fn is_free(&self) -> bool {
        // SAFETY: a call on a descriptor that is open.
        unsafe { libc::flock(self.file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: mapped by `open` with this length; nothing borrowed from it is left.
        unsafe { libc::munmap(self.start.as_ptr().cast(), BYTES) };
    }
}

fn wait(word: &AtomicU32, value: u32, at_most: Duration) {
    let timeout = libc::timespec {
        tv_sec: at_most.as_secs() as libc::time_t,
        tv_nsec: at_most.subsec_nanos().into(),
    };
    // SAFETY: the word and the time live through the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, value, &timeout) };
}

fn wake(word: &AtomicU32) {
    // SAFETY: the word lives through the call.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, 1) };
}

/// Makes a pipe with a name.
pub(super) fn make_fifo(path: &Path) -> io::Result<()> {
    let path = CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: a path that ends in zero.
    match unsafe { libc::mkfifo(path.as_ptr(), 0o600) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}
