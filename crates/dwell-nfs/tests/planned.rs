// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a copy would do is what it does, and finding that out changes nothing.

mod common;
#[allow(dead_code)]
#[path = "common/fake.rs"]
mod fake;
#[path = "common/model.rs"]
mod model;

use std::fs;
use std::path::Path;

use common::{Quiet, same, tree};
use dwell::executor::Executor;
use dwell_nfs::Result;
use dwell_nfs::copy::{self, Effect, Options, Planned, Progress, Threads};
use dwell_nfs::nfs3::Kind;
use model::Model;

fn plan(from: &str, to: &str, options: Options) -> (Result<(Vec<Planned>, u64)>, Vec<String>) {
    let executor = Executor::new().unwrap();
    let (tasks, quiet) = (executor.handle(), Quiet::default());
    let done = executor.block_on(copy::plan(&tasks, from, to, options, &quiet));
    (done, quiet.errors())
}

/// The plan of a copy that goes well.
fn sound(from: &str, to: &str, options: Options) -> Vec<Planned> {
    let (done, errors) = plan(from, to, options);
    let (planned, failures) = done.unwrap();
    assert_eq!((failures, errors), (0, vec![]));
    planned
}

fn copy(from: &str, to: &str, options: Options) -> Progress {
    let executor = Executor::new().unwrap();
    let (tasks, quiet) = (executor.handle(), Quiet::default());
    let copied = executor.block_on(copy::between(&tasks, from, to, options, &quiet)).unwrap();
    assert_eq!((copied.1, quiet.errors()), (0, vec![]));
    copied.0
}

/// Files with an effect, and their bytes.
fn files(planned: &[Planned], effect: Effect) -> (u64, u64) {
    let files = planned.iter().filter(|one| one.kind == Kind::File && one.effect == effect);
    files.fold((0, 0), |(files, bytes), one| (files + 1, bytes + one.bytes))
}

#[test]
fn a_plan_tells_what_the_copy_then_does_and_changes_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (source, back) = (dir.path().join("tree"), dir.path().join("back"));
    tree(&source);
    fs::hard_link(source.join("file5"), source.join("inner/same")).unwrap();
    let from = source.to_str().unwrap();
    let model = Model::default();
    let server = model.serve();
    let to = server.url("/e/tree", "");
    let options = Options { recursive: true, times: true, resume: true, ..Options::default() };

    let planned = sound(from, &to, options);
    assert!(
        model.at("tree").is_none() && !model.state().seen.iter().any(|n| [7, 8, 9].contains(n))
    );
    assert!(planned.iter().all(|one| one.effect == Effect::Makes));
    assert_eq!(planned[0].path, to.split_once('?').map_or(to.as_str(), |(path, _)| path));
    let copied = copy(from, &to, options);
    let (makes, bytes) = files(&planned, Effect::Makes);
    // One more name of a file is none that has data.
    assert_eq!((makes, bytes), (copied.files_done + 1, copied.bytes_done));

    // The other way: one file is there, one is another, one directory is missing.
    copy(&to, back.to_str().unwrap(), options);
    fs::write(back.join("file3"), "another").unwrap();
    fs::remove_dir_all(back.join("inner")).unwrap();
    let before = fs::metadata(back.join("file3")).unwrap();
    let into = server.url("/e/tree", "");
    fs::create_dir(dir.path().join("into")).unwrap();
    fs::rename(&back, dir.path().join("into/tree")).unwrap();
    let target = dir.path().join("into");
    let planned = sound(&into, target.to_str().unwrap(), options);
    let after = fs::metadata(target.join("tree/file3")).unwrap();
    assert_eq!(before.modified().unwrap(), after.modified().unwrap());
    assert!(!target.join("tree/inner").exists());
    // The copy makes the other name of a file again, too, that it copies into the directory.
    assert_eq!(files(&planned, Effect::Replaces), (2, 4));
    let (there, made) = (files(&planned, Effect::Leaves), files(&planned, Effect::Makes));
    let copied = copy(&into, target.to_str().unwrap(), options);
    assert_eq!((there.0, there.1), (copied.files_there, 0));
    assert_eq!(made.1 + 4, copied.bytes_done - copied.bytes_there);
    same(&source, &target.join("tree"));
}

#[test]
fn a_tree_is_copied_onto_its_copy_where_the_target_is_the_copy_itself() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (source, back) = (dir.path().join("tree"), dir.path().join("back"));
    tree(&source);
    let (from, back_to) = (source.to_str().unwrap(), back.to_str().unwrap());
    let model = Model::default();
    let server = model.serve();
    let to = server.url("/e/tree", "");
    let options = Options { recursive: true, resume: true, onto: true, ..Options::default() };
    copy(from, &to, options);
    copy(&to, back_to, options);
    for (from, to) in [(from, to.as_str()), (to.as_str(), back_to)] {
        let planned = sound(from, to, options);
        // Links are made again.
        let is_left = |one: &Planned| one.effect == Effect::Leaves || one.kind == Kind::Link;
        assert!(planned.iter().all(is_left), "{planned:?}");
        let done = copy(from, to, options);
        assert_eq!((done.files_done, done.bytes_done), (done.files_there, done.bytes_there));
    }
    assert!(model.at("tree").is_some() && model.at("tree/tree").is_none());
    same(&source, &back);
    // A file replaces no directory.
    let file = source.join("file3");
    let refused = plan(file.to_str().unwrap(), &to, options).1;
    assert!(refused.concat().contains("a directory is there"), "{refused:?}");
}

#[test]
fn lengths_that_no_file_has_are_planned_and_copied_as_far_as_there_is_data() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let server = fake::Fake::start(|call| {
        // Two files, each of which is said to have all bytes that a length can tell.
        let endless = || fake::file_attributes(1, u64::MAX);
        let words = fake::words;
        let results = match call.procedure {
            17 => {
                let mut listing = words(&[0, 0, 0, 0]);
                for (cookie, name) in [(1, b"a"), (2, b"b")] {
                    listing.extend(words(&[1, 0, cookie]));
                    listing.extend([fake::opaque(name), words(&[0, cookie, 1])].concat());
                    listing.extend([endless(), words(&[1]), fake::opaque(name)].concat());
                }
                [listing, words(&[0, 1])].concat()
            }
            // Each has four bytes.
            6 => [words(&[0, 0, 4, 1]), fake::opaque(b"data")].concat(),
            _ => match fake::ordinary(call) {
                Some(results) => results,
                None => return fake::Told::Close,
            },
        };
        fake::Told::Results(results)
    });
    let (from, to) = (server.url("/e", ""), dir.path().join("copy"));
    let options = Options { recursive: true, ..Options::default() };
    let planned = sound(&from, to.to_str().unwrap(), options);
    assert_eq!(planned.iter().filter(|one| one.bytes == u64::MAX).count(), 2);
    for threads in [1, 2] {
        let threads = Threads::Fixed(threads);
        let done = copy(&from, to.to_str().unwrap(), Options { onto: true, threads, ..options });
        assert_eq!((done.bytes, done.files_done), (u64::MAX, 2));
        assert_eq!(fs::read(to.join("b")).unwrap(), b"data");
    }
}

#[test]
fn a_plan_refuses_what_the_copy_refuses() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_string();
    let model = Model::default();
    model.put("x", b"data");
    let server = model.serve();
    let url = server.url("/e/x", "");
    fs::create_dir_all(Path::new(&path("there/x"))).unwrap();
    let refused = |from: &str, to: &str| plan(from, to, Options::default()).0.unwrap_err();
    assert!(refused(&path("there"), &url).to_string().contains("--recursive"));
    assert!(refused(&server.url("/e/none", ""), &path("y")).to_string().contains("no such file"));
    assert!(refused(&url, &path("none/")).to_string().contains("no such directory"));
    let (done, errors) = plan(&url, &path("there"), Options::default());
    assert_eq!(done.unwrap(), (vec![], 1));
    assert!(errors[0].contains("a directory is there"), "{errors:?}");
}
