// SPDX-License-Identifier: MIT OR Apache-2.0
//! Closing, doubling, changing descriptors, and handing them to others.
#![allow(unsafe_code)]
// Every function here has the contract of the C library's function of its name.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_int, c_uint};

use libc::{size_t, ssize_t};

use super::{found, real};
use crate::raw::bare;
use crate::{inside, serve, table};

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close(fd: c_int) -> c_int {
    // Before the call: after it, the number may be another thread's already.
    if !inside::is_inside() {
        table::clear(fd);
    }
    real!(close(fd), bare!(SYS_close, fd))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    const ON_EXEC: c_int = 1 << 2;
    if !inside::is_inside() && flags & ON_EXEC == 0 {
        table::clear_range(first, last);
    }
    real!(close_range(first, last, flags), bare!(SYS_close_range, first, last, flags))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closefrom(first: c_int) {
    let from = c_uint::try_from(first).unwrap_or(0);
    if !inside::is_inside() {
        table::clear_range(from, c_uint::MAX);
    }
    real!(closefrom(first), {
        let _: c_int = bare!(SYS_close_range, from, c_uint::MAX, 0);
    })
}

/// A descriptor that is to have a double: where it stands is no longer one descriptor's alone.
fn doubles(fd: c_int) {
    if !inside::is_inside() {
        table::share(fd);
    }
}

/// The double.
fn doubled(fd: c_int) -> c_int {
    if fd >= 0 && !inside::is_inside() {
        table::clear(fd);
    }
    fd
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup(fd: c_int) -> c_int {
    doubles(fd);
    doubled(real!(dup(fd), bare!(SYS_dup, fd)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup2(fd: c_int, other: c_int) -> c_int {
    doubles(fd);
    if fd == other {
        return real!(dup2(fd, other), bare!(SYS_fcntl, fd, libc::F_GETFD));
    }
    doubled(other);
    doubled(real!(dup2(fd, other), bare!(SYS_dup3, fd, other, 0)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dup3(fd: c_int, other: c_int, flags: c_int) -> c_int {
    doubles(fd);
    if fd != other {
        doubled(other);
    }
    doubled(real!(dup3(fd, other, flags), bare!(SYS_dup3, fd, other, flags)))
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
                    doubled(straight())
                }
                libc::F_SETFL => {
                    let result = straight();
                    // Whether it is direct, appends or never waits may have changed.
                    doubled(if result == 0 { fd } else { -1 });
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

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(
    fd: c_int,
    message: *const libc::msghdr,
    flags: c_int,
) -> ssize_t {
    // What is sent beside data may be descriptors.
    if !inside::is_inside() && table::has_private() && serve::carries_more(message) {
        table::shared_with_others();
    }
    found!(sendmsg(fd, message, flags), -1)
}
