// SPDX-License-Identifier: MIT OR Apache-2.0
//! Servers that lie, break off and mangle: every one ends in a clear error or in the right bytes,
//! never in a panic, a hang or memory without bound.

mod common;
#[allow(dead_code)]
#[path = "common/fake.rs"]
mod fake;
#[path = "common/model.rs"]
mod model;

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use common::{Quiet, on_server};
use dwell::executor::Executor;
use dwell_bench::fixture::{Export, Ganesha};
use dwell_nfs::client::Client;
use dwell_nfs::connection::Payload;
use dwell_nfs::copy::{self, Options};
use dwell_nfs::directory::Item;
use dwell_nfs::file::{RemoteFile, Writer};
use dwell_nfs::nfs3::{Handle, SetAttributes};
use dwell_nfs::url::Url;
use fake::{Call, Cutter, Fake, Mangler, Store, Told, file_attributes, ordinary, words};
use model::Model;

fn file() -> Handle {
    Handle::new(b"file").unwrap()
}

/// What comes of something that is done with a client of this address.
fn with_client<T>(
    url: &str,
    work: impl AsyncFnOnce(std::rc::Rc<Client>) -> dwell_nfs::Result<T>,
) -> dwell_nfs::Result<T> {
    let executor = Executor::new().unwrap();
    let tasks = executor.handle();
    let url: Url = url.parse().unwrap();
    let began = Instant::now();
    let done = executor.block_on(async {
        let client = Client::mount(&tasks, &url).await?;
        work(client).await
    });
    assert!(began.elapsed() < Duration::from_secs(20));
    done
}

/// The error of a read, a write and a listing with a server that answers one procedure by
/// `results`.
fn error_of(procedure: u32, results: Vec<u8>) -> String {
    let server = Fake::start(move |call: &Call| match call.is_nfs(procedure) {
        true => Told::Results(results.clone()),
        false => ordinary(call).map_or(Told::Close, Told::Results),
    });
    let url = server.url("/e/x", "&timeout=2");
    let done = with_client(&url, async |client| {
        let there: Url = url.parse().unwrap();
        match procedure {
            6 => RemoteFile::new(&client, file(), "x").read(0, 1000).await.map(|_| ()),
            7 | 21 => {
                let writer = Writer::new(RemoteFile::new(&client, file(), "x"));
                writer.write(0, &Payload::new(vec![1; 1000])).await?;
                writer.commit().await.map(|_| ())
            }
            16 | 17 => client.list(file(), &"x").await.map(|_| ()),
            5 => client.read_link(file(), &"x").await.map(|_| ()),
            _ => client.require(&there).await.map(|_| ()),
        }
    });
    let line = done.expect_err("a lie must be noticed").to_string();
    assert!(!line.contains('\n'), "{line}");
    line
}

#[test]
fn lengths_and_counts_that_lie_are_refused() {
    let huge = 0x8000_0001u32;
    let attributes = || [words(&[1]), file_attributes(1, 100)].concat();
    let data = |words_before: &[u32], bytes: usize| [words(words_before), vec![0; bytes]].concat();
    let cases: [(u32, Vec<u8>, &str); 15] = [
        (3, words(&[0, huge, 1, 2]), "file handle: 2147483649 is more than 64"),
        (3, words(&[0, 65, 1, 2]), "file handle: 65 is more than 64"),
        (3, words(&[0, 8, 1]), "file handle: 8 bytes are needed, 4 are left"),
        (6, data(&[0, 0, 2000, 0, 2000], 2000), "count: 2000 is more than 1000"),
        (6, data(&[0, 0, 1000, 0, huge], 1000), "data: 2147483649 is more than 1000"),
        (6, data(&[0, 0, 1000, 0, 1000], 999), "data: 1000 bytes are needed, 999 are left"),
        (6, data(&[0, 0, 1000, 0, 500], 500), "count: 1000 means nothing here"),
        // The padding lies past the end.
        (6, data(&[0, 0, 999, 0, 999], 999), "data: 1 bytes are needed, 0 are left"),
        (6, words(&[0, 0, 0, 0, 0]), "gives no data and says that there is more"),
        (7, words(&[0, 0, 0, 1001, 0, 7, 7]), "count: 1001 is more than 1000"),
        (7, words(&[0, 0, 0, 0, 0, 7, 7]), "count: 0 means nothing here"),
        (7, words(&[0, 0, 0, 1000, 9, 7, 7]), "stability: 9 means nothing here"),
        (5, [words(&[0]), attributes(), words(&[huge])].concat(), "link: 2147483649 is more than"),
        (1, words(&[0, 12, 1]), "file type: 12 means nothing here"),
        (3, words(&[99]), "refused for a reason that NFS version 3 does not have"),
    ];
    for (procedure, results, part) in cases {
        let line = error_of(procedure, results);
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[test]
fn a_write_without_room_on_the_server_is_told_with_path_and_offset() {
    for (status, part) in [
        (69, "x: write at byte 0: over the quota on the server (NFS3ERR_DQUOT 69)"),
        (28, "x: write at byte 0: no space left on the server (NFS3ERR_NOSPC 28)"),
        (27, "x: write at byte 0: larger than the server allows a file to be (NFS3ERR_FBIG 27)"),
    ] {
        assert_eq!(error_of(7, words(&[status, 0, 0])), part);
    }
    // Some servers count only when data is made durable.
    let server = Fake::start(|call: &Call| match call {
        call if call.is_nfs(7) => Told::Results(words(&[0, 0, 0, 1000, 0, 7, 7])),
        call if call.is_nfs(21) => Told::Results(words(&[69, 0, 0])),
        call => ordinary(call).map_or(Told::Close, Told::Results),
    });
    let done = with_client(&server.url("/e/x", "&timeout=2"), async |client| {
        let writer = Writer::new(RemoteFile::new(&client, file(), "x"));
        writer.write(5000, &Payload::new(vec![1; 1000])).await?;
        writer.commit().await
    });
    let line = done.unwrap_err().to_string();
    assert_eq!(line, "x: commit at byte 5000: over the quota on the server (NFS3ERR_DQUOT 69)");
}

#[test]
fn listings_that_do_not_end_are_left() {
    let entry = |name: &[u8], cookie: u32| {
        let mut entry = words(&[1, 0, 5, name.len() as u32]);
        entry.extend(name);
        entry.resize(entry.len().next_multiple_of(4), 0);
        let mut rest = words(&[0, cookie, 1]);
        rest.extend(file_attributes(1, 1));
        rest.extend(words(&[1, 4]));
        rest.extend(b"file");
        [entry, rest].concat()
    };
    let listing =
        |entries: Vec<u8>, ends: u32| [words(&[0, 0, 9, 9]), entries, words(&[0, ends])].concat();
    for (results, part) in [
        (listing(entry(b"a", 4), 0), "the same entries again and again"),
        (listing(Vec::new(), 0), "lists nothing and says that there is more"),
        (listing(entry(b"../../etc/passwd", 4), 1), "a name that is none: \"../../etc/passwd\""),
        (listing(entry(b"", 4), 1), "a name that is none"),
        (listing(entry(b"a\0b", 4), 1), "a name that is none"),
        (words(&[0, 0, 9, 9, 1, 0, 5, 0x8000_0000]), "name: 2147483648 is more than 1024"),
    ] {
        let line = error_of(17, results);
        assert!(line.contains(part), "{part}: {line}");
    }
}

#[test]
fn streams_that_cannot_be_read_end_in_time() {
    let cases: [fn() -> Vec<u8>; 4] = [
        || words(&[0x7fff_ffff]),
        || words(&[0xffff_ffff, 1, 2]),
        // Fragments without end or content.
        || words(&[0]).repeat(3000),
        || words(&[0x8000_0000]).repeat(10),
    ];
    for (number, raw) in cases.into_iter().enumerate() {
        let server = Fake::start(move |call: &Call| match call.is_nfs(6) {
            true => Told::Raw(raw()),
            false => ordinary(call).map_or(Told::Close, Told::Results),
        });
        let url = server.url("/e/x", "&timeout=1");
        let read = with_client(&url, async |client| {
            RemoteFile::new(&client, file(), "x").read(0, 1000).await.map(|_| ())
        });
        let line = read.unwrap_err().to_string();
        let named = format!("the server {} did not answer for 1 s", server.address);
        assert_eq!(line, format!("x: read at byte 0: {named}"), "{number}");
    }
}

#[test]
fn a_server_that_asks_for_time_gets_it_and_one_that_writes_little_gets_the_rest() {
    let (asked, store) = (AtomicU64::new(0), Store::default());
    let kept = store.clone();
    let server = Fake::start(move |call: &Call| {
        if call.is_nfs(7) {
            if asked.fetch_add(1, Ordering::Relaxed) % 3 == 0 {
                return Told::Results(words(&[10008, 0, 0]));
            }
            // A third of it, or what is left.
            let whole = kept.answer(call).unwrap();
            let count = u32::from_be_bytes(*whole[12..].first_chunk().unwrap());
            let some = count.min(1000);
            let offset = u64::from_be_bytes(*call.arguments[8..].first_chunk().unwrap());
            kept.data.lock().unwrap().entry(offset).and_modify(|data| data.truncate(some as usize));
            return Told::Results([&whole[..12], &some.to_be_bytes(), &whole[16..]].concat());
        }
        kept.answer(call).map_or(Told::Close, Told::Results)
    });
    let data = common::noise(5000);
    let payload = Payload::new(data.clone());
    with_client(&server.url("/e/x", ""), async |client| {
        let writer = Writer::new(RemoteFile::new(&client, file(), "x"));
        writer.write(0, &payload).await?;
        writer.commit().await
    })
    .unwrap();
    assert_eq!(store.bytes(), data);
}

#[test]
fn a_server_that_forgets_for_ever_is_not_believed() {
    let (life, store) = (AtomicU64::new(0), Store::default());
    let server = Fake::start(move |call: &Call| {
        let Some(mut results) = store.answer(call) else { return Told::Close };
        if call.is_nfs(7) || call.is_nfs(21) {
            let at = results.len() - 8;
            results[at..].copy_from_slice(&life.fetch_add(1, Ordering::Relaxed).to_be_bytes());
        }
        Told::Results(results)
    });
    let done = with_client(&server.url("/e/x", ""), async |client| {
        let writer = Writer::new(RemoteFile::new(&client, file(), "x"));
        writer.write(0, &Payload::new(vec![1; 10])).await?;
        writer.commit().await
    });
    let line = done.unwrap_err().to_string();
    assert!(line.starts_with("x: commit: the server was restarted 16 times"), "{line}");
}

/// A connection that is cut at any byte, on either way, loses nothing.
#[test]
fn a_stream_cut_at_every_byte_is_taken_up_again() {
    let data = common::noise(300);
    let run = |up: u64, down: u64| {
        let store = Store::default();
        let kept = store.clone();
        let server =
            Fake::start(move |call: &Call| kept.answer(call).map_or(Told::Close, Told::Results));
        let relay = Cutter::start(server.address, up, down);
        let mount = server.address.port();
        let url = format!("nfs://127.0.0.1:{}/e/x?mountport={mount}&size=512", relay.port);
        let payload = Payload::new(data.clone());
        let done = with_client(&url, async |client| {
            let writer = Writer::new(RemoteFile::new(&client, file(), "x"));
            writer.write(0, &payload).await?;
            writer.commit().await
        });
        (done, store.bytes(), relay.connections.load(Ordering::Relaxed))
    };
    let (mut refused, mut taken_up) = (0, 0);
    for at in 0.. {
        let (up, down) = if at % 2 == 0 { (at / 2, u64::MAX) } else { (u64::MAX, at / 2) };
        let (done, bytes, connections) = run(up, down);
        match done {
            Ok(_) => {
                assert!(bytes == data, "cut at {at}");
                taken_up += u64::from(connections > 1);
                // Neither way has so many bytes.
                if connections == 1 && at > 2500 {
                    break;
                }
            }
            // Cut before the first byte came back, the server may as well not be one.
            Err(error) => {
                assert!(
                    error.to_string().contains("reset")
                        || error.to_string().contains("asking for its limits"),
                    "cut at {at}: {error}"
                );
                refused += 1;
            }
        }
    }
    assert!(taken_up > 300, "{taken_up} taken up, {refused} refused");
}

#[test]
fn mangled_datagrams_change_no_byte() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let export = dir.path().display().to_string();
    on_server(&[Export::directory(dir.path())], false, |_| {
        let to = format!("127.0.0.1:{}", Ganesha::PORT).parse().unwrap();
        let relay = Mangler::start(to);
        let mount = Ganesha::MOUNT_PORT;
        let url =
            format!("nfs://127.0.0.1:{}{export}?mountport={mount}&proto=udp&size=4096", relay.port);
        let data = common::noise(2 << 20);
        with_client(&url, async |client| {
            let attributes = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
            let handle = client.create(client.root(), b"f", attributes, &"f").await?;
            let file = RemoteFile::new(&client, handle, "f");
            let writer = Writer::new(file.clone());
            for (place, chunk) in data.chunks(1 << 16).enumerate() {
                let offset = (place as u64) << 16;
                for (inner, piece) in chunk.chunks(4096).enumerate() {
                    let offset = offset + inner as u64 * 4096;
                    writer.write(offset, &Payload::new(piece.to_vec())).await?;
                }
            }
            writer.commit().await?;
            for (place, chunk) in data.chunks(4096).enumerate() {
                let read = file.read(place as u64 * 4096, 4096).await?;
                assert!(read.as_ref() == chunk, "chunk {place}");
            }
            Ok(())
        })
        .unwrap();
        assert!(std::fs::read(dir.path().join("f")).unwrap() == data);
        assert!(relay.mangled.load(Ordering::Relaxed) > 100);
    });
}

#[test]
fn a_copy_goes_on_where_a_server_refuses_further_connections() {
    let dir = tempfile::tempdir().unwrap();
    let from = dir.path().join("from");
    std::fs::write(&from, common::noise(200_000)).unwrap();
    let model = Model::default();
    let served = model.clone();
    // One for MOUNT and one for NFS.
    let server = Fake::start_for(2, None, move |call| served.tell(call));
    let to = server.url("/e/to", "&size=4096&nconnect=4&timeout=5");
    let executor = Executor::new().unwrap();
    let tasks = executor.handle();
    let quiet = Quiet::default();
    let options = Options::default();
    let copied = copy::between(&tasks, from.to_str().unwrap(), &to, options, &quiet);
    let (_, failures) = executor.block_on(copied).unwrap();
    assert_eq!((failures, quiet.errors()), (0, vec![]));
    assert!(model.at("to").unwrap().durable == common::noise(200_000));
}

#[test]
fn a_connection_that_a_server_closes_for_idleness_is_made_again_when_there_is_something_to_send() {
    let model = Model::default();
    let idle = Some(Duration::from_millis(50));
    let served = model.clone();
    let server = Fake::start_for(u64::MAX, idle, move |call| served.tell(call));
    with_client(&server.url("/e", "&nconnect=2&timeout=5"), async |client| {
        client.call_null().await?;
        client.tasks().sleep(Duration::from_millis(500)).await;
        let before = server.connections.load(Ordering::Relaxed);
        client.tasks().sleep(Duration::from_secs(1)).await;
        assert_eq!(server.connections.load(Ordering::Relaxed), before, "nothing is to be sent");
        client.call_null().await?;
        // The one that the request needs, and perhaps already the further one.
        let after = server.connections.load(Ordering::Relaxed);
        assert!((before + 1..=before + 2).contains(&after), "{before} {after}");
        Ok(())
    })
    .unwrap();
}

#[test]
fn a_directory_that_contains_itself_is_told_and_left() {
    let (model, there) = (Model::default(), Model::default());
    let directory = model.make(1, "d", 2, "");
    model.make(directory, "pipe", 7, "");
    model.state().entries.get_mut(&directory).unwrap().names.insert(b"again".into(), directory);
    let (server, other) = (model.serve(), there.serve());
    let from = server.url("/e/d", "");
    let place = tempfile::tempdir().unwrap();
    let here = place.path().join("copy").to_str().unwrap().to_string();
    let options = Options { recursive: true, ..Options::default() };
    let said = "/e/d/again: the directory contains itself";
    for to in [&here, &other.url("/e/copy", "")] {
        let executor = Executor::new().unwrap();
        let (tasks, quiet) = (executor.handle(), Quiet::default());
        let planned = executor.block_on(copy::plan(&tasks, &from, to, options, &quiet)).unwrap();
        let copied = executor.block_on(copy::between(&tasks, &from, to, options, &quiet)).unwrap();
        assert_eq!((planned.1, copied.1), (1, 1), "the rest is copied");
        let errors = quiet.errors();
        assert!(
            errors.len() == 2 && errors.iter().all(|error| error.ends_with(said)),
            "{errors:?}"
        );
    }
    let refused = with_client(&from, async |client| {
        let url: Url = from.parse().unwrap();
        let found = client.require(&url).await?;
        let listed = client.all_in(&url, found).await.unwrap_err();
        let item = Item { name: b"d".into(), found };
        let root = client.root();
        let removed = client.remove_all(root, item, true, &url, &mut |_| ()).await.unwrap_err();
        Ok([listed, removed].map(|error| error.to_string()))
    });
    assert!(refused.unwrap().iter().all(|error| error.ends_with(said)));
}
