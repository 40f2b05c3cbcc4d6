// SPDX-License-Identifier: MIT OR Apache-2.0
//! Closing, doubling, changing descriptors, and handing them to others.
#![allow(unsafe_code)]
// Every function here has the contract of the C library's function of its name.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_int, c_uint};

use libc::{mmsghdr, msghdr, size_t, ssize_t};

use super::{came, found, real};
use crate::raw::{self, bare};
use crate::{inside, own, serve, table};

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    if inside::is_inside() {
        // A child that borrows this memory closes descriptors of its own.
        let closes = !inside::is_own_call() || own::may_close(fd);
        return if closes { bare!(SYS_close, fd) } else { 0 };
    }
    close_by(fd, || real!(close(fd), bare!(SYS_close, fd)))
}

/// Closes a descriptor of the program by `close`.
pub(super) fn close_by(fd: c_int, close: impl FnOnce() -> c_int) -> c_int {
    if own::is_own(fd) {
        // As far as the program knows, there is none.
        raw::set_errno(libc::EBADF);
        return -1;
    }
    // After the call the number may be another thread's already, and before it a third may still
    // ask.
    table::renew(fd);
    let result = close();
    table::renew(fd);
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    close_range_by(first, last, flags, |first, last| {
        real!(close_range(first, last, flags), bare!(SYS_close_range, first, last, flags))
    })
}

/// Closes the program's descriptors from `first` to `last` by `close`.
pub(super) fn close_range_by(
    first: c_uint,
    last: c_uint,
    flags: c_int,
    close: impl Fn(c_uint, c_uint) -> c_int,
) -> c_int {
    const ON_EXEC: c_int = 1 << 2;
    if inside::is_inside() || flags & ON_EXEC != 0 || first > last {
        return close(first, last);
    }
    table::renew_range(first, last);
    let result = own::close_around(first, last, close);
    table::renew_range(first, last);
    result
}

/// No process has more, unless its administrator has raised `fs.nr_open`.
const MOST_NUMBERS: u64 = 1 << 20;

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let from = c_uint::try_from(first).unwrap_or(0);
    if inside::is_inside() {
        return real!(closefrom(first), {
            let _: c_int = bare!(SYS_close_range, from, c_uint::MAX, 0);
        });
    }
    close_range_by(from, c_uint::MAX, 0, |first, last| {
        let done: c_int = bare!(SYS_close_range, first, last, 0);
        // Kernels before 5.9 have no such call.
        if done != 0 {
            let end = last.min(own::limit().min(MOST_NUMBERS) as c_uint);
            (first..=end).for_each(|fd| {
                let _: c_int = bare!(SYS_close, fd);
            });
        }
        0
    });
}

/// A descriptor that is to have a double: where it stands is no longer one descriptor's alone.
pub(super) fn doubles(fd: c_int) {
    if !inside::is_inside() {
        table::share(fd);
    }
}

/// A number that is about to name another thing.
pub(super) fn replaces(fd: c_int) {
    if !inside::is_inside() {
        own::lose(fd);
        table::renew(fd);
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    doubles(fd);
    came(real!(dup(fd), bare!(SYS_dup, fd)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, other: c_int) -> c_int {
    doubles(fd);
    if fd == other {
        return real!(dup2(fd, other), bare!(SYS_fcntl, fd, libc::F_GETFD));
    }
    replaces(other);
    came(real!(dup2(fd, other), bare!(SYS_dup3, fd, other, 0)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, other: c_int, flags: c_int) -> c_int {
    doubles(fd);
    if fd != other {
        replaces(other);
    }
    came(real!(dup3(fd, other, flags), bare!(SYS_dup3, fd, other, flags)))
}

macro_rules! controls {
    ($($name:ident;)*) => {$(
        // The C library's takes an argument only with some commands; where there is none, what is
        // passed on is not looked at.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int,
            command: c_int,
            argument: size_t,
        ) -> c_int {
            let straight =
                || real!($name(fd, command, argument), bare!(SYS_fcntl, fd, command, argument));
            match command {
                libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
                    doubles(fd);
                    came(straight())
                }
                libc::F_SETFL => {
                    let result = straight();
                    if !inside::is_inside() {
                        // Whether it is direct, appends or never waits may have changed.
                        table::look_again(fd);
                    }
                    result
                }
                _ => straight(),
            }
        }
    )*};
}

controls! {
    fcntl;
    fcntl64;
}

/// Before so many messages are sent, each so many bytes after the one before: what is sent beside
/// data may be descriptors.
pub(super) fn sends(messages: *const msghdr, count: usize, stride: usize) {
    // The kernel sends no more by one call.
    const MOST: usize = 1024;
    if inside::is_inside() || !table::has_private() {
        return;
    }
    let mut each = (0..count.min(MOST)).map(|at| messages.wrapping_byte_add(at * stride));
    if each.any(serve::carries_more) {
        table::shared_with_others();
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const msghdr,
    flags: c_int,
) -> ssize_t {
    sends(message, 1, 0);
    found!(sendmsg(fd, message, flags), -1)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(
    fd: c_int,
    messages: *mut mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    sends(messages.cast(), count as usize, size_of::<mmsghdr>());
    found!(sendmmsg(fd, messages, count, flags), -1)
}
