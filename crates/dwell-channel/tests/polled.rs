// SPDX-License-Identifier: MIT OR Apache-2.0
//! Served files on a real NVMe driver: what a channel reads past the page cache is polled where the
//! device is. Counts of interrupts show it in the VM that `vm/test` boots; anywhere else every test
//! here skips.

mod common;
#[path = "../../dwell/tests/common/vm.rs"]
mod vm;

use std::fs::{self, File as Plain};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use common::scene::{serve, to_channels};
use common::{House, byte_at};
use dwell::buffer::Aligned;
use dwell::parameters::DeviceParameters;
use dwell::queue::{Action, Io};
use dwell::{File, policy};
use dwell_channel::daemon::{Daemon, Options};
use vm::{Polling, settled_interrupts};

const READS: u64 = 200;
const BLOCKS: u64 = 64;
const AT: &str = "/tmp/drive";

/// An ext4 on the drive, with a file of known bytes in it, on the drive and not in memory.
struct Disk;

impl Disk {
    fn make(wanted: &[Polling]) -> Option<(Disk, Polling)> {
        let polling = Polling::of_this_boot(wanted).map_err(|why| println!("SKIP: {why}")).ok()?;
        // Nothing that would write by itself later: no journal, nothing left to be initialised.
        let mut make = Command::new("/sbin/mkfs.ext4");
        make.args(["-q", "-F", "-O", "^has_journal", "-E", "lazy_itable_init=0", "/dev/nvme0n1"]);
        fs::create_dir_all(AT).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "ext4", "-o", "noatime", "/dev/nvme0n1", AT]);
        for command in [make, mount].iter_mut() {
            match command.output() {
                Ok(output) if output.status.success() => {}
                Ok(output) => {
                    println!("SKIP: {command:?}: {}", String::from_utf8_lossy(&output.stderr));
                    return None;
                }
                Err(error) => {
                    println!("SKIP: {command:?}: {error}");
                    return None;
                }
            }
        }
        let data: Vec<u8> = (0..BLOCKS as usize * 4096).map(byte_at).collect();
        let file = Plain::create(Disk::file()).unwrap();
        file.write_all_at(&data, 0).unwrap();
        file.sync_all().unwrap();
        rustix::fs::sync();
        Some((Disk, polling))
    }

    fn file() -> std::path::PathBuf {
        Path::new(AT).join("data")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", AT]).status();
    }
}

/// A daemon that was told that the device polls.
fn told() -> Options {
    Options {
        parameters: DeviceParameters { polled: true, ..DeviceParameters::default() },
        ..Options::default()
    }
}

/// Reads so many blocks by `read` and says how many interrupts that took.
fn interrupts(mut read: impl FnMut(&mut [u8], u64)) -> u64 {
    let mut buffer = Aligned::new(4096);
    let before = settled_interrupts();
    for n in 0..READS {
        let at = n * 7 % BLOCKS * 4096;
        read(&mut buffer, at);
        assert!(buffer.iter().enumerate().all(|(n, byte)| *byte == byte_at(at as usize + n)));
    }
    settled_interrupts() - before
}

/// Without a mount, so that it works in a kernel that has no FUSE.
///
/// `first` is read before, by the same thread of the daemon.
fn by_channel(house: &House, first: &[(u64, usize)]) -> (u64, u64) {
    let opened = house.open(&Disk::file(), libc::O_RDWR | libc::O_DIRECT);
    let fd = std::os::fd::AsRawFd::as_raw_fd(&opened.program);
    let (parameters, policy) = (DeviceParameters::default(), Arc::new(policy::Spin));
    let file = File::over(house.mount(), "nvme", "nvme", parameters, policy, None);
    let read = |buffer: &mut [u8], at| {
        let bytes = buffer.len() as u32;
        // SAFETY: the buffer is borrowed until the call returns.
        let io = unsafe { Io::plain(Action::Read, fd, buffer.as_mut_ptr(), bytes, at) };
        assert_eq!(file.request(&io), bytes as i32);
        assert!(buffer.iter().enumerate().all(|(n, byte)| *byte == byte_at(at as usize + n)));
    };
    first.iter().for_each(|(at, bytes)| read(&mut vec![0; *bytes], *at));
    let raised = interrupts(read);
    house.close(opened);
    (raised, house.daemon.tally().commands)
}

#[test]
fn reads_of_a_channel_are_polled_where_the_device_is() {
    let Some((_disk, _)) = Disk::make(&[Polling::Real]) else { return };
    assert_eq!(by_channel(&House::new(told()), &[]), (0, READS));
    // And not where nobody has seen that it polls.
    let (raised, commands) = by_channel(&House::new(Options::default()), &[]);
    assert_eq!((raised, commands), (READS, READS));
}

#[test]
fn a_read_that_is_not_aligned_leaves_polling_to_those_that_are() {
    let Some((_disk, _)) = Disk::make(&[Polling::Real]) else { return };
    let house = House::new(told());
    assert_eq!(by_channel(&house, &[(512, 4096), (0, 100)]), (0, READS + 2));
}

#[test]
fn a_device_that_does_not_poll_after_all_is_read_all_the_same() {
    let Some((_disk, polling)) = Disk::make(&[Polling::Fake, Polling::Refused]) else { return };
    let (raised, commands) = by_channel(&House::new(told()), &[]);
    assert_eq!(commands, READS, "{polling:?}");
    // The first may be refused; what takes its place may find in memory what it reads.
    assert!(raised >= READS - 1, "{polling:?}: {raised} interrupts");
}

#[test]
fn reads_through_a_mount_are_polled_too() {
    let Some((_disk, _)) = Disk::make(&[Polling::Real]) else { return };
    let mount = tempfile::tempdir().unwrap();
    let daemon = Arc::new(Daemon::start(told()).unwrap());
    let server = match serve(Path::new(AT), mount.path(), daemon.clone(), true) {
        Ok(server) => server,
        Err(why) => return println!("SKIP: {why}"),
    };
    let file = to_channels().direct(true).open(mount.path().join("data")).unwrap();
    let raised = interrupts(|buffer, at| file.read_exact_at(buffer, at).unwrap());
    assert_eq!((raised, daemon.tally().commands), (0, READS));
    // Past the page cache, what makes it longer comes by interrupt and is there.
    drop(file);
    let file = to_channels().write(true).direct(true).open(mount.path().join("data")).unwrap();
    let mut block = Aligned::new(4096);
    block.fill(9);
    file.read_exact_at(&mut block, 0).unwrap();
    block.fill(9);
    file.write_all_at(&block, BLOCKS * 4096).unwrap();
    file.sync().unwrap();
    block.fill(0);
    file.read_exact_at(&mut block, BLOCKS * 4096).unwrap();
    assert!(block.iter().all(|byte| *byte == 9));
    assert_eq!(fs::metadata(Disk::file()).unwrap().len(), (BLOCKS + 1) * 4096);
    drop((file, server));
}
