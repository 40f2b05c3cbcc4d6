// SPDX-License-Identifier: MIT OR Apache-2.0
//! A copy from a server writes below its target and nowhere else, whatever links there are.

mod common;
#[allow(dead_code)]
#[path = "common/fake.rs"]
mod fake;
#[path = "common/model.rs"]
mod model;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use common::{AtByte, Quiet, noise};
use dwell::executor::Executor;
use dwell_nfs::copy::{self, Options, Threads, Watcher};
use fake::{Call, Fake, Told};
use model::{Entry, Model};

const OPTIONS: Options = Options {
    recursive: true,
    resume: false,
    onto: false,
    verify: false,
    times: true,
    extent_bytes: 4096,
    threads: Threads::Fixed(1),
};

fn copy_into(from: &str, into: &Path, threads: u32, watcher: &dyn Watcher) -> u64 {
    let executor = Executor::new().unwrap();
    let tasks = executor.handle();
    let into = into.to_str().unwrap();
    let options = Options { threads: Threads::Fixed(threads), ..OPTIONS };
    let copied = executor.block_on(copy::between(&tasks, from, into, options, watcher));
    copied.unwrap().1
}

fn is_empty(directory: &Path) -> bool {
    fs::read_dir(directory).unwrap().next().is_none()
}

#[test]
fn a_link_that_a_server_lists_under_a_directorys_name_is_not_taken_for_it() {
    for (link_first, threads) in [(false, 1), (true, 1), (false, 3), (true, 3)] {
        let dir = tempfile::tempdir().unwrap();
        let (into, outside) = (dir.path().join("into"), dir.path().join("outside"));
        fs::create_dir(&into).unwrap();
        fs::create_dir(&outside).unwrap();
        let model = Model::default();
        let tree = model.make(1, "tree", 2, "");
        let names = if link_first { ["same2", "same1"] } else { ["same1", "same2"] };
        let inner = model.make(tree, names[0], 2, "");
        model.make(tree, names[1], 5, outside.to_str().unwrap());
        for number in 0..20 {
            let id = model.make(inner, &format!("file{number}"), 1, "");
            let data = noise(100);
            let file = Entry { kind: 1, mode: 0o644, links: 1, data, ..Entry::default() };
            model.state().entries.insert(id, file);
        }
        let server = Fake::start(move |call: &Call| match model.tell(call) {
            Told::Results(mut results) if call.is_nfs(17) => {
                let places: Vec<usize> = (0..results.len().saturating_sub(5))
                    .filter(|at| &results[*at..*at + 5] == b"same2")
                    .collect();
                places.into_iter().for_each(|at| results[at + 4] = b'1');
                Told::Results(results)
            }
            told => told,
        });
        let quiet = Quiet::default();
        copy_into(&server.url("/e/tree", "&timeout=20"), &into, threads, &quiet);
        assert!(into.join("tree/same1").symlink_metadata().is_ok(), "{:?}", quiet.errors());
        assert!(is_empty(&outside), "written behind the link: {:?}", quiet.errors());
        assert!(!quiet.errors().is_empty());
    }
}

#[test]
fn a_link_that_takes_a_directorys_place_during_a_copy_is_not_followed() {
    for threads in [1, 3] {
        let dir = tempfile::tempdir().unwrap();
        let (into, outside) = (dir.path().join("into"), dir.path().join("outside"));
        fs::create_dir(&into).unwrap();
        fs::create_dir(&outside).unwrap();
        let model = Model::default();
        let tree = model.make(1, "tree", 2, "");
        let inner = model.make(tree, "inner", 2, "");
        for number in 0..40 {
            let id = model.make(inner, &format!("file{number}"), 1, "");
            let data = noise(20_000);
            let file = Entry { kind: 1, mode: 0o644, links: 1, data, ..Entry::default() };
            model.state().entries.insert(id, file);
        }
        let swap = AtByte::new(1, || {
            fs::rename(into.join("tree/inner"), into.join("tree/moved")).unwrap();
            symlink(&outside, into.join("tree/inner")).unwrap();
        });
        let server = model.serve();
        let from = server.url("/e/tree", "&size=4096&timeout=20");
        let failures = copy_into(&from, &into, threads, &swap);
        assert!(failures > 0);
        assert!(is_empty(&outside), "written behind the link: {:?}", swap.errors());
    }
}

#[test]
fn a_link_to_a_directory_that_a_person_names_as_the_target_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("there")).unwrap();
    symlink("there", dir.path().join("link")).unwrap();
    let model = Model::default();
    model.put("x", b"data");
    model.state().entries.get_mut(&2).unwrap().links = 1;
    let server = model.serve();
    let quiet = Quiet::default();
    let (from, into) = (server.url("/e/x", "&timeout=20"), dir.path().join("link"));
    let failures = copy_into(&from, &into, 1, &quiet);
    assert_eq!((failures, quiet.errors()), (0, vec![]));
    assert_eq!(fs::read(dir.path().join("there/x")).unwrap(), b"data");
}
