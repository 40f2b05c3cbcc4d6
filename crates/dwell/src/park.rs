// SPDX-License-Identifier: MIT OR Apache-2.0
//! Blocking until a queue has something.
#![allow(unsafe_code)]

mod alarm_clock;
mod parker;

use std::sync::atomic::{AtomicU32, Ordering};

use dwell_policy::{Ns, Woken};

use crate::clock;
use crate::poll::poll;
use crate::queue::{Completion, Queue, Wake};

pub use parker::Parker;
pub(crate) use parker::{counts_bytes, set_low_water};

/// Arms `queue`, looks once more, and sleeps if there is still nothing, at most until `until` and
/// where the queue can tell, until `min_complete` completions are there. Completions found by the
/// look go to `out`.
pub fn park<Q: Queue + ?Sized>(
    queue: &mut Q,
    until: Option<Ns>,
    min_complete: u32,
    out: &mut dyn FnMut(Completion),
) -> Woken {
    let armed = match queue.arm(min_complete) {
        Wake::Never => {
            queue.disarm();
            return Woken::Unwakeable;
        }
        wake @ Wake::Ring { .. } => {
            sleep(wake, until);
            queue.disarm();
            return Woken::Look;
        }
        Wake::Word { seen, .. } => Some(seen),
        _ => None,
    };
    if queue.poll(out) == 0 {
        // Asked again for the wake-up, so as not to borrow it across the look. A word that changed
        // since the first time says that something came after the look: sleeping on its new value
        // would sleep through that.
        match queue.arm(min_complete) {
            Wake::Word { seen, .. } if armed != Some(seen) => {}
            wake => sleep(wake, until),
        }
    }
    queue.disarm();
    Woken::Look
}

/// How long a completion may be kept waiting for others. Far longer than those others usually
/// take: it only bounds what a device that stalls does to the requests it had finished.
pub(crate) const TOGETHER_NS: Ns = 2_000_000;

/// Sleeps on one wake-up. May return early.
fn sleep(wake: Wake<'_>, until: Option<Ns>) {
    match wake {
        Wake::Never => {}
        Wake::Ring { fd, unsent, min_complete: min_complete @ (0 | 1) } => {
            enter_ring(fd, unsent, min_complete, until)
        }
        Wake::Ring { fd, unsent, min_complete } => {
            let together = clock::now() + TOGETHER_NS;
            enter_ring(fd, unsent, min_complete, sooner(until, Some(together)));
        }
        Wake::Descriptor(fd) => poll_descriptor(fd, false, until),
        Wake::Word { word, seen } => wait_word(word, seen, until),
        Wake::At(due) => clock::sleep_until(until.map_or(due, |until| until.min(due))),
        Wake::Socket { fd, write, at } => poll_descriptor(fd, write, sooner(until, at)),
    }
}

fn sooner(a: Option<Ns>, b: Option<Ns>) -> Option<Ns> {
    a.into_iter().chain(b).min()
}

/// Sends `unsent` entries and waits inside an io_uring for `min_complete` completions.
fn enter_ring(fd: i32, unsent: u32, min_complete: u32, until: Option<Ns>) {
    const GETEVENTS: u32 = 1;
    const EXT_ARG: u32 = 1 << 3;
    #[repr(C)]
    struct GetEventsArg {
        sigmask: u64,
        sigmask_size: u32,
        min_wait_usec: u32,
        timespec: u64,
    }
    let span = until.map(|until| clock::timespec(until.saturating_sub(clock::now())));
    let (flags, arg, size) = match &span {
        None => (GETEVENTS, None, 0),
        Some(span) => (
            GETEVENTS | EXT_ARG,
            Some(GetEventsArg {
                sigmask: 0,
                sigmask_size: 8,
                min_wait_usec: 0,
                timespec: std::ptr::from_ref(span) as u64,
            }),
            size_of::<GetEventsArg>(),
        ),
    };
    let arg = arg.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: the descriptor is a ring of this thread; the argument and the timespec it points to
    // outlive the call. Every error (EINTR, ETIME) means: look again.
    unsafe { libc::syscall(libc::SYS_io_uring_enter, fd, unsent, min_complete, flags, arg, size) };
}

fn poll_descriptor(fd: i32, write: bool, until: Option<Ns>) {
    let events = libc::POLLIN | if write { libc::POLLOUT } else { 0 };
    let mut watched = libc::pollfd { fd, events, revents: 0 };
    poll(&mut watched, until.map(|until| clock::timespec(until.saturating_sub(clock::now()))));
}

fn wait_word(word: &AtomicU32, seen: u32, until: Option<Ns>) {
    if word.load(Ordering::Acquire) != seen {
        return;
    }
    let at = until.map(clock::timespec);
    let at = at.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // WAIT_BITSET takes an absolute time; the word may lie in memory shared between processes.
    // SAFETY: the word outlives the call, the timespec is live or null.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            libc::FUTEX_WAIT_BITSET,
            seen,
            at,
            std::ptr::null::<u32>(),
            u32::MAX,
        )
    };
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use std::os::fd::{AsFd as _, AsRawFd as _};
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;
    use std::thread;
    use std::time::{Duration, Instant};

    use super::*;

    unsafe extern "C" {
        fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
        fn pthread_setcanceltype(kind: i32, before: *mut i32) -> i32;
    }

    const DISABLED: i32 = 1;
    const DEFERRED: i32 = 0;
    const ASYNCHRONOUS: i32 = 1;
    const MS: Ns = 1_000_000;
    static CANCELLED: AtomicBool = AtomicBool::new(false);

    /// Blocks the signal that the C library tells of a cancellation by, as only a system call can.
    fn hear_of_no_cancellation() {
        let number_32 = 1u64 << 31;
        let nowhere = std::ptr::null_mut::<u64>();
        // SAFETY: a set of signals of that length, which lives here.
        let done = unsafe {
            let set = &raw const number_32;
            libc::syscall(libc::SYS_rt_sigprocmask, libc::SIG_BLOCK, set, nowhere, 8usize)
        };
        assert_eq!(done, 0);
    }

    #[test]
    fn a_thread_sleeps_no_longer_because_it_cannot_hear_that_it_is_cancelled() {
        let (tell, told) = mpsc::channel();
        let done = mpsc::channel();
        thread::spawn(move || {
            hear_of_no_cancellation();
            let mut before = 0;
            // SAFETY: the signal is blocked for good, so this thread is never cancelled.
            unsafe { pthread_setcanceltype(ASYNCHRONOUS, &mut before) };
            // SAFETY: always possible.
            tell.send(unsafe { libc::pthread_self() }).unwrap();
            while !CANCELLED.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            // SAFETY: a thread may refuse to be cancelled at any moment.
            unsafe {
                pthread_setcancelstate(DISABLED, &mut before);
                pthread_setcanceltype(DEFERRED, &mut before);
            }
            let event = crate::eventfd::Event::new().unwrap();
            poll_descriptor(event.as_fd().as_raw_fd(), false, Some(clock::now() + MS));
            clock::sleep_until(clock::now() + MS);
            done.0.send(()).unwrap();
            // It must not end while it is being cancelled.
            loop {
                thread::park();
            }
        });
        // SAFETY: the thread never ends.
        assert_eq!(unsafe { libc::pthread_cancel(told.recv().unwrap()) }, 0);
        CANCELLED.store(true, Ordering::Release);
        let began = Instant::now();
        done.1.recv_timeout(Duration::from_secs(20)).expect("it sleeps for good");
        assert!(began.elapsed() >= Duration::from_millis(2));
    }
}
