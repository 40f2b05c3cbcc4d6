// SPDX-License-Identifier: MIT OR Apache-2.0
//! Restarts of the server, losses of connections and kills of the client at any point of a copy.
//! `DWELL_NFS_RESTARTS=1000` has each test here try so many points, and `DWELL_NFS_SEED=7` other
//! ones; a failure names its seed and its point.

mod common;
#[allow(dead_code)]
#[path = "common/fake.rs"]
mod fake;
#[path = "common/model.rs"]
mod model;

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use common::{Quiet, copy_up_to, on_server, same};
use dwell::executor::Executor;
use dwell_bench::fixture::Export;
use dwell_nfs::copy::{self, Options, Threads};
use model::{Fault, Model};

const OPTIONS: Options = Options {
    recursive: true,
    resume: true,
    onto: false,
    verify: false,
    times: true,
    extent_bytes: 16 << 10,
    threads: Threads::Fixed(1),
};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// So many seeds, each with a number without a pattern.
fn points(usual: u64) -> impl Iterator<Item = (u64, u64)> {
    let first = number("DWELL_NFS_SEED").unwrap_or(0);
    let count = number("DWELL_NFS_RESTARTS").unwrap_or(usual);
    (first..first + count).map(|seed| {
        let mut mixed = seed.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (seed, mixed ^ (mixed >> 29))
    })
}

/// Files of some extents, one with holes, directories, links.
fn source(at: &Path) {
    fs::create_dir_all(at.join("inner/empty")).unwrap();
    for (number, bytes) in [0, 1, 5000, 70_000].into_iter().enumerate() {
        fs::write(at.join(format!("file{number}")), common::noise(bytes)).unwrap();
    }
    let sparse = fs::File::create(at.join("inner/sparse")).unwrap();
    sparse.write_all_at(&common::noise(9000), 40_000).unwrap();
    sparse.set_len(100_000).unwrap();
    symlink("file1", at.join("link")).unwrap();
}

/// Asserts that a server has a tree, with all of its data durable.
fn has(model: &Model, path: &str, tree: &Path) {
    let entry = model.at(path).unwrap_or_else(|| panic!("{path} is missing"));
    let facts = fs::symlink_metadata(tree).unwrap();
    if facts.is_symlink() {
        let target = fs::read_link(tree).unwrap();
        return assert_eq!(Path::new(std::str::from_utf8(&entry.target).unwrap()), target);
    }
    if facts.is_file() {
        return assert!(entry.durable == fs::read(tree).unwrap(), "{path} differs");
    }
    let mut names: Vec<_> = (fs::read_dir(tree).unwrap())
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let there: Vec<_> =
        entry.names.keys().map(|name| String::from_utf8(name.clone()).unwrap()).collect();
    assert_eq!(there, names, "{path}");
    names.iter().for_each(|name| has(model, &format!("{path}/{name}"), &tree.join(name)));
}

fn copy(from: &str, to: &str) -> copy::Progress {
    let executor = Executor::new().unwrap();
    let tasks = executor.handle();
    let quiet = Quiet::default();
    let copied = executor.block_on(copy::between(&tasks, from, to, OPTIONS, &quiet));
    let (progress, failures) = copied.unwrap();
    assert_eq!((failures, quiet.errors()), (0, vec![]));
    progress
}

#[test]
fn a_restart_at_any_point_of_a_copy_loses_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let tree = dir.path().join("tree");
    source(&tree);
    let from = tree.to_str().unwrap();
    let run = |plan: Option<(Fault, u64, u64)>| {
        let model = Model::default();
        let server = model.serve();
        model.fail(move |_, call| {
            let (fault, first, second) = plan?;
            (call == first || call == second).then_some(fault)
        });
        copy(from, &server.url("/e/tree", "&size=4096&window=4&connections=2&timeout=30"));
        has(&model, "tree", &tree);
        model.state().calls
    };
    let calls = run(None);
    // The first of a connection's calls decides whether there is a server at all, and either
    // connection may make its first before the other.
    let first = 3;
    for (seed, random) in points(48) {
        let fault =
            [Fault::RestartBefore, Fault::RestartAfter, Fault::Unanswered][random as usize % 3];
        let point = first + (random >> 8) % (calls - first);
        let other = point + (random >> 40) % 20;
        println!("seed {seed}: {fault:?} at calls {point} and {other} of {calls}");
        run(Some((fault, point, other)));
    }
}

#[test]
fn a_client_killed_at_any_point_of_a_copy_resumes_to_the_same_bytes() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let tree = dir.path().join("tree");
    source(&tree);
    let from = tree.to_str().unwrap();
    let back = dir.path().join("back");
    for (seed, random) in points(16) {
        let model = Model::default();
        let server = model.serve();
        let to = server.url("/e/tree", "&size=4096&window=4&connections=2&timeout=30");
        let bytes = random % 170_000;
        println!("seed {seed}: killed after {bytes} bytes, there and back");
        copy_up_to(bytes, from, &to, OPTIONS);
        model.state().restart();
        // The directory that was made before the client was killed is there; a copy into it would
        // have another name.
        let into = server.url("/e", "&size=4096&window=4&connections=2&timeout=30");
        copy(from, &into);
        has(&model, "tree", &tree);
        copy_up_to(bytes, &to, back.to_str().unwrap(), OPTIONS);
        let into = dir.path().join("into");
        fs::create_dir(&into).unwrap();
        if back.exists() {
            fs::rename(&back, into.join("tree")).unwrap();
        }
        copy(&to, into.to_str().unwrap());
        same(&tree, &into.join("tree"));
        fs::remove_dir_all(&into).unwrap();
    }
}

#[test]
fn a_real_server_killed_at_any_point_of_a_copy_loses_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (tree, exported) = (dir.path().join("tree"), dir.path().join("export"));
    source(&tree);
    fs::create_dir(&exported).unwrap();
    on_server(&[Export::directory(&exported)], false, |server| {
        for (seed, random) in points(3) {
            let bytes = random % 170_000;
            let transport = ["tcp", "udp"][(random >> 32) as usize % 2];
            println!("seed {seed}: {transport}, killed after {bytes} bytes");
            let path = format!("{}/{seed}", exported.display());
            let to = server.address(&path, &format!("&proto={transport}&size=4096&window=4"));
            let restart = common::AtByte::new(bytes, || server.restart().unwrap());
            let executor = Executor::new().unwrap();
            let tasks = executor.handle();
            let from = tree.to_str().unwrap();
            let copied = copy::between(&tasks, from, &to, OPTIONS, &restart);
            let (_, failures) = executor.block_on(copied).unwrap();
            assert_eq!((failures, restart.errors()), (0, vec![]));
            same(&tree, &exported.join(seed.to_string()));
            fs::remove_dir_all(exported.join(seed.to_string())).unwrap();
        }
    });
}
