// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a copy keeps beside the bytes: holes, rights, times; and what it leaves behind when it
//! fails.

mod common;
#[allow(dead_code)]
#[path = "common/fake.rs"]
mod fake;
#[path = "common/model.rs"]
mod model;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use common::{Quiet, on_server};
use dwell::executor::Executor;
use dwell_bench::fixture::Export;
use dwell_nfs::copy::{self, Options};
use model::Model;

/// Copies; what could not be copied.
fn copy(from: &str, to: &str, options: Options) -> (copy::Progress, Vec<String>) {
    let executor = Executor::new().unwrap();
    let tasks = executor.handle();
    let quiet = Quiet::default();
    let copied = executor.block_on(copy::between(&tasks, from, to, options, &quiet));
    match copied {
        Ok((progress, _)) => (progress, quiet.errors()),
        Err(error) => (copy::Progress::default(), vec![error.to_string()]),
    }
}

fn ok(from: &str, to: &str, options: Options) -> copy::Progress {
    let (progress, errors) = copy(from, to, options);
    assert!(errors.is_empty(), "{errors:?}");
    progress
}

/// A directory, and one in it that is exported.
fn with_export(test: impl FnOnce(&Path, &Path, &(dyn Fn(&str, &str) -> String + Sync)) + Send) {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let exported = dir.path().join("export");
    fs::create_dir(&exported).unwrap();
    for path in [dir.path(), &exported] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    on_server(&[Export::directory(&exported)], false, |server| {
        let at = |name: &str, options: &str| {
            server.address(&format!("{}/{name}", exported.display()), options)
        };
        test(dir.path(), &exported, &at);
    });
}

/// Space that a file takes, in bytes.
fn space(path: &Path) -> u64 {
    fs::metadata(path).unwrap().blocks() * 512
}

#[test]
fn holes_stay_holes_there_and_back() {
    with_export(|dir, exported, at| {
        const BYTES: u64 = 40 << 20;
        let source = dir.join("sparse");
        let file = fs::File::create(&source).unwrap();
        let data = common::noise(300_000);
        // Holes at the beginning, between, within what one request moves, and at the end.
        for offset in [1 << 20, (1 << 20) + 600_000, 30 << 20] {
            file.write_all_at(&data, offset).unwrap();
        }
        file.write_all_at(&data[..4096], (20 << 20) + 8192).unwrap();
        file.set_len(BYTES).unwrap();
        let empty = dir.join("empty");
        fs::File::create(&empty).unwrap().set_len(BYTES + 1).unwrap();
        for verify in [false, true] {
            let options = Options { verify, ..Options::default() };
            for name in ["sparse", "empty"] {
                let (source, there) = (dir.join(name), exported.join(name));
                let back = dir.join(format!("{name}.back"));
                ok(source.to_str().unwrap(), &at(name, ""), options);
                ok(&at(name, ""), back.to_str().unwrap(), options);
                for copied in [&there, &back] {
                    assert!(fs::read(copied).unwrap() == fs::read(&source).unwrap());
                    assert!(space(copied) <= space(&source), "{copied:?}: {}", space(copied));
                }
                // Over the data of a file that is there.
                ok(empty.to_str().unwrap(), &at("sparse", ""), options);
                assert_eq!(space(&exported.join("sparse")), 0);
            }
        }
        // Zeros that take space are data.
        let zeros = dir.join("zeros");
        fs::write(&zeros, vec![0; 1 << 20]).unwrap();
        ok(zeros.to_str().unwrap(), &at("zeros", ""), Options::default());
        assert_eq!(space(&exported.join("zeros")), 1 << 20);
    });
}

/// Gives a link times of its own.
fn touch_link(link: &Path) {
    let time = ["-h", "-d", "2001-02-03 04:05:06.789"];
    assert!(Command::new("touch").args(time).arg(link).status().unwrap().success());
}

#[test]
fn permission_bits_owners_and_times_of_links_are_kept_if_asked_for_and_only_then() {
    with_export(|dir, exported, at| {
        let source = dir.join("source");
        fs::create_dir_all(source.join("sticky")).unwrap();
        fs::create_dir_all(source.join("group")).unwrap();
        for (name, mode) in [("setuid", 0o4755), ("setgid", 0o2755), ("plain", 0o640)] {
            fs::write(source.join(name), name).unwrap();
            lchown(source.join(name), Some(1234), Some(4321)).unwrap();
            fs::set_permissions(source.join(name), fs::Permissions::from_mode(mode)).unwrap();
        }
        fs::set_permissions(source.join("sticky"), fs::Permissions::from_mode(0o1777)).unwrap();
        fs::set_permissions(source.join("group"), fs::Permissions::from_mode(0o2775)).unwrap();
        symlink("plain", source.join("link")).unwrap();
        lchown(source.join("link"), Some(1234), Some(4321)).unwrap();
        touch_link(&source.join("link"));
        let names = ["setuid", "setgid", "plain", "sticky", "group", "link"];
        let facts = |at: &Path| {
            let facts = |name| {
                let found = fs::symlink_metadata(at.join(name)).unwrap();
                let times = (found.mtime(), found.mtime_nsec());
                (name, format!("{:o}", found.mode()), found.uid(), found.gid(), times)
            };
            names.map(facts)
        };
        let (there, back) = (exported.join("kept"), dir.join("kept"));
        let keep = Options { recursive: true, times: true, ..Options::default() };
        ok(source.to_str().unwrap(), &at("kept", ""), keep);
        // nfs-ganesha takes times of links and leaves them as they are.
        touch_link(&there.join("link"));
        assert_eq!(facts(&there), facts(&source));
        ok(&at("kept", ""), back.to_str().unwrap(), keep);
        assert_eq!(facts(&back), facts(&source));
        // A file that is replaced has the rights of the new one.
        ok(source.join("setuid").to_str().unwrap(), &at("kept/plain", ""), keep);
        assert_eq!(fs::metadata(there.join("plain")).unwrap().mode() & 0o7777, 0o4755);
        let (there, back) = (exported.join("not"), dir.join("not"));
        let plain = Options { recursive: true, ..Options::default() };
        ok(source.to_str().unwrap(), &at("not", ""), plain);
        ok(&at("kept", ""), back.to_str().unwrap(), plain);
        for copied in [&there, &back] {
            for name in ["setuid", "setgid", "plain", "sticky", "group"] {
                let found = fs::metadata(copied.join(name)).unwrap();
                assert_eq!((found.mode() & 0o7000, found.uid(), found.gid()), (0, 0, 0), "{name}");
            }
        }
        // A user that may not give a file away does not give its rights to somebody else's.
        let nobody = "&user=65534:65534";
        fs::set_permissions(exported, fs::Permissions::from_mode(0o777)).unwrap();
        ok(source.join("setuid").to_str().unwrap(), &at("given", nobody), keep);
        let given = fs::metadata(exported.join("given")).unwrap();
        assert_eq!((given.mode() & 0o7777, given.uid()), (0o755, 65534));
    });
}

#[test]
fn a_server_is_told_the_times_of_a_link() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let source = dir.path().join("link");
    symlink("there", &source).unwrap();
    touch_link(&source);
    let model = Model::default();
    let server = model.serve();
    for times in [false, true] {
        let options = Options { times, ..Options::default() };
        ok(source.to_str().unwrap(), &server.url("/e/link", ""), options);
        let found = fs::symlink_metadata(&source).unwrap();
        let modified = (found.mtime() as u32, found.mtime_nsec() as u32);
        assert_eq!(model.at("link").unwrap().modified == modified, times);
    }
}

#[test]
fn a_directory_that_is_there_keeps_its_special_bits() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (source, here) = (dir.path().join("source/d"), dir.path().join("d"));
    for directory in [&source, &here] {
        fs::create_dir_all(directory).unwrap();
    }
    fs::set_permissions(&source, fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(&here, fs::Permissions::from_mode(0o3777)).unwrap();
    let model = Model::default();
    let id = model.make(1, "d", 2, "");
    model.state().entries.get_mut(&id).unwrap().mode = 0o3777;
    let server = model.serve();
    let options = Options { recursive: true, ..Options::default() };
    ok(source.to_str().unwrap(), &server.url("/e", ""), options);
    assert_eq!(model.at("d").unwrap().mode, 0o3755);
    ok(&server.url("/e/d", ""), dir.path().to_str().unwrap(), options);
    assert_eq!(fs::metadata(&here).unwrap().mode() & 0o7777, 0o3755);
}

#[test]
fn a_copy_that_fails_leaves_neither_half_a_file_nor_a_part_without_use() {
    with_export(|dir, exported, at| {
        let names = |at: &Path| -> Vec<_> {
            fs::read_dir(at).unwrap().map(|entry| entry.unwrap().file_name()).collect()
        };
        // The longest name that there is, and one with which its part's has room.
        for name in [&b"n".repeat(255)[..], b"short"] {
            let name = OsStr::from_bytes(name);
            let small = dir.join("small");
            fs::create_dir_all(&small).unwrap();
            let source = dir.join("big");
            fs::write(&source, common::noise(3 << 20)).unwrap();
            common::with_small_disk(&small, || {
                fs::write(exported.join(name), common::noise(3 << 20)).unwrap();
                let to = small.join(name);
                let from = at(name.to_str().unwrap(), "");
                let (_, errors) = copy(&from, to.to_str().unwrap(), Options::default());
                assert!(errors.len() == 1 && errors[0].contains("No space left"), "{errors:?}");
                assert!(names(&small).is_empty(), "{:?}", names(&small));
                // A file that is there already stays whole.
                // What was removed goes with its last reference, and a ring may hold that.
                let until = Instant::now() + Duration::from_secs(10);
                while let Err(error) = fs::write(&to, "old") {
                    assert!(Instant::now() < until, "{error}");
                }
                copy(&from, to.to_str().unwrap(), Options::default());
                assert_eq!(fs::read(&to).unwrap(), b"old");
            });
        }
    });
}

#[test]
fn a_link_takes_the_place_of_a_link_at_once() {
    with_export(|dir, exported, at| {
        let source = dir.join("source");
        symlink("new", &source).unwrap();
        for place in [exported, dir] {
            let _ = fs::remove_file(place.join("link"));
            symlink("old", place.join("link")).unwrap();
            // A copy that was killed left this.
            symlink("older", place.join(".link.dwell-part")).unwrap();
        }
        ok(source.to_str().unwrap(), &at("link", ""), Options::default());
        ok(&at("link", ""), dir.join("link").to_str().unwrap(), Options::default());
        for place in [exported, dir] {
            assert_eq!(fs::read_link(place.join("link")).unwrap(), Path::new("new"));
            assert!(!place.join(".link.dwell-part").is_symlink());
        }
    });
}

#[test]
fn a_time_that_the_protocol_cannot_carry_becomes_the_nearest_and_a_note_says_so() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = dir.path().join("x");
    let file = fs::File::create(&path).unwrap();
    let last = SystemTime::UNIX_EPOCH + Duration::from_secs(u32::MAX.into());
    let hour = Duration::from_secs(3600);
    for (time, seconds, is_told) in [
        (SystemTime::UNIX_EPOCH - hour, 0, true),
        (SystemTime::UNIX_EPOCH + hour, 3600, false),
        (last + hour, u32::MAX, true),
    ] {
        let model = Model::default();
        let server = model.serve();
        file.set_times(fs::FileTimes::new().set_modified(time)).unwrap();
        let executor = Executor::new().unwrap();
        let (tasks, quiet) = (executor.handle(), Quiet::default());
        let options = Options { times: true, ..Options::default() };
        let (from, to) = (path.to_str().unwrap(), server.url("/e/x", "&timeout=20"));
        let copied = executor.block_on(copy::between(&tasks, from, &to, options, &quiet));
        assert_eq!((copied.unwrap().1, quiet.errors()), (0, vec![]));
        assert_eq!(model.at("x").unwrap().modified, (seconds, 0));
        let told = quiet.notes().iter().any(|note| note.contains("from 1970 to 2106"));
        assert_eq!(told, is_told, "{:?}", quiet.notes());
    }
}
