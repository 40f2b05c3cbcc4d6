// SPDX-License-Identifier: MIT OR Apache-2.0
//! The lines at the end of a run.
#![allow(unsafe_code)]

use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::path::Path;
use std::sync::OnceLock;

use dwell::external::status;
use dwell_host::settings::{Paging, RunOrder};
use dwell_host::stats_page::Snapshot;

use crate::own;
use crate::raw::bare;

/// Where the closing words go.
struct Stderr {
    /// A double of it, out of the program's way.
    double: OwnedFd,
    /// What it is: a program may close any descriptor and open another thing of its number.
    device: u64,
    inode: u64,
}

static STDERR: OnceLock<Stderr> = OnceLock::new();

/// Keeps hold of stderr in the process that is to say the closing words.
pub fn keep_stderr(order: &RunOrder) {
    let speaks = order.verbose || order.stats_file.is_some();
    if !speaks || order.root_pid != std::process::id() {
        return;
    }
    // A program that closes all descriptors closes it too: one that leaves its terminal says no
    // more.
    // SAFETY: makes a descriptor and changes none.
    let double = unsafe { libc::fcntl(2, libc::F_DUPFD_CLOEXEC, own::lowest()) };
    if double < 0 {
        return;
    }
    // SAFETY: just made, and nobody else's.
    let double = unsafe { OwnedFd::from_raw_fd(double) };
    // SAFETY: our own, open.
    if let Ok(status) = unsafe { status(double.as_raw_fd()) } {
        let _ = STDERR.set(Stderr { double, device: status.st_dev, inode: status.st_ino });
    }
}

/// A forked child has no part in the closing words, nor in what they go to.
pub fn close_in_child() {
    let Some(stderr) = STDERR.get() else { return };
    let fd = stderr.double.as_raw_fd();
    if stderr.is(fd) {
        let _: i32 = bare!(SYS_close, fd);
    }
}

impl Stderr {
    /// Whether a descriptor is still what it was.
    fn is(&self, fd: i32) -> bool {
        // SAFETY: one that is not open is refused.
        let now = unsafe { status(fd) };
        now.is_ok_and(|now| (now.st_dev, now.st_ino) == (self.device, self.inode))
    }

    /// The double, or else stderr itself, whichever still is what it was.
    fn there(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: borrowed for one write; whether it is open is asked first.
        let own = unsafe { BorrowedFd::borrow_raw(2) };
        [self.double.as_fd(), own].into_iter().find(|fd| self.is(fd.as_raw_fd()))
    }
}

/// Says a line about this process, if its stderr still is that of the run.
pub fn say_of_run(paging: &Paging, text: &str) {
    // SAFETY: one that is not open is refused.
    let now = unsafe { status(2) }.map(|now| (now.st_dev, now.st_ino)).ok();
    if now.is_some() && now == paging.stderr {
        let text = format!("dwell: {text}\n");
        // SAFETY: a live text.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    }
}

/// Says why the first process of a run is left alone, as `dwell run` says it of programs that it
/// cannot preload.
pub fn left_alone(order: &RunOrder, why: &str) {
    if !order.quiet && order.root_pid == std::process::id() {
        let program = std::env::current_exe().unwrap_or_default();
        let text = format!("dwell: {}: {why}; it runs untouched\n", program.display());
        // SAFETY: a live text.
        unsafe { libc::write(2, text.as_ptr().cast(), text.len()) };
    }
}

/// Says the closing words.
pub fn say(text: &str) {
    if let Some(stderr) = STDERR.get().and_then(Stderr::there) {
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            // SAFETY: a live text.
            let done = unsafe { libc::write(stderr.as_raw_fd(), rest.as_ptr().cast(), rest.len()) };
            // A reader that has gone, or that does not keep up, is not waited for.
            let Some(done) = usize::try_from(done).ok().filter(|done| *done > 0) else { return };
            rest = &rest[done..];
        }
    }
}

/// The file is the figures or is not there, never a part of them.
pub fn written(all: &Snapshot, path: &Path) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(all)?;
    text.push(b'\n');
    let mut draft = path.as_os_str().to_owned();
    draft.push(format!(".{}.draft", std::process::id()));
    let whole = fs::File::create(&draft).and_then(|mut file| file.write_all(&text));
    let placed = whole.and_then(|()| fs::rename(&draft, path));
    if placed.is_err() {
        // Of no use to anyone; the first error is the one to report.
        let _ = fs::remove_file(&draft);
    }
    placed
}
