// SPDX-License-Identifier: MIT OR Apache-2.0
//! Processes that may not, or may no longer, do what a ring needs; queues filled to the brim.

mod common;

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use common::child::{child, in_a_child_with_a_file};
use common::forbid::forbid;
use common::machine::{Loop, MIB, disk, pattern_file};
use common::refused::{counted, forbid_and_count};
use common::{BLOCK, Fixed, RING_CALLS, check, fast, skip, uncached};
use dwell::buffer::Aligned;
use dwell::buffer::{IoBuf, IoBufMut};
use dwell::dwell_policy::Routes;
use dwell::policy::{SmartCon, Spin};
use dwell::queue::{Action, Io, Ticket};
use dwell::ring::{self, Completed, Ring, SpinMethod};
use dwell::source::Source;
use dwell::{File, Mode, Options, Reason, Route, WaitPolicy};

fn open(path: &Path, fixed: Fixed) -> File {
    open_by(path, fixed, fixed)
}

fn open_by(path: &Path, fixed: Fixed, policy: impl WaitPolicy + 'static) -> File {
    let options =
        Options::new().write(true).parameters(fixed.parameters()).policy(Arc::new(policy));
    options.open(path).unwrap_or_else(|error| panic!("{error}"))
}

/// Reads and writes by several policies, all of which must do without a ring.
fn is_served_without_rings(path: &Path) {
    for fixed in Fixed::all() {
        let file = uncached(path, fixed);
        assert_eq!(file.source().routes(), Routes::INLINE);
        let mut buffer = vec![0; 5000];
        for at in [0, 77, 9000] {
            file.read_exact_at(&mut buffer, at).unwrap();
            check(&buffer, at, 5);
            file.write_all_at(&buffer, at).unwrap();
        }
        let mut pipeline = file.pipeline::<Vec<u8>>(4).unwrap();
        let mut sent = 0;
        while pipeline.has_room() {
            pipeline.read_at(vec![0; 10], sent).unwrap();
            sent += 1;
        }
        assert_eq!(sent, 4, "there is room for as many as asked for");
        assert!(pipeline.read_at(vec![0; 10], 0).is_err());
        for at in 0..4 {
            let done = pipeline.next().unwrap();
            assert_eq!(done.result.unwrap(), 10);
            check(&done.buffer.unwrap(), at, 5);
        }
        let stats = file.stats();
        let inline = stats.count(Route::Inline, "block");
        assert_eq!((stats.requests(), inline), (10, 10), "{fixed:?}: {stats:?}");
        let why = if fixed.route == Route::Inline { Reason::Fixed } else { Reason::NoQueue };
        assert_eq!(stats.because(why), 10, "{fixed:?}: {stats:?}");
    }
    let file = open_by(path, Fixed::spin(), SmartCon::default());
    let mut buffer = vec![0; 5000];
    file.read_exact_at(&mut buffer, 3).unwrap();
    check(&buffer, 3, 5);
}

#[test]
fn where_io_uring_is_forbidden_everything_is_served_inline() {
    if let Some(path) = child() {
        if !forbid(&RING_CALLS, libc::EPERM) {
            return skip("no seccomp filters here");
        }
        return is_served_without_rings(&path);
    }
    in_a_child_with_a_file("where_io_uring_is_forbidden_everything_is_served_inline");
}

#[test]
fn where_io_uring_is_missing_everything_is_served_inline() {
    if let Some(path) = child() {
        if !forbid(&RING_CALLS, libc::ENOSYS) {
            return skip("no seccomp filters here");
        }
        return is_served_without_rings(&path);
    }
    in_a_child_with_a_file("where_io_uring_is_missing_everything_is_served_inline");
}

#[test]
fn a_ring_that_is_forbidden_after_it_was_made_loses_no_request() {
    let name = "a_ring_that_is_forbidden_after_it_was_made_loses_no_request";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    let mut fixed = Fixed::all();
    fixed.retain(|fixed| fixed.route == Route::Interrupt);
    let files: Vec<_> = fixed.into_iter().map(|fixed| uncached(&path, fixed)).collect();
    let mut pipelines: Vec<_> =
        files.iter().map(|file| file.pipeline::<Vec<u8>>(4).unwrap()).collect();
    let mut buffer = vec![0; 1000];
    for (file, pipeline) in files.iter().zip(&mut pipelines) {
        file.read_exact_at(&mut buffer, 1).unwrap();
        pipeline.read_at(vec![0; 10], 1).unwrap();
        pipeline.next().unwrap().result.unwrap();
    }
    if !forbid(&RING_CALLS, libc::EPERM) {
        return skip("no seccomp filters here");
    }
    for (file, pipeline) in files.iter().zip(&mut pipelines) {
        for at in 0..10 {
            buffer.fill(0);
            file.read_exact_at(&mut buffer, at).unwrap();
            check(&buffer, at, 5);
            (0..4).for_each(|piece| assert!(pipeline.read_at(vec![0; 10], at + piece).is_ok()));
            for piece in 0..4 {
                let done = pipeline.next().unwrap();
                assert_eq!(done.result.unwrap(), 10);
                check(&done.buffer.unwrap(), at + piece, 5);
            }
        }
    }
}

#[test]
fn a_process_without_descriptors_does_not_try_for_a_ring_at_each_request() {
    let name = "a_process_without_descriptors_does_not_try_for_a_ring_at_each_request";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    if let Some(why) = ring::unavailable() {
        return skip(why);
    }
    let file = uncached(&path, Fixed::spin());
    let read = |times: u64| {
        for at in 0..times {
            let mut buffer = [0; 10];
            file.read_exact_at(&mut buffer, at).unwrap();
            check(&buffer, at, 5);
        }
    };
    if !forbid_and_count(libc::SYS_io_uring_setup) {
        return skip("no seccomp filters here");
    }
    read(1000);
    assert!((2..=11).contains(&counted()), "{} times in 1000 requests", counted());
    read(9000);
    assert!((3..=14).contains(&counted()), "{} times in 10000 requests", counted());
}

#[test]
fn a_ring_is_made_once_there_are_descriptors_again() {
    let name = "a_ring_is_made_once_there_are_descriptors_again";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    if let Some(why) = ring::unavailable() {
        return skip(why);
    }
    let file = uncached(&path, Fixed::spin());
    let read = |times: u64| {
        for at in 0..times {
            file.read_exact_at(&mut [0; 10], at).unwrap();
        }
        file.stats().count(Route::Interrupt, "spin")
    };
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a live structure.
    unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    let none = libc::rlimit { rlim_cur: 3, ..limit };
    // SAFETY: a live structure.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &none) };
    assert_eq!(read(20), 0);
    // SAFETY: a live structure.
    unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    assert!(read(100) > 50);
}

/// A buffer that counts how often it was dropped.
struct Counted(Aligned, Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: an Aligned is a pointer to memory of its own.
unsafe impl IoBuf for Counted {
    fn data(&self) -> (*const u8, usize) {
        (self.0.as_ptr(), self.0.len())
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Counted {
    fn room(&mut self) -> (*mut u8, usize) {
        (self.0.as_mut_ptr(), self.0.len())
    }
}

#[test]
fn a_dropped_pipeline_gives_all_its_buffers_back() {
    let device = match Loop::new(8 * MIB) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    // A pipeline that is dropped waits for so long, and then gives memory up.
    const PATIENCE: Duration = Duration::from_millis(200);
    let gave_back = |method: SpinMethod| {
        let options = Options::new()
            .direct(true)
            .parameters(dwell::parameters::DeviceParameters { method, ..fast() });
        let file = options.policy(Arc::new(Spin)).open(&device.device).unwrap();
        let dropped = Arc::new(AtomicUsize::new(0));
        let mut pipeline = file.pipeline::<Counted>(64).unwrap();
        for at in 0..64 {
            let buffer = Counted(Aligned::new(16 * BLOCK), dropped.clone());
            pipeline.read_at(buffer, at * MIB / 16).map_err(|(error, _)| error).unwrap();
        }
        pipeline.flush();
        assert_eq!(dropped.load(Ordering::Relaxed), 0);
        let began = Instant::now();
        drop(pipeline);
        let all = dropped.load(Ordering::Relaxed) == 64;
        assert!(all || began.elapsed() >= PATIENCE, "{method}");
        all
    };
    for method in SpinMethod::ALL {
        assert!((0..5).any(|_| gave_back(method)), "{method}");
    }
}

#[test]
fn thousands_of_requests_in_flight_lose_none() {
    let place = disk();
    let path = place.path().join("file");
    pattern_file(&path, 4 * MIB, 5);
    for method in SpinMethod::ALL {
        for mode in [Mode::Spin, Mode::Block] {
            let file = open(&path, Fixed { method, mode, ..Fixed::spin() });
            let mut pipeline = file.pipeline::<Vec<u8>>(4096).unwrap();
            let (mut sent, mut done) = (0u64, 0);
            let mut expected = std::collections::HashMap::new();
            while done < 10_000 {
                while sent < 10_000 && pipeline.has_room() {
                    let at = sent * 409 % (4 * MIB - 64);
                    let ticket = pipeline.read_at(vec![0; 64], at).unwrap();
                    assert!(expected.insert(ticket.0, at).is_none());
                    sent += 1;
                }
                let finished = pipeline.next().expect("requests are in flight");
                assert_eq!(finished.result.unwrap(), 64);
                let at = expected.remove(&finished.ticket.0).expect("in flight");
                check(&finished.buffer.unwrap(), at, 5);
                done += 1;
            }
            assert!(pipeline.is_empty() && expected.is_empty());
        }
    }
}

#[test]
fn completions_that_overflow_the_ring_are_still_found_by_looking() {
    let place = disk();
    let path = place.path().join("file");
    pattern_file(&path, 64 << 10, 5);
    let file = fs::File::open(&path).unwrap();
    for method in SpinMethod::ALL {
        let mut ring = match Ring::new(4, Completed::ByInterrupt(method)) {
            Ok(ring) => ring,
            Err(error) => return skip(error),
        };
        let mut buffers = [[0u8; 100]; 4];
        let mut tickets = Vec::new();
        for (at, buffer) in (0..4).zip(&mut buffers) {
            let memory = buffer.as_mut_ptr();
            // SAFETY: the buffers outlive the looks below, which end with the last completion.
            let io = unsafe { Io::plain(Action::Read, file.as_raw_fd(), memory, 100, at * 100) };
            // SAFETY: the memory outlives the ring, and each request is submitted once.
            tickets.push(unsafe { ring.submit(&io) }.unwrap());
        }
        // SAFETY: a sync names no memory.
        let fifth = unsafe { ring.submit(&Io::sync(file.as_raw_fd(), true)) };
        assert!(fifth.is_err(), "it holds four");
        // Each cancellation completes too, and the completion queue holds eight.
        for _ in 0..50 {
            tickets.iter().for_each(|ticket| ring.cancel(*ticket));
        }
        let mut done: Vec<Ticket> = Vec::new();
        for _ in 0..100_000_000u64 {
            ring.poll(&mut |completion| {
                assert!(!done.contains(&completion.ticket));
                done.push(completion.ticket);
            });
            if done.len() == 4 {
                break;
            }
        }
        assert_eq!(done.len(), 4, "{method}");
        assert_eq!(ring.backlog(), Default::default());
    }
}
