// SPDX-License-Identifier: MIT OR Apache-2.0
//! The functions that programs find here in place of the C library's.

mod descriptors;
mod mapping;
mod opening;
mod process;
mod transfer;

use std::ffi::c_int;

use crate::{inside, own, table};

/// A number that the program was just given for something new.
#[inline]
fn came(fd: c_int) -> c_int {
    if fd >= 0 && !inside::is_inside() {
        // Where one of this library's stood, it was closed unseen.
        own::lose(fd);
        table::renew(fd);
    }
    fd
}

/// The same for what this library may make for itself too, and keep.
#[inline]
fn made(fd: c_int) -> c_int {
    match inside::is_inside() {
        true if inside::is_own_call() => own::keep(fd),
        _ => came(fd),
    }
}

/// A function behind this library, or what does the same where that is not known yet.
macro_rules! real {
    ($name:ident($($argument:expr),*), $otherwise:expr) => {
        match $crate::real::$name.get() {
            // SAFETY: the caller's arguments, as they came.
            Some(function) => unsafe { function($($argument),*) },
            None => $otherwise,
        }
    };
}

/// A function behind this library that no system call could stand in for.
macro_rules! found {
    ($name:ident($($argument:expr),*), $otherwise:expr) => {
        match $crate::real::$name.find() {
            // SAFETY: the caller's arguments, as they came.
            Some(function) => unsafe { function($($argument),*) },
            None => {
                $crate::raw::set_errno(libc::ENOSYS);
                $otherwise
            }
        }
    };
}

pub(crate) use {found, real};
