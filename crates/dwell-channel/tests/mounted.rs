// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files under a mount: channels, system calls and mappings see one file; descriptors that vouch
//! for nothing; either side killed.

mod common;

use std::fs::File as Plain;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::mapped;
use common::scene::{EVERY, scene, scene_by, serve, to_channels};
use dwell_channel::client;
use dwell_channel::daemon::{Daemon, Options};
use dwell_channel::fs::DataPath;

/// Within this time all is over that is not to last for ever.
const SOON: Duration = Duration::from_secs(30);

#[test]
fn a_path_under_a_mount_takes_the_channel_by_itself() {
    for way in EVERY {
        let Some(scene) = scene_by(way) else { return };
        std::fs::write(scene.path("data"), vec![5; 10_000]).unwrap();
        let file = scene.open("data");
        assert_eq!(file.bytes().unwrap(), 10_000);
        let mut buffer = vec![0; 4096];
        assert_eq!(file.read_at(&mut buffer, 4096).unwrap(), 4096);
        assert!(buffer.iter().all(|byte| *byte == 5));
        file.write_all_at(&[9; 100], 50).unwrap();
        file.sync().unwrap();
        assert!(scene.daemon.tally().commands >= 3, "{:?}", scene.daemon.tally());
        // Longer than it was.
        file.write_all_at(&[7; 5000], 9000).unwrap();
        assert_eq!(file.bytes().unwrap(), 14_000);
        assert_eq!(file.read_at(&mut buffer, 9999).unwrap(), 4001);
        let below = std::fs::read(scene.backing.path().join("data")).unwrap();
        assert_eq!((below.len(), below[50], below[149], below[9000]), (14_000, 9, 9, 7));
        let mut pipeline = file.pipeline::<Vec<u8>>(16).unwrap();
        for at in 0..16 {
            pipeline.read_at(vec![0; 512], at * 512).map_err(|(error, _)| error).unwrap();
        }
        while let Some(done) = pipeline.next() {
            assert_eq!(done.result.unwrap(), 512);
        }
        assert!(
            dwell::Options::new().open(format!("chan:{}", scene.path("data").display())).is_ok()
        );
        let outside = scene.backing.path().join("data");
        let error =
            dwell::Options::new().open(format!("chan:{}", outside.display())).err().unwrap();
        assert!(error.to_string().contains("dwell serve start"), "{error}");
    }
}

/// A pseudorandom stream, the same for the same seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % limit
    }
}

#[test]
fn channel_kernel_and_mapping_see_one_file() {
    const MOST: u64 = 40_000;
    for (way, seed) in EVERY.into_iter().zip(1..) {
        let Some(scene) = scene_by(way) else { return };
        let mut dice = Dice(0x9e37_79b9_7f4a_7c15 ^ seed);
        let mut model: Vec<u8> = vec![0; 20_000];
        std::fs::write(scene.path("data"), &model).unwrap();
        for reopened in 0..12 {
            let channels = [scene.open("data"), scene.open("data")];
            let opened =
                || Plain::options().read(true).write(true).open(scene.path("data")).unwrap();
            // Now and then somebody stays who takes no channel.
            let stays = (reopened % 3 == 0).then(opened);
            for step in 0..60 {
                let channel = &channels[dice.below(2) as usize];
                let kind = dice.below(if step < 50 { 11 } else { 12 });
                let comes = (stays.is_none() && kind > 6).then(opened);
                let plain = || comes.as_ref().or(stays.as_ref()).unwrap();
                let at = dice.below(model.len() as u64 + 100) as usize;
                let bytes = dice.below(9000) as usize + 1;
                let end = model.len().min(at + bytes);
                let seen = &model[at.min(end)..end];
                let mut buffer = vec![0; bytes];
                match kind {
                    0..=2 => {
                        let done = channel.read_at(&mut buffer, at as u64).unwrap();
                        assert!(buffer[..done] == *seen, "channel {at}+{bytes} gave {done}");
                    }
                    7 => {
                        let done = plain().read_at(&mut buffer, at as u64).unwrap();
                        assert!(buffer[..done] == *seen, "kernel {at}+{bytes} gave {done}");
                    }
                    3..=6 | 8 => {
                        let data = vec![dice.below(256) as u8; bytes];
                        if at as u64 + bytes as u64 > MOST {
                            continue;
                        }
                        match kind {
                            8 => plain().write_all_at(&data, at as u64).unwrap(),
                            _ => channel.write_all_at(&data, at as u64).unwrap(),
                        }
                        model.resize(model.len().max(at + bytes), 0);
                        model[at..at + bytes].copy_from_slice(&data);
                        let told = std::fs::metadata(scene.path("data")).unwrap().len();
                        assert_eq!(told, model.len() as u64);
                    }
                    9 => {
                        let bytes = dice.below(MOST) + 1;
                        plain().set_len(bytes).unwrap();
                        model.resize(bytes as usize, 0);
                    }
                    10 => {
                        let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
                        let (fd, from, count) = (plain().as_raw_fd(), at as i64, bytes as i64);
                        // SAFETY: an open descriptor and three numbers.
                        let rc = unsafe { libc::fallocate(fd, mode, from, count) };
                        assert_eq!(rc, 0, "{}", io::Error::last_os_error());
                        model[at.min(end)..end].fill(0);
                    }
                    _ => {
                        let byte = dice.below(256) as u8;
                        let touched = mapped(plain(), model.len(), |memory| {
                            assert!(*memory == model[..], "mapping");
                            if let Some(to) = memory.get_mut(at) {
                                *to = byte;
                            }
                        });
                        match touched {
                            Ok(()) if at < model.len() => model[at] = byte,
                            Ok(()) => {}
                            // Linux below 6.6.
                            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ENODEV)),
                        }
                    }
                }
            }
            drop((channels, stays));
            assert!(std::fs::read(scene.path("data")).unwrap() == model);
            assert!(std::fs::read(scene.backing.path().join("data")).unwrap() == model);
        }
        let tally = scene.daemon.tally();
        assert!(tally.commands > 100, "{tally:?}");
    }
}

#[test]
fn descriptors_that_vouch_for_nothing_are_granted_nothing() {
    let Some(scene) = scene(true) else { return };
    std::fs::write(scene.path("data"), [1; 100]).unwrap();
    let refused = |file: &Plain| {
        client::grant(file.as_raw_fd(), &[7; 16]).unwrap_err().raw_os_error().unwrap()
    };
    let plain = Plain::open(scene.path("data")).unwrap();
    assert_eq!(refused(&plain), libc::ENXIO, "nobody has that token");
    assert!(client::place(plain.as_raw_fd()).is_ok());
    let path_only =
        Plain::options().read(true).custom_flags(libc::O_PATH).open(scene.path("data")).unwrap();
    assert_eq!(refused(&path_only), libc::EBADF);
    let directory = Plain::open(scene.mount.path()).unwrap();
    assert!([libc::ENOTTY, libc::EISDIR].contains(&refused(&directory)));
    let foreign = Plain::open("/dev/null").unwrap();
    assert_eq!(client::place(foreign.as_raw_fd()).unwrap_err().raw_os_error(), Some(libc::ENOTTY));
}

#[test]
fn an_open_file_keeps_its_rights_and_loses_them_with_its_last_name() {
    let Some(scene) = scene(true) else { return };
    std::fs::write(scene.path("data"), [1; 8192]).unwrap();
    let file = scene.open("data");
    let mut buffer = [0; 512];
    file.read_exact_at(&mut buffer, 0).unwrap();
    std::fs::set_permissions(scene.path("data"), PermissionsExt::from_mode(0o000)).unwrap();
    file.write_all_at(&[2; 512], 0).unwrap();
    file.read_exact_at(&mut buffer, 0).unwrap();
    assert_eq!(buffer, [2; 512]);
    // Unlinked: whoever has it open goes on, and nobody else gets its space.
    std::fs::remove_file(scene.path("data")).unwrap();
    std::fs::write(scene.path("other"), [3; 8192]).unwrap();
    file.write_all_at(&[4; 512], 4096).unwrap();
    file.read_exact_at(&mut buffer, 4096).unwrap();
    assert_eq!(buffer, [4; 512]);
    assert_eq!(std::fs::read(scene.path("other")).unwrap(), [3; 8192]);
}

#[test]
fn times_tell_of_what_channels_wrote() {
    let Some(scene) = scene(true) else { return };
    std::fs::write(scene.path("data"), [1; 8192]).unwrap();
    let file = scene.open("data");
    file.write_all_at(&[2; 512], 0).unwrap();
    let before = std::fs::metadata(scene.path("data")).unwrap().modified().unwrap();
    std::thread::sleep(Duration::from_millis(30));
    file.write_all_at(&[2; 512], 0).unwrap();
    let after = std::fs::metadata(scene.path("data")).unwrap().modified().unwrap();
    assert!(after > before);
}

/// Serves in a process of its own until it is killed: not a test.
#[test]
#[ignore = "what the test below starts"]
fn serve_until_killed() {
    let (Ok(backing), Ok(mount)) = (std::env::var("BACKING"), std::env::var("MOUNT")) else {
        return;
    };
    let daemon = Arc::new(Daemon::start(Options::default()).unwrap());
    let passthrough = std::env::var_os("DIRECT").is_none();
    let _server = serve(Path::new(&backing), Path::new(&mount), daemon, passthrough).unwrap();
    println!("serving");
    std::thread::sleep(Duration::from_secs(60));
}

struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn served_elsewhere(backing: &Path, mount: &Path, passthrough: bool) -> Killed {
    let mut program = Command::new(std::env::current_exe().unwrap());
    program
        .args(["--ignored", "--exact", "serve_until_killed", "--nocapture"])
        .env("BACKING", backing)
        .env("MOUNT", mount)
        .stdout(Stdio::null());
    if !passthrough {
        program.env("DIRECT", "");
    }
    let killed = Killed(program.spawn().unwrap());
    let until = Instant::now() + Duration::from_secs(10);
    let own = std::fs::metadata(backing).unwrap();
    while std::fs::File::open(mount.join("probe")).is_err() {
        assert!(Instant::now() < until && own.is_dir(), "nothing is served");
        std::thread::sleep(Duration::from_millis(10));
    }
    killed
}

#[test]
fn a_killed_daemon_is_noticed_soon_and_found_again() {
    for passthrough in [true, false] {
        let Some(scene) = scene_by((true, passthrough)) else { return };
        // With passthrough, the kernel goes on reading and writing open files all the same.
        let goes_on = scene.facts().data_path == DataPath::Passthrough;
        drop(scene);
        noticed_and_found_again(passthrough, goes_on);
    }
}

fn noticed_and_found_again(passthrough: bool, goes_on: bool) {
    let at = |name: &str| tempfile::Builder::new().prefix(name).tempdir_in("/dev/shm").unwrap();
    let (backing, mount) = (at("dwell-backing-"), at("dwell-mount-"));
    std::fs::write(backing.path().join("probe"), "").unwrap();
    std::fs::write(backing.path().join("data"), vec![0; 1 << 20]).unwrap();
    let mut daemon = served_elsewhere(backing.path(), mount.path(), passthrough);
    let file = to_channels().write(true).open(mount.path().join("data")).unwrap();
    for round in 1..=2u8 {
        // Killed while requests are under way; what was acknowledged as durable before is there.
        let mut acknowledged = 0;
        let started = Instant::now();
        let mut dead = None;
        for at in 0.. {
            let written =
                file.write_all_at(&[round; 512], at % 2048 * 512).and_then(|()| file.sync_data());
            match written {
                Ok(()) if dead.is_none() => acknowledged = at + 1,
                // In memory the kernel answers a sync by itself, and what is open is written all
                // the same.
                Ok(()) if goes_on => break,
                Ok(()) => {}
                Err(_) => break,
            }
            if dead.is_none() && started.elapsed() > Duration::from_millis(20) {
                daemon.0.kill().unwrap();
                dead = Some(Instant::now());
            }
            assert!(dead.is_none_or(|dead| dead.elapsed() < SOON));
        }
        assert!(dead.unwrap().elapsed() < SOON, "noticed");
        daemon.0.wait().unwrap();
        let below = std::fs::read(backing.path().join("data")).unwrap();
        let sure = acknowledged.min(2048) as usize * 512;
        assert!(sure > 0 && below[..sure].iter().all(|byte| *byte == round));
        let before = Instant::now();
        assert_eq!(file.read_at(&mut [0; 512], 0).is_ok(), goes_on);
        assert!(before.elapsed() < SOON);
        daemon = served_elsewhere(backing.path(), mount.path(), passthrough);
        let until = Instant::now() + SOON;
        let mut buffer = [0; 512];
        while file.sync_data().is_err() || file.read_at(&mut buffer, 0).is_err() {
            assert!(Instant::now() < until, "never found again");
            std::thread::sleep(Duration::from_millis(10));
        }
        assert_eq!(buffer, [round; 512]);
    }
    drop(daemon);
    let _ = Command::new("umount").arg("-l").arg(mount.path()).status();
}
