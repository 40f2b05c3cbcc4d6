// SPDX-License-Identifier: MIT OR Apache-2.0
//! Starting, stopping, being killed and starting again; what is said when it cannot be.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::fixture::{Served, done, dwell, is_root, missing, text};

#[test]
fn a_stopped_mount_leaves_the_files_and_nothing_else() {
    let Some(served) = Served::start() else { return };
    fs::create_dir(served.mount.join("dir")).unwrap();
    fs::write(served.mount.join("dir/file"), "kept").unwrap();
    let said = served.stop(&[]);
    assert!(said.status.success(), "{}", text(&said));
    assert_eq!(fs::read_dir(&served.mount).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(served.backing.join("dir/file")).unwrap(), "kept");
    let told = done(dwell().args(["serve", "status", "--json"]));
    assert!(!told.contains(served.mount.to_str().unwrap()), "{told}");
    let said = served.stop(&[]);
    assert!(text(&said).contains("is not served by a daemon of yours"), "{}", text(&said));
}

#[test]
fn a_mount_in_use_is_stopped_only_by_force() {
    let Some(served) = Served::start() else { return };
    fs::write(served.mount.join("file"), "text").unwrap();
    let open = fs::File::open(served.mount.join("file")).unwrap();
    let said = served.stop(&[]);
    let own = std::process::id().to_string();
    assert!(!said.status.success() && text(&said).contains("in use by"), "{}", text(&said));
    assert!(text(&said).contains(&own), "it names who uses it: {}", text(&said));
    // It still serves.
    fs::write(served.mount.join("other"), "still").unwrap();
    let passes = served.passes();
    let said = served.stop(&["--force"]);
    assert!(said.status.success(), "{}", text(&said));
    let read = open.read_at(&mut [0], 0);
    assert_eq!(
        read.is_ok(),
        passes,
        "an open file gets errors, unless the kernel reads it by itself"
    );
    let asked = open.set_permissions(fs::Permissions::from_mode(0o600));
    assert!(asked.is_err(), "what the kernel has to ask gets errors");
    assert_eq!(fs::read_to_string(served.backing.join("other")).unwrap(), "still");
}

#[test]
fn unmounting_it_ends_the_daemon() {
    let Some(served) = Served::start() else { return };
    let pid = served.pid();
    if is_root() {
        done(Command::new("umount").arg(&served.mount));
    } else {
        done(Command::new("fusermount3").arg("-u").arg(&served.mount));
    }
    let limit = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while Path::new(&format!("/proc/{pid}/exe")).exists() && std::time::Instant::now() < limit {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(!Path::new(&format!("/proc/{pid}/exe")).exists());
    served.serve(&[]);
}

/// The daemon notices a little later, and may be without a CPU for longer.
#[test]
fn an_unmounted_directory_is_served_again_without_waiting() {
    use rustix::process::{Pid, Signal, kill_process};
    let Some(served) = Served::start_with(&["--private"]) else { return };
    if !is_root() {
        return println!("SKIP: fusermount3 asks a daemon that is held up here");
    }
    for round in 0..3 {
        let pid = Pid::from_raw(served.pid() as i32).unwrap();
        kill_process(pid, Signal::STOP).unwrap();
        // The program of that name would ask the daemon something first.
        let mount = std::ffi::CString::new(served.mount.to_str().unwrap()).unwrap();
        // SAFETY: a terminated text.
        let unmounted = unsafe { libc::umount2(mount.as_ptr(), libc::UMOUNT_NOFOLLOW) };
        std::thread::scope(|scope| {
            let start = scope.spawn(|| served.serve(&["--private"]));
            std::thread::sleep(std::time::Duration::from_millis(100 * round));
            kill_process(pid, Signal::CONT).unwrap();
            assert_eq!(unmounted, 0);
            assert!(start.join().unwrap().starts_with("serving "));
        });
        fs::write(served.mount.join("file"), [round as u8]).unwrap();
        assert_eq!(fs::read(served.mount.join("file")).unwrap(), [round as u8]);
        assert_ne!(served.pid() as i32, pid.as_raw_nonzero().get());
    }
}

#[test]
fn a_killed_daemon_is_taken_over() {
    let Some(served) = Served::start_with(&["--private"]) else { return };
    fs::write(served.mount.join("file"), "before").unwrap();
    let open = fs::File::open(served.mount.join("file")).unwrap();
    fs::File::open(served.mount.join("file")).unwrap().sync_all().unwrap();
    let passes = served.passes();
    served.kill();
    let error = fs::read(served.mount.join("file")).unwrap_err();
    assert!(matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ECONNABORTED)), "{error}");
    assert_eq!(open.read_at(&mut [0], 0).is_ok(), passes, "the kernel by itself goes on");
    let told = done(dwell().args(["serve", "status"]));
    assert!(told.contains("killed"), "{told}");
    let said = served.serve(&["--private"]);
    // Both what hid the backing directory and the mount itself.
    assert_eq!(said.matches("took over from a daemon that was killed").count(), 2, "{said}");
    assert_eq!(fs::read_to_string(served.mount.join("file")).unwrap(), "before");
    served.kill();
    let said = served.stop(&[]);
    assert!(text(&said).contains("had been killed; unmounted"), "{}", text(&said));
    assert_eq!(fs::read_dir(&served.mount).unwrap().count(), 0);
}

/// A program that looked into it in between would make files where they are found no more.
#[test]
fn the_bare_directory_is_never_seen_while_a_killed_daemon_is_taken_over() {
    let Some(served) = Served::start_with(&["--private"]) else { return };
    if !is_root() {
        return println!("SKIP: fusermount3 mounts nothing where a killed daemon's mount is");
    }
    let file = served.mount.join("file");
    fs::write(&file, "before").unwrap();
    for round in 0..5 {
        served.kill();
        let over = AtomicBool::new(false);
        let seen = std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let is_bare = |error: std::io::Error| error.kind() == ErrorKind::NotFound;
                let mut bare = 0;
                while !over.load(Ordering::Relaxed) {
                    bare += u32::from(fs::metadata(&file).is_err_and(is_bare));
                }
                bare
            });
            served.serve(&["--private"]);
            over.store(true, Ordering::Relaxed);
            looking.join().unwrap()
        });
        assert_eq!(seen, 0, "round {round}");
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    assert_eq!(mounts.matches(served.mount.to_str().unwrap()).count(), 1, "{mounts}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "before");
}

#[test]
fn a_served_directory_is_not_served_twice() {
    let Some(served) = Served::start() else { return };
    let again =
        dwell().args(["serve", "start"]).args([&served.plain, &served.mount]).output().unwrap();
    let said = text(&again);
    assert!(!again.status.success() && said.contains("is served already, by process"), "{said}");
    assert!(said.contains(served.mount.to_str().unwrap()), "{said}");
}

#[test]
fn private_files_are_out_of_sight_until_it_stops() {
    let Some(served) = Served::prepare() else { return };
    fs::write(served.backing.join("secret"), "seen").unwrap();
    served.serve(&["--private"]);
    assert_eq!(fs::read_to_string(served.mount.join("secret")).unwrap(), "seen");
    assert!(fs::read(served.backing.join("secret")).is_err());
    fs::write(served.mount.join("new"), "n").unwrap();
    assert!(served.stop(&[]).status.success());
    assert_eq!(fs::read_to_string(served.backing.join("secret")).unwrap(), "seen");
    assert_eq!(fs::read_to_string(served.backing.join("new")).unwrap(), "n");
}

#[test]
fn a_directory_can_be_served_where_it_is() {
    let Some(served) = Served::prepare() else { return };
    fs::write(served.backing.join("file"), "same").unwrap();
    let start = |options: &[&str]| {
        done(
            dwell().args(["serve", "start"]).args(options).args([&served.backing, &served.backing]),
        )
    };
    start(&["--private"]);
    assert_eq!(fs::read_to_string(served.backing.join("file")).unwrap(), "same");
    fs::write(served.backing.join("file"), "changed").unwrap();
    done(dwell().args(["serve", "stop"]).arg(&served.backing));
    assert_eq!(fs::read_to_string(served.backing.join("file")).unwrap(), "changed");
}

#[test]
fn a_directory_that_cannot_be_served_is_said() {
    if let Some(why) = missing() {
        println!("SKIP: nothing can be served: {why}");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let of = |name: &str| dir.path().join(name);
    fs::create_dir(of("dir")).unwrap();
    fs::write(of("file"), "").unwrap();
    for (backing, mount, says) in [
        ("none", "dir", "none: cannot be opened"),
        ("dir", "none", "none: cannot be opened"),
        ("file", "dir", "file: is no directory"),
        ("dir", "file", "file: is no directory"),
        ("dir", "no/such/parent", "no/such/parent: cannot be found"),
    ] {
        let said =
            dwell().args(["serve", "start"]).args([of(backing), of(mount)]).output().unwrap();
        assert_eq!(said.status.code(), Some(1), "{}", text(&said));
        assert!(text(&said).contains(says), "{backing} at {mount}: {}", text(&said));
    }
    let said = dwell().args(["serve", "start", "--threads", "0", "a", "b"]).output().unwrap();
    assert_eq!(said.status.code(), Some(2));
}

#[test]
fn signals_stop_a_daemon_in_the_foreground() {
    let Some(served) = Served::prepare() else { return };
    let mut child = dwell()
        .args(["serve", "start", "--foreground"])
        .args([&served.backing, &served.mount])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut word = String::new();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    std::io::BufRead::read_line(&mut output, &mut word).unwrap();
    assert!(word.starts_with("serving "), "{word}");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(fs::read_dir(&served.mount).unwrap().count(), 0);
}

#[test]
fn status_says_whether_the_kernel_reads_and_writes_by_itself_and_why_not() {
    let Some(served) = Served::start() else { return };
    let told = done(dwell().args(["serve", "status"]));
    if served.passes() {
        assert!(told.contains("passthrough"), "{told}");
        drop(served);
        let Some(served) = Served::start_with(&["--no-passthrough"]) else { return };
        let path = &served.facts()["data_path"];
        assert_eq!(path["path"], "direct-io");
        assert_eq!(path["why"], "switched off (--no-passthrough)");
        let told = done(dwell().args(["serve", "status"]));
        assert!(told.contains("(direct I/O): switched off (--no-passthrough)"), "{told}");
    } else {
        let path = served.facts()["data_path"].clone();
        let why = path["why"].as_str().unwrap();
        assert!(path["path"] == "direct-io" && told.contains(why), "{path}, {told}");
    }
}

#[test]
fn status_counts_what_was_asked() {
    let Some(served) = Served::start_with(&["--no-passthrough"]) else { return };
    fs::write(served.mount.join("file"), "12345").unwrap();
    let _open = fs::File::open(served.mount.join("file")).unwrap();
    let status = || {
        let told = done(dwell().args(["serve", "status", "--json"]));
        let told: Vec<serde_json::Value> = serde_json::from_str(&told).unwrap();
        let is_mine = |one: &serde_json::Value| one["mount"] == served.mount.to_str().unwrap();
        told.into_iter().find(is_mine).unwrap()
    };
    // That the first was closed, the kernel says in its own time.
    let mut mine = status();
    for _ in 0..100 {
        if mine["facts"]["open_files"] == 1 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
        mine = status();
    }
    assert_eq!(mine["state"], "serving");
    assert_eq!(mine["backing"], served.backing.to_str().unwrap());
    let facts = &mine["facts"];
    assert_eq!(facts["open_files"], 1);
    assert_eq!(facts["requests"]["write"], 1);
    assert_eq!(facts["channels"]["channels"], 0);
    assert_eq!(facts["every_user"], is_root());
}

#[test]
fn a_place_below_that_another_mount_covers_is_not_served() {
    let Some(served) = Served::prepare() else { return };
    if !is_root() {
        println!("SKIP: only root can mount a file system below the backing directory");
        return;
    }
    let below = served.backing.join("below");
    fs::create_dir(&below).unwrap();
    done(Command::new("mount").args(["-t", "tmpfs", "none"]).arg(&below));
    served.serve(&[]);
    let found = fs::metadata(served.mount.join("below")).map(drop).map_err(|e| e.raw_os_error());
    // Nor can the mount be reached through itself, which would wait for its own daemon.
    let inside = served.backing.join("own");
    fs::create_dir(&inside).unwrap();
    let own = Command::new("mount").arg("--bind").args([&served.mount, &inside]).status().unwrap();
    let through = fs::metadata(served.mount.join("own")).map(drop).map_err(|e| e.raw_os_error());
    done(Command::new("umount").arg(&inside));
    done(Command::new("umount").arg(&below));
    assert_eq!(found, Err(Some(libc::EXDEV)));
    assert!(own.success());
    assert_eq!(through, Err(Some(libc::EXDEV)));
}

#[test]
fn more_files_than_descriptors_can_be_used() {
    let Some(served) = Served::prepare() else { return };
    let script = "ulimit -n 1024; exec \"$0\" serve start \"$1\" \"$2\"";
    let mut command = Command::new("sh");
    command.args(["-c", script]).arg(dwell().get_program()).args([&served.backing, &served.mount]);
    done(&mut command);
    let names = |dir: usize| (0..100).map(move |file| format!("dir-{dir}/file-{file}"));
    for dir in 0..40 {
        fs::create_dir(served.mount.join(format!("dir-{dir}"))).unwrap();
        for name in names(dir) {
            fs::write(served.mount.join(&name), &name).unwrap();
        }
    }
    for name in (0..40).flat_map(names) {
        assert_eq!(fs::read_to_string(served.mount.join(&name)).unwrap(), name);
    }
    let listed = done(Command::new("find").arg(&served.mount).args(["-type", "f", "-size", "-1k"]));
    let found = done(Command::new("find").arg(&served.mount).args(["-type", "f"]));
    assert_eq!((listed.lines().count(), found.lines().count()), (0, 4000));
}
