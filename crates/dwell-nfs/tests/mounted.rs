// SPDX-License-Identifier: MIT OR Apache-2.0
//! An export mounted at a directory: what programs do there reaches the server, whatever happens to
//! it.

mod common;
#[allow(dead_code)]
#[path = "common/fake.rs"]
mod fake;
#[path = "common/model.rs"]
mod model;
#[path = "common/mounting.rs"]
mod mounting;

use std::fs::{self, File, FileTimes};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use model::{Entry, Fault, Model};
use mounting::{at, mount, mount_telling, unmount, wait_for};

#[test]
fn programs_find_files_and_directories_as_on_any_file_system() {
    let model = Model::default();
    at(&model, "", |dir| {
        fs::create_dir(dir.join("d")).unwrap();
        fs::write(dir.join("d/x"), common::noise(100_000)).unwrap();
        assert_eq!(fs::read(dir.join("d/x")).unwrap(), common::noise(100_000));
        fs::set_permissions(dir.join("d/x"), fs::Permissions::from_mode(0o640)).unwrap();
        assert_eq!(fs::metadata(dir.join("d/x")).unwrap().mode() & 0o7777, 0o640);
        fs::hard_link(dir.join("d/x"), dir.join("y")).unwrap();
        assert_eq!(fs::metadata(dir.join("y")).unwrap().nlink(), 2);
        assert_eq!(
            fs::metadata(dir.join("y")).unwrap().ino(),
            fs::metadata(dir.join("d/x")).unwrap().ino()
        );
        std::os::unix::fs::symlink("d/x", dir.join("link")).unwrap();
        assert_eq!(fs::read_link(dir.join("link")).unwrap(), Path::new("d/x"));
        assert!(Command::new("mkfifo").arg(dir.join("pipe")).status().unwrap().success());
        assert!(fs::metadata(dir.join("pipe")).unwrap().file_type().is_fifo());
        let names = || {
            let mut names: Vec<_> = (fs::read_dir(dir).unwrap())
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        };
        assert_eq!(names(), ["d", "link", "pipe", "y"]);
        assert_eq!(fs::remove_dir(dir.join("d")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
        fs::rename(dir.join("d/x"), dir.join("z")).unwrap();
        fs::remove_dir(dir.join("d")).unwrap();
        fs::remove_file(dir.join("link")).unwrap();
        assert_eq!(names(), ["pipe", "y", "z"]);
        let new = File::options().write(true).create_new(true).open(dir.join("z"));
        assert_eq!(new.unwrap_err().kind(), ErrorKind::AlreadyExists);
        let listed = Command::new("df").arg(dir).output().unwrap();
        assert!(String::from_utf8_lossy(&listed.stdout).contains("dwell-nfs:"), "{listed:?}");
    });
    assert!(model.at("z").unwrap().durable == common::noise(100_000));
}

#[test]
fn closed_or_synced_data_is_durable() {
    let model = Model::default();
    at(&model, "", |dir| {
        let mut file = File::create(dir.join("x")).unwrap();
        file.write_all(&common::noise(50_000)).unwrap();
        file.sync_all().unwrap();
        assert!(model.at("x").unwrap().durable == common::noise(50_000));
        file.write_all(b"more").unwrap();
        // Lost at the server, not here.
        model.state().restart();
        assert_eq!(file.metadata().unwrap().len(), 50_004);
        drop(file);
        assert_eq!(model.at("x").unwrap().durable.len(), 50_004);
        let file = File::options().write(true).open(dir.join("x")).unwrap();
        file.set_len(7).unwrap();
        file.write_all_at(b"zz", 5).unwrap();
        drop(file);
        let expected = [&common::noise(5)[..], b"zz"].concat();
        assert_eq!(model.at("x").unwrap().durable, expected);
    });
}

#[test]
fn times_and_rights_that_are_set_after_a_write_outlive_a_restart_of_the_server() {
    let model = Model::default();
    at(&model, "", |dir| {
        let mut file = File::create(dir.join("x")).unwrap();
        file.write_all(&common::noise(50_000)).unwrap();
        let modified = UNIX_EPOCH + Duration::from_secs(1000);
        file.set_times(FileTimes::new().set_modified(modified)).unwrap();
        file.set_permissions(fs::Permissions::from_mode(0o4750)).unwrap();
        model.state().restart();
        file.sync_all().unwrap();
        drop(file);
        let there = model.at("x").unwrap();
        assert!(there.durable == common::noise(50_000));
        assert_eq!((there.modified, there.mode), ((1000, 0), 0o4750));
    });
}

#[test]
fn a_time_that_the_protocol_cannot_carry_is_refused() {
    let model = Model::default();
    at(&model, "", |dir| {
        let file = File::create(dir.join("x")).unwrap();
        let last = UNIX_EPOCH + Duration::from_secs(u32::MAX.into());
        let second = Duration::from_secs(1);
        file.set_times(FileTimes::new().set_modified(last)).unwrap();
        for time in [UNIX_EPOCH - second, last + second] {
            for times in [FileTimes::new().set_modified(time), FileTimes::new().set_accessed(time)]
            {
                let refused = file.set_times(times).unwrap_err();
                assert_eq!(refused.raw_os_error(), Some(libc::EOVERFLOW), "{time:?}");
            }
        }
        assert_eq!(model.at("x").unwrap().modified, (u32::MAX, 0));
    });
}

#[test]
fn a_file_that_is_opened_again_is_what_others_made_of_it() {
    let model = Model::default();
    let file = model.put("x", b"old");
    at(&model, "&actimeo=600", |dir| {
        assert_eq!(fs::read(dir.join("x")).unwrap(), b"old");
        {
            let mut state = model.state();
            let entry = state.entries.get_mut(&file).unwrap();
            entry.data = b"new and longer".to_vec();
            entry.durable = entry.data.clone();
            (entry.modified, entry.changed) = ((5, 5), 99);
        }
        // Whatever the kernel believes for ten minutes.
        assert_eq!(fs::read(dir.join("x")).unwrap(), b"new and longer");
        // What has not changed is not read again.
        model.state().seen.clear();
        assert_eq!(fs::read(dir.join("x")).unwrap(), b"new and longer");
        assert!(!model.state().seen.contains(&6), "{:?}", model.state().seen);
    });
}

#[test]
fn a_file_that_is_removed_or_replaced_while_it_is_open_keeps_its_data() {
    let model = Model::default();
    at(&model, "", |dir| {
        for replaced in [false, true] {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(true);
            let mut file = options.open(dir.join("x")).unwrap();
            file.write_all(b"still here").unwrap();
            match replaced {
                false => fs::remove_file(dir.join("x")).unwrap(),
                true => {
                    fs::write(dir.join("other"), b"other").unwrap();
                    fs::rename(dir.join("other"), dir.join("x")).unwrap();
                }
            }
            file.seek(SeekFrom::Start(0)).unwrap();
            let mut there = String::new();
            file.read_to_string(&mut there).unwrap();
            assert_eq!(there, "still here");
        }
        assert_eq!(fs::read(dir.join("x")).unwrap(), b"other");
    });
    // Nothing is left of them.
    assert!(model.at("").unwrap().names.keys().eq([b"x"]));
}

#[test]
fn a_restart_at_any_point_of_a_programs_work_loses_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let tree = dir.path().join("tree");
    common::tree(&tree);
    for name in ["file9", "inner/f9", "file8", "inner/f8"] {
        fs::remove_file(tree.join(name)).unwrap();
    }
    let run = |plan: Option<(Fault, u64)>| {
        let model = Model::default();
        at(&model, "&nconnect=2", |mount| {
            model.fail(move |_, call| plan.filter(|(_, point)| *point == call).map(|plan| plan.0));
            let copied = Command::new("cp").args(["-r", "-P"]).arg(&tree).arg(mount).output();
            let copied = copied.unwrap();
            assert!(copied.status.success(), "{plan:?}: {copied:?}");
            fs::rename(mount.join("tree/file5"), mount.join("tree/moved")).unwrap();
            fs::remove_file(mount.join("tree/moved")).unwrap();
            fs::copy(tree.join("file5"), mount.join("tree/file5")).unwrap();
        });
        // Only what the server made durable counts.
        model.state().restart();
        check(&model, "tree", &tree);
        model.state().calls
    };
    let calls = run(None);
    if calls == 0 {
        return;
    }
    let points = std::env::var("DWELL_NFS_RESTARTS").ok().and_then(|count| count.parse().ok());
    let points: u64 = points.unwrap_or(12);
    let faults = [Fault::RestartBefore, Fault::RestartAfter, Fault::Unanswered];
    for point in 0..points {
        run(Some((faults[point as usize % 3], 1 + point * (calls - 1) / points)));
    }
}

fn check(model: &Model, path: &str, tree: &Path) {
    let Some(entry) = model.at(path) else { return };
    let facts = fs::symlink_metadata(tree).unwrap();
    if facts.is_file() {
        assert!(entry.durable == fs::read(tree).unwrap(), "{path} differs");
    } else if facts.is_dir() {
        let names: Vec<_> = fs::read_dir(tree).unwrap().map(|entry| entry.unwrap()).collect();
        assert_eq!(entry.names.len(), names.len(), "{path}");
        for name in names.iter().filter_map(|name| name.file_name().into_string().ok()) {
            check(model, &format!("{path}/{name}"), &tree.join(&name));
        }
    }
}

/// Hears what a mount tells.
fn hearing() -> (Arc<Mutex<Vec<String>>>, impl FnMut(&dwell_nfs::Error) + Send + 'static) {
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = heard.clone();
    (heard, move |error| hears.lock().unwrap().push(error.to_string()))
}

#[test]
fn data_that_a_close_cannot_make_durable_is_told_and_kept_for_the_next_time() {
    for is_opened_again in [true, false] {
        let model = Model::default();
        let server = model.serve();
        let (heard, told) = hearing();
        let Some((dir, mounted)) = mount_telling(&server, "", told) else { return };
        model.fail(|call, _| call.is_nfs(21).then_some(Fault::Refuse(5)));
        fs::write(dir.path().join("x"), b"kept").unwrap();
        wait_for(|| !heard.lock().unwrap().is_empty());
        let first = heard.lock().unwrap()[0].clone();
        assert!(first.contains("inode number") && first.contains("commit at byte 0"), "{first}");
        model.fail_never();
        assert_eq!(model.at("x").unwrap().durable, b"");
        if is_opened_again {
            let again = File::options().write(true).open(dir.path().join("x")).unwrap();
            again.sync_all().unwrap();
            assert_eq!(model.at("x").unwrap().durable, b"kept");
        }
        unmount(dir.path(), false);
        mounted.wait().unwrap();
        assert_eq!(model.at("x").unwrap().durable, b"kept");
    }
}

#[test]
fn data_never_made_durable_is_told_when_the_mount_ends() {
    let model = Model::default();
    let server = model.serve();
    let (heard, told) = hearing();
    let Some((dir, mounted)) = mount_telling(&server, "", told) else { return };
    model.fail(|call, _| call.is_nfs(21).then_some(Fault::Refuse(5)));
    fs::write(dir.path().join("x"), b"lost").unwrap();
    unmount(dir.path(), false);
    let error = mounted.wait().unwrap_err().to_string();
    assert!(error.contains("4 bytes that programs wrote were never made durable"), "{error}");
    let heard = heard.lock().unwrap();
    assert!(heard.iter().any(|line| line.contains("4 bytes that were written are lost")));
}

#[test]
fn the_memory_of_a_mount_for_all_files_is_bounded() {
    let model = Model::default();
    at(&model, "&memory=65536", |dir| {
        let kept = || -> usize {
            let state = model.state();
            let differs = |entry: &Entry| entry.data.len() - entry.durable.len();
            state.entries.values().map(differs).sum()
        };
        let mut files: Vec<_> =
            (0..8).map(|number| File::create(dir.join(number.to_string())).unwrap()).collect();
        let mut most = 0;
        for _ in 0..8 {
            for file in &mut files {
                file.write_all(&common::noise(8192)).unwrap();
                most = most.max(kept());
                assert!(most <= 65536, "{most}");
            }
        }
        assert!(most > 32768, "{most}");
        // A server that makes nothing durable later has to do so at once.
        model.fail(|call, _| call.is_nfs(21).then_some(Fault::Refuse(5)));
        for _ in 0..8 {
            for file in &mut files {
                file.write_all(&common::noise(8192)).unwrap();
                assert!(kept() <= 65536);
            }
        }
        model.fail_never();
    });
}

#[test]
fn listings_that_were_read_go_where_directories_need_too_much_memory_and_others_stay() {
    let model = Model::default();
    for directory in ["a", "b"] {
        let id = model.make(1, directory, 2, "");
        for number in 0..400 {
            model.make(id, &format!("file{number}"), 1, "");
        }
    }
    at(&model, "&memory=100000", |dir| {
        let mut first = fs::read_dir(dir.join("a")).unwrap();
        let mut names: Vec<_> =
            first.by_ref().take(10).map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(fs::read_dir(dir.join("b")).unwrap().count(), 400);
        // As `rm -r` does.
        names.iter().for_each(|name| fs::remove_file(dir.join("a").join(name)).unwrap());
        names.extend(first.by_ref().map(|entry| entry.unwrap().file_name()));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 400);
        let listed = model.state().seen.iter().filter(|procedure| **procedure == 17).count();
        assert_eq!(listed, 2);
        // The one that was read makes room, although it is open.
        let again = fs::read_dir(dir.join("b")).unwrap();
        let file = File::create(dir.join("x")).unwrap();
        file.write_all_at(&[1; 1000], 0).unwrap();
        let there = model.at("x").unwrap();
        assert_eq!((there.data.len(), there.durable.len()), (1000, 0));
        drop((first, again));
    });
}

#[test]
fn a_mount_is_stopped_by_its_own_process_although_the_server_is_away() {
    let model = Model::default();
    let server = model.serve();
    let Some((dir, mounted)) = mount(&server, "&timeo=5") else { return };
    model.fail(|_, _| Some(Fault::RestartBefore));
    let stopper = mounted.stopper();
    assert!(stopper.is_mounted());
    let theirs = stopper.clone();
    let stopped = std::thread::spawn(move || theirs.stop(false));
    wait_for(|| stopped.is_finished());
    if stopped.join().unwrap().is_err() {
        // A child of another test, as above.
        unmount(dir.path(), true);
    }
    assert!(!stopper.is_mounted() && stopper.stop(true).is_err());
    mounted.wait().unwrap();
}

#[test]
fn a_program_with_a_file_open_is_told_that_its_data_is_gone_although_another_was_told_before() {
    let model = Model::default();
    at(&model, "", |dir| {
        let file = File::create(dir.join("x")).unwrap();
        file.write_all_at(b"gone", 0).unwrap();
        model.fail(|call, _| call.is_nfs(21).then_some(Fault::Refuse(70)));
        let stale = |done: std::io::Result<()>| done.unwrap_err().raw_os_error();
        assert_eq!(stale(File::open(dir).unwrap().sync_all()), Some(libc::ESTALE));
        assert_eq!(stale(file.sync_all()), Some(libc::ESTALE));
        model.fail_never();
    });
}
