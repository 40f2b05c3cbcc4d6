// SPDX-License-Identifier: MIT OR Apache-2.0
//! Paths with symbolic links in them, and files that change while they are open.

mod common;
#[allow(dead_code)]
#[path = "common/fake.rs"]
mod fake;
#[path = "common/model.rs"]
mod model;

use std::fs;
use std::os::unix::fs::symlink;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use common::on_server;
use dwell::executor::Executor;
use dwell_bench::fixture::Export;
use dwell_nfs::client::Client;
use dwell_nfs::file::{RemoteFile, read_in_order};
use dwell_nfs::nfs3::{Kind, SetAttributes};
use dwell_nfs::url::Url;
use fake::{Call, Fake, Told, words};
use model::Model;

const ROOT: u64 = 1;

fn with<T>(url: &Url, work: impl AsyncFnOnce(Rc<Client>) -> T) -> T {
    let executor = Executor::new().unwrap();
    let tasks = executor.handle();
    executor.block_on(async { work(Client::mount(&tasks, url).await.unwrap()).await })
}

#[test]
fn a_path_whose_directory_is_replaced_meanwhile_is_walked_again() {
    for is_stale_for_ever in [false, true] {
        let model = Model::default();
        let a = model.make(ROOT, "a", 2, "");
        let file = model.make(a, "x", 1, "");
        let (served, asked) = (model.clone(), Arc::new(AtomicU32::new(0)));
        let counted = asked.clone();
        let server = Fake::start(move |call: &Call| {
            let is_x = call.is_nfs(3) && call.arguments.ends_with(b"x\0\0\0");
            match is_x && (counted.fetch_add(1, Ordering::Relaxed) == 0 || is_stale_for_ever) {
                true => Told::Results(words(&[70, 0])),
                false => served.tell(call),
            }
        });
        let url: Url = server.url("/e", "&timeout=20").parse().unwrap();
        let found = with(&url, async |client| client.find(&url.with_path("/e/a/x")).await);
        match is_stale_for_ever {
            true => assert_eq!(found.unwrap_err().errno(), libc::ESTALE),
            false => assert_eq!(found.unwrap().unwrap().attributes.file, file),
        }
        assert_eq!(asked.load(Ordering::Relaxed), 2);
    }
}

#[test]
fn links_in_a_path_are_followed_within_the_export_and_not_for_ever() {
    let model = Model::default();
    let a = model.make(ROOT, "a", 2, "");
    let b = model.make(a, "b", 2, "");
    let file = model.put("file", b"data");
    for (directory, name, target) in [
        (ROOT, "beside", "a/b"),
        (b, "up", "../..//./file"),
        (b, "absolute", "/e/a/b/"),
        (b, "to-export", "/e"),
        (b, "out", "../../../x"),
        (b, "outside", "/elsewhere/file"),
        (b, "loop", "loop2"),
        (b, "loop2", "../b/loop"),
        (b, "dangling", "nothing"),
        (b, "through-file", "up/x"),
    ] {
        model.make(directory, name, 5, target);
    }
    // As many links as a path may lead through, and one more.
    model.make(ROOT, "link0", 5, "file");
    for number in 1..=40 {
        model.make(ROOT, &format!("link{number}"), 5, &format!("link{}", number - 1));
    }
    let server = model.serve();
    let url: Url = server.url("/e", "&timeout=20").parse().unwrap();
    with(&url, async |client| {
        let at = |path: &str| url.with_path(&format!("/e/{path}"));
        let number = async |path: &str| {
            let found = client.find_followed(&at(path)).await.map_err(|error| error.errno())?;
            Ok::<_, i32>(found.map(|found| found.attributes.file))
        };
        for path in ["beside/up", "a/b/absolute/up", "beside/to-export/beside/up", "link39"] {
            assert_eq!(number(path).await, Ok(Some(file)), "{path}");
        }
        assert_eq!(number("beside/absolute").await, Ok(Some(b)));
        assert_eq!(number("beside/dangling").await, Ok(None));
        for (path, errno) in [
            ("beside/loop", libc::ELOOP),
            ("link40", libc::ELOOP),
            ("beside/out", libc::EINVAL),
            ("beside/outside", libc::EINVAL),
            ("beside/through-file", libc::ENOTDIR),
            ("beside/up/x", libc::ENOTDIR),
        ] {
            assert_eq!(number(path).await, Err(errno), "{path}");
        }
        // The last name itself.
        let found = client.require(&at("beside/up")).await.unwrap();
        assert_eq!(found.attributes.kind, Kind::Link);
        let keep = SetAttributes { mode: Some(0o755), ..SetAttributes::default() };
        client.make_directories(&at("beside/new/newer"), keep, true).await.unwrap();
    });
    assert_eq!(model.at("a/b/new/newer").unwrap().kind, 2);
}

#[test]
fn a_link_to_a_file_is_opened_as_the_file() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let export = dir.path().display().to_string();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/file"), b"data").unwrap();
    symlink("d", dir.path().join("e")).unwrap();
    symlink(dir.path().join("e/file"), dir.path().join("link")).unwrap();
    dwell_nfs::queue::register();
    on_server(&[Export::directory(dir.path())], false, |server| {
        let file =
            dwell::Options::new().open(server.address(&format!("{export}/link"), "")).unwrap();
        let mut data = [0; 10];
        assert_eq!(file.read_at(&mut data, 0).unwrap(), 4);
        assert_eq!(&data[..4], b"data");
    });
}

#[test]
fn a_file_that_grows_or_shrinks_while_it_is_open_has_the_length_that_it_has() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let export = dir.path().display().to_string();
    dwell_nfs::queue::register();
    on_server(&[Export::directory(dir.path())], false, |server| {
        for transport in ["tcp", "udp"] {
            fs::write(dir.path().join(transport), vec![1; 1000]).unwrap();
            let path = format!("{export}/{transport}");
            let address = server.address(&path, &format!("&proto={transport}"));
            let file = dwell::Options::new().open(&address).unwrap();
            let other = dwell::Options::new().write(true).open(&address).unwrap();
            assert_eq!(file.bytes().unwrap(), 1000);
            other.write_all_at(&[2; 500], 1000).unwrap();
            assert_eq!(file.bytes().unwrap(), 1500);
            let mut data = vec![0; 2000];
            assert_eq!(file.read_at(&mut data, 0).unwrap(), 1500);
            assert!(data[..1000] == [1; 1000] && data[1000..1500] == [2; 500]);
            let url: Url = address.parse().unwrap();
            with(&url, async |client| {
                let found = client.require(&url).await.unwrap();
                let shorter = SetAttributes { bytes: Some(100), ..SetAttributes::default() };
                client.change(found.handle, shorter, &url).await.unwrap();
            });
            assert_eq!(file.bytes().unwrap(), 100);
            assert_eq!(file.read_at(&mut data, 0).unwrap(), 100);
        }
    });
}

#[test]
fn a_file_that_changes_while_it_is_read_to_its_end_is_never_read_with_a_gap() {
    let model = Model::default();
    let id = model.put("x", &common::noise(4 * 512 + 100));
    let server = model.serve();
    let url: Url = server.url("/e/x", "&size=512&window=1").parse().unwrap();
    // It grows while it is read: all of it. It is cut and grows again: what was there up to where
    // it was cut.
    for cut in [false, true] {
        let before = common::noise(4 * 512 + 100);
        model.state().entries.get_mut(&id).unwrap().data.clone_from(&before);
        let mut read = Vec::new();
        with(&url, async |client| {
            let found = client.require(&url).await.unwrap();
            let file = RemoteFile::new(&client, found.handle, "x");
            let mut take = |data: &[u8]| {
                if read.is_empty() {
                    let mut state = model.state();
                    let data = &mut state.entries.get_mut(&id).unwrap().data;
                    if cut {
                        data.truncate(700);
                    } else {
                        data.extend_from_slice(&[9; 1300]);
                    }
                }
                if cut && read.len() == 512 {
                    let mut state = model.state();
                    state.entries.get_mut(&id).unwrap().data.resize(3000, 9);
                }
                read.extend_from_slice(data);
                Ok(())
            };
            read_in_order(&file, found.attributes.bytes, &mut take).await.unwrap();
        });
        let expected = if cut { before[..700].to_vec() } else { [before, vec![9; 1300]].concat() };
        assert!(read == expected, "{} bytes", read.len());
    }
}
