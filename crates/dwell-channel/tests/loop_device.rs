// SPDX-License-Identifier: MIT OR Apache-2.0
//! Served files on a block device of their own, past the page cache: through Dwell's queues, many
//! at once.

mod common;

use std::fs::File as Plain;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;

use common::byte_at;
use common::disk::Disk;
use common::scene::{Scene, scene_in, to_channels};
use dwell::File;
use dwell::buffer::Aligned;
use dwell_channel::daemon::{Daemon, Options};

fn stage(bytes: usize) -> Option<(Scene, Disk)> {
    let disk = Disk::make()?;
    let daemon = Arc::new(Daemon::start(Options::default()).unwrap());
    let scene = scene_in(&disk.at(), daemon, true)?;
    let data: Vec<u8> = (0..bytes).map(byte_at).collect();
    let file = Plain::create(scene.path("data")).unwrap();
    file.write_all_at(&data, 0).unwrap();
    file.sync_all().unwrap();
    Some((scene, disk))
}

fn direct(scene: &Scene) -> File {
    to_channels().write(true).direct(true).open(scene.path("data")).unwrap()
}

/// Bytes of the device beneath, read past its page cache.
fn beneath(path: &Path, at: u64, bytes: usize) -> Vec<u8> {
    let file = Plain::options().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
    let mut buffer = Aligned::new(bytes);
    file.read_exact_at(&mut buffer, at).unwrap();
    buffer.to_vec()
}

#[test]
fn direct_requests_go_past_the_page_cache_of_the_backing_file_system() {
    let Some((scene, _disk)) = stage(1 << 20) else { return };
    let file = direct(&scene);
    let backing = scene.backing.path().join("data");
    for at in (0..1u64 << 20).step_by(40_960) {
        let mut buffer = Aligned::new(8192);
        file.read_exact_at(&mut buffer, at).unwrap();
        assert!(buffer.iter().enumerate().all(|(n, byte)| *byte == byte_at(at as usize + n)));
        buffer.fill(at as u8 | 1);
        file.write_all_at(&buffer, at).unwrap();
        // On the device when the write returns, and not in memory only.
        assert!(beneath(&backing, at, 8192).iter().all(|byte| *byte == at as u8 | 1));
    }
    // Unaligned ones are the cache's, and agree with all others.
    file.write_all_at(&[9; 100], 4000).unwrap();
    let mut buffer = [0; 200];
    file.read_exact_at(&mut buffer, 3950).unwrap();
    assert!(buffer[50..150].iter().all(|byte| *byte == 9) && buffer[..50] == [1; 50]);
    file.sync().unwrap();
    assert_eq!(beneath(&backing, 0, 8192)[4000..4100], [9; 100]);
    let tally = scene.daemon.tally();
    assert!(tally.commands > 50 && tally.broken == 0, "{tally:?}");
}

#[test]
fn many_direct_requests_are_in_flight_at_once() {
    const BLOCKS: u64 = 512;
    let Some((scene, _disk)) = stage(BLOCKS as usize * 4096) else { return };
    let file = direct(&scene);
    let mut pipeline = file.pipeline::<Aligned>(64).unwrap();
    let block = |n: u64| n * 331 % BLOCKS;
    // Each block is written while others are, and read when its write is over.
    let (mut sent, mut read) = (0, 0);
    while read < BLOCKS {
        while sent < BLOCKS && pipeline.has_room() {
            let mut buffer = Aligned::new(4096);
            buffer.fill(block(sent) as u8 ^ 0x5a);
            let at = block(sent) * 4096;
            pipeline.write_at(buffer, at).map_err(|(error, _)| error).unwrap();
            sent += 1;
        }
        let Some(done) = pipeline.next() else { break };
        assert_eq!(done.result.unwrap(), 4096);
        read += 1;
    }
    assert_eq!(read, BLOCKS);
    drop(pipeline);
    let backing = scene.backing.path().join("data");
    for n in 0..BLOCKS {
        let seen = beneath(&backing, n * 4096, 4096);
        assert!(seen.iter().all(|byte| *byte == n as u8 ^ 0x5a), "block {n}");
    }
    let tally = scene.daemon.tally();
    assert!(tally.commands >= BLOCKS, "{tally:?}");
}
