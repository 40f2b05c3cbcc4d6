// SPDX-License-Identifier: MIT OR Apache-2.0
//! Hard links, special files and exclusive creation: made once, also when an answer is lost, and
//! kept by copies.

mod common;
#[allow(dead_code)]
#[path = "common/fake.rs"]
mod fake;
#[path = "common/model.rs"]
mod model;

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::rc::Rc;

use common::Quiet;
use dwell::executor::Executor;
use dwell_nfs::client::Client;
use dwell_nfs::copy::{self, Options};
use dwell_nfs::nfs3::{Handle, Kind, SetAttributes, Status};
use dwell_nfs::url::Url;
use model::{Fault, Model};

const CREATE: u32 = 8;
const MKNOD: u32 = 11;
const LINK: u32 = 15;

fn with(model: &Model, work: impl AsyncFnOnce(Rc<Client>, Handle)) {
    let server = model.serve();
    let executor = Executor::new().unwrap();
    let tasks = executor.handle();
    let url: Url = server.url("/e", "&timeout=20").parse().unwrap();
    executor.block_on(async {
        let client = Client::mount(&tasks, &url).await.unwrap();
        let root = client.root();
        work(client, root).await;
    });
}

/// The first call of a procedure is carried out and not answered.
fn lose_first_answer(model: &Model, procedure: u32) {
    let mut due = Some(Fault::Unanswered);
    model.fail(move |call, _| call.is_nfs(procedure).then(|| due.take())?);
}

fn with_mode(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode), ..SetAttributes::default() }
}

#[test]
fn of_those_that_create_a_file_exclusively_one_succeeds() {
    let model = Model::default();
    lose_first_answer(&model, CREATE);
    with(&model, async |client, root| {
        client.create_exclusive(root, b"x", with_mode(0o640), &"x").await.unwrap();
        let again = client.create_exclusive(root, b"x", with_mode(0o640), &"x").await;
        assert_eq!(again.unwrap_err().status(), Some(Status::EXIST));
    });
    let made = model.at("x").unwrap();
    assert_eq!((made.mode, made.links), (0o640, 1));
}

#[test]
fn a_link_and_a_pipe_whose_answers_are_lost_are_made_once() {
    let model = Model::default();
    model.put("x", b"data");
    lose_first_answer(&model, LINK);
    with(&model, async |client, root| {
        let file = client.look_up(root, b"x", &"x").await.unwrap().unwrap();
        client.link(&file, root, b"y", &"y").await.unwrap();
        let again = client.link(&file, root, b"y", &"y").await;
        assert_eq!(again.unwrap_err().status(), Some(Status::EXIST));
    });
    assert_eq!(model.at("y").unwrap().links, 2);
    lose_first_answer(&model, MKNOD);
    with(&model, async |client, root| {
        let (pipe, mode) = (Kind::Pipe, with_mode(0o600));
        client.make_node(root, b"p", pipe, (0, 0), mode, &"p").await.unwrap();
        let again = client.make_node(root, b"p", pipe, (0, 0), mode, &"p").await;
        assert_eq!(again.unwrap_err().status(), Some(Status::EXIST));
        let limits = client.name_limits(root, &"limits").await.unwrap();
        assert_eq!((limits.most_links, limits.most_name_bytes), (32_000, 255));
        assert!(limits.refuses_long_names && !limits.ignores_case);
    });
    assert_eq!((model.at("p").unwrap().kind, model.at("p").unwrap().mode), (7, 0o600));
}

fn copy(from: &str, to: &str, times: bool) {
    let executor = Executor::new().unwrap();
    let tasks = executor.handle();
    let quiet = Quiet::default();
    let options = Options { recursive: true, times, ..Options::default() };
    let copied = executor.block_on(copy::between(&tasks, from, to, options, &quiet));
    assert_eq!((copied.unwrap().1, quiet.errors()), (0, vec![]));
}

#[test]
fn a_copy_keeps_hard_links_if_it_is_to_and_pipes() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("inner")).unwrap();
    fs::write(tree.join("one"), common::noise(10_000)).unwrap();
    fs::hard_link(tree.join("one"), tree.join("inner/two")).unwrap();
    fs::hard_link(tree.join("one"), tree.join("three")).unwrap();
    let pipe = std::process::Command::new("mkfifo").arg(tree.join("pipe")).status().unwrap();
    assert!(pipe.success());
    let model = Model::default();
    let server = model.serve();
    let there = server.url("/e/tree", "&size=4096&nconnect=2");
    copy(tree.to_str().unwrap(), &there, true);
    for name in ["one", "inner/two", "three"] {
        let entry = model.at(&format!("tree/{name}")).unwrap();
        assert_eq!((entry.links, entry.data.len()), (3, 10_000), "{name}");
    }
    assert_eq!(model.at("tree/pipe").unwrap().kind, 7);
    // Into what is there, and back.
    copy(tree.to_str().unwrap(), &server.url("/e", "&size=4096"), true);
    assert_eq!(model.at("tree/three").unwrap().links, 3);
    let back = dir.path().join("back");
    copy(&there, back.to_str().unwrap(), true);
    assert_eq!(fs::metadata(back.join("one")).unwrap().nlink(), 3);
    assert!(fs::metadata(back.join("pipe")).unwrap().file_type().is_fifo());
    let apart = dir.path().join("apart");
    copy(&there, apart.to_str().unwrap(), false);
    assert_eq!(fs::metadata(apart.join("one")).unwrap().nlink(), 1);
    assert_eq!(fs::read(apart.join("inner/two")).unwrap(), common::noise(10_000));
}
