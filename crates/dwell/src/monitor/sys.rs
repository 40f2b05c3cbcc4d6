// SPDX-License-Identifier: MIT OR Apache-2.0
//! All that the monitor needs `unsafe` for: affinity, CPUs, signals, the liveness of a pid, files.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// The effective user.
pub fn effective_uid() -> u32 {
    // SAFETY: no arguments, cannot fail.
    unsafe { libc::geteuid() }
}

/// CPUs that this machine runs threads on, whether this process may use them or not.
pub fn online_cpus() -> Option<u32> {
    // SAFETY: asks for a number.
    let cpus = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
    u32::try_from(cpus).ok().filter(|cpus| *cpus > 0)
}

/// Leaves all signals to the other threads of the process.
pub fn block_signals() {
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
pub fn affinity(tid: i32) -> io::Result<Vec<u32>> {
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
pub fn no_such_process(pid: i32) -> bool {
    // SAFETY: signal 0 is only a check.
    pid <= 0
        || unsafe { libc::kill(pid, 0) } < 0
            && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
}

/// Makes a file at least `len` bytes long with all of them allocated, and keeps what it holds: a
/// full file system must refuse here and not by a signal on the first write.
pub fn allocate(file: &File, len: i64) -> io::Result<()> {
    // SAFETY: the descriptor is open; no memory is involved.
    match unsafe { libc::fallocate(file.as_raw_fd(), 0, 0, len) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
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
}
