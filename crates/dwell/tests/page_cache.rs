// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads that the page cache can serve do not wait for a device, and the others get all their
//! bytes.

mod common;

use std::fs;
use std::io::IoSliceMut;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use common::child::{child, in_a_child_with_a_file};
use common::fake::Fake;
use common::forbid::forbid;
use common::machine::{MIB, disk, memory, pattern_file};
use common::{BLOCK, Fixed, check, fast, skip};
use dwell::any::AnySource;
use dwell::external::External;
use dwell::kernel::Kernel;
use dwell::parameters::DeviceParameters;
use dwell::queue::{Action, Io};
use dwell::ring::SpinMethod;
use dwell::source::Source;
use dwell::{File, Options, Reason, Route};

fn buffered(path: &Path) -> File {
    Options::new().parameters(fast()).policy(Arc::new(Fixed::spin())).open(path).unwrap()
}

/// Takes the file out of the page cache, and keeps the kernel from reading ahead.
fn evict(file: &File) {
    let AnySource::Kernel(kernel) = file.source() else { unreachable!("a path") };
    let fd = kernel.descriptor().as_raw_fd();
    for advice in [libc::POSIX_FADV_RANDOM, libc::POSIX_FADV_DONTNEED] {
        // SAFETY: an open descriptor.
        assert_eq!(unsafe { libc::posix_fadvise(fd, 0, 0, advice) }, 0);
    }
}

#[test]
fn a_cached_file_never_touches_a_ring() {
    // One read in eight is timed, and a slow one makes the file suspect: a disturbed run proves
    // nothing, five in a row do.
    let place = disk();
    let path = place.path().join("file");
    pattern_file(&path, MIB, 2);
    let mut rows = Vec::new();
    for _ in 0..5 {
        let file = buffered(&path);
        let mut buffer = vec![0; BLOCK];
        for at in 0..200 {
            file.read_exact_at(&mut buffer, at * BLOCK as u64).unwrap();
            check(&buffer, at * BLOCK as u64, 2);
        }
        let stats = file.stats();
        assert_eq!(stats.requests(), 200);
        if stats.because(Reason::Cached) == 200 {
            assert_eq!(stats.count(Route::Interrupt, "spin"), 0);
            return;
        }
        rows.push(stats.rows);
    }
    panic!("cached reads went to a ring: {rows:?}");
}

#[test]
fn a_file_with_misses_asks_the_cache_first_and_waits_as_decided() {
    let place = disk();
    let path = place.path().join("file");
    pattern_file(&path, 8 * MIB, 2);
    let file = buffered(&path);
    evict(&file);
    let mut buffer = vec![0; BLOCK];
    for at in 0..64 {
        file.read_exact_at(&mut buffer, at * (MIB / 8)).unwrap();
        check(&buffer, at * (MIB / 8), 2);
    }
    let stats = file.stats();
    assert_eq!(stats.requests(), 64);
    if stats.count(Route::Interrupt, "spin") == 0 {
        return skip(format!("this file system does not evict, or has no RWF_NOWAIT: {stats:?}"));
    }
    // Now everything is there.
    for at in 0..64 {
        file.read_exact_at(&mut buffer, at * (MIB / 8)).unwrap();
    }
    let again = file.stats();
    assert_eq!(again.because(Reason::Cached), stats.because(Reason::Cached) + 64);
}

#[test]
fn a_read_that_is_cached_in_part_gets_all_its_bytes() {
    let place = disk();
    let path = place.path().join("file");
    pattern_file(&path, MIB, 2);
    let file = buffered(&path);
    let mut buffer = vec![0; 16 * BLOCK];
    for round in 0..8 {
        evict(&file);
        let at = round * 16 * BLOCK as u64;
        // A miss, which warns the file, and one page of what is asked for next.
        file.read_exact_at(&mut buffer[..BLOCK], at).unwrap();
        assert_eq!(file.read_at(&mut buffer, at).unwrap(), buffer.len());
        check(&buffer, at, 2);
    }
}

#[test]
fn a_refusal_to_ask_the_cache_is_remembered() {
    let place = match memory() {
        Ok(place) => place,
        Err(why) => return skip(why),
    };
    let path = place.path().join("file");
    pattern_file(&path, BLOCK as u64, 2);
    let descriptor = fs::File::open(&path).unwrap().into();
    let kernel = Kernel::new(descriptor, 1, SpinMethod::default(), false);
    let mut buffer = [0u8; 100];
    // SAFETY: the buffer outlives the call.
    let io = unsafe { Io::plain(Action::Read, kernel.target(), buffer.as_mut_ptr(), 100, 0) };
    assert!(kernel.caches());
    if let Some(served) = kernel.cached(&io) {
        return skip(format!("tmpfs knows RWF_NOWAIT here: {served}"));
    }
    assert!(!kernel.caches(), "it would be asked again");
    assert_eq!(kernel.call(&io), 100);
    check(&buffer, 0, 2);
}

/// A read of 100 bytes, and one of as many in pieces: neither needs a call that is refused.
fn reads_without_asking(source: &impl Source, target: i32, errno: i32) {
    let mut buffer = [0u8; 100];
    // SAFETY: the buffer outlives the calls.
    let io = unsafe { Io::plain(Action::Read, target, buffer.as_mut_ptr(), 100, 7) };
    assert_eq!(source.cached(&io), None, "{errno}");
    assert!(!source.caches(), "{errno}: it would be asked again");
    assert_eq!(source.call(&io), 100, "{errno}");
    check(&buffer, 7, 5);
    buffer.fill(0);
    let (start, rest) = buffer.split_at_mut(30);
    let pieces = [IoSliceMut::new(start), IoSliceMut::new(rest)];
    // SAFETY: an IoSliceMut has an iovec's layout; all of it outlives the call.
    let io =
        unsafe { Io::vectored(Action::ReadVectored, target, pieces.as_ptr().cast(), 2, 100, 7) };
    assert_eq!(source.call(&io), 100, "{errno}");
    check(&buffer, 7, 5);
}

#[test]
fn where_preadv2_is_refused_reads_do_without() {
    let name = "where_preadv2_is_refused_reads_do_without";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    for errno in [libc::EOPNOTSUPP, libc::ENOSYS, libc::EPERM] {
        if !forbid(&[libc::SYS_preadv2, libc::SYS_pwritev2], errno) {
            return skip("no seccomp filters here");
        }
        let opened = fs::File::open(&path).unwrap();
        let external = External::new(&DeviceParameters::default(), false);
        reads_without_asking(&external, opened.as_raw_fd(), errno);
        let kernel = Kernel::new(opened.into(), 1, SpinMethod::default(), false);
        reads_without_asking(&kernel, kernel.target(), errno);
    }
}

#[test]
fn direct_io_never_asks_the_cache() {
    let fake = Fake::new(MIB, 2);
    let file = fake.open(fast(), Fixed::spin());
    assert_eq!(file.read_at(&mut [0; 10], 0).unwrap(), 10);
    assert_eq!((fake.log().cached, fake.log().calls), (0, 0));
    let kernel =
        Kernel::new(fs::File::open("/dev/null").unwrap().into(), 512, SpinMethod::CqPeek, false);
    assert!(!kernel.caches());
}

/// A source with a cache whose first call takes long enough to be taken for a miss.
fn missing(answers: impl IntoIterator<Item = Option<u32>>) -> (Fake, File<Fake>) {
    let fake = Fake::new(MIB, 2).with(|state| {
        state.cache = Some(answers.into_iter().collect());
        state.call_takes = Duration::from_millis(1);
    });
    let file = fake.open(fast(), Fixed::spin());
    assert_eq!(file.read_at(&mut [0; 10], 0).unwrap(), 10);
    assert_eq!((fake.log().calls, fake.log().cached), (1, 0));
    fake.lock().call_takes = Duration::ZERO;
    (fake, file)
}

#[test]
fn after_a_miss_hits_are_served_from_the_cache_and_misses_are_decided() {
    let (fake, file) = missing([Some(100), None, Some(50), Some(100)]);
    for (at, because_cached) in [(1, 2), (2, 2), (3, 2), (4, 3)] {
        let mut buffer = [0; 100];
        assert_eq!(file.read_at(&mut buffer, at).unwrap(), 100);
        check(&buffer, at, 2);
        assert_eq!(file.stats().because(Reason::Cached), because_cached);
    }
    assert_eq!((fake.log().cached, fake.log().submitted.len(), fake.log().calls), (4, 2, 1));
    assert_eq!(file.stats().requests(), 5);
}

#[test]
fn a_short_read_at_the_end_of_a_file_is_a_hit() {
    let (fake, file) = missing([Some(100); 40]);
    for _ in 0..32 {
        assert_eq!(file.read_at(&mut [0; 100], MIB - 10).unwrap(), 10);
    }
    // So many hits in a row, and the file is trusted again.
    assert_eq!((fake.log().cached, fake.log().submitted.len()), (32, 0));
    assert_eq!(file.read_at(&mut [0; 100], MIB - 10).unwrap(), 10);
    assert_eq!(fake.log().cached, 32);
}

#[test]
fn writes_and_syncs_do_not_ask_the_cache() {
    let (fake, file) = missing([]);
    assert_eq!(file.write_at(&[0; 10], 0).unwrap(), 10);
    file.sync().unwrap();
    assert_eq!((fake.log().cached, fake.log().submitted.len()), (0, 2));
}
