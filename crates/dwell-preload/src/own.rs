// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors of this library, which the program is not to meet: they stand at high numbers, are
//! few, and who closes all there are does not close these.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};

use crate::process;
use crate::raw::bare;
use crate::table::MOST;

const NONE: u8 = 0;
const OWN: u8 = 1;
/// One that stays as long as a thread.
const KEPT: u8 = 2;
/// It was one, and whoever made it does not know that it is closed: its next close closes nothing.
const LOST: u8 = 3;
static STATES: [AtomicU8; MOST] = [const { AtomicU8::new(NONE) }; MOST];
/// One more than the highest that ever was this library's.
static END: AtomicUsize = AtomicUsize::new(0);
/// How many there are.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// What this library's open files are known by, whatever their kind: the signal that they would
/// send if anyone asked them for one. Programs that ask take another.
const MARK: c_int = 63;
const F_SETSIG: c_int = 10;
const F_GETSIG: c_int = 11;
/// A process that may have fewer descriptors keeps them all.
pub const LEAST_LIMIT: u64 = 256;
/// Of so many descriptors that a process may have, one is this library's at most.
const SHARE: u64 = 8;
/// Descriptors of this library, at most.
const MOST_OWN: u64 = 4096;

fn state(fd: c_int) -> Option<&'static AtomicU8> {
    STATES.get(usize::try_from(fd).ok()?)
}

/// Descriptors that this process may have.
pub fn limit() -> u64 {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live buffer.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit.rlim_cur
}

/// Whether the process has so many descriptors that this library may take some for a moment.
pub fn may_borrow() -> bool {
    limit() >= LEAST_LIMIT
}

/// Whether this library may keep one more.
pub fn may_keep() -> bool {
    let limit = limit();
    limit >= LEAST_LIMIT && (COUNT.load(Ordering::Relaxed) as u64) < (limit / SHARE).min(MOST_OWN)
}

/// The same open file under a number out of the program's way; `None` where limits leave no room
/// there.
fn high(fd: c_int) -> Option<c_int> {
    let mut from = lowest();
    loop {
        let high: c_int = bare!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, from);
        match state(high)?.load(Ordering::Relaxed) {
            LOST => {
                let _: c_int = bare!(SYS_close, high);
                from = high + 1;
            }
            _ => return Some(high),
        }
    }
}

fn enter(fd: c_int, as_what: u8) {
    let Some(state) = state(fd) else { return };
    let marked: c_int = bare!(SYS_fcntl, fd, F_SETSIG, MARK);
    if marked < 0 {
        return;
    }
    END.fetch_max(fd as usize + 1, Ordering::Relaxed);
    if !matches!(state.swap(as_what, Ordering::Relaxed), OWN | KEPT) {
        COUNT.fetch_add(1, Ordering::Relaxed);
    }
}

/// Moves a fresh descriptor out of the way, where limits allow, and takes it for this library's
/// own. It is closed soon.
pub fn adopt(fd: c_int) -> c_int {
    if fd < 0 {
        return fd;
    }
    let fd = match high(fd) {
        Some(high) => {
            let _: c_int = bare!(SYS_close, fd);
            high
        }
        None => fd,
    };
    enter(fd, OWN);
    fd
}

/// The same for one that stays as long as a thread. Where this library has enough, it is closed,
/// and EMFILE.
pub fn keep(fd: c_int) -> c_int {
    if fd < 0 {
        return fd;
    }
    let high = may_keep().then(|| high(fd)).flatten();
    let _: c_int = bare!(SYS_close, fd);
    let Some(high) = high else {
        crate::raw::set_errno(libc::EMFILE);
        return -1;
    };
    enter(high, KEPT);
    high
}

/// Lowest number for a descriptor of this library: near the end of those that the process may have,
/// or of those that programs count on.
pub fn lowest() -> c_int {
    const USUAL_MOST: u64 = 1024;
    const ROOM: u64 = 128;
    limit().min(USUAL_MOST).saturating_sub(ROOM) as c_int
}

/// Makes the kernel's table of descriptors as long as it will have to be while no other thread
/// shares it. Later it would wait, many milliseconds at times, until nobody can be looking at the
/// old one.
pub fn make_room() {
    let fd: c_int = bare!(SYS_epoll_create1, libc::EPOLL_CLOEXEC);
    if fd < 0 {
        return;
    }
    let high: c_int = bare!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, lowest());
    for fd in [high, fd].into_iter().filter(|fd| *fd >= 0) {
        let _: c_int = bare!(SYS_close, fd);
    }
}

/// Whether a number is one of this library's descriptors.
#[inline]
pub fn is_own(fd: c_int) -> bool {
    state(fd).is_some_and(|state| matches!(state.load(Ordering::Relaxed), OWN | KEPT))
}

/// The first of this library's descriptors from `first` to `last`.
fn next(first: u32, last: u32) -> Option<u32> {
    let end = last.saturating_add(1).min(END.load(Ordering::Relaxed) as u32);
    (first..end).find(|fd| is_own(*fd as c_int))
}

/// Closes from `first` to `last`, by `close`, all but this library's own.
pub fn close_around(first: u32, last: u32, close: impl Fn(u32, u32) -> c_int) -> c_int {
    let mut from = first;
    while let Some(own) = next(from, last) {
        if own > from && close(from, own - 1) != 0 {
            return -1;
        }
        if own == last {
            return 0;
        }
        from = own + 1;
    }
    close(from, last)
}

/// The program puts, or has put, something of its own in the place of a descriptor.
#[inline]
pub fn lose(fd: c_int) {
    if is_own(fd) {
        now_is(fd, LOST);
    }
}

#[cold]
fn now_is(fd: c_int, what: u8) {
    if let Some(state) = state(fd)
        && matches!(state.swap(what, Ordering::Relaxed), OWN | KEPT)
    {
        COUNT.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether this library may close a descriptor: it may have been closed by calls that are not seen,
/// and something of the program's stand there now.
pub fn may_close(fd: c_int) -> bool {
    let Some(state) = state(fd) else { return true };
    match state.swap(NONE, Ordering::Relaxed) {
        NONE => true,
        OWN | KEPT => {
            COUNT.fetch_sub(1, Ordering::Relaxed);
            // A filter may kill for the question; then it stays open.
            !process::is_retired() && is_marked(fd)
        }
        _ => false,
    }
}

fn is_marked(fd: c_int) -> bool {
    let signal: c_int = bare!(SYS_fcntl, fd, F_GETSIG);
    signal == MARK
}

/// A forked child has none: its parent's rings and sockets are no way for it to make requests with
/// its parent's rights. The peer of a socket waits for its last descriptor. The child's memory also
/// names descriptors that threads keep; a thread finds them lost there.
pub fn close_in_child() {
    for (fd, state) in STATES[..END.load(Ordering::Relaxed)].iter().enumerate() {
        let before = state.load(Ordering::Relaxed);
        if before == OWN || before == KEPT {
            if is_marked(fd as c_int) {
                let _: c_int = bare!(SYS_close, fd);
            }
            now_is(fd as c_int, if before == KEPT { LOST } else { NONE });
        }
    }
}
