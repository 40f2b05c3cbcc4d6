// SPDX-License-Identifier: MIT OR Apache-2.0
//! Against a real server: trees there and back, restarts, loss, every refusal in one clear line.

mod common;

use std::fs;
use std::net::UdpSocket;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::rc::Rc;
use std::time::Duration;

use common::{Quiet, on_server, same, tree};
use dwell::executor::Executor;
use dwell_bench::fixture::{
    Export, FileSystem, Ganesha, LoopOnTmpfs, in_own_network, lose_datagrams,
};
use dwell_nfs::client::{Client, exports};
use dwell_nfs::connection::Payload;
use dwell_nfs::copy::{self, Options, Threads};
use dwell_nfs::file::{RemoteFile, Writer};
use dwell_nfs::nfs3::{self, SetAttributes, Status, access};
use dwell_nfs::url::Url;

const WHOLE: Options = Options {
    recursive: true,
    resume: false,
    onto: false,
    verify: true,
    times: true,
    extent_bytes: copy::EXTENT_BYTES,
    threads: Threads::Fixed(1),
};

fn copy(from: &str, to: &str, options: Options) -> dwell_nfs::Result<copy::Progress> {
    let executor = Executor::new().unwrap();
    let tasks = executor.handle();
    let quiet = Quiet::default();
    let (progress, failures) =
        executor.block_on(copy::between(&tasks, from, to, options, &quiet))?;
    assert_eq!(failures, 0, "{:?}", quiet.errors());
    Ok(progress)
}

fn there_and_back(transport: &str, rpcbind: bool, on: &Path) {
    let dir = tempfile::tempdir_in(on).unwrap();
    let exported = dir.path().join("export");
    fs::create_dir(&exported).unwrap();
    on_server(&[Export::directory(&exported)], rpcbind, |server| {
        let source = dir.path().join("source");
        tree(&source);
        let export = exported.display().to_string();
        let options = format!("&proto={transport}");
        let address = match rpcbind {
            // All ports by the portmapper.
            true => format!("nfs://127.0.0.1{export}/tree?proto={transport}"),
            false => server.address(&format!("{export}/tree"), &options),
        };
        let done = copy(source.to_str().unwrap(), &address, WHOLE).unwrap();
        assert_eq!(done.verified, done.files_done);
        assert!(done.files_done > 20 && done.bytes_done == done.bytes);
        same(&source, &exported.join("tree"));
        let back = dir.path().join("back");
        let done = copy(&address, back.to_str().unwrap(), WHOLE).unwrap();
        assert_eq!(done.verified, done.files_done);
        same(&source, &back);
        // Into a directory that is there, and from one place of the server to another.
        let other = address.replace("/tree", "/other");
        copy(&address, &other, WHOLE).unwrap();
        same(&source, &exported.join("other"));
        copy(&address, &other, WHOLE).unwrap();
        same(&source, &exported.join("other/tree"));
    });
}

#[test]
fn trees_come_back_as_they_went_over_tcp() {
    there_and_back("tcp", false, Path::new("/dev/shm"));
}

#[test]
fn trees_come_back_as_they_went_over_udp_with_a_portmapper() {
    there_and_back("udp", true, Path::new("/dev/shm"));
}

#[test]
fn trees_come_back_as_they_went_on_a_disk_with_a_portmapper() {
    there_and_back("tcp", true, &std::env::temp_dir());
}

#[test]
fn a_fifth_of_all_datagrams_lost_changes_no_byte() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let exported = dir.path().join("export");
    fs::create_dir(&exported).unwrap();
    on_server(&[Export::directory(&exported)], false, |server| {
        let source = dir.path().join("data");
        fs::write(&source, common::noise(3 << 20)).unwrap();
        let path = format!("{}/data", exported.display());
        let address = server.address(&path, "&proto=udp&size=8192");
        if let Err(why) = lose_datagrams(Ganesha::PORT, 10) {
            return println!("SKIP: {why}");
        }
        let done = copy(source.to_str().unwrap(), &address, WHOLE).unwrap();
        assert!(done.counters.resends > 10, "{:?}", done.counters);
        same(&source, &exported.join("data"));
    });
}

/// A server that is told so by its own system never answers a copy that it had put aside meanwhile.
#[test]
fn a_server_is_not_told_that_its_answer_is_lost() {
    let ran = in_own_network(|| {
        lose_datagrams(Ganesha::PORT, 90)?;
        let server = UdpSocket::bind(("127.0.0.1", Ganesha::PORT)).unwrap();
        let client = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.set_nonblocking(true).unwrap();
        for _ in 0..100 {
            server.send_to(b"answer", client.local_addr().unwrap()).unwrap();
        }
        // On a loopback device, what was sent is there.
        let came = (0..100).take_while(|_| client.recv(&mut [0; 8]).is_ok()).count();
        assert!(came < 100);
        Ok(())
    });
    if let Err::<(), _>(why) = ran.flatten() {
        println!("SKIP: {why}");
    }
}

/// nfs-ganesha 4 crashes when it receives a change a fifth time while it is still at it.
#[test]
fn a_server_whose_file_system_stands_still_is_not_flooded_with_copies() {
    let made = LoopOnTmpfs::blank(64 << 20)
        .and_then(|device| FileSystem::new(Box::new(device), "ext4", Path::new("/dev/shm")));
    let system = match made {
        Ok(system) => system,
        Err(why) => return println!("SKIP: {why}"),
    };
    let served = system.path();
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let source = dir.path().join("source");
    tree(&source);
    on_server(&[Export::directory(served)], false, |server| {
        let path = format!("{}/tree", served.display());
        let address = server.address(&path, "&proto=udp");
        let freeze = |how| {
            let done = Command::new("fsfreeze").arg(how).arg(served).status();
            assert!(done.unwrap().success());
        };
        std::thread::scope(|scope| {
            freeze("--freeze");
            scope.spawn(|| {
                std::thread::sleep(Duration::from_secs(3));
                freeze("--unfreeze");
            });
            copy(source.to_str().unwrap(), &address, WHOLE).unwrap();
        });
        assert_eq!(server.ended(), None);
        same(&source, &served.join("tree"));
    });
}

#[test]
fn every_procedure_does_what_it_says() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let export = dir.path().display().to_string();
    on_server(&[Export::directory(dir.path())], false, |server| {
        let executor = Executor::new().unwrap();
        let tasks = executor.handle();
        let url: Url = server.address(&export, "").parse().unwrap();
        executor.block_on(async {
            assert_eq!(exports(&tasks, &url).await.unwrap(), [export.as_str()]);
            let client = Client::mount(&tasks, &url).await.unwrap();
            let root = client.root();
            let keep = SetAttributes { mode: Some(0o640), ..SetAttributes::default() };
            let handle = client.create(root, b"a", keep, &"a").await.unwrap();
            assert_eq!(fs::metadata(dir.path().join("a")).unwrap().mode() & 0o777, 0o640);
            let longer = SetAttributes { bytes: Some(70_000), ..SetAttributes::default() };
            client.change(handle, longer, &"a").await.unwrap();
            let file = RemoteFile::new(&client, handle, "a");
            let writer = Writer::new(file.clone());
            writer.write(65_000, &Payload::new(common::noise(300_001))).await.unwrap();
            assert_eq!(writer.uncommitted_bytes(), 300_001);
            assert_eq!(writer.commit().await.unwrap(), 0);
            let read = file.read(64_999, 400_000).await.unwrap();
            assert_eq!(read.as_ref()[1..], common::noise(300_001));
            assert!(file.read(1 << 40, 10).await.unwrap().is_empty());
            client.make_link(root, b"link", b"some/where", &"link").await.unwrap();
            let link = client.require(&url.join("link")).await.unwrap();
            assert_eq!(client.read_link(link.handle, &"link").await.unwrap(), b"some/where");
            client.make_directory(root, b"d", keep, false, &"d").await.unwrap();
            let again = client.make_directory(root, b"d", keep, false, &"d").await.unwrap_err();
            assert_eq!(again.status(), Some(Status::EXIST));
            client.rename(root, b"a", b"b", handle, &"b").await.unwrap();
            assert_eq!(client.may(handle, access::READ, &"b").await.unwrap(), access::READ);
            assert!(client.space(root, &"").await.unwrap().total_bytes > 0);
            let names: Vec<_> = client.list(root, &"").await.unwrap();
            let mut names: Vec<_> = names.into_iter().map(|item| item.name).collect();
            names.sort();
            assert_eq!(names, [&b"b"[..], b"d", b"link"]);
            // Names alone, as from a server without READDIRPLUS.
            client.list_names_only();
            assert_eq!(client.list(root, &"").await.unwrap().len(), 3);
            let b = client.require(&url.join("b")).await.unwrap();
            client.remove(root, b"b", &b, &"b").await.unwrap();
            let stale = file.read(0, 10).await.unwrap_err().to_string();
            assert!(stale.starts_with("a: read at byte 0: stale handle"), "{stale}");
            let gone = client.require(&url.join("b")).await.unwrap_err();
            assert_eq!(gone.status(), Some(Status::NOENT));
            let d = client.require(&url.join("d")).await.unwrap();
            let item = dwell_nfs::directory::Item { name: b"d".to_vec(), found: d };
            client.remove_all(root, item, true, &url, &mut |_| ()).await.unwrap();
            let null = client.call_null().await;
            null.unwrap();
            client.unmount().await;
        });
    });
}

#[test]
fn data_that_a_restarted_server_forgot_is_sent_again() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let export = dir.path().display().to_string();
    on_server(&[Export::directory(dir.path())], false, |server| {
        for transport in ["tcp", "udp"] {
            let executor = Executor::new().unwrap();
            let tasks = executor.handle();
            let options = format!("&proto={transport}&size=32768");
            let url: Url = server.address(&export, &options).parse().unwrap();
            let data = common::noise(1 << 20);
            executor.block_on(async {
                let client = Client::mount(&tasks, &url).await.unwrap();
                let attributes = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
                let handle = client.create(client.root(), b"f", attributes, &"f").await.unwrap();
                let writer = Writer::new(RemoteFile::new(&client, handle, "f"));
                for (place, chunk) in data.chunks(32768).enumerate() {
                    let offset = place as u64 * 32768;
                    writer.write(offset, &Payload::new(chunk.to_vec())).await.unwrap();
                }
                server.restart().unwrap();
                // What the server had not made durable is lost for good.
                fs::write(dir.path().join("f"), b"").unwrap();
                let again = writer.commit().await.unwrap();
                assert_eq!(again, 1 << 20);
                assert_eq!(writer.uncommitted_bytes(), 0);
            });
            assert!(fs::read(dir.path().join("f")).unwrap() == data, "{transport}");
        }
    });
}

#[test]
fn a_server_killed_in_mid_transfer_and_started_again_loses_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let exported = dir.path().join("export");
    fs::create_dir(&exported).unwrap();
    on_server(&[Export::directory(&exported)], false, |server| {
        let source = dir.path().join("data");
        fs::write(&source, common::noise(8 << 20)).unwrap();
        for transport in ["tcp", "udp"] {
            let path = format!("{}/{transport}", exported.display());
            let address = server.address(&path, &format!("&proto={transport}&size=16384"));
            let executor = Executor::new().unwrap();
            let tasks = executor.handle();
            let restart = common::AtByte::new(4 << 20, || server.restart().unwrap());
            let from = source.to_str().unwrap();
            let copied = copy::between(&tasks, from, &address, WHOLE, &restart);
            let (done, failures) = executor.block_on(copied).unwrap();
            assert_eq!(failures, 0, "{:?}", restart.errors());
            assert!(done.bytes_again > 0 || done.counters.replays + done.counters.resends > 0);
            same(&source, &exported.join(transport));
        }
    });
}

#[test]
fn a_copy_that_broke_off_is_resumed_and_what_is_there_is_left_out() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let exported = dir.path().join("export");
    fs::create_dir(&exported).unwrap();
    on_server(&[Export::directory(&exported)], false, |server| {
        let source = dir.path().join("data");
        let data = common::noise((150 << 20) + 5);
        fs::write(&source, &data).unwrap();
        let address = server.address(&format!("{}/data", exported.display()), "");
        let options = Options { resume: true, verify: true, ..Options::default() };
        let from = source.to_str().unwrap();
        let stopped = common::copy_up_to(135 << 20, from, &address, options);
        assert!(stopped && exported.join(".data.dwell-part").exists());
        let done = copy(from, &address, options).unwrap();
        assert_eq!(done.bytes_there, 2 * copy::EXTENT_BYTES);
        assert!(fs::read(exported.join("data")).unwrap() == data);
        assert_eq!(fs::read_dir(&exported).unwrap().count(), 1, "the part and its record are gone");
        let done = copy(from, &address, options).unwrap();
        assert_eq!((done.files_there, done.bytes_there), (1, data.len() as u64));
    });
}

#[test]
fn refusals_are_one_clear_line() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (open, closed) = (dir.path().join("open"), dir.path().join("closed"));
    fs::create_dir(&open).unwrap();
    fs::create_dir(&closed).unwrap();
    fs::write(open.join("secret"), b"x").unwrap();
    let mode = std::os::unix::fs::PermissionsExt::from_mode;
    fs::set_permissions(open.join("secret"), mode(0o600)).unwrap();
    fs::set_permissions(&open, mode(0o755)).unwrap();
    fs::set_permissions(dir.path(), mode(0o755)).unwrap();
    let read_only = Export { writable: false, ..Export::directory(&closed) };
    on_server(&[Export::directory(&open), read_only], false, |server| {
        let (open, closed) = (open.display().to_string(), closed.display().to_string());
        let local = dir.path().join("local").display().to_string();
        fs::write(&local, b"data").unwrap();
        let at = |path: &str, options: &str| server.address(path, options);
        let nobody = "&user=65534:65534";
        let cases = [
            (at("/nowhere/x", ""), local.clone(), "mounting: "),
            (
                at(&format!("{open}/secret"), nobody),
                format!("{local}2"),
                "permission denied (NFS3ERR_ACCES 13)",
            ),
            (local.clone(), at(&format!("{open}/x"), nobody), "creating: permission denied"),
            (local.clone(), at(&format!("{closed}/x"), ""), "creating: the export is read-only"),
            (at(&format!("{open}/missing"), ""), local.clone(), "no such file or directory"),
            (at(&format!("{open}/secret/x"), ""), local.clone(), "not a directory"),
            (at(&open, ""), format!("{local}d"), "--recursive"),
            (
                "nfs://127.0.0.1:1/x?mountport=2".into(),
                local.clone(),
                "no connection to 127.0.0.1:2: Connection refused",
            ),
            ("nfs://127.0.0.1/x".into(), local.clone(), "no connection to 127.0.0.1:111"),
            (
                "nfs://127.0.0.1:1/x?mountport=2&proto=udp".into(),
                local.clone(),
                "no connection to 127.0.0.1:2: Connection refused",
            ),
        ];
        for (from, to, part) in cases {
            let executor = Executor::new().unwrap();
            let tasks = executor.handle();
            let quiet = Quiet::default();
            let options = Options::default();
            let outcome = executor.block_on(copy::between(&tasks, &from, &to, options, &quiet));
            let line = match outcome {
                Err(error) => error.to_string(),
                Ok(_) => quiet.errors().join("\n"),
            };
            assert!(line.contains(part) && !line.contains('\n'), "{from} to {to}: {line:?}");
        }
    });
}

#[test]
fn a_full_server_says_where() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let export = dir.path().display().to_string();
    common::with_small_disk(dir.path(), || {
        on_server(&[Export::directory(dir.path())], false, |server| {
            let executor = Executor::new().unwrap();
            let tasks = executor.handle();
            let url: Url = server.address(&export, "&size=65536").parse().unwrap();
            executor.block_on(async {
                let client = Client::mount(&tasks, &url).await.unwrap();
                let keep = SetAttributes::default();
                let handle = client.create(client.root(), b"f", keep, &"f").await.unwrap();
                let writer = Rc::new(Writer::new(RemoteFile::new(&client, handle, "f")));
                let mut failed = None;
                for place in 0..64 {
                    let data = Payload::new(vec![1; 65536]);
                    if let Err(error) = writer.write(place * 65536, &data).await {
                        failed = Some(error);
                        break;
                    }
                }
                let error = failed.expect("a disk of 1 MiB takes no 4 MiB");
                assert_eq!(error.status(), Some(nfs3::Status::NOSPC));
                let offset = error.offset.unwrap();
                assert!((512 << 10..=1 << 20).contains(&offset), "{error}");
                let f = client.require(&url.join("f")).await.unwrap();
                client.remove(client.root(), b"f", &f, &"f").await.unwrap();
            });
            // A copy ends with one line that says which file, and from which byte on.
            let local = tempfile::NamedTempFile::new_in("/dev/shm").unwrap();
            fs::write(local.path(), common::noise(4 << 20)).unwrap();
            let (from, to) = (local.path().display().to_string(), format!("{export}/big"));
            let quiet = Quiet::default();
            let address = server.address(&to, "&size=65536");
            let copied = copy::between(&tasks, &from, &address, Options::default(), &quiet);
            let line = match executor.block_on(copied) {
                Err(error) => error.to_string(),
                Ok(_) => quiet.errors().join("\n"),
            };
            let (path, rest) = line.split_once(": write at byte ").unwrap_or((&line, ""));
            let (offset, why) = rest.split_once(": ").unwrap_or((rest, ""));
            assert!(path.contains("big") && offset.parse::<u64>().is_ok(), "{line:?}");
            assert_eq!(why, "no space left on the server (NFS3ERR_NOSPC 28)", "{line:?}");
        });
    });
}

#[test]
fn a_file_on_a_server_is_a_file_like_any_other() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let export = dir.path().display().to_string();
    on_server(&[Export::directory(dir.path())], false, |server| {
        dwell_nfs::queue::register();
        for transport in ["tcp", "udp"] {
            let options = format!("&proto={transport}&size=8192");
            let address = server.address(&format!("{export}/{transport}"), &options);
            let missing = dwell::Options::new().open(&address).err().unwrap().to_string();
            assert!(missing.contains("no such file"), "{missing}");
            let file = dwell::Options::new().write(true).create(true).open(&address).unwrap();
            // Longer than one request, and in pieces of odd lengths.
            let data = common::noise(100_001);
            file.write_all_at(&data, 3).unwrap();
            let (one, two) = data.split_at(20_003);
            let pieces = [std::io::IoSlice::new(one), std::io::IoSlice::new(two)];
            assert_eq!(file.write_vectored_at(&pieces, 200_000).unwrap(), data.len());
            file.sync_data().unwrap();
            let there = fs::read(dir.path().join(transport)).unwrap();
            assert_eq!(there.len(), 300_001);
            assert!(there[3..100_004] == data && there[200_000..] == data);
            let mut read = vec![0; 100_100];
            assert_eq!(file.read_at(&mut read, 199_990).unwrap(), 100_011);
            assert!(read[10..100_011] == data);
            assert_eq!(file.read_at(&mut read, 300_001).unwrap(), 0);
            // Threads have queues of their own.
            std::thread::scope(|scope| {
                for _ in 0..3 {
                    scope.spawn(|| {
                        let mut read = vec![0; 50_000];
                        file.read_exact_at(&mut read, 3).unwrap();
                        assert!(read == data[..50_000]);
                    });
                }
            });
        }
    });
}

#[test]
fn a_file_that_is_open_outlives_a_restart_before_its_first_request() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let export = dir.path().display().to_string();
    fs::write(dir.path().join("file"), common::noise(5000)).unwrap();
    dwell_nfs::queue::register();
    on_server(&[Export::directory(dir.path())], false, |server| {
        let file =
            dwell::Options::new().open(server.address(&format!("{export}/file"), "")).unwrap();
        server.kill();
        std::thread::scope(|scope| {
            let read = scope.spawn(|| {
                let mut data = vec![0; 5000];
                file.read_exact_at(&mut data, 0).map(|()| data)
            });
            server.restart().unwrap();
            assert!(read.join().unwrap().unwrap() == common::noise(5000));
        });
        assert_eq!(file.bytes().unwrap(), 5000);
    });
}
