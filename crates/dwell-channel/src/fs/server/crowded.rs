// SPDX-License-Identifier: MIT OR Apache-2.0
//! More files than the daemon has descriptors for: one user pins those that the kernel knows, and
//! another looks around; one user alone looks at all.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::time::Instant;

use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::mount::MountFlags;

use super::*;
use crate::daemon::{self, Daemon};

/// Descriptors that the server believes it may have.
const FEW: usize = 480;
/// A user without rights.
const USER: u32 = 54_321;

/// A directory in which anybody may do anything, and the place where it is served.
struct Scene {
    server: Server,
    backing: tempfile::TempDir,
    mount: tempfile::TempDir,
}

fn served() -> Option<(Scene, MutexGuard<'static, ()>)> {
    let alone = tests::alone();
    if !rustix::process::geteuid().is_root() {
        println!("SKIP: only root can act as several users");
        return None;
    }
    let (backing, mount) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::set_permissions(&backing, Permissions::from_mode(0o777)).unwrap();
    let options = Options {
        backing: backing.path().to_owned(),
        mount: mount.path().to_owned(),
        private: false,
        threads: 2,
        passthrough: true,
    };
    let daemon = Arc::new(Daemon::start(daemon::Options::default()).unwrap());
    match Server::start_with(FEW, &options, daemon, Channels::default) {
        Ok(server) => Some((Scene { server, backing, mount }, alone)),
        Err(error) => {
            println!("SKIP: {error}");
            None
        }
    }
}

impl Scene {
    fn path(&self, name: &str) -> PathBuf {
        self.mount.path().join(name)
    }

    fn known_files(&self) -> usize {
        self.server.stopper().facts().known_files
    }
}

/// Runs something in a thread that acts as that user.
fn as_user<T: Send>(uid: u32, what: impl FnOnce() -> T + Send) -> T {
    let act = || {
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
        rustix::thread::set_thread_groups(&[]).unwrap();
        rustix::thread::set_thread_res_gid(group, group, group).unwrap();
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        what()
    };
    thread::scope(|scope| scope.spawn(act).join().unwrap())
}

/// Files of those names beneath the mount: the kernel has not seen them.
fn make(scene: &Scene, dir: &str, count: usize) {
    let dir = scene.backing.path().join(dir);
    fs::create_dir_all(&dir).unwrap();
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
    (0..count).for_each(|at| drop(File::create(dir.join(format!("file-{at}"))).unwrap()));
}

/// A descriptor that no OPEN reaches the daemon for.
fn pinned(path: &Path) -> io::Result<OwnedFd> {
    Ok(rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?)
}

#[test]
fn a_user_who_pins_files_leaves_room_to_others_at_once() {
    let Some((scene, _alone)) = served() else { return };
    make(&scene, "pins", 1000);
    make(&scene, "looks", 50);
    let pins = scene.path("pins");
    let (held, refused) = as_user(USER, || {
        let mut held = Vec::new();
        for at in 0..1000 {
            match pinned(&pins.join(format!("file-{at}"))) {
                Ok(pin) => held.push(pin),
                Err(error) => return (held, Some(error)),
            }
        }
        (held, None)
    });
    let looks = scene.path("looks");
    let (looked, took) = as_user(USER + 1, || {
        let began = Instant::now();
        let look = |at| fs::metadata(looks.join(format!("file-{at}"))).map(|_| ());
        let looked = (0..50).try_for_each(look);
        let made = looked.and_then(|()| File::create(looks.join("made")));
        let listed = made.and_then(|_| fs::read_dir(&looks)).map(Iterator::count);
        (listed, began.elapsed())
    });
    let known = scene.known_files();
    assert_eq!(looked.map_err(|error| error.to_string()), Ok(51), "with {known} files known");
    assert!(took < Duration::from_secs(2), "another user's look-ups took {took:?}");
    // And that user alone is told, by a number that says what it is.
    let refused = refused.map(|error| error.raw_os_error());
    assert_eq!(refused, Some(Some(libc::ENFILE)), "{} files are pinned", held.len());
    let makes = |name| as_user(USER, || File::create(scene.path(name)).map(|_| ()));
    let error = makes("new").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENFILE));
    assert!(!scene.backing.path().join("new").exists(), "what failed is there all the same");
    // Not for longer than the files are pinned.
    drop(held);
    let until = Instant::now() + Duration::from_secs(20);
    while makes("later").is_err() {
        assert!(Instant::now() < until, "files that nobody holds are not forgotten");
    }
}

#[test]
fn one_user_sees_many_more_files_than_the_kernel_may_know() {
    const MANY: usize = 2000;
    let Some((scene, _alone)) = served() else { return };
    let began = Instant::now();
    // In one directory: the kernel forgets none of it while it looks one up there.
    make(&scene, ".", MANY);
    for round in 0..2 {
        let seen = as_user(USER, || -> io::Result<usize> {
            let mut seen = 0;
            for entry in fs::read_dir(scene.mount.path())? {
                seen += usize::from(entry?.metadata()?.is_file());
            }
            Ok(seen)
        });
        let known = scene.known_files();
        assert_eq!(seen.map_err(|error| error.to_string()), Ok(MANY), "{round}: {known} are known");
        assert!(known < FEW, "{known} files are known");
    }
    as_user(USER, || {
        for at in 0..MANY / 2 {
            let (file, dir) = (format!("new-{at}"), format!("dir-{at}"));
            drop(File::create(scene.path(&file)).unwrap());
            fs::create_dir(scene.path(&dir)).unwrap();
        }
    });
    let took = began.elapsed();
    assert!(took < Duration::from_secs(40), "what is forgotten in time took {took:?}");
}

/// A tmpfs until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    fn at(path: PathBuf) -> Mounted {
        rustix::mount::mount("none", &path, "tmpfs", MountFlags::empty(), None).unwrap();
        Mounted(path)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_mount_within_the_tree_stays_when_files_are_forgotten() {
    let Some((scene, _alone)) = served() else { return };
    make(&scene, "above", 1000);
    make(&scene, "above/inner", 0);
    let inner = scene.path("above/inner");
    as_user(USER, || fs::metadata(&inner).map(|_| ())).unwrap();
    let mounted = Mounted::at(inner.clone());
    let above = scene.path("above");
    as_user(USER, || {
        let seen = (0..1000).filter(|at| fs::metadata(above.join(format!("file-{at}"))).is_ok());
        assert_eq!(seen.count(), 1000);
    });
    let stays = mounts::mounted_at(&inner).unwrap();
    assert!(stays.is_some_and(|mounted| mounted.kind == "tmpfs"), "it was taken off");
    drop(mounted);
}
