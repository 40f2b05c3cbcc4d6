// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mapping files and copying between them: there the kernel goes by its own length of a file, which channels may have made longer.
#![allow(unsafe_code)]
// Every function here has the contract of the C library's function of its name.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_int, c_uint, c_void};

use dwell_channel::client;
use libc::{off64_t, size_t, ssize_t};

use super::real;
use crate::raw::bare;
use crate::table::Way;
use crate::{engine, inside, table};

/// Says something of a descriptor to its controller, where it has one.
fn tell(fd: c_int, what: fn(c_int) -> std::io::Result<()>) {
    if fd < 0 || inside::is_inside() || !engine::is_on() {
        return;
    }
    let mut word = table::word(fd);
    if word.way() == Way::Unknown {
        word = inside::uncancelled(|| engine::classify(fd, None));
    }
    if word.way() != Way::Decide || !engine::is_served(word) {
        return;
    }
    let errno = inside::errno();
    if let Some(_inside) = engine::enter() {
        // Whoever does not know of it makes no file longer by channel.
        let _ = what(fd);
    }
    inside::set_errno(errno);
}

macro_rules! maps {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            at: *mut c_void,
            bytes: size_t,
            access: c_int,
            kind: c_int,
            fd: c_int,
            offset: off64_t,
        ) -> *mut c_void {
            tell(fd, client::leave_to_kernel);
            real!(
                $name(at, bytes, access, kind, fd, offset),
                bare!(SYS_mmap, at, bytes, access, kind, fd, offset)
            )
        }
    )*};
}

maps! {
    mmap;
    mmap64;
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn copy_file_range(
    from: c_int,
    from_offset: *mut off64_t,
    to: c_int,
    to_offset: *mut off64_t,
    bytes: size_t,
    flags: c_uint,
) -> ssize_t {
    tell(from, client::look_again);
    real!(
        copy_file_range(from, from_offset, to, to_offset, bytes, flags),
        bare!(SYS_copy_file_range, from, from_offset, to, to_offset, bytes, flags)
    )
}
