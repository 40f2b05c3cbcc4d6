// SPDX-License-Identifier: MIT OR Apache-2.0
//! Grants that are taken back while commands are in flight: none lands after the drain.

mod common;

use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{House, empty};
use dwell::Route;
use dwell::queue::{Action, Io, Queue};
use dwell_channel::client::Shape;
use dwell_channel::daemon::Options;
use dwell_channel::grants::{Grants, Why};

const PAGES: u64 = 4;

/// Rounds: `DWELL_RACE_ROUNDS`, or as many as an everyday run can wait for.
fn rounds() -> u32 {
    std::env::var("DWELL_RACE_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(3000)
}

/// Says that all is over when it is dropped, also by a failure.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A writer floods a file through its channel, past its end too. Meanwhile the file is drained,
/// emptied and half filled with canaries, as a new file in its space would be; while it is held, no
/// canary may change and nothing come after them, whatever was in flight.
fn race(memory: bool, rounds: u32) {
    let house = House::new(Options::default());
    let backing = empty(memory);
    let bytes = PAGES * 4096;
    backing.as_file().write_all_at(&vec![1; bytes as usize], 0).unwrap();
    let opened = house.open(backing.path(), libc::O_RDWR);
    // What takes too often to be granted is asked of the kernel, which here would write past the
    // daemon: it is let do nothing.
    let program = house.speak_for(&opened, std::fs::File::open(backing.path()).unwrap());
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let fd = program.as_raw_fd();
            let shape = Shape { depth: 16, slot_bytes: 4096, arena_bytes: 0 };
            let mut queue = house.mount().asynchronous(shape, fd).unwrap();
            let mut data = vec![0xdd_u8; 4096];
            let mut at = 0;
            while !over.load(Ordering::Relaxed) {
                for _ in 0..16 {
                    at = (at + 1) % PAGES;
                    // SAFETY: the buffer lives until all completions are out; writes change nothing
                    // in it.
                    let io =
                        unsafe { Io::plain(Action::Write, fd, data.as_mut_ptr(), 4096, at * 4096) };
                    queue.submit(io, Route::Interrupt).unwrap();
                }
                let mut done = 0;
                while done < 16 {
                    queue.poll(&mut |completion| {
                        let result = completion.result;
                        assert!(result == 4096 || result == -libc::EBADF, "{result}");
                        done += 1;
                    });
                }
            }
        });
        let _ending = Ending(&over);
        let half = bytes as usize / 2;
        let (mut seen, canaries) = (vec![0; half], vec![0xca_u8; half]);
        for round in 0..rounds {
            // Now and then the writer comes to write in between, for which it needs a new grant.
            // The file tells: completions of what landed before the last drain may be seen after
            // it.
            while round % 8 == 0 && !seen.contains(&0xdd) {
                backing.as_file().read_exact_at(&mut seen, 0).unwrap();
            }
            let guard = house.daemon.drain(&opened.open.inode, Why::Shorten);
            backing.as_file().set_len(0).unwrap();
            backing.as_file().write_all_at(&canaries, 0).unwrap();
            for _ in 0..4 {
                backing.as_file().read_exact_at(&mut seen, 0).unwrap();
                assert!(seen == canaries, "round {round}: a command landed after the drain");
                let length = backing.as_file().metadata().unwrap().len();
                assert_eq!(length, half as u64, "round {round}: it grew after the drain");
            }
            drop(guard);
        }
    });
    assert!(house.daemon.tally().grants >= u64::from(rounds.div_ceil(8)));
}

#[test]
fn no_command_lands_in_memory_after_its_grant_was_taken_back() {
    race(true, rounds());
}

#[test]
fn no_command_in_flight_lands_on_a_device_after_its_grant_was_taken_back() {
    race(false, rounds() / 10);
}
