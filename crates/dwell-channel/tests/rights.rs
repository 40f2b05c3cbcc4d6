// SPDX-License-Identifier: MIT OR Apache-2.0
//! A user gets through a mount and through channels what they would get on the directory beneath, and no more.

mod common;

use std::fs::{self, File as Plain};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use common::scene::{Scene, scene_in};
use dwell_channel::controller::{Controller, Options};
use rustix::fs::{Gid, Uid};

const USER: u32 = 54_321;

/// Runs something in a thread that acts as a user without rights; what it makes stays that user's.
fn as_user<T: Send>(uid: u32, what: impl FnOnce() -> T + Send) -> T {
    let act = || {
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(group, group, group).unwrap();
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        what()
    };
    std::thread::scope(|scope| scope.spawn(act).join().unwrap())
}

/// A directory of everybody's, served by root.
fn served_in(dir: &Path) -> Option<Scene> {
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: only root serves other users");
        return None;
    }
    let scene = scene_in(dir, Arc::new(Controller::start(Options::default()).unwrap()))?;
    fs::set_permissions(scene.mount.path(), fs::Permissions::from_mode(0o777)).unwrap();
    Some(scene)
}

#[test]
fn creating_a_name_that_somebody_else_makes_meanwhile_does_not_open_their_file() {
    let Some(scene) = served_in(Path::new("/var/tmp")) else { return };
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
