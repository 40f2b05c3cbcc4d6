// SPDX-License-Identifier: MIT OR Apache-2.0
//! The system calls that the survey tries. All of them give back a descriptor that closes itself,
//! or leave nothing behind.
#![allow(unsafe_code)]

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use libc::{c_int, c_long, c_uint};

/// Requests that a ring carries out by polling.
pub const SETUP_IOPOLL: u32 = 1 << 0;
/// Completion work runs only when the owner asks.
pub const SETUP_DEFER_TASKRUN: u32 = 1 << 13;
/// One thread submits.
pub const SETUP_SINGLE_ISSUER: u32 = 1 << 12;
/// A polled ring sleeps first.
pub const SETUP_HYBRID_IOPOLL: u32 = 1 << 17;

/// Only faults from user mode are handled.
pub const UFFD_USER_MODE_ONLY: c_int = 1;
/// A missing page raises SIGBUS in the thread that touched it.
pub const UFFD_SIGBUS: u64 = 1 << 7;
/// Write protection is lifted without a message.
pub const UFFD_WP_ASYNC: u64 = 1 << 15;
/// Pages can be moved in.
pub const UFFD_MOVE: u64 = 1 << 16;

/// A hardware counter.
pub const PERF_HARDWARE: u32 = 0;
/// A counter that the kernel keeps.
pub const PERF_SOFTWARE: u32 = 1;
/// Hardware: CPU cycles.
pub const PERF_CPU_CYCLES: u64 = 0;
/// Software: context switches.
pub const PERF_CONTEXT_SWITCHES: u64 = 3;

/// Takes over what a system call that makes a descriptor returned.
///
/// # Safety
/// `returned` is the unmodified result of such a call.
unsafe fn owned(returned: c_long) -> io::Result<OwnedFd> {
    match c_int::try_from(returned) {
        // SAFETY: the caller vouches that the kernel just made this descriptor for us alone.
        Ok(fd) if fd >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(fd) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Sets up a ring of two entries.
pub fn io_uring(flags: u32) -> io::Result<OwnedFd> {
    // struct io_uring_params is 30 words of 32 bits; the third holds the flags.
    let mut params = [0_u32; 30];
    params[2] = flags;
    // SAFETY: the kernel reads and writes 120 bytes at a pointer to 120 writable bytes.
    let returned =
        unsafe { libc::syscall(libc::SYS_io_uring_setup, 2 as c_uint, params.as_mut_ptr()) };
    // SAFETY: io_uring_setup makes a descriptor.
    unsafe { owned(returned) }
}

/// Opens a userfaultfd by system call.
pub fn userfaultfd(flags: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointer.
    let returned =
        unsafe { libc::syscall(libc::SYS_userfaultfd, flags | libc::O_CLOEXEC | libc::O_NONBLOCK) };
    // SAFETY: userfaultfd makes a descriptor.
    unsafe { owned(returned) }
}

/// Opens a userfaultfd through `/dev/userfaultfd`.
pub fn userfaultfd_from(device: &File) -> io::Result<OwnedFd> {
    const USERFAULTFD_IOC_NEW: libc::Ioctl = 0xAA00;
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: this ioctl takes its flags by value.
    let returned = unsafe { libc::ioctl(device.as_raw_fd(), USERFAULTFD_IOC_NEW, flags) };
    // SAFETY: the ioctl makes a descriptor.
    unsafe { owned(returned.into()) }
}

/// The features a fresh userfaultfd offers.
pub fn userfaultfd_features(uffd: &OwnedFd) -> io::Result<u64> {
    #[repr(C)]
    struct UffdioApi {
        api: u64,
        features: u64,
        ioctls: u64,
    }
    const UFFDIO_API: libc::Ioctl = 0xC018_AA3F_u32 as libc::Ioctl;
    let mut api = UffdioApi { api: 0xAA, features: 0, ioctls: 0 };
    // SAFETY: the kernel reads and writes one struct uffdio_api, laid out as its header says.
    let returned = unsafe { libc::ioctl(uffd.as_raw_fd(), UFFDIO_API, &raw mut api) };
    if returned < 0 { Err(io::Error::last_os_error()) } else { Ok(api.features) }
}

/// Opens a counter of this thread's user-mode events.
pub fn perf_event(kind: u32, config: u64) -> io::Result<OwnedFd> {
    /// The first published layout, 64 bytes, which every kernel accepts.
    #[repr(C)]
    struct PerfEventAttr {
        kind: u32,
        size: u32,
        config: u64,
        unused: [u64; 3],
        flags: u64,
        rest: [u64; 2],
    }
    const DISABLED: u64 = 1;
    const EXCLUDE_KERNEL: u64 = 1 << 5;
    const EXCLUDE_HV: u64 = 1 << 6;
    const FD_CLOEXEC: c_long = 1 << 3;
    let attr = PerfEventAttr {
        kind,
        size: 64,
        config,
        unused: [0; 3],
        flags: DISABLED | EXCLUDE_KERNEL | EXCLUDE_HV,
        rest: [0; 2],
    };
    let (this_thread, any_cpu, no_group) = (0 as c_long, -1 as c_long, -1 as c_long);
    // SAFETY: the kernel reads the 64 bytes that `attr` has and says it has.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            &raw const attr,
            this_thread,
            any_cpu,
            no_group,
            FD_CLOEXEC,
        )
    };
    // SAFETY: perf_event_open makes a descriptor.
    unsafe { owned(returned) }
}

/// Reads one byte at the start of `file`, if that needs no wait.
pub fn read_nowait(file: &File) -> io::Result<usize> {
    let mut byte = 0_u8;
    let iovec = libc::iovec { iov_base: (&raw mut byte).cast(), iov_len: 1 };
    let (one, offset, offset_high) = (1 as c_long, 0 as c_long, 0 as c_long);
    // By number, because libc hides a missing call behind another error.
    // SAFETY: the kernel reads one iovec, which leads to one writable byte.
    let returned = unsafe {
        libc::syscall(
            libc::SYS_preadv2,
            c_long::from(file.as_raw_fd()),
            &raw const iovec,
            one,
            offset,
            offset_high,
            c_long::from(libc::RWF_NOWAIT),
        )
    };
    usize::try_from(returned).map_err(|_| io::Error::last_os_error())
}

/// This thread's timer slack, in nanoseconds.
pub fn timer_slack_ns() -> io::Result<u64> {
    // SAFETY: this prctl takes no pointer.
    let returned = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) };
    u64::try_from(returned).map_err(|_| io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::super::facts::Facts;
    use super::super::{Refused, State, attempt, ring};
    use super::*;

    /// Answers `number` with `verdict` in this thread and its children from now on; false where
    /// no filter can be had.
    fn filter(number: c_long, verdict: u32) -> bool {
        let step = |code: u32, skip_if_not, k| libc::sock_filter {
            code: code as u16,
            jt: 0,
            jf: skip_if_not,
            k,
        };
        let mut program = [
            step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
            step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, number as u32),
            step(libc::BPF_RET | libc::BPF_K, 0, verdict),
            step(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        ];
        let program = libc::sock_fprog { len: 4, filter: program.as_mut_ptr() };
        // SAFETY: both calls bind this thread only; the second reads the four steps above.
        unsafe {
            libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program)
                    == 0
        }
    }

    /// What the survey says of io_uring in a thread where `verdict` answers its set-up.
    fn surveyed(verdict: u32) -> Option<super::super::Capability> {
        std::thread::spawn(move || {
            if !filter(libc::SYS_io_uring_setup, verdict) {
                println!("SKIP: no seccomp filter can be installed here");
                return None;
            }
            let facts = Facts::read("/proc".as_ref());
            assert!(facts.filtered);
            let other = attempt(&facts, libc::SYS_userfaultfd, || Ok(()));
            assert_eq!(other, Ok(()), "a call that the filter lets through");
            Some(ring::io_uring(&facts))
        })
        .join()
        .unwrap()
    }

    #[test]
    fn a_filter_that_kills_does_not_kill_this_process() {
        if let Some(told) = surveyed(libc::SECCOMP_RET_KILL_PROCESS) {
            assert_eq!(told.state, State::Forbidden);
            assert!(told.detail.ends_with(&Refused::Deadly.to_string()), "{}", told.detail);
        }
    }

    #[test]
    fn a_filter_that_denies_is_recognised() {
        for errno in [libc::EPERM, libc::ENOSYS] {
            let Some(told) = surveyed(libc::SECCOMP_RET_ERRNO | errno as u32) else { return };
            assert_eq!(told.state, State::Forbidden);
            assert!(told.remedy.unwrap().contains("seccomp"), "{}", told.detail);
        }
    }
}
