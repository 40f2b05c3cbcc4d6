// SPDX-License-Identifier: MIT OR Apache-2.0
//! A user gets through a mount and through channels what they would get on the directory beneath,
//! and no more.

mod common;

use std::fs::{self, File as Plain};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use common::disk::Disk;
use common::scene::{Scene, scene_in, serve, to_channels};
use common::{USER, as_user};
use dwell::buffer::Aligned;
use dwell_channel::daemon::{Daemon, Options};

/// A directory of everybody's, served by root, passed through by the kernel or not.
fn served_in(dir: &Path, passthrough: bool) -> Option<Scene> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: only root serves other users");
        return None;
    }
    let daemon = Arc::new(Daemon::start(Options::default()).unwrap());
    let scene = scene_in(dir, daemon, passthrough)?;
    fs::set_permissions(scene.mount.path(), fs::Permissions::from_mode(0o777)).unwrap();
    Some(scene)
}

#[test]
fn creating_a_name_that_somebody_else_makes_meanwhile_does_not_open_their_file() {
    let Some(scene) = served_in(Path::new("/var/tmp"), true) else { return };
    // Nobody but root may look into it, let alone empty it.
    let secret = scene.backing.path().join("secret");
    let (backing, mount) = (scene.backing.path(), scene.mount.path());
    // The kernel remembers a name for a while: each is tried once.
    let contested = |dir: &Path, name: u32| dir.join(format!("contested-{name}"));
    let name = AtomicU32::new(0);
    let written = || fs::write(&secret, "secret");
    written().unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o600)).unwrap();
    let over = AtomicBool::new(false);
    let (mut own, mut refused) = (0, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let contested = contested(backing, name.load(Ordering::Relaxed));
                let _ = fs::hard_link(&secret, &contested);
                let _ = fs::remove_file(&contested);
            }
        });
        let make = || {
            for at in 0..2000 {
                name.store(at, Ordering::Relaxed);
                let mut options = Plain::options();
                options.write(true).create(true).truncate(true).mode(0o666);
                match options.open(contested(mount, at)) {
                    Ok(file) => {
                        assert_eq!(file.metadata().unwrap().uid(), USER, "root's file was opened");
                        own += 1;
                    }
                    Err(error) => {
                        let stale = error.raw_os_error() == Some(libc::ESTALE);
                        let denied = error.kind() == io::ErrorKind::PermissionDenied;
                        let gone = error.kind() == io::ErrorKind::NotFound;
                        assert!(stale || denied || gone, "{error}");
                        refused += 1;
                    }
                }
            }
        };
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| as_user(USER, make)));
        over.store(true, Ordering::Relaxed);
        made.unwrap();
    });
    assert_eq!(
        fs::read(&secret).unwrap(),
        b"secret",
        "a file was emptied that its opener may not write"
    );
    println!("{own} made, {refused} refused");
}

/// Bytes that are free on a file system, and those of them that are the superuser's alone.
fn free(dir: &Path) -> (u64, u64) {
    let facts = rustix::fs::statvfs(dir).unwrap();
    (facts.f_bfree * facts.f_frsize, (facts.f_bfree - facts.f_bavail) * facts.f_frsize)
}

const PIECE: usize = 64 << 10;

/// Writes pieces until one is refused: how many bytes were taken, and why the next was not.
fn fill(mut write: impl FnMut(&[u8], u64) -> io::Result<()>) -> (u64, Option<i32>) {
    let piece = Aligned::new(PIECE);
    for at in (0..DISK_BYTES).step_by(PIECE) {
        if let Err(error) = write(&piece, at) {
            return (at, error.raw_os_error());
        }
    }
    (DISK_BYTES, None)
}

const DISK_BYTES: u64 = 48 << 20;

/// Fills a file through the mount, as a program that knows nothing of Dwell.
fn fill_by_kernel(path: &Path) -> (u64, Option<i32>) {
    use std::os::unix::fs::FileExt;
    let file = Plain::options().write(true).create(true).truncate(true).open(path).unwrap();
    fill(|piece, at| file.write_all_at(piece, at))
}

/// Fills a file that is one hole, by channel: past the page cache or not.
fn fill_by_channel(path: &Path, direct: bool) -> (u64, Option<i32>) {
    Plain::create(path).unwrap().set_len(DISK_BYTES).unwrap();
    let file = to_channels().write(true).direct(direct).open(path).unwrap();
    fill(|piece, at| {
        let done = file.write_all_at(piece, at);
        done.map_err(|error| io::Error::from_raw_os_error(error.errno().unwrap_or(0)))
    })
}

#[test]
fn a_user_gets_no_block_that_ext4_keeps_for_the_superuser() {
    for passthrough in [true, false] {
        fill_up(passthrough);
    }
}

fn fill_up(passthrough: bool) {
    let Some(disk) = Disk::make_with(DISK_BYTES, &["-m", "30"], "loop") else { return };
    let Some(scene) = served_in(&disk.at(), passthrough) else { return };
    let (_, kept) = free(&disk.at());
    assert!(kept > 8 << 20, "the superuser's reserve is {kept} bytes");
    for (name, direct) in [("kernel", None), ("channel", Some(false)), ("direct", Some(true))] {
        let (path, before) = (scene.path(name), scene.daemon.tally().commands);
        let (bytes, why) = as_user(USER, || match direct {
            None => fill_by_kernel(&path),
            Some(direct) => fill_by_channel(&path, direct),
        });
        assert_eq!(why, Some(libc::ENOSPC), "{name}: after {bytes} bytes");
        let commands = scene.daemon.tally().commands - before;
        assert!(
            direct.is_none() || commands * PIECE as u64 >= bytes,
            "{name}: {commands} commands"
        );
        let (left, kept_now) = free(&disk.at());
        // Blocks that tell where others are count too.
        assert!(
            left + (1 << 20) > kept && kept_now > kept / 2,
            "{name}: {left} bytes left of {kept}"
        );
        // It is the superuser's still, beneath the mount at least: what the kernel passes through
        // it writes as nobody.
        let roots = if passthrough { scene.backing.path() } else { scene.mount.path() };
        fs::write(roots.join("roots"), vec![1; 4 << 20]).unwrap();
        fs::remove_file(roots.join("roots")).unwrap();
        fs::remove_file(path).unwrap();
        scene.until_closed();
    }
}

#[test]
fn no_thread_that_serves_has_the_capability_to_pass_quotas() {
    const SYS_RESOURCE: u64 = 1 << 24;
    let Some(scene) = served_in(Path::new("/var/tmp"), true) else { return };
    fs::write(scene.path("file"), "text").unwrap();
    let mut seen = 0;
    for task in fs::read_dir("/proc/self/task").unwrap().flatten() {
        let Ok(status) = fs::read_to_string(task.path().join("status")) else { continue };
        let of =
            |field: &str| status.lines().find_map(|line| line.strip_prefix(field)).unwrap().trim();
        let serves = ["fuser-", "dwell-channels", "dwell-accept", "dwell-slow"];
        if !serves.iter().any(|name| of("Name:").starts_with(name)) {
            continue;
        }
        seen += 1;
        for set in ["CapEff:", "CapPrm:"] {
            let held = u64::from_str_radix(of(set), 16).unwrap();
            assert_eq!(held & SYS_RESOURCE, 0, "{}: {set} {held:x}", of("Name:"));
        }
    }
    assert!(seen >= 4, "{seen} threads that serve");
}

#[test]
fn a_backing_directory_has_one_daemon() {
    let Some(scene) = served_in(Path::new("/var/tmp"), true) else { return };
    let second = tempfile::tempdir().unwrap();
    let start = || {
        let daemon = Arc::new(Daemon::start(Options::default()).unwrap());
        serve(scene.backing.path(), second.path(), daemon, true)
    };
    let refused = start().err().expect("served twice");
    assert!(refused.contains(&format!("by process {}", std::process::id())), "{refused}");
    scene.server.as_ref().unwrap().stopper().stop(true).unwrap();
    // A child that a test beside this one is making may have the directory for a moment.
    let until = Instant::now() + Duration::from_secs(20);
    while let Err(error) = start() {
        assert!(Instant::now() < until, "{error}");
    }
}
