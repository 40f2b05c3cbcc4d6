// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether anybody may write to a file, asked beside those who do.
#![allow(unsafe_code)]

mod common;

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::alone::{is_child, succeeds};
use common::file;
use dwell_pager::{Mutable, PAGE_BYTES, check_immutable};

#[test]
fn a_program_survives_whoever_opens_the_file_for_writing_while_it_asks() {
    let name = "a_program_survives_whoever_opens_the_file_for_writing_while_it_asks";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(PAGE_BYTES);
    let read = File::open(&path).unwrap();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // Refused while there is a lease, whose holder is told.
                let _ = File::options().write(true).custom_flags(libc::O_NONBLOCK).open(&path);
            }
        });
        let until = Instant::now() + Duration::from_secs(2);
        while Instant::now() < until {
            assert!(check_immutable(read.as_fd()).is_err());
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// A file that has the attribute immutable; not any more once this is gone.
struct Immutable<'a>(&'a Path);

impl Immutable<'_> {
    fn new(path: &Path) -> Option<Immutable<'_>> {
        let done = Command::new("chattr").arg("+i").arg(path).output();
        if done.is_ok_and(|output| output.status.success()) {
            return Some(Immutable(path));
        }
        println!("SKIP: no chattr +i");
        None
    }
}

impl Drop for Immutable<'_> {
    fn drop(&mut self) {
        let _ = Command::new("chattr").arg("-i").arg(self.0).output();
    }
}

#[test]
fn a_file_of_which_the_kernel_does_not_tell_the_writers_is_refused() {
    let name = "a_file_of_which_the_kernel_does_not_tell_the_writers_is_refused";
    let (_dir, path) = file(PAGE_BYTES);
    if !is_child() {
        return succeeds(name, "-");
    }
    let _writes = File::options().write(true).open(&path).unwrap();
    let Some(_immutable) = Immutable::new(&path) else { return };
    let read = File::open(&path).unwrap();
    assert_eq!(check_immutable(read.as_fd()), Err(Mutable::Written));
    let as_another = common::alone::forked(|| {
        // SAFETY: gives rights up for good, in a child of one thread.
        assert_eq!(unsafe { libc::setresuid(65534, 65534, 65534) }, 0);
        assert_eq!(check_immutable(read.as_fd()), Err(Mutable::Untold));
        0
    });
    assert_eq!(as_another, 0);
}

#[test]
fn asking_leaves_the_file_to_who_had_its_signals() {
    if !is_child() {
        return succeeds("asking_leaves_the_file_to_who_had_its_signals", "-");
    }
    let (_dir, path) = file(PAGE_BYTES);
    let read = File::open(&path).unwrap();
    let fd = std::os::fd::AsRawFd::as_raw_fd(&read);
    let asked = || check_immutable(read.as_fd());
    // SAFETY: commands that take numbers, on a descriptor of this test.
    unsafe {
        assert_eq!((asked(), libc::fcntl(fd, libc::F_GETOWN)), (Err(Mutable::Writable), 0));
        let own = libc::getpid();
        assert_eq!(libc::fcntl(fd, libc::F_SETOWN, own), 0);
        assert_eq!((asked(), libc::fcntl(fd, libc::F_GETOWN)), (Err(Mutable::Writable), own));
        // A lease of the program's stays.
        assert_eq!(libc::fcntl(fd, libc::F_SETLEASE, libc::F_RDLCK), 0);
        assert_eq!(asked(), Err(Mutable::Writable));
        assert_eq!(libc::fcntl(fd, libc::F_GETLEASE), libc::F_RDLCK);
    }
}
