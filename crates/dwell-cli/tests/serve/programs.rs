// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whole programs and many threads on a served mount.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Seek as _, SeekFrom, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::thread;

use crate::fixture::{Dice, Served, done};
use crate::step::tree;

/// A tree with a bit of everything.
fn plant(root: &Path) {
    let mut dice = Dice::of(7);
    for directory in 0..8 {
        let dir = root.join(format!("dir {directory}"));
        fs::create_dir_all(dir.join("below/further")).unwrap();
        for file in 0..12 {
            let bytes = dice.below(30_000) as usize;
            let path = dir.join(format!("file-{file}"));
            fs::write(&path, vec![file as u8; bytes]).unwrap();
            fs::set_permissions(
                &path,
                fs::Permissions::from_mode(dice.of_these(&[0o644, 0o755, 0o600])),
            )
            .unwrap();
        }
        symlink("file-1", dir.join("link")).unwrap();
        symlink("/nowhere/at/all", dir.join("dangling")).unwrap();
        fs::hard_link(dir.join("file-2"), dir.join("below/hard")).unwrap();
        let sparse = File::create(dir.join("sparse")).unwrap();
        sparse.write_all_at(b"end", 1 << 20).unwrap();
    }
}

#[test]
fn trees_copied_into_within_and_out_of_the_mount_stay_the_same() {
    let Some(served) = Served::start() else { return };
    let origin = served.plain.join("origin");
    fs::create_dir(&origin).unwrap();
    plant(&origin);
    let expected = tree(&origin);
    let copy = |from: &Path, to: &Path| {
        done(Command::new("cp").args(["-a", "--sparse=always"]).args([from, to]))
    };
    copy(&origin, &served.mount.join("in"));
    assert_eq!(tree(&served.mount.join("in")), expected);
    copy(&served.mount.join("in"), &served.mount.join("again"));
    copy(&served.mount.join("again"), &served.plain.join("out"));
    assert_eq!(tree(&served.plain.join("out")), expected);
    // By an archive.
    let archive = served.mount.join("all.tar");
    done(Command::new("tar").arg("-C").arg(&served.mount).arg("-cf").arg(&archive).arg("in"));
    fs::create_dir(served.mount.join("unpacked")).unwrap();
    done(
        Command::new("tar").arg("-C").arg(served.mount.join("unpacked")).arg("-xpf").arg(&archive),
    );
    assert_eq!(tree(&served.mount.join("unpacked/in")), expected);
    let sparse = fs::metadata(served.mount.join("in/dir 0/sparse")).unwrap();
    assert!(sparse.blocks() * 512 < 100_000, "{} blocks", sparse.blocks());
    done(
        Command::new("rm")
            .arg("-rf")
            .args(["in", "again", "unpacked"].map(|name| served.mount.join(name))),
    );
    assert_eq!(fs::read_dir(&served.mount).unwrap().count(), 1);
}

#[test]
fn git_clones_commits_and_checks() {
    let Some(served) = Served::start() else { return };
    if Command::new("git").arg("--version").output().is_err() {
        println!("SKIP: git is not installed");
        return;
    }
    let git = |dir: &Path, words: &[&str]| {
        let mut command = Command::new("git");
        command.arg("-C").arg(dir).args([
            "-c",
            "user.name=n",
            "-c",
            "user.email=e@x",
            "-c",
            "safe.directory=*",
        ]);
        done(command.args(words))
    };
    let origin = served.mount.join("origin");
    fs::create_dir(&origin).unwrap();
    git(&origin, &["init", "-q"]);
    plant(&origin);
    git(&origin, &["add", "-A"]);
    git(&origin, &["commit", "-qm", "all"]);
    git(&served.mount, &["clone", "-q", "origin", "clone"]);
    let clone = served.mount.join("clone");
    fs::write(clone.join("new"), "n").unwrap();
    git(&clone, &["add", "new"]);
    git(&clone, &["commit", "-qm", "more"]);
    git(&clone, &["gc", "-q"]);
    assert_eq!(git(&clone, &["status", "--porcelain"]), "");
    git(&clone, &["fsck", "--strict"]);
    assert_eq!(git(&clone, &["rev-list", "--count", "HEAD"]), "2\n");
}

#[test]
fn many_threads_get_their_own_bytes_back() {
    let Some(served) = Served::start() else { return };
    thread::scope(|scope| {
        for number in 0..16_u8 {
            let dir = served.mount.join(format!("thread-{number}"));
            let shared = &served;
            scope.spawn(move || {
                fs::create_dir(&dir).unwrap();
                for round in 0..40_u8 {
                    let path = dir.join(format!("file-{round}"));
                    let data = vec![number ^ round; 3000 + usize::from(round)];
                    fs::write(&path, &data).unwrap();
                    fs::rename(&path, dir.join("moved")).unwrap();
                    assert_eq!(fs::read(dir.join("moved")).unwrap(), data);
                    // All threads fight over one name, too.
                    let _ = fs::write(shared.mount.join("common"), &data);
                    let _ = fs::remove_file(shared.mount.join("common"));
                    let _ = fs::rename(dir.join("moved"), shared.mount.join("common"));
                }
                let left: Vec<_> = fs::read_dir(&dir).unwrap().collect();
                assert!(left.len() <= 1);
            });
        }
    });
}

#[test]
fn an_unlinked_file_lives_as_long_as_it_is_open() {
    let Some(served) = Served::start() else { return };
    let path = served.mount.join("file");
    let mut file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(b"before").unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "another").unwrap();
    file.write_all(b" after").unwrap();
    file.seek(SeekFrom::Start(0)).unwrap();
    let mut text = String::new();
    file.read_to_string(&mut text).unwrap();
    assert_eq!(text, "before after");
    let facts = file.metadata().unwrap();
    assert_eq!((facts.nlink(), facts.len()), (0, 12));
    file.set_permissions(fs::Permissions::from_mode(0o640)).unwrap();
    file.set_len(3).unwrap();
    assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o640);
    assert_eq!(fs::read_to_string(&path).unwrap(), "another");
    // Beneath, nothing of it is left once it is closed.
    drop(file);
    assert_eq!(fs::read_dir(&served.backing).unwrap().count(), 1);
}

#[test]
fn replacing_a_file_by_renaming_never_leaves_a_gap() {
    let Some(served) = Served::start() else { return };
    let path = served.mount.join("current");
    fs::write(&path, vec![0; 2000]).unwrap();
    thread::scope(|scope| {
        let writers: Vec<_> = (1..4_u8)
            .map(|number| {
                let (path, draft) = (&path, served.mount.join(format!("draft-{number}")));
                scope.spawn(move || {
                    for _ in 0..200 {
                        fs::write(&draft, vec![number; 2000]).unwrap();
                        fs::rename(&draft, path).unwrap();
                    }
                })
            })
            .collect();
        while !writers.iter().all(|writer| writer.is_finished()) {
            let data = fs::read(&path).unwrap();
            assert_eq!(data.len(), 2000);
            assert!(data.iter().all(|byte| *byte == data[0]), "two files in one");
        }
    });
}

#[test]
fn a_listing_shows_once_what_stays_while_names_come_and_go() {
    let Some(served) = Served::start() else { return };
    for number in 0..500 {
        fs::write(served.mount.join(format!("stays-{number}")), "").unwrap();
    }
    let stop = std::sync::atomic::AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                let path = served.mount.join(format!("goes-{}", number % 50));
                fs::write(&path, "").unwrap();
                fs::remove_file(&path).unwrap();
                number += 1;
            }
        });
        for _ in 0..20 {
            let names: Vec<_> = fs::read_dir(&served.mount)
                .unwrap()
                .map(|entry| entry.unwrap().file_name())
                .collect();
            let stays: Vec<_> =
                names.iter().filter(|name| name.to_string_lossy().starts_with("stays")).collect();
            let once: BTreeSet<_> = stays.iter().collect();
            assert_eq!((stays.len(), once.len()), (500, 500));
        }
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn locks_keep_processes_apart() {
    use rustix::fs::FlockOperation;
    let Some(served) = Served::start() else { return };
    let path = served.mount.join("locked");
    let file = File::create(&path).unwrap();
    let held_by_others = || {
        let script = format!("flock -n {} true", path.display());
        !Command::new("sh").args(["-c", &script]).status().unwrap().success()
    };
    assert!(!held_by_others());
    rustix::fs::flock(file.as_fd(), FlockOperation::LockExclusive).unwrap();
    assert!(held_by_others());
    rustix::fs::flock(file.as_fd(), FlockOperation::Unlock).unwrap();
    assert!(!held_by_others());
    // Ranges, by POSIX's calls: a process that dies lets go of its own.
    rustix::fs::fcntl_lock(file.as_fd(), FlockOperation::LockExclusive).unwrap();
    let script = "import fcntl,sys\nf=open(sys.argv[1],'r+')\ntry: fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB)\nexcept OSError as e: print(e.errno)\nelse: print('free')";
    let other = || {
        let run = Command::new("python3").args(["-c", script]).arg(&path).output();
        run.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    let Ok(found) = other() else {
        println!(
            "SKIP: python3 is not installed: locks of ranges were not tested across processes"
        );
        return;
    };
    assert_eq!(found, libc::EAGAIN.to_string());
    rustix::fs::fcntl_lock(file.as_fd(), FlockOperation::Unlock).unwrap();
    assert_eq!(other().unwrap(), "free");
}

#[test]
fn appends_of_several_processes_lose_nothing() {
    let Some(served) = Served::start() else { return };
    let path = served.mount.join("log");
    let script = format!(
        "i=0; while [ $i -lt 100 ]; do echo \"$0 line $i\" >> '{}'; i=$((i+1)); done",
        path.display()
    );
    let children: Vec<_> = (0..4)
        .map(|number| {
            Command::new("sh").args(["-c", &script, &number.to_string()]).spawn().unwrap()
        })
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let text = fs::read_to_string(&path).unwrap();
    let lines: BTreeSet<&str> = text.lines().collect();
    assert_eq!((text.lines().count(), lines.len()), (400, 400));
}

#[test]
fn data_after_fsync_is_there_when_the_daemon_is_killed() {
    let Some(served) = Served::start() else { return };
    let file = File::create(served.mount.join("kept")).unwrap();
    for number in 0..50_u64 {
        file.write_all_at(&number.to_le_bytes(), number * 8).unwrap();
    }
    file.sync_all().unwrap();
    served.kill();
    let kept = fs::read(served.backing.join("kept")).unwrap();
    assert_eq!(kept.len(), 400);
    assert_eq!(kept[392..], 49_u64.to_le_bytes());
}
