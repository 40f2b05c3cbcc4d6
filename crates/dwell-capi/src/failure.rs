// SPDX-License-Identifier: MIT OR Apache-2.0
//! How calls end: with `errno` and a text per thread where they fail, and never by an unwinding
//! across the boundary, be it of a panic or of a cancelled thread.
#![allow(unsafe_code)]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::cancellation::Uncancelled;

/// Why a call failed.
#[derive(Debug)]
pub(crate) struct Failure {
    errno: c_int,
    text: String,
}

impl Failure {
    pub fn new(errno: c_int, text: impl Into<String>) -> Self {
        Failure { errno, text: text.into() }
    }

    /// A bad argument.
    pub fn invalid(text: impl Into<String>) -> Self {
        Self::new(libc::EINVAL, text)
    }

    /// A pointer that has to be there.
    pub fn null(argument: &str) -> Self {
        Self::invalid(format!("{argument} is NULL"))
    }

    pub fn errno(&self) -> c_int {
        self.errno
    }
}

impl From<dwell::Error> for Failure {
    fn from(error: dwell::Error) -> Self {
        let errno = error.errno().unwrap_or(match error.kind() {
            dwell::ErrorKind::System => libc::EIO,
            _ => libc::EINVAL,
        });
        Self::new(errno, error.to_string())
    }
}

thread_local! {
    static LAST: RefCell<Option<CString>> = const { RefCell::new(None) };
}

/// Runs the body of a call; a failure becomes `failed`, `errno` and the thread's last error.
#[inline]
pub(crate) fn call<T>(failed: T, body: impl FnOnce() -> Result<T, Failure>) -> T {
    let _uncancelled = Uncancelled::new();
    let failure = match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(done)) => return done,
        Ok(Err(failure)) => failure,
        Err(payload) => {
            // What it carries might panic when dropped.
            std::mem::forget(payload);
            Failure::new(libc::EIO, "a bug in Dwell ended this call; please report what led to it")
        }
    };
    tell(failure);
    failed
}

#[cold]
fn tell(failure: Failure) {
    let text = CString::new(failure.text.replace('\0', "?")).unwrap_or_default();
    // A thread that ends may have lost its text already.
    let _ = LAST.try_with(|last| *last.borrow_mut() = Some(text));
    // SAFETY: the calling thread's errno.
    unsafe { *libc::__errno_location() = failure.errno };
}

/// What the calling thread's last failed call of this library was about: file, offset or argument,
/// what is wrong with it, and what to do. In English, one line.
///
/// Returns a text that is valid until the next call of this library in this thread; "" when
/// none has failed. Calls that succeed leave it as it is, as they leave `errno`.
#[unsafe(no_mangle)]
pub extern "C" fn dwell_last_error() -> *const c_char {
    const NONE: &CStr = c"";
    LAST.try_with(|last| last.borrow().as_deref().map_or(NONE.as_ptr(), CStr::as_ptr))
        .unwrap_or(NONE.as_ptr())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_becomes_eio_and_a_text() {
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| ()));
        let failed = call(-1, || panic!("a bug"));
        std::panic::set_hook(hook);
        assert_eq!(failed, -1);
        assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EIO));
        // SAFETY: a text that this thread keeps.
        let told = unsafe { CStr::from_ptr(dwell_last_error()) };
        assert!(told.to_string_lossy().contains("please report"));
    }
}
