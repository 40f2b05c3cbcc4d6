// SPDX-License-Identifier: MIT OR Apache-2.0
//! Functions by the names and versions under which C libraries since 2.28 have them, whatever the
//! one has that this library was built with: the linker sends each use here (see `build.rs`).
#![allow(unsafe_code)]

use std::arch::global_asm;
use std::ffi::{c_char, c_int, c_void};

use crate::inside;
use crate::raw::bare;

macro_rules! oldest {
    ($version:literal: $($name:literal),*) => {$(
        #[cfg(target_arch = "x86_64")]
        global_asm!(
            concat!(".symver dwell_older_", $name, ", ", $name, "@", $version),
            concat!(".globl __wrap_", $name),
            concat!(".hidden __wrap_", $name),
            concat!(".type __wrap_", $name, ",@function"),
            concat!("__wrap_", $name, ":"),
            concat!("jmp qword ptr [rip + dwell_older_", $name, "@GOTPCREL]"),
        );
        #[cfg(target_arch = "aarch64")]
        global_asm!(
            concat!(".symver dwell_older_", $name, ", ", $name, "@GLIBC_2.17"),
            concat!(".globl __wrap_", $name),
            concat!(".hidden __wrap_", $name),
            concat!(".type __wrap_", $name, ",@function"),
            concat!("__wrap_", $name, ":"),
            concat!("adrp x16, :got:dwell_older_", $name),
            concat!("ldr x16, [x16, :got_lo12:dwell_older_", $name, "]"),
            "br x16",
        );
    )*};
}

oldest!("GLIBC_2.2.5":
    "dlsym",
    "exp",
    "log",
    "pthread_attr_getguardsize",
    "pthread_attr_getstack",
    "pthread_attr_setstacksize",
    "pthread_detach",
    "pthread_getattr_np",
    "pthread_join",
    "pthread_key_create",
    "pthread_key_delete",
    "pthread_setcancelstate",
    "pthread_setcanceltype",
    "pthread_setspecific",
    "pthread_sigmask",
    "pthread_testcancel"
);
oldest!("GLIBC_2.12": "pthread_setname_np");

unsafe extern "C" {
    fn dwell_older_create(
        thread: *mut libc::pthread_t,
        attributes: *const libc::pthread_attr_t,
        start: extern "C" fn(*mut c_void) -> *mut c_void,
        argument: *mut c_void,
    ) -> c_int;
}

#[cfg(target_arch = "x86_64")]
global_asm!(".symver dwell_older_create, pthread_create@GLIBC_2.2.5");
#[cfg(target_arch = "aarch64")]
global_asm!(".symver dwell_older_create, pthread_create@GLIBC_2.17");

/// What a thread begins with.
struct Start {
    function: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
}

extern "C" fn begin(start: *mut c_void) -> *mut c_void {
    // SAFETY: made below, for this thread alone.
    let start = unsafe { Box::from_raw(start.cast::<Start>()) };
    inside::belong();
    let Start { function, argument } = *start;
    function(argument)
}

/// Threads that this library starts belong to it.
#[unsafe(no_mangle)]
unsafe extern "C" fn __wrap_pthread_create(
    thread: *mut libc::pthread_t,
    attributes: *const libc::pthread_attr_t,
    function: extern "C" fn(*mut c_void) -> *mut c_void,
    argument: *mut c_void,
) -> c_int {
    let start = Box::into_raw(Box::new(Start { function, argument }));
    // SAFETY: the caller's arguments, and a start that the new thread takes over.
    let refused = unsafe { dwell_older_create(thread, attributes, begin, start.cast()) };
    if refused != 0 {
        // SAFETY: no thread took it over.
        drop(unsafe { Box::from_raw(start) });
    }
    refused
}

#[unsafe(no_mangle)]
extern "C" fn __wrap_gettid() -> libc::pid_t {
    bare!(SYS_gettid)
}

fn status_at(path: *const c_char, status: *mut libc::stat, flags: c_int) -> c_int {
    bare!(SYS_newfstatat, libc::AT_FDCWD, path, status, flags)
}

#[unsafe(no_mangle)]
extern "C" fn __wrap_fstat(fd: c_int, status: *mut libc::stat) -> c_int {
    bare!(SYS_fstat, fd, status)
}

#[unsafe(no_mangle)]
extern "C" fn __wrap_fstat64(fd: c_int, status: *mut libc::stat) -> c_int {
    bare!(SYS_fstat, fd, status)
}

#[unsafe(no_mangle)]
extern "C" fn __wrap_stat64(path: *const c_char, status: *mut libc::stat) -> c_int {
    status_at(path, status, 0)
}

#[unsafe(no_mangle)]
extern "C" fn __wrap_lstat64(path: *const c_char, status: *mut libc::stat) -> c_int {
    status_at(path, status, libc::AT_SYMLINK_NOFOLLOW)
}
