// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mapping files, and what is done to mappings.
#![allow(unsafe_code)]
// Every function here has the contract of the C library's function of its name.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_int, c_uint, c_void};

use libc::{off64_t, size_t};

use super::real;
use crate::paged::{self, Change};
use crate::raw::bare;

macro_rules! maps {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            address: *mut c_void,
            bytes: size_t,
            protection: c_int,
            flags: c_int,
            fd: c_int,
            offset: off64_t,
        ) -> *mut c_void {
            if flags & libc::MAP_FIXED != 0 {
                maps_over(address, bytes);
            }
            if let Some(memory) = paged::map(bytes, protection, flags, fd, offset) {
                return memory;
            }
            real!(
                $name(address, bytes, protection, flags, fd, offset),
                bare!(SYS_mmap, address, bytes, protection, flags, fd, offset)
            )
        }
    )*};
}

maps! {
    mmap;
    mmap64;
}

/// The kernel is about to put something else there, or to do what the pager cannot.
#[inline]
pub(super) fn maps_over(address: *const c_void, bytes: usize) {
    let _ = paged::change(address, bytes, Change::Other);
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn munmap(address: *mut c_void, bytes: size_t) -> c_int {
    paged::change(address, bytes, Change::Unmap)
        .unwrap_or_else(|| real!(munmap(address, bytes), bare!(SYS_munmap, address, bytes)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mremap(
    address: *mut c_void,
    bytes: size_t,
    new_bytes: size_t,
    flags: c_int,
    new_address: *mut c_void,
) -> *mut c_void {
    maps_over(address, bytes.max(1));
    if flags & libc::MREMAP_FIXED != 0 {
        maps_over(new_address, new_bytes);
    }
    real!(
        mremap(address, bytes, new_bytes, flags, new_address),
        bare!(SYS_mremap, address, bytes, new_bytes, flags, new_address)
    )
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mprotect(
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
) -> c_int {
    paged::change(address, bytes, Change::Protect(protection)).unwrap_or_else(|| {
        real!(mprotect(address, bytes, protection), bare!(SYS_mprotect, address, bytes, protection))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn madvise(
    address: *mut c_void,
    bytes: size_t,
    advice: c_int,
) -> c_int {
    paged::change(address, bytes, Change::Advise(advice)).unwrap_or_else(|| {
        real!(madvise(address, bytes, advice), bare!(SYS_madvise, address, bytes, advice))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn posix_madvise(
    address: *mut c_void,
    bytes: size_t,
    advice: c_int,
) -> c_int {
    // As the C library does: pages that are not wanted are not taken away.
    if advice == libc::POSIX_MADV_DONTNEED {
        return 0;
    }
    paged::change(address, bytes, Change::Advise(advice)).unwrap_or_else(|| {
        real!(posix_madvise(address, bytes, advice), {
            match bare!(SYS_madvise, address, bytes, advice) {
                0 => 0,
                _ => crate::raw::errno(),
            }
        })
    })
}

macro_rules! locks {
    ($($name:ident($($more:ident: $kind:ty),*), $number:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            address: *const c_void,
            bytes: size_t,
            $($more: $kind),*
        ) -> c_int {
            maps_over(address, bytes);
            real!($name(address, bytes $(, $more)*), bare!($number, address, bytes $(, $more)*))
        }
    )*};
}

locks! {
    mlock(), SYS_mlock;
    mlock2(flags: c_uint), SYS_mlock2;
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn mlockall(flags: c_int) -> c_int {
    paged::end();
    real!(mlockall(flags), bare!(SYS_mlockall, flags))
}
