// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pools of buffers, and what a queue has the kernel look up once for all its requests.
#![allow(unsafe_code)]

mod common;

use std::collections::HashSet;
use std::os::fd::AsRawFd;
use std::sync::Arc;

use common::child::{child, in_a_child_with_a_file};
use common::machine::{disk, pattern_file};
use common::{BLOCK, Fixed, check, executor, fill, skip, uncached};
use dwell::buffer::{Aligned, Pool};
use dwell::ring;
use dwell::source::Source;
use dwell::{ErrorKind, Options};

const SEED: u64 = 5;
const BYTES: u64 = 64 << 10;

#[test]
fn a_pool_hands_out_each_buffer_once_and_takes_it_back() {
    let pool = Pool::new(3, 5000);
    let mut taken: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(taken.len(), 3);
    assert!(taken.iter().all(|buffer| **buffer == [0; 5000]));
    assert!(
        taken.iter().all(|buffer| (buffer.as_ptr() as usize).is_multiple_of(Aligned::ALIGNMENT))
    );
    for (at, buffer) in taken.iter_mut().enumerate() {
        buffer.fill(at as u8 + 1);
    }
    assert!(taken.iter().zip(1..).all(|(buffer, value)| **buffer == [value; 5000]));
    let (clone, last) = (pool.clone(), taken.pop().unwrap());
    let start = last.as_ptr() as usize;
    std::thread::spawn(move || drop(last)).join().unwrap();
    assert_eq!(clone.take().unwrap().as_ptr() as usize, start);
    drop(pool);
    assert_eq!(*taken[0], [1; 5000]);
    assert!(Pool::new(0, 4096).take().is_none());
    assert!(Pool::new(1, 0).take().unwrap().is_empty());
}

#[test]
fn threads_never_get_the_same_buffer_of_a_pool() {
    let pool = Pool::new(3, 8);
    std::thread::scope(|scope| {
        for number in 0..4u64 {
            let pool = &pool;
            scope.spawn(move || {
                for _ in 0..20_000 {
                    let Some(mut buffer) = pool.take() else { continue };
                    buffer.copy_from_slice(&number.to_ne_bytes());
                    std::hint::spin_loop();
                    assert_eq!(*buffer, number.to_ne_bytes());
                }
            });
        }
    });
    let all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert_eq!(all.len(), 3);
}

#[test]
fn the_buffers_of_a_pool_suit_devices_with_large_blocks() {
    let pool = Pool::new(4, 3 << 16);
    let all: Vec<_> = std::iter::from_fn(|| pool.take()).collect();
    assert!(all.iter().all(|buffer| (buffer.as_ptr() as usize).is_multiple_of(1 << 16)));
}

#[test]
fn registered_buffers_and_others_are_read_and_written_alike() {
    let place = disk();
    let path = place.path().join("data");
    for fixed in Fixed::all() {
        pattern_file(&path, BYTES, SEED);
        let options = Options::new()
            .write(true)
            .direct(true)
            .policy(Arc::new(fixed))
            .parameters(fixed.parameters());
        let Ok(file) = options.open(&path) else { return skip("no direct I/O here") };
        let pools = [Pool::new(2, BLOCK), Pool::new(2, 2 * BLOCK)];
        let mut reads = file.pipeline(4).unwrap();
        pools.iter().for_each(|pool| reads.register(pool).unwrap());
        let mut starts = HashSet::new();
        for round in 0..3 {
            for (at, pool) in pools.iter().enumerate() {
                let offset = (2 * at as u64 + 4 * round) * BLOCK as u64;
                let (buffer, note) = (pool.take().unwrap(), offset);
                reads.read_at((buffer, note), offset).map_err(|(error, _)| error).unwrap();
            }
            while let Some(done) = reads.next() {
                let (buffer, offset) = done.buffer.unwrap();
                assert_eq!(done.result.unwrap(), buffer.len());
                check(&buffer, offset, SEED);
                starts.insert(buffer.as_ptr() as usize);
            }
        }
        assert_eq!(starts.len(), 2);
        drop(reads);

        let mut writes = file.pipeline(4).unwrap();
        writes.register(&pools[1]).unwrap();
        for (at, pool) in pools.iter().enumerate() {
            let mut buffer = pool.take().unwrap();
            let offset = 8 * at as u64 * BLOCK as u64;
            fill(&mut buffer, offset, SEED + 1);
            writes.write_at(buffer, offset).map_err(|(error, _)| error).unwrap();
        }
        while let Some(done) = writes.next() {
            done.result.unwrap();
        }
        writes.sync(true).unwrap();
        writes.next().unwrap().result.unwrap();
        let found = std::fs::read(&path).unwrap();
        check(&found[..BLOCK], 0, SEED + 1);
        check(&found[BLOCK..8 * BLOCK], BLOCK as u64, SEED);
        check(&found[8 * BLOCK..10 * BLOCK], 8 * BLOCK as u64, SEED + 1);
    }
}

/// Pages that the kernel has pinned for this process, in KiB.
fn pinned_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmPin:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

#[test]
fn a_pool_is_pinned_and_its_file_looked_up_as_long_as_the_pipeline_lives() {
    let name = "a_pool_is_pinned_and_its_file_looked_up_as_long_as_the_pipeline_lives";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    if let Some(why) = ring::unavailable() {
        return skip(why);
    }
    let file = uncached(&path, Fixed::block());
    let before = pinned_kib();
    let pool = Pool::new(16, 64 << 10);
    let mut pipeline = file.pipeline(1).unwrap();
    pipeline.register(&pool).unwrap();
    pipeline.register(&pool).unwrap();
    // A huge page counts as a whole.
    assert!(pinned_kib() >= before + 1024);

    // The number of the descriptor is another file's now, and the pipeline reads its own still.
    let other = std::fs::File::open("/dev/zero").unwrap();
    let number = file.source().target();
    // SAFETY: plain calls on descriptors of this test, which has its process alone.
    let kept = unsafe {
        let kept = libc::dup(number);
        assert_eq!(libc::dup2(other.as_raw_fd(), number), number);
        kept
    };
    pipeline.read_at(pool.take().unwrap(), 0).map_err(|(error, _)| error).unwrap();
    let done = pipeline.next().unwrap();
    assert_eq!(done.result.unwrap() as u64, BYTES);
    check(&done.buffer.unwrap(), 0, SEED);
    // SAFETY: as above.
    unsafe {
        assert_eq!(libc::dup2(kept, number), number);
        libc::close(kept);
    }

    drop(pipeline);
    assert_eq!(pinned_kib(), before);
    drop(file);
    // A lease on it is refused while anybody has it open.
    let alone = std::fs::OpenOptions::new().write(true).open(&path).unwrap();
    // SAFETY: a plain call.
    let leased = unsafe { libc::fcntl(alone.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
    assert_eq!(leased, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn buffers_that_cannot_be_registered_are_said_and_served_all_the_same() {
    let name = "buffers_that_cannot_be_registered_are_said_and_served_all_the_same";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    if let Some(why) = ring::unavailable() {
        return skip(why);
    }
    let file = uncached(&path, Fixed::block());
    let mut pipeline = file.pipeline(3).unwrap();
    let mut pools: Vec<Pool> = (0..17).map(|_| Pool::new(1, BLOCK)).collect();
    pools[..16].iter().for_each(|pool| pipeline.register(pool).unwrap());
    let error = pipeline.register(&pools[16]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    assert!(error.to_string().contains("16 pools are registered"), "{error}");
    // One that nobody has any more makes room.
    let kept = pools.pop().unwrap();
    pools.truncate(15);
    pipeline.register(&kept).unwrap();
    pools.push(kept);
    pools.push(Pool::new(1, BLOCK));
    for pool in [&pools[0], &pools[15], &pools[16]] {
        pipeline.read_at(pool.take().unwrap(), 4096).map_err(|(error, _)| error).unwrap();
    }
    while let Some(done) = pipeline.next() {
        assert_eq!(done.result.unwrap(), BLOCK);
        check(&done.buffer.unwrap(), 4096, SEED);
    }
    drop(pipeline);

    let most = libc::rlimit { rlim_cur: 64 << 10, rlim_max: 64 << 10 };
    // SAFETY: plain calls, in a process that this test has alone. Root may lock what it likes.
    let limited = unsafe {
        libc::setrlimit(libc::RLIMIT_MEMLOCK, &most) == 0
            && (libc::geteuid() != 0 || libc::setresuid(65_534, 65_534, 65_534) == 0)
    };
    assert!(limited, "{}", std::io::Error::last_os_error());
    let mut pipeline = file.pipeline(1).unwrap();
    let pool = Pool::new(1, 1 << 20);
    let error = pipeline.register(&pool).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::OutOfRange);
    assert!(error.to_string().contains("ulimit -l"), "{error}");
    pipeline.read_at(pool.take().unwrap(), 0).map_err(|(error, _)| error).unwrap();
    assert_eq!(pipeline.next().unwrap().result.unwrap() as u64, BYTES);
    let small = Pool::new(1, BLOCK);
    pipeline.register(&small).unwrap();
    pipeline.read_at(small.take().unwrap(), 0).map_err(|(error, _)| error).unwrap();
    assert_eq!(pipeline.next().unwrap().result.unwrap(), BLOCK);
}

#[test]
fn an_executor_registers_pools_too_and_where_no_ring_is_nothing_is_to_be_done() {
    let place = disk();
    let path = place.path().join("data");
    pattern_file(&path, BYTES, SEED);
    let pool = Pool::new(2, BLOCK);
    let executor = executor();
    for address in [path.to_str().unwrap(), "emu:latency=5us,size=64KiB"] {
        let file = executor.file(Arc::new(dwell::open(address).unwrap())).unwrap();
        file.register(&pool).unwrap();
        let read = file.read_exact_at(pool.take().unwrap(), 8192);
        let (result, buffer) = executor.block_on(read);
        result.unwrap();
        if address.starts_with('/') {
            check(&buffer, 8192, SEED);
        }
    }
    let emulated = dwell::open("emu:latency=5us,size=64KiB").unwrap();
    let mut pipeline = emulated.pipeline(1).unwrap();
    pipeline.register(&pool).unwrap();
    pipeline.read_at(pool.take().unwrap(), 0).map_err(|(error, _)| error).unwrap();
    assert_eq!(pipeline.next().unwrap().result.unwrap(), BLOCK);
}
