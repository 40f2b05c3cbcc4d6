// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell::open` is a whole program: it opens paths and addresses with the default policy and the
//! process's system monitor. Files come from descriptors, and lend theirs.

mod common;

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use common::child::{child, in_a_child_with_a_file};
use common::refused::{counted, interrupt_opens};
use dwell::kernel::Kernel;
use dwell::monitor::SystemMonitor;
use dwell::ring::SpinMethod;
use dwell::{ErrorKind, File};

fn file_of(bytes: usize) -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().unwrap();
    let data: Vec<u8> = (0..bytes).map(|at| at as u8).collect();
    std::fs::write(file.path(), data).unwrap();
    file
}

#[test]
fn one_line_opens_and_reads_a_path() {
    let data = file_of(8192);
    let mut buffer = [0; 16];
    assert_eq!(dwell::open(data.path()).unwrap().read_at(&mut buffer, 4100).unwrap(), 16);
    assert_eq!(buffer, std::array::from_fn(|at| (4100 + at) as u8));
}

#[test]
fn one_line_opens_and_reads_an_address() {
    let mut buffer = [1; 16];
    let address = "emu:latency=5us,size=64KiB";
    assert_eq!(dwell::open(address).unwrap().read_at(&mut buffer, 0).unwrap(), 16);
    assert_eq!(buffer, [0; 16]);
}

#[test]
fn it_has_the_default_policy_and_remembers_for_other_processes() {
    let data = file_of(4096);
    let file = dwell::open(data.path()).unwrap();
    assert_eq!(file.policy().name(), "adaptive");
    let monitor = SystemMonitor::shared().unwrap();
    assert_eq!(monitor.forgets_because(), None);
    // The file holds the monitor that all of the process share.
    assert!(Arc::strong_count(&monitor) >= 2);
}

#[test]
fn a_missing_file_is_named() {
    let error = dwell::open("/nowhere/data").map(drop).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOENT));
    assert!(error.to_string().starts_with("/nowhere/data: open: "), "{error}");
}

#[test]
fn an_open_that_a_signal_interrupts_is_tried_again() {
    let name = "an_open_that_a_signal_interrupts_is_tried_again";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    if !interrupt_opens() {
        return common::skip("no seccomp filters here");
    }
    let file = dwell::Options::new().open(&path).unwrap();
    assert_eq!(file.read_at(&mut [0; 10], 0).unwrap(), 10);
    assert!(counted() >= 3);
}

/// Opens for reading and writing, as the standard library does.
fn both(path: &Path) -> std::fs::File {
    std::fs::File::options().read(true).write(true).open(path).unwrap()
}

#[test]
fn an_open_file_and_a_descriptor_become_a_file() {
    let data = file_of(8192);
    let opened = both(data.path());
    let number = opened.as_raw_fd();
    let file = File::try_from(opened).unwrap();
    assert_eq!(file.path(), data.path());
    assert_eq!(file.descriptor().unwrap().as_raw_fd(), number);
    file.write_all_at(b"hello", 8190).unwrap();
    assert_eq!(file.bytes().unwrap(), 8195);

    let file = File::try_from(OwnedFd::from(both(data.path()))).unwrap();
    let mut buffer = [0; 5];
    file.read_exact_at(&mut buffer, 8190).unwrap();
    assert_eq!(&buffer, b"hello");
}

#[test]
fn a_direct_descriptor_stays_direct() {
    let data = file_of(8192);
    let mut options = std::fs::File::options();
    let opened = options.read(true).custom_flags(libc::O_DIRECT).open(data.path());
    let Ok(opened) = opened else {
        println!("SKIP: no direct I/O in the directory for temporary files");
        return;
    };
    let file = File::from_descriptor(opened).unwrap();
    let mut buffer = [0; 10];
    // Any buffer will do, and queues want an aligned one.
    assert_eq!(file.read_at(&mut buffer, 4099).unwrap(), 10);
    assert_eq!(buffer, std::array::from_fn(|at| (4099 + at) as u8));
    let mut pipeline = file.pipeline::<Vec<u8>>(1).unwrap();
    let (error, buffer) = pipeline.read_at(vec![0; 10], 1).unwrap_err();
    assert_eq!((error.kind(), buffer.len()), (ErrorKind::Unaligned, 10));
}

#[test]
fn a_directory_is_named_as_one_with_direct_io_too() {
    let directory = tempfile::tempdir().unwrap();
    for direct in [false, true] {
        let error = dwell::options().direct(direct).open(directory.path()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotStorage, "{error}");
        assert!(error.to_string().contains("a directory"), "{error}");
    }
}

#[test]
fn descriptors_that_are_no_storage_are_refused() {
    let data = file_of(10);
    let mut append = std::fs::File::options();
    let append = append.append(true).open(data.path()).unwrap();
    let mut named = std::fs::File::options();
    let named = named.read(true).custom_flags(libc::O_PATH).open(data.path()).unwrap();
    let cases: [(OwnedFd, ErrorKind, &str); 5] = [
        (std::fs::File::open("/").unwrap().into(), ErrorKind::NotStorage, "/: a directory"),
        (std::fs::File::open("/dev/null").unwrap().into(), ErrorKind::NotStorage, "/dev/null: "),
        (std::io::pipe().unwrap().0.into(), ErrorKind::NotStorage, "pipe:"),
        (append.into(), ErrorKind::Unsupported, "O_APPEND"),
        (named.into(), ErrorKind::Unsupported, "O_PATH"),
    ];
    for (descriptor, kind, told) in cases {
        let error = File::from_descriptor(descriptor).unwrap_err();
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(told), "{error}");
    }
}

#[test]
fn a_file_of_the_kernel_alone_lends_its_descriptor() {
    let data = file_of(10);
    let kernel = Kernel::new(both(data.path()).into(), 1, SpinMethod::default(), false);
    let (known, policy) = (Default::default(), Arc::new(dwell::policy::Block));
    let file: File<Kernel> = File::over(kernel, data.path(), "0:0", known, policy, None);
    assert_eq!(file.as_fd().as_raw_fd(), file.as_raw_fd());
    assert_eq!(
        std::fs::File::from(file.as_fd().try_clone_to_owned().unwrap()).metadata().unwrap().len(),
        10
    );

    let address = dwell::open("emu:latency=5us,size=64KiB").unwrap();
    assert!(address.descriptor().is_none());
    for error in [address.metadata().map(drop).unwrap_err(), address.set_len(0).unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Unsupported);
        assert!(error.to_string().starts_with("emu:latency"), "{error}");
    }
}

#[test]
fn create_new_makes_a_file_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let options = dwell::options().write(true).create_new(true);
    options.open(&path).unwrap().write_all_at(b"hello", 0).unwrap();
    let error = options.open(&path).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EEXIST));
    assert_eq!(std::fs::read(&path).unwrap(), b"hello");
    let error = options.open("emu:z-nand").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

#[test]
fn a_length_that_is_set_holds_for_what_follows() {
    let dir = tempfile::tempdir().unwrap();
    let file = dwell::options().write(true).create_new(true).open(dir.path().join("data")).unwrap();
    file.write_all_at(&[7; 5000], 0).unwrap();
    file.set_len(100).unwrap();
    let mut buffer = [1; 200];
    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), 100);
    file.write_all_at(&[9; 10], 4000).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 4010);
    assert_eq!((file.read_at(&mut buffer, 3990).unwrap(), buffer[9], buffer[10]), (20, 0, 9));

    let read_only = dwell::open(dir.path().join("data")).unwrap();
    assert_eq!(read_only.set_len(0).unwrap_err().errno(), Some(libc::EINVAL));
    assert_eq!(file.set_len(u64::MAX).unwrap_err().kind(), ErrorKind::OutOfRange);
}

/// Locks a whole file for the opening behind a descriptor, against all others and the locks of
/// processes; whether nobody has it.
fn locks(file: &std::fs::File) -> bool {
    // SAFETY: zero bytes are a lock of the whole file from its begin.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as libc::c_short;
    // SAFETY: an open descriptor and a live structure.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &lock) == 0 }
}

#[test]
fn a_look_at_the_metadata_keeps_the_processs_locks() {
    let data = file_of(4096);
    let opened = both(data.path());
    let other = both(data.path());
    rustix::fs::fcntl_lock(&opened, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let file = File::try_from(opened).unwrap();
    assert!(!locks(&other));
    assert_eq!(file.metadata().unwrap().len(), 4096);
    assert!(!locks(&other), "the lock is gone");
}

#[test]
fn a_file_shows_what_it_is() {
    let data = file_of(10);
    let shown = format!("{:?}", dwell::open(data.path()).unwrap());
    assert!(shown.starts_with("File { path: ") && shown.contains("\"adaptive\""), "{shown}");
}
