// SPDX-License-Identifier: MIT OR Apache-2.0
//! `dwell::open` is a whole program: it opens paths and addresses with the default policy and the
//! process's system monitor.

use std::sync::Arc;

use dwell::monitor::SystemMonitor;

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
