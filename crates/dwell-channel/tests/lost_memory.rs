// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that is taken away from under the daemon ends what touched it, and never the daemon.

mod common;

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{House, Opened, byte_at, filled};
use dwell::queue::{Action, Io};
use dwell::{File, policy};
use dwell_channel::client::Mount;
use dwell_channel::daemon::Options;

fn client(house: &House) -> File<Mount> {
    let parameters = dwell::parameters::DeviceParameters::default();
    File::over(house.mount(), "data", "data", parameters, Arc::new(policy::Spin), None)
}

fn ask(file: &File<Mount>, opened: &Opened, action: Action, buffer: &mut [u8], at: u64) -> i32 {
    let (fd, bytes) = (opened.program.as_raw_fd(), buffer.len() as u32);
    // SAFETY: the buffer is borrowed until the call returns.
    file.request(&unsafe { Io::plain(action, fd, buffer.as_mut_ptr(), bytes, at) })
}

#[test]
fn a_file_that_is_truncated_past_the_daemon_kills_nobody() {
    dwell_channel::survive_lost_memory().unwrap();
    let house = House::new(Options::default());
    let (backing, other) = (filled(true, 1 << 20), filled(true, 1 << 16));
    let (opened, kept) =
        (house.open(backing.path(), libc::O_RDWR), house.open(other.path(), libc::O_RDWR));
    let (file, good) = (client(&house), client(&house));
    let mut buffer = vec![0; 1 << 20];
    assert_eq!(ask(&file, &opened, Action::Read, &mut buffer, 0), 1 << 20);
    assert!(buffer.iter().enumerate().all(|(at, byte)| *byte == byte_at(at)));
    assert_eq!(ask(&file, &opened, Action::Read, &mut buffer, 0), 1 << 20);
    // By somebody who reaches the backing file itself.
    backing.as_file().set_len(5000).unwrap();
    assert_eq!(ask(&file, &opened, Action::Read, &mut buffer, 0), 5000);
    assert_eq!(ask(&file, &opened, Action::Read, &mut buffer[..4096], 1 << 19), 0);
    assert_eq!(ask(&file, &opened, Action::Write, &mut [7; 4096], 0), 4096);
    backing.as_file().set_len(0).unwrap();
    // The kernel makes it as long as it was.
    assert_eq!(ask(&file, &opened, Action::Write, &mut [9; 512], 4096), 512);
    let below = std::fs::read(backing.path()).unwrap();
    assert_eq!((below.len(), below[4095], below[4096], below[4607]), (4608, 0, 9, 9));
    // Others have noticed nothing.
    assert_eq!(ask(&good, &kept, Action::Read, &mut buffer[..1 << 16], 0), 1 << 16);
    assert_eq!(house.daemon.tally().broken, 0);
}

#[test]
fn truncating_all_the_time_gives_old_bytes_or_zeroes_and_kills_nobody() {
    dwell_channel::survive_lost_memory().unwrap();
    let house = House::new(Options::default());
    let backing = filled(true, 1 << 18);
    let opened = house.open(backing.path(), libc::O_RDWR);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                backing.as_file().set_len(0).unwrap();
                backing.as_file().set_len(1 << 18).unwrap();
            }
        });
        let file = client(&house);
        let mut buffer = vec![0; 1 << 14];
        for round in 0..12u64 {
            let at = (round % 4) << 14;
            let done = ask(&file, &opened, Action::Read, &mut buffer, at);
            assert!((0..=1 << 14).contains(&done), "{done}");
            let old = |n: usize| byte_at(at as usize + n);
            let mut seen = buffer[..done as usize].iter().enumerate();
            assert!(seen.all(|(n, byte)| *byte == 0 || *byte == old(n)), "round {round}");
            let mut data: Vec<u8> = (0..1 << 14).map(old).collect();
            let done = ask(&file, &opened, Action::Write, &mut data, at);
            assert!((1..=1 << 14).contains(&done), "{done}");
        }
        over.store(true, Ordering::Relaxed);
    });
    assert_eq!(house.daemon.tally().broken, 0);
}
