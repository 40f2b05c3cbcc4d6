// SPDX-License-Identifier: MIT OR Apache-2.0
//! Becoming another program, as if this one had never been in between.
#![allow(unsafe_code)]

use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};

/// Whether this process was started with SIGPIPE ignored, as services are. Rust ignores it before
/// `main`, and the program to come must not inherit that.
static IGNORES_SIGPIPE: AtomicBool = AtomicBool::new(false);

// SAFETY: the section holds pointers to functions without arguments that are called before `main`;
// more arguments than a function takes do no harm in the C calling convention.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = note_sigpipe;

extern "C" fn note_sigpipe() {
    // SAFETY: a zeroed sigaction is a valid buffer.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks for the present action only, into a live buffer.
    let rc = unsafe { libc::sigaction(libc::SIGPIPE, ptr::null(), &mut action) };
    let ignores = rc == 0 && action.sa_sigaction == libc::SIG_IGN;
    IGNORES_SIGPIPE.store(ignores, Ordering::Relaxed);
}

/// Sets variables of the environment that the program to come inherits.
///
/// # Safety
/// No other thread runs.
pub unsafe fn set_variables<'a>(variables: impl IntoIterator<Item = (&'a str, &'a OsStr)>) {
    for (name, value) in variables {
        // SAFETY: no other thread could read the environment meanwhile; the caller says so.
        unsafe { std::env::set_var(name, value) };
    }
}

/// Becomes the program at `path`. A file that the kernel does not take for a program is a shell's
/// script if `or_script`. Comes back only with the reason why it could not.
pub fn exec(path: &Path, arguments: &[OsString], or_script: bool) -> io::Error {
    let disposition = match IGNORES_SIGPIPE.load(Ordering::Relaxed) {
        true => libc::SIG_IGN,
        false => libc::SIG_DFL,
    };
    // SAFETY: either disposition is valid for SIGPIPE, and neither calls anything.
    unsafe { libc::signal(libc::SIGPIPE, disposition) };
    let error = execv(path.as_os_str(), arguments.iter().map(OsString::as_os_str));
    let error = match or_script && error.raw_os_error() == Some(libc::ENOEXEC) {
        true => {
            let rest = arguments.iter().skip(1).map(OsString::as_os_str);
            execv(
                OsStr::new("/bin/sh"),
                [OsStr::new("sh"), path.as_os_str()].into_iter().chain(rest),
            )
        }
        false => error,
    };
    // SAFETY: as above; errors are still to be written to what may be a closed pipe.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    error
}

fn execv<'a>(path: &OsStr, arguments: impl Iterator<Item = &'a OsStr>) -> io::Error {
    let owned = |text: &OsStr| CString::new(text.as_bytes());
    let arguments: Result<Vec<CString>, _> = arguments.map(owned).collect();
    let (Ok(path), Ok(arguments)) = (owned(path), arguments) else {
        return io::Error::from(io::ErrorKind::InvalidInput);
    };
    let mut pointers: Vec<_> = arguments.iter().map(|argument| argument.as_ptr()).collect();
    pointers.push(ptr::null());
    // SAFETY: a zero-terminated path and a null-terminated list of such texts, all alive.
    unsafe { libc::execv(path.as_ptr(), pointers.as_ptr()) };
    io::Error::last_os_error()
}
