// SPDX-License-Identifier: MIT OR Apache-2.0
//! The table of descriptors by itself: threads that move, share and close one at the same time.
#![allow(dead_code)]

#[path = "../src/futex.rs"]
mod futex;
#[path = "../src/raw.rs"]
mod raw;
#[path = "../src/table.rs"]
mod table;

/// The process is always this one.
mod process {
    pub fn is_ours() -> bool {
        true
    }
}

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::sync::{Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use table::{Moving, Treatment, Word};

/// The thread that opens, and another.
const OWNER: u32 = 1;
const OTHER: u32 = 2;
const LONG: Duration = Duration::from_millis(100);

/// What ages the table is seen by all tests.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn found() -> Word {
    Word::decided(0, true, false)
}

/// A descriptor that its owner has just opened.
fn opened(fd: i32, by: u32) -> Word {
    table::enter(fd, Word::UNKNOWN, found().owned_by(by, table::age()))
}

fn lands(moving: &Moving) -> bool {
    let mut landed = false;
    moving.land(|| landed = true);
    landed
}

#[test]
fn an_owner_that_looks_late_does_not_take_back_what_was_shared() {
    let _alone = alone();
    let fd = 100;
    let before = table::enter(fd, Word::UNKNOWN, Word::UNKNOWN.owned_by(OWNER, table::age()));
    table::about_to_move(fd, table::word(fd), OTHER);
    let late = found().owned_as(before);
    let now = table::enter(fd, before, late);
    for word in [late, now] {
        assert!(Moving::begin(fd, word, OWNER).is_none(), "{word:?}");
    }
    // It is looked at again, and is shared.
    let now = table::enter(fd, now, found().owned_as(now));
    assert_eq!(now.treatment(), Treatment::Decide);
    assert!(Moving::begin(fd, now, OWNER).is_none());
}

#[test]
fn a_file_opened_before_a_fork_is_shared_however_late_it_is_entered() {
    let _alone = alone();
    let fd = 101;
    let age = table::age();
    table::shared_with_others();
    let word = table::enter(fd, Word::UNKNOWN, found().owned_by(OWNER, age));
    assert!(Moving::begin(fd, word, OWNER).is_none());
    table::renew(fd);
    let word = opened(fd, OWNER);
    assert!(Moving::begin(fd, word, OWNER).is_some());
}

#[test]
fn a_file_closed_meanwhile_is_not_moved_and_its_successor_is() {
    let _alone = alone();
    let fd = 102;
    let word = opened(fd, OWNER);
    let moving = Moving::begin(fd, word, OWNER).unwrap();
    table::renew(fd);
    assert!(!lands(&moving));
    let word = opened(fd, OTHER);
    let others = Moving::begin(fd, word, OTHER).unwrap();
    assert!(!lands(&moving));
    drop(moving);
    assert!(lands(&others), "the end of the first is none of the second's");
}

#[test]
fn a_close_waits_for_who_is_just_saying_where_it_stands() {
    let _alone = alone();
    let fd = 103;
    let word = opened(fd, OWNER);
    let (begun, told) = mpsc::channel();
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let moving = Moving::begin(fd, word, OWNER).unwrap();
            moving.land(|| {
                begun.send(()).unwrap();
                thread::sleep(LONG);
                over.store(true, Ordering::Relaxed);
            });
        });
        told.recv().unwrap();
        table::renew(fd);
        assert!(over.load(Ordering::Relaxed), "the number is another file's already");
    });
    assert_eq!(table::word(fd), Word::UNKNOWN);
}

#[test]
fn a_thread_that_finds_other_flags_waits_for_who_is_moving() {
    let _alone = alone();
    let fd = 104;
    let word = opened(fd, OWNER);
    let moving = Moving::begin(fd, word, OWNER).unwrap();
    table::look_again(fd);
    let now = table::word(fd);
    assert!(now.treatment() == Treatment::Unknown && now.is_moving());
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let other = scope.spawn(|| {
            table::about_to_move(fd, now, OTHER);
            over.load(Ordering::Relaxed)
        });
        thread::sleep(LONG);
        assert!(lands(&moving));
        over.store(true, Ordering::Relaxed);
        drop(moving);
        assert!(other.join().unwrap(), "it went on while the owner was moving");
    });
}
