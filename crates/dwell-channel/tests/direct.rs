// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files through channels, without a mount: bytes, ends of files, rights, holes.

mod common;

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use common::{House, byte_at, empty, filled};
use dwell::queue::{Action, Io, Queue};
use dwell::{File, Route};
use dwell_channel::client::{ChannelQueue, Guest, Mount, Shape};
use dwell_channel::daemon::Options;
use dwell_channel::grants::{Grants, Why};

fn file(mount: Mount) -> File<Mount> {
    let parameters = dwell::parameters::DeviceParameters::default();
    File::over(mount, "test", "test", parameters, Arc::new(dwell::policy::Spin), None)
}

fn read(file: &File<Mount>, fd: i32, buffer: &mut [u8], at: u64) -> i32 {
    // SAFETY: the buffer is borrowed until the call returns.
    let io = unsafe { Io::plain(Action::Read, fd, buffer.as_mut_ptr(), buffer.len() as u32, at) };
    file.request(&io)
}

fn write(file: &File<Mount>, fd: i32, buffer: &[u8], at: u64) -> i32 {
    let memory = buffer.as_ptr().cast_mut();
    // SAFETY: the buffer is borrowed until the call returns, and a write changes nothing in it.
    let io = unsafe { Io::plain(Action::Write, fd, memory, buffer.len() as u32, at) };
    file.request(&io)
}

#[test]
fn bytes_come_and_go_through_a_channel() {
    for memory in [true, false] {
        let house = House::new(Options::default());
        let backing = filled(memory, 1 << 20);
        let opened = house.open(backing.path(), libc::O_RDWR);
        let (file, fd) = (file(house.mount()), opened.program.as_raw_fd());
        for (at, bytes) in
            [(0, 1), (0, 4096), (4095, 2), (12345, 512), (7, 700_000), (1 << 19, 1 << 19)]
        {
            let mut buffer = vec![0u8; bytes];
            assert_eq!(read(&file, fd, &mut buffer, at as u64), bytes as i32, "{memory} {at}");
            assert!(buffer.iter().enumerate().all(|(n, byte)| *byte == byte_at(at + n)));
            let new: Vec<u8> = (0..bytes).map(|n| byte_at(at + n) ^ 0x5a).collect();
            assert_eq!(write(&file, fd, &new, at as u64), bytes as i32);
            let mut seen = vec![0; bytes];
            opened.program.read_exact_at(&mut seen, at as u64).unwrap();
            assert!(seen == new, "what a channel wrote is what others read");
            let old: Vec<u8> = (0..bytes).map(|n| byte_at(at + n)).collect();
            opened.program.write_all_at(&old, at as u64).unwrap();
        }
        let tally = house.daemon.tally();
        assert!(tally.commands > 12 && tally.grants == 1, "{tally:?}");
    }
}

#[test]
fn nothing_past_the_end_of_a_file_is_seen_or_written() {
    for memory in [true, false] {
        let house = House::new(Options::default());
        let backing = filled(memory, 5000);
        let opened = house.open(backing.path(), libc::O_RDWR);
        // What falls to the kernel fails.
        let program = house.speak_for(&opened, std::fs::File::open(backing.path()).unwrap());
        let (file, fd) = (file(house.mount()), program.as_raw_fd());
        let length = || backing.as_file().metadata().unwrap().len();
        let mut buffer = vec![0xee; 8192];
        assert_eq!(read(&file, fd, &mut buffer, 0), 5000);
        assert!(buffer[5000..].iter().all(|byte| *byte == 0xee));
        assert_eq!(read(&file, fd, &mut buffer, 5000), 0);
        assert_eq!(read(&file, fd, &mut buffer, 1 << 40), 0);
        assert_eq!((write(&file, fd, &[7; 100], 4900), length()), (100, 5000));
        for at in [4901, 4999, 5000, 20_000, 1 << 40] {
            assert_eq!((write(&file, fd, &[8; 100], at), length()), (-libc::EBADF, 5000));
        }
        // Longer by the kernel: the channel has what there is now.
        backing.as_file().write_all_at(&[9; 10], 20_000).unwrap();
        assert_eq!((write(&file, fd, &[8; 100], 15_000), length()), (100, 20_010));
        assert_eq!(read(&file, fd, &mut buffer, 15_000), 5010);
        assert!(buffer[..100] == [8; 100] && buffer[100..5000].iter().all(|byte| *byte == 0));
        assert_eq!(buffer[5000..5010], [9; 10]);
    }
}

#[test]
fn a_file_that_outgrows_its_mapping_is_granted_again() {
    const STEP: u64 = 3 << 20;
    let house = House::new(Options::default());
    let backing = filled(true, 5000);
    let opened = house.open(backing.path(), libc::O_RDWR);
    let (file, fd) = (file(house.mount()), opened.program.as_raw_fd());
    let data: Vec<u8> = (0..STEP as usize).map(byte_at).collect();
    let mut seen = vec![0; STEP as usize];
    for at in (0..15).map(|n| 5000 + n * STEP) {
        // The kernel makes it longer.
        assert_eq!(write(&file, fd, &data, at), STEP as i32);
        assert_eq!(read(&file, fd, &mut seen, at), STEP as i32);
        assert!(seen == data, "{at}");
    }
    let tally = house.daemon.tally();
    assert!((2..5).contains(&tally.grants), "{tally:?}");
}

#[test]
fn two_clients_make_one_file_longer_and_nothing_is_lost() {
    const PIECES: u64 = 400;
    for memory in [true, false] {
        let house = House::new(Options::default());
        let backing = empty(memory);
        let opened: Vec<_> = (0..2).map(|_| house.open(backing.path(), libc::O_RDWR)).collect();
        std::thread::scope(|scope| {
            for (mine, opened) in opened.iter().enumerate() {
                let house = &house;
                scope.spawn(move || {
                    let (file, fd) = (file(house.mount()), opened.program.as_raw_fd());
                    // Each has every other piece, and leaves the rest to the other.
                    for piece in (mine as u64..PIECES).step_by(2) {
                        let at = piece * 700;
                        assert_eq!(write(&file, fd, &[piece as u8; 700], at), 700);
                    }
                });
            }
        });
        let left = std::fs::read(backing.path()).unwrap();
        assert_eq!(left.len() as u64, PIECES * 700);
        for (piece, bytes) in left.chunks(700).enumerate() {
            assert!(bytes.iter().all(|byte| *byte == piece as u8), "{memory}: piece {piece}");
        }
        let tally = house.daemon.tally();
        assert!(tally.commands >= PIECES, "{tally:?}");
    }
}

#[test]
fn holes_read_as_zeroes_and_take_no_memory() {
    use std::os::unix::fs::MetadataExt;
    let house = House::new(Options::default());
    let backing = empty(true);
    backing.as_file().set_len(1 << 20).unwrap();
    let opened = house.open(backing.path(), libc::O_RDWR);
    let (file, fd) = (file(house.mount()), opened.program.as_raw_fd());
    let mut buffer = vec![0xee; 65536];
    for _ in 0..3 {
        assert_eq!(read(&file, fd, &mut buffer, 8192), 65536);
        assert!(buffer.iter().all(|byte| *byte == 0));
    }
    assert_eq!(backing.as_file().metadata().unwrap().blocks(), 0);
    assert_eq!(write(&file, fd, &[9; 10], 40960), 10);
    assert_eq!(read(&file, fd, &mut buffer, 36864), 65536);
    assert_eq!((buffer[4095], buffer[4096], buffer[4105], buffer[4106]), (0, 9, 9, 0));
    assert_eq!(backing.as_file().metadata().unwrap().blocks(), 8);
}

#[test]
fn rights_are_those_of_the_open_file() {
    let house = House::new(Options::default());
    let backing = filled(true, 8192);
    let reader = house.open(backing.path(), libc::O_RDONLY);
    let writer = house.open(backing.path(), libc::O_WRONLY);
    let file = file(house.mount());
    let mut buffer = [0u8; 512];
    assert_eq!(read(&file, reader.program.as_raw_fd(), &mut buffer, 0), 512);
    assert_eq!(write(&file, reader.program.as_raw_fd(), &buffer, 0), -libc::EBADF);
    assert_eq!(write(&file, writer.program.as_raw_fd(), &buffer, 0), 512);
    assert_eq!(read(&file, writer.program.as_raw_fd(), &mut buffer, 0), -libc::EBADF);
}

#[test]
fn a_drained_file_is_held_and_granted_again_after() {
    let house = House::new(Options::default());
    let backing = filled(true, 8192);
    let opened = house.open(backing.path(), libc::O_RDWR);
    let (file, fd) = (file(house.mount()), opened.program.as_raw_fd());
    let mut buffer = [0u8; 4096];
    assert_eq!(read(&file, fd, &mut buffer, 4096), 4096);
    let guard = house.daemon.drain(&opened.open.inode, Why::Shorten);
    backing.as_file().set_len(4096).unwrap();
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| read(&file, fd, &mut [0u8; 4096], 4096));
        std::thread::sleep(std::time::Duration::from_millis(20));
        assert!(!reading.is_finished(), "held off while the guard lives");
        drop(guard);
        assert_eq!(reading.join().unwrap(), 0);
    });
    let _mapped = house.daemon.drain(&opened.open.inode, Why::Map);
    drop(_mapped);
    let before = house.daemon.tally().grants;
    assert_eq!(read(&file, fd, &mut buffer, 0), 4096);
    assert_eq!(house.daemon.tally().grants, before, "a mapped file is the kernel's");
}

#[test]
fn many_in_flight_from_one_thread_with_buffers_in_the_channel() {
    let house = House::new(Options::default());
    let backing = filled(true, 1 << 20);
    let opened = house.open(backing.path(), libc::O_RDWR);
    let fd = opened.program.as_raw_fd();
    let shape = Shape { depth: 64, slot_bytes: 4096, arena_bytes: 64 * 512 };
    let mut queue: ChannelQueue = house.mount().asynchronous(shape, fd).unwrap();
    let mut buffers: Vec<_> = (0..64).map(|_| queue.buffer(512).unwrap()).collect();
    assert!(queue.buffer(512).is_none());
    for round in 0..10usize {
        let mut tickets = Vec::new();
        for (n, buffer) in buffers.iter_mut().enumerate() {
            let at = (round * 64 + n) * 512;
            // SAFETY: the buffers live until all completions are out.
            let io = unsafe { Io::plain(Action::Read, fd, buffer.as_mut_ptr(), 512, at as u64) };
            tickets.push(queue.submit(io, Route::Interrupt).unwrap());
        }
        assert_eq!(queue.backlog().requests, 64);
        let mut results = std::collections::HashMap::new();
        while results.len() < 64 {
            queue.poll(&mut |done| _ = results.insert(done.ticket, done.result));
        }
        for (n, ticket) in tickets.iter().enumerate() {
            assert_eq!(results[ticket], 512);
            let at = (round * 64 + n) * 512;
            assert!(buffers[n].iter().enumerate().all(|(b, byte)| *byte == byte_at(at + b)));
        }
    }
    assert_eq!(house.daemon.tally().commands, 640);
}

#[test]
fn blocking_calls_are_woken_by_the_daemon() {
    let house =
        House::new(Options { policy: Arc::new(dwell::policy::Block), ..Options::default() });
    let backing = filled(true, 1 << 16);
    let opened = house.open(backing.path(), libc::O_RDWR);
    // It blocks on the channel because the daemon sleeps, though the kernel could serve it too.
    let policy = Arc::new(dwell::policy::SmartCon::default());
    let parameters = dwell_channel::client::parameters();
    let file = File::over(house.mount(), "test", "test", parameters, policy, None);
    let mut buffer = [0u8; 4096];
    for n in 0..200usize {
        let at = n * 77 % 60000;
        assert_eq!(read(&file, opened.program.as_raw_fd(), &mut buffer, at as u64), 4096);
        assert_eq!(buffer[0], byte_at(at));
    }
    // On a busy machine the next request is often there before the daemon sleeps.
    let tally = house.daemon.tally();
    assert!(tally.sleeps > 0 && tally.commands >= 200, "{tally:?}");
}

#[test]
fn when_the_daemon_ends_requests_fail_soon_or_go_to_the_kernel() {
    let house = House::new(Options::default());
    let backing = filled(true, 8192);
    let opened = house.open(backing.path(), libc::O_RDWR);
    let (file, fd) = (file(house.mount()), opened.program.as_raw_fd());
    let mut buffer = [0u8; 4096];
    assert_eq!(read(&file, fd, &mut buffer, 0), 4096);
    house.daemon.revoke_all();
    let started = std::time::Instant::now();
    let lost = read(&file, fd, &mut buffer, 0);
    assert!(lost == -libc::EIO || lost == 4096, "{lost}");
    assert!(started.elapsed().as_secs_f64() < 1.0);
    assert_eq!(read(&file, fd, &mut buffer, 0), 4096, "a new channel, or the kernel");
}

/// Copies that the kernel makes for a program that knows nothing of channels.
#[test]
fn no_request_of_a_guest_falls_to_the_kernel_without_need() {
    let house = House::new(Options::default());
    let backing = filled(true, 1 << 20);
    let opened = house.open(backing.path(), libc::O_RDWR);
    let (file, fd) = (file(house.mount().for_guest(guest())), opened.program.as_raw_fd());
    let mut buffer = vec![0u8; 4096];
    for n in 0..500usize {
        let at = n * 2048 % (1 << 19);
        assert_eq!(read(&file, fd, &mut buffer, at as u64), 4096);
        buffer.fill(n as u8);
        assert_eq!(write(&file, fd, &buffer, at as u64), 4096);
    }
    // Each one is a command, and by what it answers, over.
    let tally = house.daemon.tally();
    assert_eq!((tally.commands, tally.missing), (1000, 0));
    // Where there is no memory the kernel says so.
    let nowhere = std::ptr::without_provenance_mut(8);
    // SAFETY: nobody but the kernel looks there, and it finds nothing.
    let io = unsafe { Io::plain(Action::Write, fd, nowhere, 4096, 0) };
    assert_eq!(file.request(&io), -libc::EFAULT);
}

/// How often the test has had a number name another file.
static EPOCH: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);

fn guest() -> Guest {
    Guest { keep: Ok, epoch: |_| EPOCH.load(std::sync::atomic::Ordering::SeqCst) }
}

/// The daemon never hears of the close here: the number's epoch alone tells.
#[test]
fn a_number_that_is_used_again_is_granted_again() {
    let house = House::new(Options::default());
    let (first, second) = (filled(true, 8192), filled(true, 8192));
    let (one, other) = [&first, &second].map(|file| house.open(file.path(), libc::O_RDWR)).into();
    let (file, fd) = (file(house.mount().for_guest(guest())), one.program.as_raw_fd());
    assert_eq!(write(&file, fd, &[1; 4096], 0), 4096);
    let commands = house.daemon.tally().commands;
    house.speak_for(&other, one.program.try_clone().unwrap());
    // SAFETY: both are open, and both stay so.
    assert_eq!(unsafe { libc::dup2(other.program.as_raw_fd(), fd) }, fd);
    let number = house.speak_for(&other, one.program);
    EPOCH.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
    assert_eq!(write(&file, fd, &[2; 4096], 0), 4096);
    drop(number);
    assert!(house.daemon.tally().commands > commands, "by channel");
    let left = [first, second].map(|file| std::fs::read(file.path()).unwrap()[..2].to_vec());
    assert_eq!(left, [[1, 1], [2, 2]], "what was written went into another file");
}
