// SPDX-License-Identifier: MIT OR Apache-2.0
//! Descriptors of this library, which the program is not to meet: they stand at high numbers, and
//! who closes all there are does not close these.
#![allow(unsafe_code)]

use std::ffi::c_int;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};

use dwell::adopted::status;

use crate::raw::bare;
use crate::table::MOST;

const NONE: u8 = 0;
const OWN: u8 = 1;
/// The program has put something of its own in its place.
const LOST: u8 = 2;
static STATES: [AtomicU8; MOST] = [const { AtomicU8::new(NONE) }; MOST];
/// What each of them is.
static INODES: [AtomicU64; MOST] = [const { AtomicU64::new(0) }; MOST];
/// One more than the highest that ever was this library's.
static END: AtomicUsize = AtomicUsize::new(0);

fn state(fd: c_int) -> Option<&'static AtomicU8> {
    STATES.get(usize::try_from(fd).ok()?)
}

/// Moves a fresh descriptor out of the way, where limits allow, and takes it for this library's own.
pub fn adopt(fd: c_int) -> c_int {
    if fd < 0 {
        return fd;
    }
    let high: c_int = bare!(SYS_fcntl, fd, libc::F_DUPFD_CLOEXEC, lowest());
    let fd = match high >= 0 && (high as usize) < MOST {
        true => {
            let _: c_int = bare!(SYS_close, fd);
            high
        }
        false => fd,
    };
    if let Some(state) = state(fd) {
        END.fetch_max(fd as usize + 1, Ordering::Relaxed);
        INODES[fd as usize].store(inode(fd), Ordering::Relaxed);
        state.store(OWN, Ordering::Relaxed);
    }
    fd
}

/// Lowest number for a descriptor of this library: near the end of those that the process may have,
/// or of those that programs count on.
pub fn lowest() -> c_int {
    const USUAL_MOST: u64 = 1024;
    const ROOM: u64 = 128;
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live buffer.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    limit.rlim_cur.min(USUAL_MOST).saturating_sub(ROOM) as c_int
}

/// Makes the kernel's table of descriptors as long as it will have to be while no other thread shares it. Later it would wait, many
/// milliseconds at times, until nobody can be looking at the old one.
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
    state(fd).is_some_and(|state| state.load(Ordering::Relaxed) == OWN)
}

/// The first of this library's descriptors from `first` to `last`.
pub fn next(first: u32, last: u32) -> Option<u32> {
    let end = last.saturating_add(1).min(END.load(Ordering::Relaxed) as u32);
    (first..end).find(|fd| is_own(*fd as c_int))
}

/// The program puts something of its own in the place of a descriptor.
#[inline]
pub fn lose(fd: c_int) {
    if let Some(state) = state(fd)
        && state.load(Ordering::Relaxed) == OWN
    {
        state.store(LOST, Ordering::Relaxed);
    }
}

/// Whether this library may close a descriptor: it may have been closed by calls that are not seen,
/// and something of the program's stand there now.
pub fn may_close(fd: c_int) -> bool {
    let Some(state) = state(fd) else { return true };
    match state.swap(NONE, Ordering::Relaxed) {
        NONE => true,
        OWN => INODES[fd as usize].load(Ordering::Relaxed) == inode(fd),
        _ => false,
    }
}

/// Tells what is open from what else could be; 0 where nothing is.
fn inode(fd: c_int) -> u64 {
    // SAFETY: one that is not open is refused, and none is changed.
    unsafe { status(fd) }.map_or(0, |status| status.st_ino ^ status.st_dev.rotate_left(32))
}

/// A forked child has none that it knows of: those of its parent close when it becomes another
/// program. Sockets close at once: who is at their other end waits for the parent to end.
pub fn begin_in_child() {
    for (fd, state) in STATES[..END.load(Ordering::Relaxed)].iter().enumerate() {
        if state.load(Ordering::Relaxed) != OWN {
            continue;
        }
        let fd = fd as c_int;
        // SAFETY: as in `inode`.
        let is_socket = unsafe { status(fd) }
            .is_ok_and(|status| status.st_mode & libc::S_IFMT == libc::S_IFSOCK);
        if is_socket && INODES[fd as usize].load(Ordering::Relaxed) == inode(fd) {
            state.store(NONE, Ordering::Relaxed);
            let _: c_int = bare!(SYS_close, fd);
        } else {
            state.store(LOST, Ordering::Relaxed);
        }
    }
}
