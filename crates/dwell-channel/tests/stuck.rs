// SPDX-License-Identifier: MIT OR Apache-2.0
//! Reads by channels that a device does not end, and what changes their files meanwhile.

mod common;

use std::fs;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::gate::Gate;
use common::scene::{scene_by, serve_as, to_channels};
use dwell_channel::daemon::{Daemon, Options};
use dwell_channel::fs::Options as Serving;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};

/// One test at a time: a server that starts closes its copies of this process's files, and the
/// kernel's word of that takes their grants back.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn change_mode(path: &Path) {
    let _ = fs::set_permissions(path, fs::Permissions::from_mode(0o640));
}

fn unlink(path: &Path) {
    let _ = fs::remove_file(path);
}

fn rename(path: &Path) {
    let _ = fs::rename(path.with_file_name("data"), path);
}

fn give_capabilities(path: &Path) {
    // A version, and sets that hold nothing.
    let mut none = [0; 20];
    none[3] = 2;
    let flags = rustix::fs::XattrFlags::empty();
    let _ = rustix::fs::setxattr(path, "security.capability", &none, flags);
}

fn map(path: &Path) {
    let file = fs::File::open(path).unwrap();
    // SAFETY: a fresh mapping of an open file, which is given up after it was read.
    unsafe {
        let (access, kind) = (libc::PROT_READ, libc::MAP_PRIVATE);
        let start = libc::mmap(std::ptr::null_mut(), 4096, access, kind, file.as_raw_fd(), 0);
        if start != libc::MAP_FAILED {
            std::hint::black_box(start.cast::<u8>().read_volatile());
            libc::munmap(start, 4096);
        }
    }
}

/// Opens the gate, also where a test fails, so that nobody waits for stuck reads.
struct Opens<'a>(&'a Gate);

impl Drop for Opens<'_> {
    fn drop(&mut self) {
        self.0.open();
    }
}

/// Whether two threads for the kernel's requests answer another while a change of each of two files
/// waits for a read of a channel. One change is of a mode: a directory has one of its names changed
/// at a time.
fn is_answered(passthrough: bool, change: fn(&Path)) -> Option<bool> {
    let gate = Gate::with(vec![0xaa; 8192])?;
    let (backing, mount) = (gate.path().parent().unwrap().to_owned(), tempfile::tempdir().unwrap());
    let daemon = Arc::new(Daemon::start(Options::default()).unwrap());
    let (at, threads) = (mount.path().to_owned(), 2);
    let serving = Serving { backing, mount: at, private: false, threads, passthrough };
    let server = match serve_as(&serving, daemon.clone()) {
        Ok(server) => server,
        Err(why) => {
            println!("SKIP: {why}");
            return None;
        }
    };
    let paths = ["more-0", "more-1"].map(|name| mount.path().join(name));
    let files = paths.each_ref().map(|path| to_channels().open(path).unwrap());
    files.iter().for_each(|file| assert_eq!(file.read_at(&mut [0; 512], 0).unwrap(), 512));
    assert_eq!(daemon.tally().grants, 2, "a file takes no channel");
    gate.close();
    let answered = std::thread::scope(|scope| {
        let opens = Opens(&gate);
        for file in &files {
            scope.spawn(|| file.read_at(&mut [0; 512], 4096));
        }
        gate.holds(2);
        scope.spawn(|| change_mode(&paths[0]));
        scope.spawn(|| change(&paths[1]));
        std::thread::sleep(Duration::from_millis(300));
        looks(mount.path(), opens)
    });
    // It is unmounted before its directory goes.
    drop((files, server));
    drop(mount);
    Some(answered)
}

/// Whether a request is answered, and not only once the gate opens.
fn looks(at: &Path, opens: Opens<'_>) -> bool {
    let (say, said) = channel();
    let at = at.to_owned();
    let ask = std::thread::spawn(move || {
        let _ = rustix::fs::statfs(&at);
        let _ = say.send(());
    });
    let answered = said.recv_timeout(Duration::from_secs(10)).is_ok();
    drop(opens);
    ask.join().unwrap();
    answered
}

#[test]
fn reads_and_writes_that_a_device_does_not_end_leave_threads_for_other_requests() {
    let _alone = alone();
    let Some(gate) = Gate::with(vec![0xaa; 8192]) else { return };
    let (backing, mount) = (gate.path().parent().unwrap().to_owned(), tempfile::tempdir().unwrap());
    let daemon = Arc::new(Daemon::start(Options::default()).unwrap());
    let (at, threads) = (mount.path().to_owned(), 2);
    let serving = Serving { backing, mount: at, private: false, threads, passthrough: false };
    let server = match serve_as(&serving, daemon) {
        Ok(server) => server,
        Err(why) => return println!("SKIP: {why}"),
    };
    let open = |at| {
        let path = mount.path().join(format!("more-{at}"));
        fs::File::options().read(true).write(true).open(path).unwrap()
    };
    for writes in [false, true] {
        let files: Vec<_> = (0..6).map(open).collect();
        gate.close();
        let answered = std::thread::scope(|scope| {
            let opens = Opens(&gate);
            for file in &files {
                scope.spawn(move || match writes {
                    true => assert_eq!(file.write_at(&[7; 512], 512).unwrap(), 512),
                    false => assert_eq!(file.read_at(&mut [0; 512], 0).unwrap(), 512),
                });
            }
            gate.holds(2);
            looks(mount.path(), opens)
        });
        assert!(answered, "another request waits for reads or writes ({writes})");
    }
    assert_eq!(gate.content()[512..1024], [7; 512]);
    drop(server);
}

#[test]
fn changes_of_a_file_with_a_stuck_read_leave_threads_for_other_requests() {
    let _alone = alone();
    if !rustix::process::geteuid().is_root() {
        return println!("SKIP: needs root");
    }
    type Changes = (&'static str, bool, fn(&Path));
    let changes: [Changes; 5] = [
        ("chmod", true, change_mode),
        ("unlink", true, unlink),
        ("rename", true, rename),
        ("setxattr", true, give_capabilities),
        ("a mapping", false, map),
    ];
    let mut stuck = Vec::new();
    for (name, passthrough, change) in changes {
        let Some(answered) = is_answered(passthrough, change) else { return };
        if !answered {
            stuck.push(name);
        }
    }
    assert!(stuck.is_empty(), "another request waits for {stuck:?}");
}

#[test]
fn flags_are_set_and_those_that_the_file_system_refuses_take_no_grant_back() {
    let _alone = alone();
    let Some(scene) = scene_by((false, true)) else { return };
    fs::write(scene.path("data"), vec![5; 8192]).unwrap();
    let file = scene.open("data");
    let read = || assert_eq!(file.read_at(&mut [0; 512], 0).unwrap(), 512);
    read();
    let grants = || scene.daemon.tally().grants;
    let below = fs::File::open(scene.backing.path().join("data")).unwrap();
    let plain = fs::File::open(scene.path("data")).unwrap();
    let Ok(now) = ioctl_getflags(&below) else { return println!("SKIP: no flags below") };
    assert_eq!(ioctl_getflags(&plain), Ok(now));
    let before = grants();
    match ioctl_setflags(&below, now | IFlags::NOCOW) {
        Ok(()) => println!("SKIP: the file system takes this flag"),
        Err(why) => {
            assert_eq!(ioctl_setflags(&plain, now | IFlags::NOCOW), Err(why));
            read();
            assert_eq!(grants(), before);
        }
    }
    // One that it takes does.
    ioctl_setflags(&plain, now | IFlags::NODUMP).unwrap();
    assert_eq!(ioctl_getflags(&below), Ok(now | IFlags::NODUMP));
    read();
    assert_eq!(grants(), before + 1);
}
