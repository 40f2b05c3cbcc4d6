// SPDX-License-Identifier: MIT OR Apache-2.0
//! Seccomp filters of this process: how many there are, and whether one kills for a system call.
#![allow(unsafe_code)]

use std::io;

use libc::c_long;

/// How many seccomp filters the calling process has: those that it began with and its own, which
/// nobody takes off. Before Linux 5.9 any number is one.
pub fn filters() -> u32 {
    filters_in(&std::fs::read("/proc/self/status").unwrap_or_default())
}

/// The same from the text of a process's `/proc/PID/status`, or from as much of it as was read.
pub fn filters_in(status: &[u8]) -> u32 {
    let number = |name: &[u8]| {
        let mut lines = status.split(|byte| *byte == b'\n');
        let value = lines.find_map(|line| line.strip_prefix(name))?;
        std::str::from_utf8(value).ok()?.trim().parse::<u32>().ok()
    };
    number(b"Seccomp_filters:").unwrap_or(u32::from(number(b"Seccomp:").unwrap_or(0) > 0))
}

/// Whether a seccomp filter would kill this process for a system call.
pub fn is_deadly(syscall: c_long) -> bool {
    let status = std::fs::read("/proc/thread-self/status");
    let status = status.or_else(|_| std::fs::read("/proc/self/status")).unwrap_or_default();
    filters_in(&status) > 0 && !child_survives(syscall)
}

/// Whether a process that makes the system call `number` lives on. The call gets arguments of -1,
/// with which none that Dwell tries does anything. False also where no child can be made.
pub fn child_survives(number: c_long) -> bool {
    // A bare clone without exit signal: the host program's SIGCHLD handler hears nothing of it.
    // SAFETY: the child gets a copy of this memory, as by fork, and only makes system calls that
    // are safe in the child of a process with threads, until `_exit`.
    let child = unsafe { libc::syscall(libc::SYS_clone, 0, 0, 0, 0, 0) };
    if child == 0 {
        // SAFETY: plain system calls on values of this frame; none allocates or takes a lock.
        unsafe {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
            libc::signal(libc::SIGSYS, libc::SIG_DFL);
            libc::syscall(number, -1 as c_long, -1 as c_long, -1 as c_long, -1 as c_long);
            libc::_exit(0);
        }
    }
    let Ok(child) = libc::pid_t::try_from(child) else { return false };
    if child < 0 {
        return false;
    }
    let mut status = 0;
    loop {
        // SAFETY: the kernel writes one int; the child is ours and nobody else waits for it.
        let waited = unsafe { libc::waitpid(child, &raw mut status, libc::__WALL) };
        if waited == child {
            return libc::WIFEXITED(status);
        }
        if io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return false;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_are_counted_where_the_kernel_counts_them() {
        let new = b"Name:\tx\nSeccomp:\t2\nSeccomp_filters:\t3\nThreads:\t1\n";
        assert_eq!(filters_in(new), 3);
        assert_eq!(filters_in(b"Seccomp:\t2\n"), 1);
        assert_eq!((filters_in(b"Seccomp:\t0\n"), filters_in(b"")), (0, 0));
    }
}
