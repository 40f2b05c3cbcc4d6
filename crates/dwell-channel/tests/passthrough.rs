// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files of a mount that the kernel reads and writes by itself.

mod common;

use std::fs::{self, File as Plain};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use common::scene::{Scene, scene_by};

/// A served directory whose requests the kernel passes through, in memory and not.
fn scenes() -> impl Iterator<Item = Scene> {
    [true, false].into_iter().filter_map(|memory| scene_by((memory, true))).filter(Scene::passes)
}

/// What the server was asked that it need not be.
fn transfers(scene: &Scene) -> u64 {
    let requests = scene.requests();
    ["read", "fill", "write"].iter().filter_map(|kind| requests.get(*kind)).sum()
}

#[test]
fn reads_writes_and_mappings_of_programs_do_not_reach_the_server() {
    for scene in scenes() {
        let path = scene.path("data");
        fs::write(&path, vec![3; 10_000]).unwrap();
        let file = Plain::options().read(true).write(true).open(&path).unwrap();
        file.write_all_at(&[4; 5000], 8000).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 13_000);
        common::mapped(&file, 13_000, |memory| {
            assert!(memory[..8000].iter().all(|byte| *byte == 3));
            memory[0] = 5;
        })
        .unwrap();
        let read = fs::read(&path).unwrap();
        assert_eq!((read.len(), read[0], read[12_999]), (13_000, 5, 4));
        assert_eq!(transfers(&scene), 0, "{:?}", scene.requests());
        assert!(fs::read(scene.backing.path().join("data")).unwrap() == read);
    }
}

#[test]
fn a_write_does_not_ask_for_extended_attributes_each_time() {
    for scene in scenes() {
        let file = Plain::create(scene.path("data")).unwrap();
        for at in 0..100 {
            file.write_all_at(&[7; 10], at * 10).unwrap();
        }
        let asked = scene.requests().get("getxattr").copied().unwrap_or(0);
        assert!(asked < 10, "{asked} requests for extended attributes");
    }
}

/// The kernel answers EIO if two opens of an inode do not share one backing id.
#[test]
fn opens_of_one_file_with_any_rights_go_together() {
    for scene in scenes() {
        let path = scene.path("data");
        fs::write(&path, [1; 4096]).unwrap();
        fs::hard_link(&path, scene.path("second")).unwrap();
        let modes = [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR, libc::O_RDWR | libc::O_APPEND];
        // First read-only, so that the backing file is registered with no right to write, and then
        // in turns.
        for first in 0..modes.len() {
            let open = |at: usize, name: &str| {
                let flags = modes[at % modes.len()];
                rustix::fs::open(
                    scene.path(name),
                    rustix::fs::OFlags::from_bits_retain(flags as u32),
                    rustix::fs::Mode::empty(),
                )
            };
            let mut open_files = Vec::new();
            for at in 0..modes.len() {
                open_files.push(open(first + at, "data").unwrap());
                open_files.push(open(first + at, "second").unwrap());
                open_files.swap_remove(0);
            }
            let writer = Plain::options().write(true).open(&path).unwrap();
            writer.write_all_at(&[first as u8; 100], 0).unwrap();
            let reader = Plain::open(scene.path("second")).unwrap();
            assert!(reader.write_at(&[9], 0).is_err(), "opened for reading alone");
            let mut seen = [0; 100];
            reader.read_exact_at(&mut seen, 0).unwrap();
            assert_eq!(seen, [first as u8; 100]);
        }
        scene.until_closed();
        assert_eq!(transfers(&scene), 0);
    }
}

#[test]
fn threads_that_open_and_close_one_file_at_once_are_never_refused() {
    for scene in scenes() {
        let path = scene.path("data");
        fs::write(&path, [1; 100]).unwrap();
        std::thread::scope(|scope| {
            for write in [false, true, false, true] {
                let path = &path;
                scope.spawn(move || {
                    for _ in 0..300 {
                        let file = Plain::options().read(true).write(write).open(path).unwrap();
                        assert_eq!(file.read_at(&mut [0; 10], 0).unwrap(), 10);
                    }
                });
            }
        });
    }
}

#[test]
fn an_open_that_the_backing_file_system_refuses_fails_with_its_own_error() {
    for scene in scenes() {
        // procfs, sysfs and the like know no O_DIRECT; what is beneath here does, so only that it
        // works is seen.
        let path = scene.path("data");
        fs::write(&path, [1; 8192]).unwrap();
        let direct = |path| Plain::options().read(true).custom_flags(libc::O_DIRECT).open(path);
        let beneath =
            direct(scene.backing.path().join("data")).map_err(|error| error.raw_os_error());
        let through = direct(path).map_err(|error| error.raw_os_error());
        assert_eq!(through.as_ref().err(), beneath.as_ref().err());
        let (Ok(through), Ok(beneath)) = (through, beneath) else { continue };
        // Alignment matters as much as beneath.
        let mut buffer = dwell::buffer::Aligned::new(8192);
        for (from, bytes, at) in [(0, 4096, 0), (1, 512, 0), (0, 100, 0), (0, 512, 3)] {
            let buffer = &mut buffer[from..from + bytes];
            let [through, beneath] = [&through, &beneath]
                .map(|file| file.read_at(buffer, at).map_err(|error| error.raw_os_error()));
            assert_eq!(through, beneath, "{bytes} at {at}");
        }
    }
}

#[test]
fn a_descriptor_that_no_longer_appends_writes_where_it_stands() {
    for scene in scenes() {
        let path = scene.path("data");
        fs::write(&path, [1; 1000]).unwrap();
        let file = Plain::options().read(true).append(true).open(&path).unwrap();
        (&file).write_all(&[2; 10]).unwrap();
        // SAFETY: an open descriptor and flags.
        assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) }, 0);
        file.write_all_at(&[3; 10], 0).unwrap();
        let mut read = Vec::new();
        Plain::open(&path).unwrap().read_to_end(&mut read).unwrap();
        assert_eq!((read.len(), read[0], read[1009]), (1010, 3, 2));
    }
}

/// As dd does with the last piece of a file.
#[test]
fn a_descriptor_that_is_no_longer_direct_writes_pieces_of_any_length() {
    let Some(disk) = common::disk::Disk::make() else { return };
    let daemon = dwell_channel::daemon::Daemon::start(Default::default()).unwrap();
    let Some(scene) = common::scene::scene_in(&disk.at(), daemon.into(), true) else { return };
    let path = scene.path("data");
    let direct = libc::O_DIRECT;
    let file = Plain::options().write(true).create(true).custom_flags(direct).open(&path).unwrap();
    let mut buffer = dwell::buffer::Aligned::new(4096);
    buffer.fill(7);
    file.write_all_at(&buffer, 0).unwrap();
    // SAFETY: an open descriptor and flags.
    assert_eq!(unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETFL, 0) }, 0);
    file.write_all_at(&[8; 904], 4096).unwrap();
    let read = fs::read(&path).unwrap();
    assert_eq!((read.len(), read[4095], read[4096]), (5000, 7, 8));
}

#[test]
fn an_overlay_is_passed_through_too() {
    use std::process::Command;
    struct Mounted(tempfile::TempDir);
    impl Drop for Mounted {
        fn drop(&mut self) {
            let _ = Command::new("umount").arg("-l").arg(self.0.path().join("merged")).status();
        }
    }
    if !rustix::process::geteuid().is_root() {
        return println!("SKIP: only root mounts overlays");
    }
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    for name in ["lower", "upper", "work", "merged"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("lower/data"), [1; 100]).unwrap();
    let options = "lowerdir=lower,upperdir=upper,workdir=work";
    let mut mount = Command::new("mount");
    mount.args(["-t", "overlay", "-o", options, "overlay", "merged"]).current_dir(dir.path());
    if !mount.status().is_ok_and(|status| status.success()) {
        return println!("SKIP: no overlay can be mounted");
    }
    let below = Mounted(dir);
    let daemon = dwell_channel::daemon::Daemon::start(Default::default()).unwrap();
    let merged = below.0.path().join("merged");
    let at = tempfile::tempdir().unwrap();
    let server = match common::scene::serve(&merged, at.path(), daemon.into(), true) {
        Ok(server) => server,
        Err(why) => return println!("SKIP: {why}"),
    };
    let path = at.path().join("data");
    let file = Plain::options().read(true).write(true).open(&path).unwrap();
    file.write_all_at(&[2; 100], 50).unwrap();
    let read = fs::read(&path).unwrap();
    assert_eq!((read.len(), read[49], read[50]), (150, 1, 2));
    assert_eq!(fs::read(below.0.path().join("upper/data")).unwrap(), read);
    let facts = server.stopper().facts();
    if facts.data_path == dwell_channel::fs::DataPath::Passthrough {
        assert!(!facts.requests.contains_key("read") && !facts.requests.contains_key("write"));
    }
    drop((file, server));
}

#[test]
fn a_write_by_the_kernel_is_no_older_than_one_by_channel_before() {
    for way in common::scene::EVERY {
        let Some(scene) = scene_by(way) else { return };
        let path = scene.path("data");
        fs::write(&path, [1; 1000]).unwrap();
        let channel = scene.open("data");
        channel.write_all_at(&[2; 10], 0).unwrap();
        let file = Plain::options().write(true).open(&path).unwrap();
        let modified = || fs::metadata(&path).unwrap().modified().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(20));
        file.write_all_at(&[3; 10], 0).unwrap();
        let beneath = fs::metadata(scene.backing.path().join("data")).unwrap().modified().unwrap();
        assert_eq!(modified(), beneath, "{way:?}: the times go back");
    }
}

/// The kernel carries requests out as whoever registered the backing file, and that must not be the
/// superuser.
#[test]
fn the_superusers_reserve_is_nobodys() {
    const BYTES: u64 = 16 << 20;
    let Some(disk) = common::disk::Disk::make_with(BYTES, &["-m", "50"], "loop") else { return };
    let daemon = dwell_channel::daemon::Daemon::start(Default::default()).unwrap();
    let scene = common::scene::scene_in(&disk.at(), daemon.into(), true);
    let Some(scene) = scene.filter(Scene::passes) else { return };
    let taken = |path: std::path::PathBuf| {
        let file = Plain::create(path).unwrap();
        (0..).find(|at| file.write_all_at(&[1; 65_536], at * 65_536).is_err()).unwrap() * 65_536
    };
    let through = taken(scene.path("data"));
    assert!(through < BYTES * 6 / 10, "{through} bytes");
    let more = taken(scene.backing.path().join("more"));
    assert!(more > BYTES / 4, "root beneath has the reserve, and took {more} bytes");
}

#[test]
fn a_change_of_a_file_takes_its_capabilities_away() {
    const NAME: &str = "security.capability";
    // CAP_NET_RAW, permitted and effective.
    let value = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let disk = common::disk::Disk::make();
    let Some(disk) = disk else { return };
    for passthrough in [true, false] {
        let daemon = dwell_channel::daemon::Daemon::start(Default::default()).unwrap();
        let scene = common::scene::scene_in(&disk.at(), daemon.into(), passthrough);
        let Some(scene) = scene else { return };
        let path = scene.path("data");
        fs::write(&path, [1; 100]).unwrap();
        let open = |append| Plain::options().write(true).append(append).open(&path).unwrap();
        let (file, appends, channel) = (open(false), open(true), scene.open("data"));
        channel.write_all_at(&[2; 10], 0).unwrap();
        let changes: [&dyn Fn(); 5] = [
            &|| file.write_all_at(&[3; 10], 0).unwrap(),
            &|| (&appends).write_all(&[4; 10]).unwrap(),
            &|| file.set_len(50).unwrap(),
            &|| channel.write_all_at(&[5; 10], 0).unwrap(),
            &|| fs::write(&path, [6; 10]).unwrap(),
        ];
        for (number, change) in changes.iter().enumerate() {
            let has = |path: &std::path::Path| {
                rustix::fs::getxattr(path, NAME, &mut [0u8; 64][..]).is_ok()
            };
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&path, NAME, &value, flags).unwrap();
            assert!(has(&path));
            change();
            assert!(!has(&path), "{:?}: change {number}", scene.facts().data_path);
            assert!(!has(&scene.backing.path().join("data")));
        }
    }
}

/// The kernel has a cache for what it asks the server for by `sendfile`, and none of what it writes
/// by itself.
#[test]
fn sendfile_by_any_descriptor_never_sends_old_bytes() {
    for (way, late) in common::scene::EVERY.into_iter().flat_map(|way| [(way, true), (way, false)])
    {
        let Some(scene) = scene_by(way) else { return };
        let path = scene.path("data");
        let flags = [libc::O_APPEND, libc::O_DIRECT, 0];
        let open = |flags| {
            Plain::options().read(true).write(true).custom_flags(flags).open(&path).unwrap()
        };
        let sent = |file: &Plain| {
            let out = tempfile::tempfile().unwrap();
            let sent = rustix::fs::sendfile(&out, file, Some(&mut 0), 8192)?;
            assert_eq!(sent, 8192);
            let mut seen = vec![0; 8192];
            out.read_exact_at(&mut seen, 0).unwrap();
            Ok::<_, rustix::io::Errno>(seen)
        };
        // Made and written by the descriptor that appends, which the server sees.
        Plain::options()
            .append(true)
            .create(true)
            .open(&path)
            .unwrap()
            .write_all(&[1; 8192])
            .unwrap();
        let appends = open(libc::O_APPEND);
        if late {
            match sent(&appends) {
                Ok(seen) => assert!(seen == [1; 8192], "{way:?}"),
                // It may be mapped.
                Err(_) => assert!(way.1, "{way:?}"),
            }
        }
        let files = flags.map(open);
        let channel = scene.open("data");
        for round in 2..20u8 {
            match round % 2 {
                0 => files[2].write_all_at(&[round; 8192], 0).unwrap(),
                _ => channel.write_all_at(&[round; 8192], 0).unwrap(),
            }
            for (number, file) in files.iter().chain([&appends]).enumerate() {
                let story = format!("{way:?}: {number}, round {round}");
                match sent(file) {
                    Ok(seen) => assert!(seen == [round; 8192], "{story}"),
                    // Nothing, rather than what was there before.
                    Err(_) => assert!(way.1 && [0, 3].contains(&number), "{story}"),
                }
            }
        }
    }
}

/// A shared mapping writes by itself whatever the descriptor that it was made of, and nobody is
/// told of it.
#[test]
fn sendfile_by_a_descriptor_that_appends_never_sends_bytes_older_than_its_mapping() {
    for scene in scenes() {
        let path = scene.path("data");
        // Nobody has it open who may write otherwise.
        fs::write(scene.backing.path().join("data"), [1; 4096]).unwrap();
        let appends = Plain::options().read(true).append(true).open(&path).unwrap();
        let sent = || {
            let out = tempfile::tempfile().unwrap();
            let sent = rustix::fs::sendfile(&out, &appends, Some(&mut 0), 4096).ok()?;
            let mut seen = vec![0; sent];
            out.read_exact_at(&mut seen, 0).unwrap();
            Some(seen)
        };
        common::mapped(&appends, 4096, |memory| {
            for round in 2..6u8 {
                let _ = sent();
                memory.fill(round);
                if let Some(seen) = sent() {
                    assert!(seen == [round; 4096], "{} instead of {round}", seen[0]);
                }
            }
        })
        .unwrap();
    }
}
