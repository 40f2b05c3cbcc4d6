// SPDX-License-Identifier: MIT OR Apache-2.0
//! System calls without the C library: this library stands before its `syscall` too.
#![allow(unsafe_code)]

use std::arch::asm;
use std::ffi::c_long;

/// One system call; its result, or a negative error number.
///
/// # Safety
/// As the system call demands.
#[cfg(target_arch = "x86_64")]
#[inline]
pub unsafe fn call(number: c_long, arguments: [c_long; 6]) -> c_long {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let result;
    // SAFETY: the kernel's convention: what it clobbers is named, and the caller answers for what
    // the call does.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            in("r10") fourth,
            in("r8") fifth,
            in("r9") sixth,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack),
        );
    }
    result
}

/// One system call; its result, or a negative error number.
///
/// # Safety
/// As the system call demands.
#[cfg(target_arch = "aarch64")]
#[inline]
pub unsafe fn call(number: c_long, arguments: [c_long; 6]) -> c_long {
    let [first, second, third, fourth, fifth, sixth] = arguments;
    let result;
    // SAFETY: the kernel's convention, and the caller answers for what the call does.
    unsafe {
        asm!(
            "svc 0",
            in("x8") number,
            inlateout("x0") first => result,
            in("x1") second,
            in("x2") third,
            in("x3") fourth,
            in("x4") fifth,
            in("x5") sixth,
            options(nostack),
        );
    }
    result
}

/// The same, with the error number left where a C library leaves it.
///
/// # Safety
/// As the system call demands.
pub unsafe fn call_as_c(number: c_long, arguments: [c_long; 6]) -> c_long {
    // SAFETY: the caller's part.
    let result = unsafe { call(number, arguments) };
    if (-4095..0).contains(&result) {
        set_errno(-result as i32);
        return -1;
    }
    result
}

/// An argument of a system call.
pub trait Argument {
    /// As a word.
    fn word(self) -> c_long;
}

macro_rules! arguments {
    ($($kind:ty),*) => {$(
        impl Argument for $kind {
            #[inline]
            fn word(self) -> c_long {
                self as c_long
            }
        }
    )*};
}

arguments!(i32, u32, i64, u64, usize);

impl<T> Argument for *const T {
    #[inline]
    fn word(self) -> c_long {
        self as c_long
    }
}

impl<T> Argument for *mut T {
    #[inline]
    fn word(self) -> c_long {
        self as c_long
    }
}

/// A system call whose error number is left where a C library leaves it.
macro_rules! bare {
    ($number:ident $(, $argument:expr)*) => {{
        let arguments = [$($crate::raw::Argument::word($argument)),*];
        let mut words = [0; 6];
        words[..arguments.len()].copy_from_slice(&arguments);
        // SAFETY: the caller's arguments, as they came.
        unsafe { $crate::raw::call_as_c(libc::$number, words) as _ }
    }};
}

pub(crate) use bare;

/// The calling thread's error number.
#[inline]
pub fn errno() -> i32 {
    // SAFETY: every thread has one.
    unsafe { *libc::__errno_location() }
}

/// Sets it.
#[inline]
pub fn set_errno(errno: i32) {
    // SAFETY: every thread has one.
    unsafe { *libc::__errno_location() = errno };
}

/// Whether writes through a descriptor go to the end, also where that cannot be asked.
pub fn appends(fd: i32) -> bool {
    let flags: i32 = bare!(SYS_fcntl, fd, libc::F_GETFL);
    flags < 0 || flags & libc::O_APPEND != 0
}
