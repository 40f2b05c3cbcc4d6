// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that are memory.

mod common;

use std::fs::File;
use std::io::Write;
use std::os::fd::FromRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

use common::sources::{behaves_like_an_array, decision, read, run, write};
use dwell::memory::{Memory, Options};
use dwell::queue::{Action, Full, Io, Queue, Wake};
use dwell::source::Source;
use dwell_policy::{Mode, Route};
use proptest::collection::vec;
use proptest::prelude::*;

const STABLE: Options = Options { writable: true, assume_stable: true };

fn memfd(bytes: u64, seals: i32) -> File {
    // SAFETY: a literal name; the descriptor is new and nobody else's.
    let file = unsafe {
        let fd = libc::memfd_create(c"test".as_ptr(), libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    };
    file.set_len(bytes).unwrap();
    if seals != 0 {
        use std::os::fd::AsRawFd;
        // SAFETY: an open descriptor and a number.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_ADD_SEALS, seals) }, 0);
    }
    file
}

fn sealed(bytes: u64) -> Memory {
    let options = Options { writable: true, assume_stable: false };
    Memory::from_file(memfd(bytes, libc::F_SEAL_SHRINK), "memfd", options).unwrap()
}

/// A file on tmpfs, or `None` where there is none.
fn on_tmpfs() -> Option<tempfile::NamedTempFile> {
    let file = tempfile::NamedTempFile::new_in("/dev/shm").ok();
    if file.is_none() {
        println!("SKIP: /dev/shm cannot be written");
    }
    file
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn written_values_are_read(
        steps in vec((any::<bool>(), 0u64..20_000, vec(any::<u8>(), 0..5_000)), 1..40),
    ) {
        behaves_like_an_array(&sealed(16 << 10), &steps);
    }

    #[test]
    fn absurd_offsets_are_the_end_of_the_file(offset in 4096u64.., bytes in 1usize..100) {
        let memory = sealed(4096);
        let mut buffer = vec![0; bytes];
        prop_assert_eq!(memory.call(&read(&mut buffer, offset)), 0);
        prop_assert_eq!(memory.call(&write(&buffer, offset)), -libc::ENOSPC);
    }
}

#[test]
fn stores_reach_the_file_and_other_descriptors_see_them() {
    let Some(file) = on_tmpfs() else { return };
    file.as_file().set_len(8192).unwrap();
    let memory = Memory::open_with(file.path(), STABLE).unwrap();
    assert_eq!(memory.call(&write(b"hello", 4094)), 5);
    for data_only in [false, true] {
        // SAFETY: the number means nothing to memory.
        assert_eq!(memory.call(&unsafe { Io::sync(0, data_only) }), 0);
    }
    let mut seen = [0; 5];
    file.as_file().read_exact_at(&mut seen, 4094).unwrap();
    assert_eq!(&seen, b"hello");
    file.as_file().write_all_at(b"world", 0).unwrap();
    assert_eq!(memory.call(&read(&mut seen, 0)), 5);
    assert_eq!(&seen, b"world");
}

#[test]
fn writers_reserve_the_whole_file_first() {
    use std::os::unix::fs::MetadataExt;
    let Some(file) = on_tmpfs() else { return };
    file.as_file().set_len(1 << 20).unwrap();
    assert_eq!(file.as_file().metadata().unwrap().blocks(), 0);
    let options = Options { writable: false, assume_stable: true };
    let holes = Memory::open_with(file.path(), options).unwrap_err().to_string();
    assert!(holes.contains("holes"), "{holes}");
    let _memory = Memory::open_with(file.path(), STABLE).unwrap();
    assert_eq!(file.as_file().metadata().unwrap().blocks() * 512, 1 << 20);
    let reader = Memory::open_with(file.path(), options).unwrap();
    assert_eq!(reader.call(&read(&mut [0; 10], 0)), 10);
    assert_eq!(reader.call(&write(&[0; 10], 0)), -libc::EBADF);
    assert_eq!(reader.path(), file.path());
}

#[test]
fn only_a_seal_or_the_callers_word_makes_a_file_stable() {
    let refused = Memory::from_file(memfd(4096, 0), "memfd", Options::default()).unwrap_err();
    assert!(refused.to_string().contains("assume_stable"), "{refused}");
    let growing = memfd(4096, libc::F_SEAL_GROW);
    assert!(Memory::from_file(growing, "memfd", Options::default()).is_err());
    assert!(Memory::from_file(memfd(4096, 0), "memfd", STABLE).is_ok());
    let Some(file) = on_tmpfs() else { return };
    file.as_file().set_len(4096).unwrap();
    assert!(Memory::open(file.path(), true).unwrap_err().to_string().contains("SIGBUS"));
}

#[test]
fn a_path_that_is_not_memory_is_refused() {
    let mut on_disk = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    on_disk.write_all(&[1; 4096]).unwrap();
    match Memory::open_with(on_disk.path(), STABLE) {
        Err(error) => assert!(error.to_string().contains("page cache"), "{error}"),
        Ok(_) => println!("SKIP: the build folder lies on memory"),
    }
    let null = Memory::open_with("/dev/null", STABLE).unwrap_err().to_string();
    assert!(null.contains("/dev/null: not a regular file"), "{null}");
    let gone = Memory::open("/nonexistent", false).unwrap_err();
    assert_eq!(gone.errno(), Some(libc::ENOENT));
    let empty = Memory::from_file(memfd(0, libc::F_SEAL_SHRINK), PathBuf::from("empty"), STABLE);
    assert!(empty.unwrap_err().to_string().contains("empty"));
    let frozen = memfd(4096, libc::F_SEAL_SHRINK | libc::F_SEAL_WRITE);
    assert_eq!(Memory::from_file(frozen, "frozen", STABLE).unwrap_err().errno(), Some(libc::EPERM));
}

#[test]
fn a_queue_is_full_at_its_depth_and_never_sleeps_on_what_is_there() {
    let mut queue = sealed(4096).queue(2).unwrap();
    let mut buffer = [0; 8];
    assert!(matches!(queue.arm(1), Wake::Never));
    let first = queue.submit(write(&[5; 8], 0), Route::Interrupt).unwrap();
    let second = queue.submit(read(&mut buffer, 0), Route::Interrupt).unwrap();
    assert_eq!(queue.submit(write(&[6; 8], 0), Route::Interrupt).unwrap_err().0, Full);
    queue.cancel(first);
    assert!(matches!(queue.arm(1), Wake::At(0)));
    let mut seen = Vec::new();
    queue.poll(&mut |completion| seen.push((completion.ticket, completion.result)));
    assert_eq!(seen, [(first, 8), (second, 8)]);
    assert_eq!(buffer, [5; 8]);
    for mode in [Mode::Spin, Mode::Block] {
        // SAFETY: the number means nothing to memory.
        let sync = unsafe { Io::sync(0, true) };
        assert_eq!(run(&mut queue, sync, &decision(mode, 0)).0, 0);
    }
}

#[test]
fn readers_and_writers_of_the_same_bytes_do_not_stop_each_other() {
    let memory = sealed(64 << 10);
    std::thread::scope(|scope| {
        for thread in 0..3u8 {
            let memory = memory.clone();
            scope.spawn(move || {
                for round in 0..200 {
                    if thread == 0 {
                        assert_eq!(memory.call(&write(&[round; 5000], 3)), 5000);
                    } else {
                        let mut buffer = [0; 5000];
                        assert_eq!(memory.call(&read(&mut buffer, 3)), 5000);
                        assert!(buffer.iter().all(|&byte| byte < 200));
                    }
                }
            });
        }
    });
    let mut buffer = [0u8; 1];
    // SAFETY: the buffer outlives the call.
    let io = unsafe { Io::plain(Action::Read, 0, buffer.as_mut_ptr(), 1, 5002) };
    assert_eq!((memory.call(&io), buffer), (1, [199]));
}
