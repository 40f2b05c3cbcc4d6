// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reading, writing, syncing, moving.
#![allow(unsafe_code)]
// Every function here has the contract of the C library's function of its name.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_int, c_void};

use dwell::queue::Action;
use libc::{iovec, off64_t, size_t, ssize_t};

use super::real;
use crate::raw::bare;
use crate::serve::{Memory, passed, serve};
use crate::{inside, table};

/// A request by offset. None is negative.
#[inline(always)]
fn by_offset(
    fd: c_int,
    action: Action,
    memory: Memory,
    offset: off64_t,
    straight: impl Fn() -> ssize_t,
) -> ssize_t {
    match u64::try_from(offset) {
        Ok(at) => serve(fd, action, memory, Some(at), straight),
        Err(_) => passed(straight),
    }
}

macro_rules! here {
    ($($name:ident($memory:ty), $action:ident, $number:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int, memory: $memory, bytes: size_t) -> ssize_t {
            let straight = || real!($name(fd, memory, bytes), bare!($number, fd, memory, bytes));
            let plain = Memory::Plain(memory as *mut c_void, bytes);
            serve(fd, Action::$action, plain, None, straight)
        }
    )*};
}

here! {
    read(*mut c_void), Read, SYS_read;
    write(*const c_void), Write, SYS_write;
}

macro_rules! at_offset {
    ($($name:ident($memory:ty), $action:ident, $number:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int,
            memory: $memory,
            bytes: size_t,
            offset: off64_t,
        ) -> ssize_t {
            let straight =
                || real!($name(fd, memory, bytes, offset), bare!($number, fd, memory, bytes, offset));
            let plain = Memory::Plain(memory as *mut c_void, bytes);
            by_offset(fd, Action::$action, plain, offset, straight)
        }
    )*};
}

at_offset! {
    pread(*mut c_void), Read, SYS_pread64;
    pread64(*mut c_void), Read, SYS_pread64;
    pwrite(*const c_void), Write, SYS_pwrite64;
    pwrite64(*const c_void), Write, SYS_pwrite64;
}

macro_rules! pieces_here {
    ($($name:ident, $action:ident, $number:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int,
            pieces: *const iovec,
            count: c_int,
        ) -> ssize_t {
            let straight = || real!($name(fd, pieces, count), bare!($number, fd, pieces, count));
            serve(fd, Action::$action, Memory::Pieces(pieces, count), None, straight)
        }
    )*};
}

pieces_here! {
    readv, ReadVectored, SYS_readv;
    writev, WriteVectored, SYS_writev;
}

macro_rules! pieces_at_offset {
    ($($name:ident, $action:ident, $number:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int,
            pieces: *const iovec,
            count: c_int,
            offset: off64_t,
        ) -> ssize_t {
            let straight = || {
                let high = offset >> 32;
                real!(
                    $name(fd, pieces, count, offset),
                    bare!($number, fd, pieces, count, offset, high)
                )
            };
            by_offset(fd, Action::$action, Memory::Pieces(pieces, count), offset, straight)
        }
    )*};
}

pieces_at_offset! {
    preadv, ReadVectored, SYS_preadv;
    preadv64, ReadVectored, SYS_preadv;
    pwritev, WriteVectored, SYS_pwritev;
    pwritev64, WriteVectored, SYS_pwritev;
}

macro_rules! pieces_with_flags {
    ($($name:ident, $action:ident, $number:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int,
            pieces: *const iovec,
            count: c_int,
            offset: off64_t,
            flags: c_int,
        ) -> ssize_t {
            let straight = || {
                let high = offset >> 32;
                real!(
                    $name(fd, pieces, count, offset, flags),
                    bare!($number, fd, pieces, count, offset, high, flags)
                )
            };
            let memory = Memory::Pieces(pieces, count);
            match (flags, offset) {
                (0, -1) => serve(fd, Action::$action, memory, None, straight),
                (0, _) => by_offset(fd, Action::$action, memory, offset, straight),
                _ => {
                    moves(fd);
                    passed(straight)
                }
            }
        }
    )*};
}

pieces_with_flags! {
    preadv2, ReadVectored, SYS_preadv2;
    preadv64v2, ReadVectored, SYS_preadv2;
    pwritev2, WriteVectored, SYS_pwritev2;
    pwritev64v2, WriteVectored, SYS_pwritev2;
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn __read_chk(
    fd: c_int,
    memory: *mut c_void,
    bytes: size_t,
    room: size_t,
) -> ssize_t {
    let straight =
        || real!(__read_chk(fd, memory, bytes, room), bare!(SYS_read, fd, memory, bytes.min(room)));
    if bytes > room {
        return straight();
    }
    serve(fd, Action::Read, Memory::Plain(memory, bytes), None, straight)
}

macro_rules! checked_at_offset {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int,
            memory: *mut c_void,
            bytes: size_t,
            offset: off64_t,
            room: size_t,
        ) -> ssize_t {
            let straight = || {
                let bytes_at_most = bytes.min(room);
                real!(
                    $name(fd, memory, bytes, offset, room),
                    bare!(SYS_pread64, fd, memory, bytes_at_most, offset)
                )
            };
            if bytes > room {
                return straight();
            }
            by_offset(fd, Action::Read, Memory::Plain(memory, bytes), offset, straight)
        }
    )*};
}

checked_at_offset! {
    __pread_chk;
    __pread64_chk;
}

macro_rules! syncs {
    ($($name:ident, $action:ident, $number:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(fd: c_int) -> c_int {
            let straight = || real!($name(fd), bare!($number, fd)) as isize;
            serve(fd, Action::$action, Memory::Nothing, Some(0), straight) as c_int
        }
    )*};
}

syncs! {
    fsync, Sync, SYS_fsync;
    fdatasync, DataSync, SYS_fdatasync;
}

/// The calling thread is about to move a descriptor by itself.
fn moves(fd: c_int) {
    if !inside::is_inside() {
        table::about_to_move(fd, table::word(fd), inside::thread_number());
    }
}

macro_rules! seeks {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            fd: c_int,
            offset: off64_t,
            whence: c_int,
        ) -> off64_t {
            moves(fd);
            real!($name(fd, offset, whence), bare!(SYS_lseek, fd, offset, whence))
        }
    )*};
}

seeks! {
    lseek;
    lseek64;
}
