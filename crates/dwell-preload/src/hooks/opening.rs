// SPDX-License-Identifier: MIT OR Apache-2.0
//! Opening, and everything else that makes a descriptor.
#![allow(unsafe_code)]
// Every function here has the contract of the C library's function of its name.
#![allow(clippy::missing_safety_doc)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::mode_t;

use super::{came, found, made, real};
use crate::engine::Opening;
use crate::raw::bare;
use crate::table::Word;
use crate::{engine, inside, own, process, table};

/// What a call that opens a file returns, once the table knows of it.
#[inline]
fn opened(flags: c_int, open: impl FnOnce() -> c_int) -> c_int {
    // A child that is forked between the call and what is said of it has the descriptor too.
    let age = table::age();
    let fd = open();
    if fd < 0 {
        return fd;
    }
    if inside::is_inside() {
        return if inside::is_own_call() { own::adopt(fd) } else { fd };
    }
    came(fd);
    if process::is_on() && flags & (libc::O_DIRECTORY | libc::O_PATH) == 0 {
        match engine::leaves_alone() {
            true => {
                let owned = Word::UNKNOWN.owned_by(inside::thread_number(), age);
                table::enter(fd, Word::UNKNOWN, owned);
            }
            false => {
                let opening = Some(Opening { flags, age });
                inside::uncancelled(|| engine::classify(fd, opening));
            }
        }
    }
    fd
}

const CREATES: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
const HERE: c_int = libc::AT_FDCWD;
// What 64-bit systems do anyway.
const LARGE: c_int = libc::O_LARGEFILE;

macro_rules! opens {
    ($($name:ident, $more:expr;)*) => {$(
        // The C library's takes a mode only with some flags; where there is none, what is passed on
        // is not looked at.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            flags: c_int,
            mode: mode_t,
        ) -> c_int {
            opened(flags, || real!(
                $name(path, flags, mode),
                bare!(SYS_openat, HERE, path, flags | $more, mode)
            ))
        }
    )*};
}

opens! {
    open, 0;
    open64, LARGE;
}

macro_rules! opens_at {
    ($($name:ident, $more:expr;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            dir: c_int,
            path: *const c_char,
            flags: c_int,
            mode: mode_t,
        ) -> c_int {
            opened(flags, || real!(
                $name(dir, path, flags, mode),
                bare!(SYS_openat, dir, path, flags | $more, mode)
            ))
        }
    )*};
}

opens_at! {
    openat, 0;
    openat64, LARGE;
}

macro_rules! creates {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, mode: mode_t) -> c_int {
            opened(CREATES, || {
                real!($name(path, mode), bare!(SYS_openat, HERE, path, CREATES | LARGE, mode))
            })
        }
    )*};
}

creates! {
    creat;
    creat64;
}

macro_rules! opens_checked {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(path: *const c_char, flags: c_int) -> c_int {
            opened(flags, || {
                real!($name(path, flags), bare!(SYS_openat, HERE, path, flags | LARGE, 0))
            })
        }
    )*};
}

opens_checked! {
    __open_2;
    __open64_2;
}

macro_rules! opens_at_checked {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            dir: c_int,
            path: *const c_char,
            flags: c_int,
        ) -> c_int {
            opened(flags, || {
                real!($name(dir, path, flags), bare!(SYS_openat, dir, path, flags | LARGE, 0))
            })
        }
    )*};
}

opens_at_checked! {
    __openat_2;
    __openat64_2;
}

macro_rules! makes {
    ($then:ident: $($name:ident($($argument:ident: $kind:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $kind),*) -> c_int {
            $then(found!($name($($argument),*), -1))
        }
    )*};
}

makes! {
    made:
    eventfd(count: c_uint, flags: c_int);
    epoll_create1(flags: c_int);
    timerfd_create(clock: c_int, flags: c_int);
}

makes! {
    came:
    socket(domain: c_int, kind: c_int, protocol: c_int);
    accept(fd: c_int, address: *mut c_void, length: *mut c_void);
    accept4(fd: c_int, address: *mut c_void, length: *mut c_void, flags: c_int);
    memfd_create(name: *const c_char, flags: c_uint);
    mkstemp(template: *mut c_char);
    mkstemp64(template: *mut c_char);
    mkostemp(template: *mut c_char, flags: c_int);
    mkostemp64(template: *mut c_char, flags: c_int);
}

/// The two descriptors that a call has written to `ends`.
fn made_two(result: c_int, ends: *const c_int) -> c_int {
    if result == 0 {
        // SAFETY: the call succeeded, so there are two.
        let [one, other] = unsafe { *ends.cast::<[c_int; 2]>() };
        came(one);
        came(other);
    }
    result
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socketpair(
    domain: c_int,
    kind: c_int,
    protocol: c_int,
    ends: *mut c_int,
) -> c_int {
    made_two(found!(socketpair(domain, kind, protocol, ends), -1), ends)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pipe(ends: *mut c_int) -> c_int {
    made_two(real!(pipe(ends), bare!(SYS_pipe2, ends, 0)), ends)
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pipe2(ends: *mut c_int, flags: c_int) -> c_int {
    made_two(real!(pipe2(ends, flags), bare!(SYS_pipe2, ends, flags)), ends)
}

unsafe extern "C" {
    fn fileno(stream: *mut c_void) -> c_int;
    fn dirfd(stream: *mut c_void) -> c_int;
}

/// The descriptor of a stream of the C library, which opens and closes it by itself.
fn of_stream(stream: *mut c_void) -> Option<c_int> {
    if stream.is_null() || inside::is_inside() {
        return None;
    }
    // SAFETY: a stream that the C library just made, or was given to close.
    Some(unsafe { fileno(stream) })
}

fn stream_came(stream: *mut c_void) -> *mut c_void {
    if let Some(fd) = of_stream(stream) {
        came(fd);
    }
    stream
}

/// Does what closes the descriptor of a stream.
fn stream_goes<R>(stream: *mut c_void, close: impl FnOnce() -> R) -> R {
    let fd = of_stream(stream).unwrap_or(-1);
    table::renew(fd);
    let result = close();
    table::renew(fd);
    result
}

macro_rules! opens_streams {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            mode: *const c_char,
        ) -> *mut c_void {
            stream_came(found!($name(path, mode), std::ptr::null_mut()))
        }
    )*};
}

opens_streams! {
    fopen;
    fopen64;
}

macro_rules! reopens_streams {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(
            path: *const c_char,
            mode: *const c_char,
            stream: *mut c_void,
        ) -> *mut c_void {
            let reopened =
                || found!($name(path, mode, stream), std::ptr::null_mut());
            stream_came(stream_goes(stream, reopened))
        }
    )*};
}

reopens_streams! {
    freopen;
    freopen64;
}

macro_rules! closes_streams {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name(stream: *mut c_void) -> c_int {
            stream_goes(stream, || found!($name(stream), libc::EOF))
        }
    )*};
}

closes_streams! {
    fclose;
    pclose;
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn popen(path: *const c_char, mode: *const c_char) -> *mut c_void {
    if !inside::is_inside() {
        table::shared_with_others();
    }
    stream_came(found!(popen(path, mode), std::ptr::null_mut()))
}

/// The descriptor of a directory's stream.
fn of_directory(directory: *mut c_void) -> c_int {
    if directory.is_null() || inside::is_inside() {
        return -1;
    }
    // SAFETY: a stream that the C library just made, or was given to close.
    unsafe { dirfd(directory) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn opendir(path: *const c_char) -> *mut c_void {
    let directory = found!(opendir(path), std::ptr::null_mut());
    came(of_directory(directory));
    directory
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closedir(directory: *mut c_void) -> c_int {
    let fd = of_directory(directory);
    table::renew(fd);
    let result = found!(closedir(directory), -1);
    table::renew(fd);
    result
}
