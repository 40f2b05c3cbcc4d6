// SPDX-License-Identifier: MIT OR Apache-2.0
//! Becoming another program, as if this one had never been in between.
#![allow(unsafe_code)]

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// Whether this process was started with SIGPIPE ignored, as services are. Rust ignores it before
/// `main`, and the program to come must not inherit that.
static IGNORES_SIGPIPE: AtomicBool = AtomicBool::new(false);

/// The standard streams that this process was started without, a bit each. Rust opens `/dev/null`
/// in their place before `main`, and the program to come must not inherit that either.
static CLOSED_STREAMS: AtomicU8 = AtomicU8::new(0);

// SAFETY: the section holds pointers to functions without arguments that are called before `main`;
// more arguments than a function takes do no harm in the C calling convention.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = note_beginning;

extern "C" fn note_beginning() {
    // SAFETY: a zeroed sigaction is a valid buffer.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: asks for the present action only, into a live buffer.
    let rc = unsafe { libc::sigaction(libc::SIGPIPE, ptr::null(), &mut action) };
    let ignores = rc == 0 && action.sa_sigaction == libc::SIG_IGN;
    IGNORES_SIGPIPE.store(ignores, Ordering::Relaxed);
    // SAFETY: asks for the flags of a descriptor, if there is one.
    let is_closed = |stream: &i32| unsafe { libc::fcntl(*stream, libc::F_GETFD) } < 0;
    let closed = (0..3).filter(is_closed).fold(0, |bits, stream| bits | 1 << stream);
    CLOSED_STREAMS.store(closed, Ordering::Relaxed);
}

/// Becomes the program at `path`, in this process's environment with `variables` put in. A file
/// that the kernel does not take for a program is a shell's script if `or_script`. Comes back only
/// with the reason why it could not.
pub fn exec(
    path: &Path,
    arguments: &[OsString],
    variables: &[(&str, OsString)],
    or_script: bool,
) -> io::Error {
    let others = env::vars_os().filter(|(name, _)| !variables.iter().any(|(new, _)| name == new));
    let with = variables.iter().map(|(name, value)| (OsString::from(*name), value.clone()));
    let environment: Vec<OsString> =
        others.chain(with).map(|(name, value)| joined(name, &value)).collect();
    let execute = |path: &OsStr, arguments: &[&OsStr]| {
        let environment: Vec<&OsStr> = environment.iter().map(OsString::as_os_str).collect();
        execve(path, arguments, &environment)
    };
    let mut arguments: Vec<&OsStr> = arguments.iter().map(OsString::as_os_str).collect();
    let disposition = match IGNORES_SIGPIPE.load(Ordering::Relaxed) {
        true => libc::SIG_IGN,
        false => libc::SIG_DFL,
    };
    // SAFETY: either disposition is valid for SIGPIPE, and neither calls anything.
    unsafe { libc::signal(libc::SIGPIPE, disposition) };
    let closed = CLOSED_STREAMS.load(Ordering::Relaxed);
    for stream in (0..3).filter(|stream| closed >> stream & 1 == 1) {
        // SAFETY: changes what happens to a descriptor when the program begins, and no memory.
        unsafe { libc::fcntl(stream, libc::F_SETFD, libc::FD_CLOEXEC) };
    }
    let mut error = execute(path.as_os_str(), &arguments);
    if or_script && error.raw_os_error() == Some(libc::ENOEXEC) {
        arguments.splice(..1, [OsStr::new("sh"), path.as_os_str()]);
        error = execute(OsStr::new("/bin/sh"), &arguments);
    }
    // SAFETY: as above; errors are still to be written to what may be a closed pipe.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_IGN) };
    error
}

fn joined(mut name: OsString, value: &OsStr) -> OsString {
    name.push("=");
    name.push(value);
    name
}

fn execve(path: &OsStr, arguments: &[&OsStr], environment: &[&OsStr]) -> io::Error {
    let owned = |text: &OsStr| CString::new(text.as_bytes());
    let all =
        |texts: &[&OsStr]| texts.iter().map(|text| owned(text)).collect::<Result<Vec<_>, _>>();
    let (Ok(path), Ok(arguments), Ok(environment)) =
        (owned(path), all(arguments), all(environment))
    else {
        return io::Error::from(io::ErrorKind::InvalidInput);
    };
    let pointers = |texts: &[CString]| {
        texts.iter().map(|text| text.as_ptr()).chain([ptr::null()]).collect::<Vec<_>>()
    };
    let (argv, envp) = (pointers(&arguments), pointers(&environment));
    // SAFETY: a zero-terminated path and two null-terminated lists of such texts; what they point
    // into lives until the end of this function.
    unsafe { libc::execve(path.as_ptr(), argv.as_ptr(), envp.as_ptr()) };
    io::Error::last_os_error()
}
