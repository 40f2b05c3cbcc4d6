// SPDX-License-Identifier: MIT OR Apache-2.0
//! The monotonic clock, and sleeping by it.
#![allow(unsafe_code)]

use std::time::Duration;

use dwell_policy::Ns;

/// A span in nanoseconds; one that is longer than 584 years counts as that.
pub(crate) fn ns_of(span: Duration) -> Ns {
    span.as_nanos().try_into().unwrap_or(Ns::MAX)
}

#[inline]
fn read(clock: libc::clockid_t) -> Ns {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is to a live timespec; the clocks asked for exist on every Linux.
    unsafe { libc::clock_gettime(clock, &mut time) };
    time.tv_sec as Ns * 1_000_000_000 + time.tv_nsec as Ns
}

/// Nanoseconds of CLOCK_MONOTONIC: the same for all processes of a host.
#[inline]
pub fn now() -> Ns {
    read(libc::CLOCK_MONOTONIC)
}

/// Seconds since 1970 as `2026-01-31 12:00:00 UTC`.
pub fn utc(unix_s: u64) -> String {
    let (days, seconds) = (unix_s / 86_400, unix_s % 86_400);
    // Days to a date of the Gregorian calendar, in eras of 400 years that begin in March.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let from_march = (5 * day + 2) / 153;
    let day = day - (153 * from_march + 2) / 5 + 1;
    let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
    let year = era * 400 + year + u64::from(month <= 2);
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02} UTC")
}

/// CPU time that the calling thread has used, in nanoseconds.
pub fn thread_cpu() -> Ns {
    read(libc::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time that all threads of this process have used, in nanoseconds.
pub fn process_cpu() -> Ns {
    read(libc::CLOCK_PROCESS_CPUTIME_ID)
}

/// CPU time that a thread of this process has used, in nanoseconds; `None` when there is none of
/// that id.
pub(crate) fn cpu_of_thread(id: i32) -> Option<Ns> {
    // The mark of a single thread.
    cpu_clock(id, 4)
}

/// CPU time that all threads of a process have used, in nanoseconds, kernel threads included;
/// `None` when there is no process of that id.
pub fn cpu_of_process(id: i32) -> Option<Ns> {
    cpu_clock(id, 0)
}

fn cpu_clock(id: i32, mark: i32) -> Option<Ns> {
    // How the kernel makes a clock of an id: its complement, the kind of clock (2: time that it
    // ran) and the mark.
    let clock = (!id << 3) | 2 | mark;
    let mut time = timespec(0);
    // SAFETY: a live buffer; an id that is gone is an error.
    let rc = unsafe { libc::clock_gettime(clock, &mut time) };
    (rc == 0).then(|| time.tv_sec as Ns * 1_000_000_000 + time.tv_nsec as Ns)
}

/// `at` as the kernel's structure.
pub(crate) fn timespec(at: Ns) -> libc::timespec {
    libc::timespec {
        tv_sec: (at / 1_000_000_000) as libc::time_t,
        tv_nsec: (at % 1_000_000_000) as libc::c_long,
    }
}

/// Sleeps until the clock shows `until`; it comes back late by what the timer and the wake-up
/// cost. A signal handler that runs meanwhile does not end the sleep.
pub fn sleep_until(until: Ns) {
    // The kernel may delay an ordinary thread's timers by 50 µs: longer than many a device takes.
    let _precise = PreciseTimers::new();
    let at = timespec(until);
    loop {
        // The C library's function is a cancellation point: it would wait for a signal that tells
        // of a cancellation, and the caller may have blocked it.
        // SAFETY: `at` is a live timespec, and an absolute sleep writes no remainder.
        let rc = unsafe {
            libc::syscall(
                libc::SYS_clock_nanosleep,
                libc::CLOCK_MONOTONIC,
                libc::TIMER_ABSTIME,
                &raw const at,
                std::ptr::null_mut::<libc::timespec>(),
            )
        };
        if rc == 0 || std::io::Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
            return;
        }
    }
}

/// Takes the calling thread's timer slack away for as long as it lives.
pub(crate) struct PreciseTimers {
    slack_ns: libc::c_ulong,
}

impl PreciseTimers {
    pub(crate) fn new() -> Self {
        // SAFETY: both options take and return integers and touch no memory.
        let slack_ns = unsafe {
            let slack_ns = libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0);
            libc::prctl(libc::PR_SET_TIMERSLACK, 1, 0, 0, 0);
            slack_ns
        };
        // 0 asks for the thread's default.
        PreciseTimers { slack_ns: libc::c_ulong::try_from(slack_ns).unwrap_or(0) }
    }
}

impl Drop for PreciseTimers {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, self.slack_ns, 0, 0, 0) };
    }
}

/// By how much a timed sleep of `asked_ns` comes back late on this thread: the median of `rounds`,
/// in nanoseconds.
pub fn sleep_overshoot(asked_ns: Ns, rounds: usize) -> Ns {
    let mut late_ns: Vec<Ns> = (0..rounds.max(1))
        .map(|_| {
            let until = now() + asked_ns;
            sleep_until(until);
            now().saturating_sub(until)
        })
        .collect();
    late_ns.sort_unstable();
    late_ns[late_ns.len() / 2]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sleep_never_comes_back_early() {
        let until = now() + 200_000;
        sleep_until(until);
        assert!(now() >= until);
    }
}
