// SPDX-License-Identifier: MIT OR Apache-2.0
//! A daemon to which io_uring is forbidden.

#[path = "../../dwell/tests/common/forbid.rs"]
mod forbid;

mod common;

use std::os::fd::{AsRawFd as _, RawFd};
use std::time::{Duration, Instant};

use common::gate::Gate;
use common::{House, USER, as_user, byte_at, filled};
use dwell::Route;
use dwell::queue::{Action, Io, Queue};
use dwell_channel::client::{ChannelQueue, Shape};
use dwell_channel::credentials::Opener;
use dwell_channel::daemon::Options;

const SHAPE: Shape = Shape { depth: 64, slot_bytes: 4096, arena_bytes: 1 << 18 };

/// One thread serves all channels.
fn house() -> Option<House> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: only root can act as several users");
        return None;
    }
    if !forbid::forbid(&[libc::SYS_io_uring_setup], libc::EPERM) {
        println!("SKIP: no seccomp filters here");
        return None;
    }
    Some(House::new(Options { most_threads: 1, ..Options::default() }))
}

/// Whether a request of the second page is answered in time.
fn answers(queue: &mut ChannelQueue, fd: RawFd, action: Action, page: &mut [u8]) -> bool {
    // SAFETY: the caller keeps the memory until the channel is gone.
    let io = unsafe { Io::plain(action, fd, page.as_mut_ptr(), 4096, 4096) };
    queue.submit(io, Route::Interrupt).unwrap();
    queue.flush();
    until_done(queue, 1) == 1
}

fn until_done(queue: &mut ChannelQueue, count: usize) -> usize {
    let (mut done, until) = (0, Instant::now() + Duration::from_secs(10));
    while done < count && Instant::now() < until {
        queue.poll(&mut |completion| {
            assert_eq!(completion.result, 4096);
            done += 1;
        });
        std::thread::yield_now();
    }
    done
}

#[test]
fn a_file_that_does_not_answer_stops_its_own_user_alone() {
    let Some(house) = house() else { return };
    let Some(gate) = Gate::with(vec![0xaa; 1 << 20]) else { return };
    let stuck = house.open_as(Opener::new(USER, USER), &gate.path(), libc::O_RDWR);
    let backing = filled(false, 1 << 16);
    let other = house.open(backing.path(), libc::O_RDWR);
    let (fd, others) = (stuck.program.as_raw_fd(), other.program.as_raw_fd());
    let mut waiting = as_user(USER, || house.mount().asynchronous(SHAPE, fd).unwrap());
    let mut queue = house.mount().asynchronous(SHAPE, others).unwrap();
    let mut memory: Vec<_> = (0..64).map(|_| waiting.buffer(4096).unwrap()).collect();
    let mut page = queue.buffer(4096).unwrap();
    gate.close();
    for (at, page) in memory.iter_mut().enumerate() {
        // SAFETY: the buffers outlive the completions, which are waited for.
        let io = unsafe { Io::plain(Action::Read, fd, page.as_mut_ptr(), 4096, at as u64 * 4096) };
        waiting.submit(io, Route::Interrupt).unwrap();
    }
    waiting.flush();
    gate.holds_some();
    let mut actions = [Action::Read, Action::Write, Action::Read].into_iter();
    let answered = actions.all(|action| answers(&mut queue, others, action, &mut page));
    gate.open();
    assert_eq!(until_done(&mut waiting, 64), 64, "the stuck user's own are lost");
    assert!(answered, "another user's requests wait for a stuck file");
    assert!(page.iter().enumerate().all(|(at, byte)| *byte == byte_at(4096 + at)));
    house.close(stuck);
    house.close(other);
}
