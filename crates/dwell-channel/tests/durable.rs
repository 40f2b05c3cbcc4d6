// SPDX-License-Identifier: MIT OR Apache-2.0
//! What was to be durable is on the device when the call returns.

mod common;

use std::fs::{self, File as Plain};
use std::io::IoSlice;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;

use common::disk::Disk;
use common::scene::scene_in;
use dwell_channel::daemon::{Daemon, Options};
use rustix::io::ReadWriteFlags;

/// Whether bytes are on the device, and not in memory only.
fn is_on(disk: &Disk, bytes: &[u8]) -> bool {
    let image = fs::read(disk.at().with_file_name("image")).unwrap();
    // Data starts at a block.
    image.chunks(4096).any(|block| block.starts_with(bytes))
}

#[test]
fn a_write_that_asks_for_it_by_itself_is_durable() {
    for passthrough in [true, false] {
        let Some(disk) = Disk::make_with(16 << 20, &["-b", "4096"], "loop") else { return };
        let daemon = Arc::new(Daemon::start(Options::default()).unwrap());
        let Some(scene) = scene_in(&disk.at(), daemon, passthrough) else { return };
        let story = format!("{:?}", scene.facts().data_path);
        let path = scene.path("data");
        fs::write(&path, vec![0; 1 << 20]).unwrap();
        let file = Plain::options().read(true).write(true).open(&path).unwrap();
        file.sync_all().unwrap();
        let flags = [ReadWriteFlags::DSYNC, ReadWriteFlags::SYNC];
        // Over what is there, and past the end.
        for (number, at) in [0u64, 8192, 1 << 20, (1 << 20) + 4096].into_iter().enumerate() {
            for flag in flags {
                let bytes = format!("{story} {flag:?} {number} {at}, durable at once").into_bytes();
                let done = rustix::io::pwritev2(&file, &[IoSlice::new(&bytes)], at, flag).unwrap();
                assert_eq!(done, bytes.len());
                assert!(is_on(&disk, &bytes), "{}", String::from_utf8_lossy(&bytes));
            }
        }
        // Nothing is written back unasked so soon, or this would show nothing.
        file.write_all_at(b"not asked for", 4096).unwrap();
        let unasked = is_on(&disk, b"not asked for");
        println!("{story}: a write that did not ask is on the device: {unasked}");

        let sync = Plain::options().write(true).custom_flags(libc::O_DSYNC).open(&path).unwrap();
        sync.write_all_at(b"a descriptor that asks", 16_384).unwrap();
        assert!(is_on(&disk, b"a descriptor that asks"), "{story}");
        file.write_all_at(b"and a sync", 20_480).unwrap();
        file.sync_data().unwrap();
        assert!(is_on(&disk, b"and a sync"), "{story}");
    }
}

#[test]
fn a_sync_of_what_is_in_memory_is_asked_for_once() {
    let counts = |dir: &std::path::Path, passthrough| {
        let daemon = Arc::new(Daemon::start(Options::default()).unwrap());
        let scene = scene_in(dir, daemon, passthrough)?;
        let (file, root) =
            (Plain::create(scene.path("data")).unwrap(), Plain::open(scene.mount.path()));
        let root = root.unwrap();
        for at in 0..20 {
            file.write_all_at(&[1; 100], at * 100).unwrap();
            file.sync_all().unwrap();
            file.sync_data().unwrap();
            root.sync_all().unwrap();
        }
        let requests = scene.requests();
        Some(["fsync", "fsyncdir"].map(|kind| requests.get(kind).copied().unwrap_or(0)))
    };
    let disk = Disk::make();
    for passthrough in [true, false] {
        let Some(in_memory) = counts(std::path::Path::new("/dev/shm"), passthrough) else { return };
        assert_eq!(in_memory, [1, 1]);
        if let Some(disk) = &disk {
            assert_eq!(counts(&disk.at(), passthrough), Some([40, 20]));
        }
    }
}
