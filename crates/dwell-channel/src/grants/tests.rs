// SPDX-License-Identifier: MIT OR Apache-2.0
//! Times that several threads set at once.

use std::sync::Barrier;

use rustix::fs::{AtFlags, Timespec, Timestamps, UTIME_OMIT};

use super::*;

/// Enough for either thread to be first many times.
const ROUNDS: usize = 10_000;

fn set_modified(file: &File, seconds: i64) {
    let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
    let last_modification = Timespec { tv_sec: seconds, tv_nsec: 0 };
    let times = Timestamps { last_access, last_modification };
    rustix::fs::utimensat(file, "", &times, AtFlags::EMPTY_PATH).unwrap();
}

fn modified(file: &File) -> (i64, i64) {
    let facts = file.metadata().unwrap();
    (facts.mtime(), facts.mtime_nsec())
}

/// Has one thread stamp a file that a channel wrote to while another does something to it, and
/// shows `holds` what that came to and the file's time at last.
fn while_stamped<T: Send>(
    act: impl Fn(&Inode, &File) -> T + Sync,
    holds: impl Fn(T, (i64, i64)) -> bool,
) {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    let inode = Inodes::default().of(&file).unwrap();
    let together = Barrier::new(2);
    std::thread::scope(|scope| {
        for round in 0..ROUNDS {
            set_modified(&file, 1000);
            inode.written(2_000_000_000_000);
            let (act, inode, file, together) = (&act, &inode, &file, &together);
            let other = scope.spawn(move || {
                together.wait();
                // Each time a little later.
                (0..round % 500 * 5).for_each(|_| std::hint::spin_loop());
                act(inode, file)
            });
            together.wait();
            inode.stamp(file);
            let came = other.join().unwrap();
            assert!(holds(came, modified(file)), "round {round}: {:?}", modified(file));
        }
    });
}

#[test]
fn a_time_that_a_program_sets_stays_while_another_thread_stamps() {
    let set = |inode: &Inode, file: &File| {
        // As the file system does before it sets a time.
        inode.stamp(file);
        set_modified(file, 500);
    };
    while_stamped(set, |(), at_last| at_last == (500, 0));
}

#[test]
fn a_write_by_the_kernel_is_never_made_to_look_older_than_it_is() {
    let write = |_: &Inode, mut file: &File| {
        io::Write::write_all(&mut file, b"text").unwrap();
        modified(file)
    };
    while_stamped(write, |wrote, at_last| at_last >= wrote);
}

#[test]
fn a_stamp_changes_the_time_of_no_file_that_was_written_since() {
    let file = tempfile::tempfile_in("/dev/shm").unwrap();
    let inode = Inodes::default().of(&file).unwrap();
    set_modified(&file, 3000);
    inode.written(2_000_000_000_000);
    inode.stamp(&file);
    assert_eq!(modified(&file), (3000, 0));
    inode.written(4_000_000_000_000);
    inode.stamp(&file);
    assert!(modified(&file) > (4000, 0));
}
