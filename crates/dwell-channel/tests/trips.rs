// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel asks the daemon for, and what it remembers.

mod common;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::time::Duration;

use common::mapped;
use common::scene::{Scene, scene_by, serve_as};
use dwell_channel::daemon::{Daemon, Options};
use dwell_channel::fs::Options as Serving;

/// Longer than names are remembered of a directory that others may change.
const LONG: Duration = Duration::from_millis(1500);

/// A directory that is hidden while it is served, on a tmpfs.
fn hidden() -> Option<Scene> {
    let dir = || tempfile::Builder::new().prefix("dwell-trips-").tempdir_in("/dev/shm").unwrap();
    let (backing, mount) = (dir(), dir());
    let daemon = Arc::new(Daemon::start(Options::default()).unwrap());
    let serving = Serving {
        backing: backing.path().to_owned(),
        mount: mount.path().to_owned(),
        private: true,
        threads: 2,
        passthrough: true,
    };
    match serve_as(&serving, daemon.clone()) {
        Ok(server) => Some(Scene { daemon, server: Some(server), backing, mount }),
        Err(why) => {
            println!("SKIP: {why}");
            None
        }
    }
}

/// What was asked for since `before`, without what is over at once.
fn asked(scene: &Scene, before: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let mut asked = scene.requests();
    for (kind, count) in before {
        asked.entry(kind.clone()).and_modify(|now| *now -= count);
    }
    asked.retain(|_, count| *count > 0);
    asked
}

#[test]
fn a_name_that_is_missing_is_asked_for_once_until_somebody_makes_it() {
    let Some(scene) = scene_by((true, true)) else { return };
    let path = scene.path("not-yet");
    let before = scene.requests();
    for _ in 0..50 {
        assert!(!path.exists());
    }
    let lookups = asked(&scene, &before).get("lookup").copied();
    assert!(lookups.is_some_and(|lookups| lookups < 10), "{lookups:?} look-ups");
    fs::write(&path, "here").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"here");
    fs::remove_file(&path).unwrap();
    assert!(!path.exists());
    fs::create_dir(&path).unwrap();
    fs::rename(&path, scene.path("elsewhere")).unwrap();
    assert!(!path.exists() && scene.path("elsewhere").is_dir());
    // Made beneath the mount, it is there a little later.
    fs::write(scene.backing.path().join("not-yet"), "from beneath").unwrap();
    std::thread::sleep(LONG);
    assert_eq!(fs::read(&path).unwrap(), b"from beneath");
}

#[test]
fn names_and_attributes_of_a_hidden_directory_are_remembered_for_long() {
    let Some(scene) = hidden() else { return };
    let (file, missing) = (scene.path("file"), scene.path("missing"));
    fs::write(&file, "data").unwrap();
    scene.until_closed();
    let dir = scene.path("dir");
    fs::create_dir(&dir).unwrap();
    let look = || {
        assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o170_000, 0o040_000);
        assert!(!missing.exists() && fs::symlink_metadata(&file).is_ok());
    };
    look();
    std::thread::sleep(LONG);
    let before = scene.requests();
    look();
    let asked = asked(&scene, &before);
    // The kernel may change the file by itself, and does not say when.
    assert!(!asked.contains_key("lookup"), "{asked:?}");
    assert!(asked.get("getattr").is_none_or(|asked| *asked <= 1), "{asked:?}");
}

#[test]
fn times_that_a_mapping_changes_are_seen_on_a_hidden_directory_too() {
    let Some(scene) = hidden() else { return };
    if !scene.passes() {
        return;
    }
    let path = scene.path("file");
    fs::write(&path, vec![1; 8192]).unwrap();
    fs::File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_modified(std::time::UNIX_EPOCH + Duration::from_secs(1000))
        .unwrap();
    scene.until_closed();
    assert_eq!(fs::metadata(&path).unwrap().mtime(), 1000);
    let file = File::options().read(true).write(true).open(&path).unwrap();
    mapped(&file, 8192, |memory| memory[0] = 2).unwrap();
    std::thread::sleep(LONG);
    assert!(fs::metadata(&path).unwrap().mtime() > 1000);
}
