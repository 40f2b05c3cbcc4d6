// SPDX-License-Identifier: MIT OR Apache-2.0
//! Calls that say something else when they are carried out twice: after a lost answer the client
//! finds out what came of the first copy, and an error that is one stays one.

mod common;
#[allow(dead_code)]
#[path = "common/fake.rs"]
mod fake;
#[path = "common/model.rs"]
mod model;

use std::rc::Rc;

use common::on_server;
use dwell::executor::Executor;
use dwell_bench::fixture::{Export, Ganesha};
use dwell_nfs::Result;
use dwell_nfs::client::{Client, Found};
use dwell_nfs::directory::Item;
use dwell_nfs::nfs3::{Handle, SetAttributes, Status};
use dwell_nfs::url::Url;
use fake::Cutter;
use model::{Fault, Model};

/// The root's handle in a model.
const ROOT: u64 = 1;

fn handle(id: u64) -> Handle {
    Handle::new(&id.to_be_bytes()).unwrap()
}

/// Does something with a client of a model.
fn with<T>(model: &Model, work: impl AsyncFnOnce(Rc<Client>, Url) -> T) -> T {
    let server = model.serve();
    let executor = Executor::new().unwrap();
    let tasks = executor.handle();
    let url: Url = server.url("/e", "&timeout=20").parse().unwrap();
    executor.block_on(async {
        let client = Client::mount(&tasks, &url).await.unwrap();
        work(client, url).await
    })
}

/// At the first call of a procedure.
fn at_first(model: &Model, procedure: u32, fault: Fault) {
    let mut due = Some(fault);
    model.fail(move |call, _| call.is_nfs(procedure).then(|| due.take())?);
}

async fn found(client: &Client, url: &Url, name: &str) -> Found {
    client.require(&url.join(name)).await.unwrap()
}

/// What becomes of a change whose first answer is lost, or whose first copy is.
fn each(
    procedure: u32,
    prepare: impl Fn(&Model),
    change: impl AsyncFn(&Rc<Client>, &Url) -> Result<()>,
    check: impl Fn(&Model),
) {
    for fault in [Fault::Unanswered, Fault::RestartAfter, Fault::RestartBefore] {
        let model = Model::default();
        prepare(&model);
        with(&model, async |client, url| {
            at_first(&model, procedure, fault);
            change(&client, &url).await.unwrap_or_else(|error| panic!("{fault:?}: {error}"));
            let seen = model.state().seen.iter().filter(|seen| **seen == procedure).count();
            assert_eq!(seen, 2, "{fault:?}");
        });
        check(&model);
    }
}

#[test]
fn a_remove_that_succeeded_before_the_answer_was_lost_succeeds() {
    let prepare = |model: &Model| {
        model.put("x", b"data");
    };
    let remove = async |client: &Rc<Client>, url: &Url| {
        let was = found(client, url, "x").await;
        client.remove(client.root(), b"x", &was, url).await
    };
    each(12, prepare, remove, |model| assert!(model.at("x").is_none()));
    // A file with another name, which it keeps.
    let prepare = |model: &Model| {
        let id = model.put("x", b"data");
        let mut state = model.state();
        state.entries.get_mut(&id).unwrap().links = 2;
        state.entries.get_mut(&ROOT).unwrap().names.insert(b"y".to_vec(), id);
    };
    each(12, prepare, remove, |model| assert!(model.at("x").is_none() && model.at("y").is_some()));
}

#[test]
fn a_tree_is_removed_though_every_first_answer_is_lost() {
    let model = Model::default();
    let inner = model.make(ROOT, "d", 2, "");
    model.make(inner, "l", 5, "there");
    model.make(inner, "e", 2, "");
    with(&model, async |client, url| {
        let mut seen = std::collections::HashSet::new();
        model.fail(move |call, _| {
            let changes = call.is_nfs(12) || call.is_nfs(13);
            (changes && seen.insert(call.arguments.clone())).then_some(Fault::Unanswered)
        });
        let item = Item { name: b"d".to_vec(), found: found(&client, &url, "d").await };
        client.remove_all(client.root(), item, true, &url, &mut |_| ()).await.unwrap();
    });
    assert!(model.at("d").is_none());
}

#[test]
fn a_rename_that_succeeded_before_the_answer_was_lost_succeeds() {
    for there in [false, true] {
        let prepare = move |model: &Model| {
            model.put("x", b"new");
            if there {
                model.put("y", b"old");
            }
        };
        let rename = async |client: &Rc<Client>, url: &Url| {
            let what = found(client, url, "x").await.handle;
            client.rename(client.root(), b"x", b"y", what, url).await
        };
        each(14, prepare, rename, |model| {
            assert!(model.at("x").is_none());
            assert_eq!(model.at("y").unwrap().data, b"new");
        });
    }
}

#[test]
fn a_file_made_before_the_answer_was_lost_is_made() {
    let keep = SetAttributes { mode: Some(0o750), ..SetAttributes::default() };
    let nothing = |_: &Model| ();
    let make = async |client: &Rc<Client>, url: &Url| {
        let made = client.make_directory(client.root(), b"x", keep, false, url).await?;
        assert_eq!(made, found(client, url, "x").await.handle);
        Ok(())
    };
    each(9, nothing, make, |model| assert_eq!(model.at("x").unwrap().mode, 0o750));
    let link = async |client: &Rc<Client>, url: &Url| {
        let made = client.make_link(client.root(), b"x", b"there", url).await?;
        assert_eq!(made, found(client, url, "x").await.handle);
        Ok(())
    };
    each(10, nothing, link, |model| assert_eq!(model.at("x").unwrap().target, b"there"));
    let create = async |client: &Rc<Client>, url: &Url| {
        let made = client.create_new(client.root(), b"x", keep, url).await?;
        assert_eq!(made, found(client, url, "x").await.handle);
        Ok(())
    };
    each(8, nothing, create, |model| assert_eq!(model.at("x").unwrap().mode, 0o750));
}

#[test]
fn an_error_stands_where_the_call_did_not_succeed_before() {
    let keep = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
    // The first copy of the call is lost, or its answer, which was the same error.
    for fault in [Fault::RestartBefore, Fault::Unanswered] {
        let model = Model::default();
        let (d, l) = (model.make(ROOT, "d", 2, ""), model.make(ROOT, "l", 5, "elsewhere"));
        let (x, y) = (model.put("x", b"x"), model.put("y", b"y"));
        with(&model, async |client, url| {
            let root = client.root();
            let is = |done: Result<()>, status: Status| {
                assert_eq!(done.unwrap_err().status(), Some(status), "{fault:?}");
            };
            at_first(&model, 9, fault);
            let made = client.make_directory(root, b"d", keep, false, &url).await;
            is(made.map(|_| ()), Status::EXIST);
            at_first(&model, 10, fault);
            let made = client.make_link(root, b"l", b"there", &url).await;
            is(made.map(|_| ()), Status::EXIST);
            at_first(&model, 8, fault);
            let made = client.create_new(root, b"x", keep, &url).await;
            is(made.map(|_| ()), Status::EXIST);
            // Somebody else gave it another name.
            let was = found(&client, &url, "x").await;
            let moved = model.state().entries.get_mut(&ROOT).unwrap().names.remove(&b"x"[..]);
            model
                .state()
                .entries
                .get_mut(&ROOT)
                .unwrap()
                .names
                .insert(b"z".to_vec(), moved.unwrap());
            at_first(&model, 12, fault);
            is(client.remove(root, b"x", &was, &url).await, Status::NOENT);
            at_first(&model, 14, fault);
            is(client.rename(root, b"x", b"y", handle(x), &url).await, Status::NOENT);
            let item = Item { name: b"gone".to_vec(), found: found(&client, &url, "d").await };
            at_first(&model, 13, fault);
            let removed = client.remove_all(root, item, false, &url, &mut |_| ()).await;
            is(removed, Status::NOENT);
        });
        let state = model.state();
        assert!([d, l, x, y].iter().all(|id| state.entries.contains_key(id)));
    }
}

#[test]
fn a_call_that_was_sent_once_is_not_forgiven() {
    let model = Model::default();
    model.put("x", b"data");
    with(&model, async |client, url| {
        let root = client.root();
        let was = found(&client, &url, "x").await;
        client.remove(root, b"x", &was, &url).await.unwrap();
        let again = client.remove(root, b"x", &was, &url).await.unwrap_err();
        assert_eq!(again.status(), Some(Status::NOENT));
        client.make_link(root, b"l", b"there", &url).await.unwrap();
        let again = client.make_link(root, b"l", b"there", &url).await.unwrap_err();
        assert_eq!(again.status(), Some(Status::EXIST));
    });
}

/// A relay cuts the connection at any byte of the answers. The server sees a new connection from
/// another port, so it takes each call that comes again for a new one.
#[test]
fn changes_at_a_real_server_succeed_whichever_answer_is_lost() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let export = dir.path().display().to_string();
    on_server(&[Export::directory(dir.path())], false, |_| {
        let to = format!("127.0.0.1:{}", Ganesha::PORT).parse().unwrap();
        let run = |cut: u64| {
            let relay = Cutter::start(to, u64::MAX, cut);
            let port = Ganesha::MOUNT_PORT;
            let url = format!("nfs://127.0.0.1:{}{export}?mountport={port}", relay.port);
            let url: Url = url.parse().unwrap();
            let executor = Executor::new().unwrap();
            let tasks = executor.handle();
            executor.block_on(async {
                let client = Client::mount(&tasks, &url).await.unwrap();
                let (root, keep) = (client.root(), SetAttributes::default());
                let d = client.make_directory(root, b"d", keep, false, &url).await.unwrap();
                client.make_link(d, b"l", b"there", &url).await.unwrap();
                let file = client.create_new(d, b"f", keep, &url).await.unwrap();
                client.rename(d, b"f", b"g", file, &url).await.unwrap();
                let item = Item { name: b"d".to_vec(), found: found(&client, &url, "d").await };
                client.remove_all(root, item, true, &url, &mut |_| ()).await.unwrap();
                client.health().counters.reconnects
            })
        };
        // Behind what is said before the first change: the limits.
        let (mut at, mut cut_off) = (200, 0);
        loop {
            let reconnects = run(at);
            cut_off += reconnects;
            assert!(std::fs::read_dir(dir.path()).unwrap().next().is_none(), "cut at {at}");
            if reconnects == 0 {
                break;
            }
            at += 60;
        }
        assert!(cut_off >= 10, "{cut_off} cuts up to byte {at}");
    });
}
