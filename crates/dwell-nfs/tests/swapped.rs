// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files that a copy writes here, while somebody puts something else in their place.

mod common;
#[allow(dead_code)]
#[path = "common/fake.rs"]
mod fake;
#[path = "common/model.rs"]
mod model;

use std::fs;
use std::path::Path;

use common::{Quiet, copy_up_to};
use dwell::executor::Executor;
use dwell_nfs::connection::Payload;
use dwell_nfs::copy::{self, Options};
use dwell_nfs::tree::{Local, Node};
use model::Model;

const VICTIM: &[u8] = b"somebody else's data";

fn directory(at: &Path) -> Node {
    Node::Local(Local::directory(at).unwrap())
}

#[test]
fn a_copy_writes_to_the_file_that_it_created_whatever_has_its_name_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let (victim, moved) = (dir.path().join("victim"), dir.path().join("moved"));
    fs::write(&victim, VICTIM).unwrap();
    let executor = Executor::new().unwrap();
    let tasks = executor.handle();
    executor.block_on(async {
        let (part, target, _) = directory(dir.path()).create(&tasks, b"x", 0o600).await.unwrap();
        fs::rename(dir.path().join("x"), &moved).unwrap();
        fs::hard_link(&victim, dir.path().join("x")).unwrap();
        part.set_length(2).await.unwrap();
        target.write(2, Payload::new(b"new".to_vec())).await.unwrap();
        assert_eq!(part.facts().await.unwrap().bytes, 5);
    });
    assert_eq!(fs::read(&moved).unwrap(), b"\0\0new");
    assert_eq!(fs::read(&victim).unwrap(), VICTIM);
}

#[test]
fn a_pipe_in_the_place_of_a_part_is_refused_and_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let executor = Executor::new().unwrap();
    let path = dir.path().join("x");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    fs::write(&path, b"part").unwrap();
    executor.block_on(async {
        let (part, facts) = directory(dir.path()).get(b"x").await.unwrap().unwrap();
        fs::remove_file(&path).unwrap();
        let pipe = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &path, pipe, mode, 0).unwrap();
        let error = part.hold(&facts).err().unwrap().to_string();
        assert!(error.contains("x: "), "{error}");
    });
}

#[test]
fn a_resumed_copy_does_not_write_to_a_part_that_has_another_name() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let data = common::noise(100_000);
    let model = Model::default();
    model.put("x", &data);
    let server = model.serve();
    let (from, to) = (server.url("/e/x", "&size=4096&window=4&nconnect=1"), dir.path().join("x"));
    let to = to.to_str().unwrap();
    let options = Options { resume: true, extent_bytes: 16 << 10, ..Options::default() };
    assert!(copy_up_to(60_000, &from, to, options));
    let (part, other) = (dir.path().join(".x.dwell-part"), dir.path().join("other"));
    fs::hard_link(&part, &other).unwrap();
    let before = fs::read(&other).unwrap();
    let (executor, quiet) = (Executor::new().unwrap(), Quiet::default());
    let tasks = executor.handle();
    let copied = executor.block_on(copy::between(&tasks, &from, to, options, &quiet)).unwrap();
    assert_eq!((copied.1, quiet.errors()), (0, vec![]));
    assert!(quiet.notes()[0].contains("another name"), "{:?}", quiet.notes());
    assert!(fs::read(&other).unwrap() == before && fs::read(to).unwrap() == data);
}
