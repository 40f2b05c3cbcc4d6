// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files under a mount that channels make longer: without the kernel, and yet everybody sees it.

mod common;

use std::ffi::CString;
use std::fs::{self, File as Plain};
use std::io::{Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::mapped;
use common::scene::{Scene, scene};
use dwell::File;
use dwell::queue::{Action, Io};
use dwell_channel::client::{self, Mount};

/// A file of 100 bytes that nobody has open.
fn stage(memory: bool) -> Option<Scene> {
    let scene = scene(memory)?;
    fs::write(scene.path("data"), [1; 100]).unwrap();
    scene.until_closed();
    Some(scene)
}

/// What is found by whoever opens the file now and asks in no other way how long it is.
fn found(scene: &Scene, expected: &[u8]) {
    let open = |append| Plain::options().read(true).append(append).open(scene.path("data"));
    let plain = open(false).unwrap();
    let mut buffer = vec![0; expected.len() + 1];
    assert_eq!(plain.read_at(&mut buffer, 0).unwrap(), expected.len());
    assert!(buffer[..expected.len()] == *expected);
    assert_eq!((&plain).seek(SeekFrom::End(0)).unwrap(), expected.len() as u64);
    assert_eq!(fs::metadata(scene.path("data")).unwrap().len(), expected.len() as u64);
    let copy = scene.path("copy");
    let mut to = Plain::create(&copy).unwrap();
    let copied =
        rustix::fs::copy_file_range(open(false).unwrap(), Some(&mut 0), &to, None, 1 << 30);
    assert_eq!(copied.unwrap(), expected.len());
    to.flush().unwrap();
    assert!(fs::read(copy).unwrap() == expected);
}

#[test]
fn what_channels_append_is_no_request_of_the_kernels_and_seen_by_all() {
    for memory in [true, false] {
        let Some(scene) = stage(memory) else { return };
        let file = scene.open("data");
        let mut model = vec![1; 100];
        file.read_at(&mut [0; 10], 0).unwrap();
        let before = scene.requests();
        for n in 0..200u32 {
            let piece = vec![n as u8; 100 + n as usize];
            file.write_all_at(&piece, model.len() as u64).unwrap();
            model.extend(&piece);
            let mut back = vec![0; piece.len() + 10];
            let at = (model.len() - piece.len()) as u64;
            assert_eq!(file.read_at(&mut back, at).unwrap(), piece.len());
            assert!(back[..piece.len()] == piece);
            if n % 50 == 0 {
                file.sync().unwrap();
            }
        }
        // Further away: zeroes between.
        let far = model.len() + 9000;
        file.write_all_at(&[5; 10], far as u64).unwrap();
        model.resize(far, 0);
        model.extend([5; 10]);
        assert_eq!(scene.requests(), before, "asked of the kernel");
        assert!(fs::read(scene.backing.path().join("data")).unwrap() == model);
        found(&scene, &model);

        // Who maps it, before anybody has asked for its length.
        file.write_all_at(&[6; 5000], model.len() as u64).unwrap();
        model.extend([6; 5000]);
        let plain = Plain::options().read(true).write(true).open(scene.path("data")).unwrap();
        let seen = mapped(&plain, model.len(), |memory| assert!(*memory == model[..]));
        if let Err(error) = seen {
            assert_eq!(error.raw_os_error(), Some(libc::ENODEV), "Linux below 6.6");
        }
        // It is the kernel's from then on, and right again when all have closed it.
        file.write_all_at(&[7; 500], model.len() as u64).unwrap();
        model.extend([7; 500]);
        drop((file, plain));
        found(&scene, &model);
    }
}

#[test]
fn somebody_who_appends_through_the_kernel_stands_where_the_file_ends() {
    for memory in [true, false] {
        let Some(scene) = stage(memory) else { return };
        let file = scene.open("data");
        file.write_all_at(&[2; 5000], 100).unwrap();
        let mut appends = Plain::options().append(true).open(scene.path("data")).unwrap();
        for round in 0..20u64 {
            let end = 5100 + round * 30;
            appends.write_all(&[3; 10]).unwrap();
            assert_eq!(appends.stream_position().unwrap(), end + 10);
            file.write_all_at(&[4; 20], end + 10).unwrap();
        }
        let left = fs::read(scene.backing.path().join("data")).unwrap();
        assert_eq!(left.len(), 5100 + 20 * 30);
        for round in left[5100..].chunks(30) {
            assert!(round[..10] == [3; 10] && round[10..] == [4; 20]);
        }
    }
}

fn terminated(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}

/// Without opening it.
fn truncate(scene: &Scene, bytes: u64) {
    let path = terminated(&scene.path("data"));
    // SAFETY: a terminated text and a number.
    let rc = unsafe { libc::truncate(path.as_ptr(), bytes as i64) };
    assert_eq!(rc, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_truncate_cuts_off_what_channels_append_meanwhile() {
    for memory in [true, false] {
        let Some(scene) = stage(memory) else { return };
        let file = scene.open("data");
        for round in 0..100u64 {
            std::thread::scope(|scope| {
                let writing = scope.spawn(|| {
                    for n in 0..20 {
                        file.write_all_at(&[9; 100], 100 + n * 100).unwrap();
                    }
                });
                let at = round % 3 * 700;
                truncate(&scene, at);
                writing.join().unwrap();
            });
            let length = fs::metadata(scene.path("data")).unwrap().len();
            let left = fs::read(scene.backing.path().join("data")).unwrap();
            assert_eq!(left.len() as u64, length, "round {round}");
            // Pieces are whole, or cut off where the truncate was, or never were.
            for piece in left.get(100..).unwrap_or_default().chunks(100) {
                assert!(piece.iter().all(|byte| [0, 9].contains(byte)), "round {round}");
            }
            truncate(&scene, 50);
            assert_eq!(fs::metadata(scene.path("data")).unwrap().len(), 50);
        }
    }
}

#[test]
fn who_is_about_to_map_a_file_says_so_and_sees_all_of_it() {
    let Some(scene) = stage(true) else { return };
    let plain = Plain::options().read(true).write(true).open(scene.path("data")).unwrap();
    let mount = Mount::of(plain.as_raw_fd()).unwrap();
    let (known, policy) = (client::known(), Arc::new(dwell::policy::Spin));
    let file = File::over(mount, "test", "test", known, policy, None);
    let write = |data: &[u8], at| {
        let (memory, bytes) = (data.as_ptr().cast_mut(), data.len() as u32);
        // SAFETY: the data is borrowed until the call returns, and a write changes nothing in it.
        let io = unsafe { Io::plain(Action::Write, plain.as_raw_fd(), memory, bytes, at) };
        assert_eq!(file.request(&io), data.len() as i32);
    };
    write(&[1], 0);
    let before = scene.requests();
    write(&[2; 20_000], 100);
    assert_eq!(scene.requests(), before);
    client::leave_to_kernel(plain.as_raw_fd()).unwrap();
    // Longer than the file is by now.
    let mapped = mapped(&plain, 60_000, |memory| {
        write(&[3; 30_000], 20_100);
        assert!(memory[100..20_100] == [2; 20_000] && memory[20_100..50_100] == [3; 30_000]);
    });
    if let Err(error) = mapped {
        assert_eq!(error.raw_os_error(), Some(libc::ENODEV));
        return println!("SKIP: no shared mappings on served mounts (Linux 6.6)");
    }
    assert!(scene.requests()["write"] > before.get("write").copied().unwrap_or(0));
}

#[test]
fn limits_and_full_file_systems_are_told_as_the_kernel_tells_them() {
    if !rustix::process::geteuid().is_root() {
        return println!("SKIP: only root mounts a small file system");
    }
    let dir = tempfile::tempdir().unwrap();
    let on = terminated(dir.path());
    // Not by a program: a child holds a file of another test open for a moment, and what that asks of the kernel is counted there.
    // SAFETY: terminated texts.
    let mounted = unsafe {
        let (source, kind, options) = (c"dwell-small", c"tmpfs", c"size=1m");
        libc::mount(source.as_ptr(), on.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast()) == 0
    };
    if !mounted {
        return println!("SKIP: no tmpfs can be mounted");
    }
    let held = Small(dir);
    let controller = dwell_channel::controller::Controller::start(Default::default()).unwrap();
    let scene = common::scene::scene_in(held.0.path(), Arc::new(controller), true);
    let Some(scene) = scene else { return };
    fs::write(scene.path("data"), [1; 100]).unwrap();
    scene.until_closed();
    let file = scene.open("data");
    file.read_at(&mut [0; 10], 0).unwrap();
    let mut end = 100;
    let refused = loop {
        match file.write_at(&[2; 50_000], end) {
            Ok(done) => end += done as u64,
            Err(error) => break error,
        }
        assert!(end < 2 << 20);
    };
    assert_eq!(refused.errno(), Some(libc::ENOSPC));
    assert!(end > 500_000 && fs::metadata(scene.path("data")).unwrap().len() == end);
    let error = file.write_at(&[2; 10], i64::MAX as u64 - 5).unwrap_err();
    assert!([libc::EFBIG, libc::EINVAL].contains(&error.errno().unwrap()), "{error}");
    drop(scene);
}

struct Small(tempfile::TempDir);

impl Drop for Small {
    fn drop(&mut self) {
        // SAFETY: a terminated text.
        unsafe { libc::umount2(terminated(self.0.path()).as_ptr(), libc::MNT_DETACH) };
    }
}

/// Length of the file in the test below, at its end.
const END: u64 = 100 + 3000 * 10;

#[test]
fn attributes_are_asked_for_once_per_change_and_never_behind_what_was_acknowledged() {
    for memory in [true, false] {
        let Some(scene) = stage(memory) else { return };
        let file = scene.open("data");
        let length = |plain: &Plain| plain.metadata().unwrap().len();
        let plain = Plain::open(scene.path("data")).unwrap();
        file.write_all_at(&[2; 50], 0).unwrap();
        assert_eq!(length(&plain), 100);
        let asked = || scene.requests()["getattr"];
        let before = asked();
        for _ in 0..1000 {
            assert_eq!(length(&plain), 100);
        }
        // What is fresh stays so for a second.
        assert!(asked() - before < 10, "{} requests", asked() - before);
        drop(plain);

        // One thread makes it longer, others look.
        let (acknowledged, path) = (AtomicU64::new(100), scene.path("data"));
        std::thread::scope(|scope| {
            let lookers: Vec<_> = (0..2)
                .map(|looker| {
                    let (acknowledged, path) = (&acknowledged, &path);
                    scope.spawn(move || {
                        loop {
                            let at_least = acknowledged.load(Ordering::SeqCst);
                            let mut found = fs::metadata(path).unwrap();
                            if looker == 1 {
                                // The kernel was told of it by another request.
                                let dir = path.parent().unwrap();
                                let mut entries = fs::read_dir(dir).unwrap().map(Result::unwrap);
                                let entry = entries.find(|entry| entry.path() == *path).unwrap();
                                found = entry.metadata().unwrap();
                            }
                            assert!(found.len() >= at_least, "{} < {at_least}", found.len());
                            if found.len() >= END {
                                return;
                            }
                        }
                    })
                })
                .collect();
            for n in 0..3000u64 {
                file.write_all_at(&[n as u8; 10], 100 + n * 10).unwrap();
                acknowledged.store(110 + n * 10, Ordering::SeqCst);
            }
            for looker in lookers {
                looker.join().unwrap();
            }
        });
    }
}
