// SPDX-License-Identifier: MIT OR Apache-2.0
//! Every route, on every kind of device, moves the right bytes to the right place.

mod common;

use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::path::Path;
use std::sync::Arc;
use std::thread;

use common::machine::{Ext4, Loop, MIB, Zram, disk, memory, pattern_file};
use common::{BLOCK, Fixed, check, fill, skip};
use dwell::any::AnySource;
use dwell::buffer::Aligned;
use dwell::{File, Options};

const SPAN: u64 = 8 * MIB;
const BLOCKS: u64 = SPAN / BLOCK as u64;
/// More than the machine has processors, or the contention would not be there.
const THREADS: u64 = 5;

fn open(path: &Path, direct: bool, fixed: Fixed) -> File {
    Options::new()
        .write(true)
        .create(true)
        .direct(direct)
        .parameters(fixed.parameters())
        .policy(Arc::new(fixed))
        .open(path)
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Writes and reads by one way from several threads at once: each its own blocks, with a seed that
/// changes at each round, so that a block of an earlier round or of another place is noticed.
fn threads_keep_their_blocks(path: &Path, direct: bool, fixed: Fixed, seed: u64) {
    let file = open(path, direct, fixed);
    thread::scope(|scope| {
        for owner in 0..THREADS {
            let file = &file;
            scope.spawn(move || {
                let mut block = Aligned::new(BLOCK);
                for round in 0..12 {
                    let at =
                        ((round * 37 + seed) % (BLOCKS / THREADS) * THREADS + owner) * BLOCK as u64;
                    let seed = seed * 100 + round;
                    fill(&mut block, at, seed);
                    file.write_all_at(&block, at).unwrap_or_else(|e| panic!("{fixed:?}: {e}"));
                    block.fill(0);
                    file.read_exact_at(&mut block, at).unwrap_or_else(|e| panic!("{fixed:?}: {e}"));
                    check(&block, at, seed);
                }
            });
        }
    });
    let stats = file.stats();
    assert_eq!(stats.requests(), THREADS * 24, "{fixed:?}: {stats:?}");
    assert_eq!((stats.errors, stats.bytes_read), (0, stats.bytes_written), "{fixed:?}");
}

/// Writes all blocks, then reads all of them, with `depth` in flight.
fn pipeline_keeps_its_blocks(path: &Path, direct: bool, fixed: Fixed, depth: u32, seed: u64) {
    let file = open(path, direct, fixed);
    let blocks = 150;
    let mut pipeline = file.pipeline::<Aligned>(depth).unwrap();
    for writing in [true, false] {
        let (mut next, mut finished) = (0, 0);
        let mut expected = std::collections::HashMap::new();
        while finished < blocks {
            while next < blocks && pipeline.has_room() {
                let at = next * 7 % blocks * BLOCK as u64;
                let mut buffer = Aligned::new(BLOCK);
                let ticket = if writing {
                    fill(&mut buffer, at, seed);
                    pipeline.write_at(buffer, at)
                } else {
                    pipeline.read_at(buffer, at)
                };
                let ticket = ticket.unwrap_or_else(|(error, _)| panic!("{fixed:?}: {error}"));
                assert!(expected.insert(ticket.0, at).is_none(), "a ticket in use came again");
                next += 1;
            }
            let done = pipeline.next().expect("requests are in flight");
            assert_eq!(done.result.unwrap_or_else(|e| panic!("{fixed:?}: {e}")), BLOCK);
            let at = expected.remove(&done.ticket.0).expect("a ticket that was given out");
            check(&done.buffer.expect("a transfer gives its buffer back"), at, seed);
            finished += 1;
        }
        assert!(pipeline.next().is_none() && pipeline.is_empty());
        pipeline.sync(true).unwrap();
        assert_eq!(pipeline.next().unwrap().result.unwrap(), 0);
    }
    drop(pipeline);
    let stats = file.stats();
    assert_eq!(stats.requests(), 2 * blocks + 2, "{fixed:?}, depth {depth}: {stats:?}");
}

fn every_route(path: &Path, direct: bool) {
    for (seed, fixed) in (1..).zip(Fixed::all()) {
        threads_keep_their_blocks(path, direct, fixed, seed);
        for depth in [1, 4, 32] {
            pipeline_keeps_its_blocks(path, direct, fixed, depth, seed * 1000 + u64::from(depth));
        }
    }
}

fn sized(path: &Path) {
    fs::File::create(path).unwrap().set_len(SPAN).unwrap();
}

#[test]
fn bytes_survive_every_route_on_a_file_with_direct_io() {
    let place = disk();
    let path = place.path().join("file");
    sized(&path);
    if let Err(error) = Options::new().direct(true).open(&path) {
        return skip(error);
    }
    every_route(&path, true);
}

#[test]
fn bytes_survive_every_route_on_a_buffered_file() {
    let place = disk();
    let path = place.path().join("file");
    sized(&path);
    every_route(&path, false);
}

#[test]
fn bytes_survive_every_route_on_tmpfs() {
    match memory() {
        Ok(place) => every_route(&place.path().join("file"), false),
        Err(why) => skip(why),
    }
}

#[test]
fn bytes_survive_every_route_on_ext4_on_a_loop_device() {
    match Ext4::new(32 * MIB) {
        Ok(ext4) => {
            let path = ext4.mount.at.path().join("file");
            sized(&path);
            every_route(&path, true);
        }
        Err(why) => skip(why),
    }
}

#[test]
fn bytes_survive_every_route_on_a_loop_device() {
    match Loop::new(SPAN) {
        Ok(device) => every_route(&device.device, true),
        Err(why) => skip(why),
    }
}

#[test]
fn bytes_survive_every_route_on_zram() {
    match Zram::new(SPAN) {
        Ok(device) => every_route(&device.device, true),
        Err(why) => skip(why),
    }
}

#[test]
fn sixteen_threads_share_one_file_without_mixing_their_answers() {
    let place = disk();
    let path = place.path().join("file");
    pattern_file(&path, SPAN, 3);
    for fixed in [Fixed::spin(), Fixed::block()] {
        let file = open(&path, false, fixed);
        thread::scope(|scope| {
            for thread in 0..16u64 {
                let file = &file;
                scope.spawn(move || {
                    let mut buffer = vec![0; 3000];
                    for round in 0..100 {
                        let at = (thread * 7919 + round * 104_729) % (SPAN - 3000);
                        file.read_exact_at(&mut buffer, at).unwrap();
                        check(&buffer, at, 3);
                    }
                });
            }
        });
        assert_eq!(file.stats().requests(), 1600);
    }
}

#[test]
fn vectored_transfers_keep_the_order_of_their_pieces() {
    let place = disk();
    let path = place.path().join("file");
    sized(&path);
    for direct in [false, true] {
        if direct && Options::new().direct(true).open(&path).is_err() {
            return skip("no direct I/O here");
        }
        for (seed, fixed) in (1..).zip(Fixed::all()) {
            let file = open(&path, direct, fixed);
            let mut pieces = [Aligned::new(BLOCK), Aligned::new(3 * BLOCK), Aligned::new(BLOCK)];
            let mut at = 2 * BLOCK as u64;
            for piece in &mut pieces {
                fill(piece, at, seed);
                at += piece.len() as u64;
            }
            let slices = pieces.each_ref().map(|piece| IoSlice::new(piece));
            assert_eq!(file.write_vectored_at(&slices, 2 * BLOCK as u64).unwrap(), 5 * BLOCK);

            // The same bytes, cut elsewhere; pieces that direct I/O cannot take go by a bounce.
            for cuts in [[2 * BLOCK, BLOCK, 2 * BLOCK], [100, 4 * BLOCK, BLOCK - 100]] {
                let mut pieces = cuts.map(Aligned::new);
                let [a, b, c] = pieces.each_mut().map(|piece| IoSliceMut::new(piece));
                let read = file.read_vectored_at(&mut [a, b, c], 2 * BLOCK as u64).unwrap();
                assert_eq!(read, 5 * BLOCK, "{fixed:?}");
                check(&pieces.concat(), 2 * BLOCK as u64, seed);
            }
            assert_eq!(file.read_vectored_at(&mut [], 0).unwrap(), 0);
        }
    }
}

trait Concat {
    fn concat(&self) -> Vec<u8>;
}

impl Concat for [Aligned; 3] {
    fn concat(&self) -> Vec<u8> {
        self.iter().flat_map(|piece| piece.iter().copied()).collect()
    }
}

#[test]
fn direct_io_takes_any_memory_and_any_range_to_read() {
    let place = disk();
    let path = place.path().join("file");
    let length = 10 * BLOCK as u64 + 123;
    pattern_file(&path, length, 9);
    if Options::new().direct(true).open(&path).is_err() {
        return skip("no direct I/O here");
    }
    for fixed in Fixed::all() {
        let file = open(&path, true, fixed);
        let mut memory = vec![0u8; 6 * BLOCK];
        for (skew, offset, bytes) in
            [(1, 0, BLOCK), (0, 1, BLOCK), (3, 4095, 2), (7, 4096, 9000), (0, 12_000, 1), (5, 9, 0)]
        {
            let buffer = &mut memory[skew..skew + bytes];
            assert_eq!(file.read_at(buffer, offset).unwrap(), bytes, "{fixed:?} at {offset}");
            check(buffer, offset, 9);
        }
        // Memory that is out of line goes by a bounce; a range that is cannot be written.
        let mut odd = vec![0u8; BLOCK + 1];
        fill(&mut odd[1..], 4096, 9);
        assert_eq!(file.write_at(&odd[1..], 4096).unwrap(), BLOCK);
        let error = file.write_at(&odd[1..], 4095).unwrap_err().to_string();
        assert!(error.contains("multiples of") && error.contains("4095"), "{error}");
        let slices = [IoSlice::new(&odd[1..101]), IoSlice::new(&odd[101..])];
        assert_eq!(file.write_vectored_at(&slices, 4096).unwrap(), BLOCK);
        let mut whole = vec![0; length as usize];
        file.read_exact_at(&mut whole, 0).unwrap();
        check(&whole, 0, 9);
    }
}

#[test]
fn reads_around_the_end_of_a_file_stop_there() {
    let place = disk();
    let path = place.path().join("file");
    let length = 2 * BLOCK as u64 + 100;
    pattern_file(&path, length, 4);
    for direct in [false, true] {
        if direct && Options::new().direct(true).open(&path).is_err() {
            return skip("no direct I/O here");
        }
        for fixed in Fixed::all() {
            let file = open(&path, direct, fixed);
            assert_eq!(file.bytes().unwrap(), length);
            let mut buffer = Aligned::new(2 * BLOCK);
            for (offset, expected) in [
                (BLOCK as u64, BLOCK + 100),
                (2 * BLOCK as u64, 100),
                (length - 1, 1),
                (length, 0),
                (length + 1, 0),
                (1 << 40, 0),
            ] {
                let read = file.read_at(&mut buffer, offset).unwrap();
                assert_eq!(read, expected, "{fixed:?}, direct {direct}, at {offset}");
                check(&buffer[..read], offset, 4);
            }
            let error = file.read_exact_at(&mut buffer, length - 50).unwrap_err();
            assert!(error.to_string().contains(&format!("byte {length}")), "{error}");
            assert_eq!(std::io::Error::from(error).kind(), std::io::ErrorKind::UnexpectedEof);
        }
    }
}

#[test]
fn the_last_offset_of_all_does_not_mean_where_the_descriptor_stands() {
    let place = disk();
    let path = place.path().join("file");
    pattern_file(&path, BLOCK as u64, 8);
    for fixed in Fixed::all() {
        let file = open(&path, false, fixed);
        for offset in [u64::MAX, 1 << 63] {
            let mut buffer = [0u8; 16];
            assert!(file.read_at(&mut buffer, offset).is_err(), "{fixed:?}");
            assert!(file.write_at(&[0; 16], offset).is_err(), "{fixed:?}");
            let mut pipeline = file.pipeline::<Vec<u8>>(2).unwrap();
            let (error, buffer) = pipeline.write_at(vec![0; 16], offset).unwrap_err();
            assert_eq!(buffer.len(), 16);
            assert!(error.to_string().contains(&offset.to_string()), "{error}");
        }
    }
    check(&fs::read(&path).unwrap(), 0, 8);
}

#[test]
fn empty_requests_end_at_once() {
    let place = disk();
    let path = place.path().join("file");
    sized(&path);
    for fixed in Fixed::all() {
        let file = open(&path, false, fixed);
        assert_eq!(file.read_at(&mut [], 7).unwrap(), 0);
        assert_eq!(file.write_at(&[], 7).unwrap(), 0);
        assert_eq!(file.write_vectored_at(&[], 7).unwrap(), 0);
        let mut pipeline = file.pipeline::<Vec<u8>>(1).unwrap();
        pipeline.read_at(Vec::new(), 7).unwrap();
        assert_eq!(pipeline.next().unwrap().result.unwrap(), 0, "{fixed:?}");
    }
}

#[test]
fn a_descriptor_has_the_flags_that_were_asked_for() {
    use std::os::fd::AsRawFd;
    const NONBLOCK: u32 = 0o4000;
    const DSYNC: u32 = 0o10000;
    let file = tempfile::NamedTempFile::new().unwrap();
    for sync in [false, true] {
        let opened = Options::new().write(true).sync(sync).open(file.path()).unwrap();
        let AnySource::Kernel(kernel) = opened.source() else { panic!("not the kernel's") };
        let number = kernel.descriptor().as_raw_fd();
        let facts = std::fs::read_to_string(format!("/proc/self/fdinfo/{number}")).unwrap();
        let flags = facts.lines().find_map(|line| line.strip_prefix("flags:")).unwrap();
        let flags = u32::from_str_radix(flags.trim(), 8).unwrap();
        assert_eq!((flags & NONBLOCK, flags & DSYNC != 0), (0, sync), "{flags:o}");
        opened.write_all_at(b"kept", 0).unwrap();
    }
}

#[test]
fn a_lent_descriptor_is_read_and_written_as_it_was_opened_and_stays_open() {
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};

    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = dir.path().join("lent");
    let mut block = Aligned::new(BLOCK);
    for direct in [false, true] {
        for fixed in [Fixed::spin(), Fixed::block()] {
            fs::write(&path, vec![0; 4 * BLOCK]).unwrap();
            let mut opening = fs::OpenOptions::new();
            opening.read(true).write(true);
            if direct {
                opening.custom_flags(libc::O_DIRECT);
            }
            let lent: &'static fs::File = match opening.open(&path) {
                Ok(file) => Box::leak(Box::new(file)),
                Err(error) => {
                    skip(format!("no direct I/O in {}: {error}", dir.path().display()));
                    continue;
                }
            };
            let options = Options::new().parameters(fixed.parameters()).policy(Arc::new(fixed));
            let file = options.open_borrowed(lent.as_fd(), &path).unwrap();
            assert_eq!((file.bytes().unwrap(), file.path()), (4 * BLOCK as u64, &*path));
            // An unaligned read is served where the descriptor is direct, so that is known of it.
            fill(&mut block, BLOCK as u64, 7);
            assert_eq!(file.write_at(&block, BLOCK as u64).unwrap(), BLOCK);
            file.sync_data().unwrap();
            let mut part = [0; 100];
            assert_eq!(file.read_at(&mut part, BLOCK as u64 + 50).unwrap(), 100);
            check(&part, BLOCK as u64 + 50, 7);
            drop(file);
            assert_eq!(lent.read_at(&mut block, BLOCK as u64).unwrap(), BLOCK);
            check(&block, BLOCK as u64, 7);
        }
    }
    let (reader, _writer) = std::io::pipe().unwrap();
    let reader: &'static std::io::PipeReader = Box::leak(Box::new(reader));
    let refused = Options::new().open_borrowed(reader.as_fd(), "a-pipe").expect_err("no storage");
    assert!(refused.to_string().contains("a-pipe: neither a regular file"), "{refused}");
}
