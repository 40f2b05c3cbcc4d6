// SPDX-License-Identifier: MIT OR Apache-2.0
//! A file of a served mount whose server went and came back: the file is found again, or nothing
//! is.

mod common;

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::scene::{scene, serve, to_channels};
use dwell::File;
use dwell::queue::{Action, Io};
use dwell_channel::client::{self, Guest, Mount};
use dwell_channel::daemon::{Daemon, Options};
use tempfile::TempDir;

/// A directory served by another process, which is killed and comes back.
struct Elsewhere {
    backing: TempDir,
    mount: TempDir,
    server: Option<Child>,
}

/// Serves in a process of its own until it is killed: not a test.
#[test]
#[ignore = "what the test below starts"]
fn serve_until_killed() {
    let (Some(backing), Some(mount)) = (std::env::var_os("BACKING"), std::env::var_os("MOUNT"))
    else {
        return;
    };
    let daemon = Arc::new(Daemon::start(Options::default()).unwrap());
    let server = serve(Path::new(&backing), Path::new(&mount), daemon, false).unwrap();
    let _ = server.wait();
}

impl Elsewhere {
    fn new() -> Elsewhere {
        let at = |name: &str| tempfile::Builder::new().prefix(name).tempdir_in("/var/tmp").unwrap();
        Elsewhere { backing: at("dwell-backing-"), mount: at("dwell-mount-"), server: None }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.mount.path().join(name)
    }

    /// Kills the server, does something to the directory that it served, and has it served again.
    fn served_again(&mut self, meanwhile: impl FnOnce(&Path)) {
        self.kill();
        meanwhile(self.backing.path());
        let server = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", "serve_until_killed", "--nocapture"])
            .env("BACKING", self.backing.path())
            .env("MOUNT", self.mount.path())
            .stdout(Stdio::null())
            .spawn();
        self.server = Some(server.unwrap());
        let limit = Instant::now() + Duration::from_secs(30);
        while fs::read(self.path("here/data")).is_err() {
            assert!(Instant::now() < limit, "nothing is served");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn kill(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.kill();
        let _ = Command::new("umount").arg("-l").arg(self.mount.path()).status();
    }
}

fn opened(path: impl AsRef<Path>) -> File {
    let file = to_channels().write(true).open(path.as_ref()).unwrap();
    file.write_all_at(&[1; 512], 0).unwrap();
    file
}

/// Writes as soon as the server is found again; whether it was, before it must be.
fn writes(file: &File, within: Duration) -> bool {
    let until = Instant::now() + within;
    while file.write_all_at(&[2; 512], 0).is_err() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

fn byte(path: impl AsRef<Path>) -> u8 {
    let mut byte = [0];
    fs::File::open(path).unwrap().read_exact_at(&mut byte, 0).unwrap();
    byte[0]
}

/// One test, because the current directory is the whole process's.
#[test]
fn a_file_that_is_reopened_is_the_same_file_after_rename_or_chdir() {
    if scene(true).is_none() {
        return;
    }
    let mut scene = Elsewhere::new();
    for dir in ["here", "there"] {
        fs::create_dir(scene.backing.path().join(dir)).unwrap();
        fs::write(scene.backing.path().join(dir).join("data"), [0; 512]).unwrap();
    }
    scene.served_again(|_| ());
    let home = std::env::current_dir().unwrap();

    // The current directory is another by then.
    std::env::set_current_dir(scene.path("here")).unwrap();
    let file = opened("data");
    std::env::set_current_dir(&home).unwrap();
    scene.served_again(|_| ());
    std::env::set_current_dir(scene.path("there")).unwrap();
    let found = writes(&file, Duration::from_secs(20));
    std::env::set_current_dir(&home).unwrap();
    let backing = scene.backing.path().to_owned();
    assert_eq!(byte(backing.join("there/data")), 0, "another file was written");
    assert!(found && byte(backing.join("here/data")) == 2, "the file was not found again");
    drop(file);

    // Another file has its name by then; once with its inode number, where the file system likes to
    // use that again.
    for removed in [false, true] {
        let file = opened(scene.path("here/data"));
        scene.served_again(|backing| {
            let data = backing.join("here/data");
            match removed {
                true => fs::remove_file(&data).unwrap(),
                false => fs::rename(&data, backing.join("here/moved")).unwrap(),
            }
            fs::write(data, [9; 512]).unwrap();
        });
        assert!(!writes(&file, Duration::from_secs(1)), "there is nothing to be found");
        assert_eq!(byte(backing.join("here/data")), 9, "another file was written");
    }

    // It was renamed while it was served, and another has its name.
    let file = opened(scene.path("there/data"));
    fs::rename(scene.path("there/data"), scene.path("there/moved")).unwrap();
    fs::write(scene.path("there/data"), [9; 512]).unwrap();
    scene.served_again(|_| ());
    let found = writes(&file, Duration::from_secs(1));
    assert_eq!(byte(backing.join("there/data")), 9, "another file was written");
    assert_eq!(byte(backing.join("there/moved")), if found { 2 } else { 1 });
}

/// The number names another file by then, and nothing said so: it was closed by io_uring, say.
#[test]
fn a_request_that_a_killed_daemon_never_took_is_the_kernels() {
    if scene(true).is_none() {
        return;
    }
    let mut scene = Elsewhere::new();
    fs::create_dir(scene.backing.path().join("here")).unwrap();
    fs::write(scene.backing.path().join("here/data"), [0; 512]).unwrap();
    let plain = scene.backing.path().join("plain");
    fs::write(&plain, [0; 512]).unwrap();
    scene.served_again(|_| ());
    let both = |path: &Path| fs::File::options().read(true).write(true).open(path).unwrap();
    let program = both(&scene.path("here/data"));
    let fd = program.as_raw_fd();
    let mount = Mount::of(fd).unwrap().for_guest(Guest { keep: Ok, epoch: |_| 0 });
    let policy = Arc::new(dwell::policy::Spin);
    let file = File::over(mount, "test", "test", client::parameters(), policy, None);
    let write = |byte: u8| {
        let bytes = [byte; 512];
        // SAFETY: the bytes are borrowed until the call returns, and a write changes nothing in
        // them.
        let io = unsafe { Io::plain(Action::Write, fd, bytes.as_ptr().cast_mut(), 512, 0) };
        file.request(&io)
    };
    assert_eq!(write(1), 512);
    scene.kill();
    let other = both(&plain);
    // SAFETY: both are open, and both stay so.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), fd) }, fd);
    assert_eq!(write(2), 512);
    assert_eq!((byte(scene.backing.path().join("here/data")), byte(plain)), (1, 2));
}

/// The number of a served file belongs to it and to all queues over it: no program can come to have
/// it meanwhile.
#[test]
fn the_number_of_a_served_file_is_not_used_again_while_a_queue_lives() {
    use dwell::source::Source;
    let Some(scene) = scene(true) else { return };
    fs::write(scene.backing.path().join("data"), [0; 512]).unwrap();
    let served = client::Served::open(&scene.path("data"), &dwell::Options::default()).unwrap();
    let (number, queue) = (served.target(), served.queue(1).unwrap());
    drop(served);
    let others: Vec<_> = (0..64).map(|_| fs::File::open("/dev/null").unwrap()).collect();
    assert!(others.iter().all(|other| other.as_raw_fd() != number));
    let there = fs::read_link(format!("/proc/self/fd/{number}")).unwrap();
    assert!(there.ends_with("data"), "{}", there.display());
    drop(queue);
}
