// SPDX-License-Identifier: MIT OR Apache-2.0
//! All that the monitor needs `unsafe` for: clocks, affinity, the liveness of a pid, mapped words.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

fn clock_ns(clock: libc::clockid_t) -> u64 {
    let mut t = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `t` is a valid timespec to write to; an unknown clock returns an error and leaves 0.
    unsafe { libc::clock_gettime(clock, &mut t) };
    (t.tv_sec as u64).saturating_mul(1_000_000_000).saturating_add(t.tv_nsec as u64)
}

/// CLOCK_MONOTONIC: the same for all processes of a host.
#[inline]
pub(crate) fn monotonic_ns() -> u64 {
    clock_ns(libc::CLOCK_MONOTONIC)
}

/// CPU time of this process, all threads.
pub(crate) fn process_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time of the calling thread.
pub(crate) fn thread_cpu_ns() -> u64 {
    clock_ns(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// The effective user.
pub(crate) fn effective_uid() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() }
}

/// Leaves all signals to the other threads of the process.
pub(crate) fn block_signals() {
    let mut all = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: `sigfillset` initialises the set before it is used; only this thread's mask changes.
    unsafe {
        libc::sigfillset(all.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), std::ptr::null_mut());
    }
}

/// Words of an affinity mask: 8192 CPUs, the most that Linux can be built for.
const MASK_WORDS: usize = 128;

/// The CPUs that thread `tid` may run on (0: the calling thread), in ascending order.
pub(crate) fn affinity(tid: i32) -> io::Result<Vec<u32>> {
    let mut mask = [0u64; MASK_WORDS];
    // SAFETY: the kernel writes at most the stated number of bytes into `mask`, and the type of
    // the pointer means nothing to it.
    let rc = unsafe {
        libc::sched_getaffinity(
            tid,
            size_of_val(&mask),
            mask.as_mut_ptr().cast::<libc::cpu_set_t>(),
        )
    };
    if rc < 0 {
        return Err(io::Error::last_os_error());
    }
    let bits = (0..MASK_WORDS * 64).filter(|i| mask[i / 64] >> (i % 64) & 1 == 1);
    Ok(bits.map(|i| i as u32).collect())
}

/// Whether no process has this pid (in our pid namespace).
pub(crate) fn no_such_process(pid: i32) -> bool {
    // SAFETY: signal 0 is only a check.
    pid <= 0
        || unsafe { libc::kill(pid, 0) } < 0
            && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// Makes a file at least `len` bytes long with all of them allocated, and keeps what it holds: a
/// full file system must refuse here and not by a signal on the first write.
pub(crate) fn allocate(file: &File, len: i64) -> io::Result<()> {
    // SAFETY: the descriptor is open; no memory is involved.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Mapped memory, seen only as atomic words.
#[derive(Debug)]
pub(crate) struct Words {
    start: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the mapping lives as long as the value, and every access to it is atomic.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Words {
    fn map(len: usize, flags: i32, fd: i32) -> io::Result<Words> {
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
        Ok(Words { start, len })
    }

    /// `len` words of a file that is at least that long, shared with its other users.
    ///
    /// Should somebody truncate the file, an access raises SIGBUS: the caller admits only files
    /// that nobody less trusted may write.
    pub(crate) fn of_file(file: &File, len: usize) -> io::Result<Words> {
        Words::map(len, libc::MAP_SHARED, file.as_raw_fd())
    }

    /// `len` private words that read zero after a fork, in the child.
    pub(crate) fn wiped_on_fork(len: usize) -> io::Result<Words> {
        let words = Words::map(len, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, -1)?;
        // SAFETY: the range is the mapping just made, private and anonymous.
        let rc =
            unsafe { libc::madvise(words.start.as_ptr().cast(), len * 8, libc::MADV_WIPEONFORK) };
        if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(words) }
    }
}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: `start` is page-aligned and `len` words from it stay mapped while `self` lives;
        // zero bytes, or whatever bytes another process wrote, are valid words.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference into it outlives `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len * 8) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_thread_runs_somewhere_and_this_process_exists() {
        assert!(!affinity(0).unwrap().is_empty());
        assert!(!no_such_process(std::process::id() as i32));
        assert!(no_such_process(0) && no_such_process(-1) && no_such_process(i32::MAX));
    }

    #[test]
    fn a_forked_child_finds_its_words_wiped() {
        use std::sync::atomic::Ordering::Relaxed;
        let words = Words::wiped_on_fork(8).unwrap();
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
    fn fresh_words_are_zero() {
        let words = Words::wiped_on_fork(64).unwrap();
        assert!(
            words.len() == 64
                && words.iter().all(|w| w.load(std::sync::atomic::Ordering::Relaxed) == 0)
        );
    }
}
