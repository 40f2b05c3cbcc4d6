// SPDX-License-Identifier: MIT OR Apache-2.0
//! Programs that are killed while they wait for a server, and what becomes of their requests.

mod common;
#[allow(dead_code)]
#[path = "common/fake.rs"]
mod fake;
#[path = "common/model.rs"]
mod model;
#[path = "common/mounting.rs"]
mod mounting;

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::process::Child;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use dwell::executor::Executor;
use dwell_nfs::client::Client;
use dwell_nfs::fuse;
use dwell_nfs::url::Url;
use fake::Fake;
use model::{Fault, Model};
use mounting::{at, at_server, ends_within, mount, program, wait_for};

const GETATTR: u32 = 1;
const REMOVE: u32 = 12;

/// Serves a model, but carries out no more calls than it is told to.
struct Held {
    server: Fake,
    let_through: Arc<AtomicU64>,
    /// Calls that came since it was told.
    came: Arc<AtomicU64>,
}

impl Held {
    fn serve(model: &Model) -> Held {
        let (let_through, came) = (Arc::new(AtomicU64::new(u64::MAX)), Arc::new(AtomicU64::new(0)));
        let (model, most, counted) = (model.clone(), let_through.clone(), came.clone());
        let server = Fake::start(move |call| {
            let number = counted.fetch_add(1, Ordering::SeqCst);
            let until = Instant::now() + Duration::from_secs(60);
            while number >= most.load(Ordering::SeqCst) && Instant::now() < until {
                sleep(Duration::from_millis(1));
            }
            model.tell(call)
        });
        Held { server, let_through, came }
    }

    /// Lets no call through from now on.
    fn hold(&self) {
        self.came.store(0, Ordering::SeqCst);
        self.let_through(0);
    }

    /// Lets so many calls through since it was told to hold.
    fn let_through(&self, calls: u64) {
        self.let_through.store(calls, Ordering::SeqCst);
    }

    fn came(&self) -> u64 {
        self.came.load(Ordering::SeqCst)
    }
}

/// One request at a time, and a server that is waited for.
const ONE_AT_A_TIME: &str = "&window=1&nconnect=1&hard";

/// Begins to remove `y` behind `before` requests for attributes, gives that up, and then makes one
/// more request: which procedures the server saw.
fn removal_given_up_behind(before: usize) -> (Model, Vec<u32>) {
    let model = Model::default();
    model.put("y", b"kept");
    let held = Held::serve(&model);
    let executor = Executor::new().unwrap();
    let tasks = executor.handle();
    let url: Url = held.server.url("/e", ONE_AT_A_TIME).parse().unwrap();
    executor.block_on(async {
        let client: Rc<Client> = Client::mount(&tasks, &url).await.unwrap();
        let found = client.require(&url.join("y")).await.unwrap();
        model.fail_never();
        held.hold();
        let asks = (0..before).map(|_| {
            let (client, url) = (client.clone(), url.clone());
            tasks.spawn(async move { client.require(&url).await })
        });
        let asks: Vec<_> = asks.collect();
        while !asks.is_empty() && held.came() == 0 {
            tasks.sleep(Duration::from_millis(1)).await;
        }
        let removal = client.remove(client.root(), b"y", &found, &url);
        assert!(tasks.timeout(Duration::from_millis(300), removal).await.is_err());
        assert!(held.came() > 0);
        held.let_through(u64::MAX);
        for ask in asks {
            ask.await.unwrap();
        }
        client.require(&url).await.unwrap();
    });
    let seen = model.state().seen.clone();
    (model, seen)
}

#[test]
fn a_request_given_up_before_it_was_sent_is_never_sent() {
    let (model, seen) = removal_given_up_behind(1);
    assert_eq!(seen, [GETATTR, GETATTR]);
    assert!(model.at("y").is_some());
}

#[test]
fn a_request_given_up_after_it_was_sent_is_carried_out() {
    let (model, seen) = removal_given_up_behind(0);
    assert_eq!(seen, [REMOVE, GETATTR]);
    assert!(model.at("y").is_none());
}

fn wait_until_it_waits(program: &Child, name: &str) {
    let stat = format!("/proc/{}/stat", program.id());
    let waits = ["S", "D"].map(|state| format!("({name}) {state}"));
    let is_waiting = |stat: String| waits.iter().any(|waits| stat.contains(waits));
    wait_for(|| fs::read_to_string(&stat).is_ok_and(is_waiting));
}

#[test]
fn a_killed_program_changes_nothing_by_a_request_that_was_not_sent() {
    let model = Model::default();
    model.put("x", &common::noise(10_000));
    model.put("y", b"kept");
    let held = Held::serve(&model);
    at_server(&held.server, &format!("{ONE_AT_A_TIME}&actimeo=60"), |dir| {
        assert_eq!(fs::metadata(dir.join("y")).unwrap().mode() & 0o777, 0o644);
        held.hold();
        let mut reader = program("exec cat $1/x", dir);
        wait_for(|| held.came() > 0);
        let mut changer = program("exec chmod 600 $1/y", dir);
        wait_until_it_waits(&changer, "chmod");
        changer.kill().unwrap();
        assert!(ends_within(10, &mut changer), "it waits for the server");
        held.let_through(u64::MAX);
        assert!(ends_within(10, &mut reader));
        // Requests are sent in their order.
        assert!(fs::metadata(dir.join("none")).is_err());
        assert_eq!(model.at("y").unwrap().mode, 0o644);
    });
}

#[test]
fn a_killed_program_does_not_wait_for_the_server_and_what_it_wrote_is_kept() {
    let model = Model::default();
    model.put("x", &common::noise(10_000));
    at(&model, "", |dir| {
        let mut writer = program("exec 3> $1/y; echo written >&3; exec sleep 100 < /dev/null", dir);
        wait_for(|| model.at("y").is_some_and(|entry| entry.data == b"written\n"));
        model.fail(|_, _| Some(Fault::RestartBefore));
        let mut reader = program("exec cat $1/x", dir);
        wait_for(|| model.state().calls > 0);
        reader.kill().unwrap();
        assert!(ends_within(10, &mut reader), "the reader waits for the server");
        writer.kill().unwrap();
        assert!(ends_within(10, &mut writer), "the writer waits for the server");
        model.fail_never();
    });
    assert_eq!(model.at("y").unwrap().durable, b"written\n");
}

#[test]
fn an_open_file_keeps_its_data_although_a_killed_program_removed_it_before() {
    let model = Model::default();
    for name in ["first", "second", "y"] {
        model.put(name, b"kept");
    }
    let held = Held::serve(&model);
    at_server(&held.server, &format!("{ONE_AT_A_TIME}&actimeo=60"), |dir| {
        let [first, second, file] =
            ["first", "second", "y"].map(|name| File::open(dir.join(name)).unwrap());
        // The kernel knows their attributes afresh, so that the reads below ask for data alone.
        for file in [&first, &second, &file] {
            file.metadata().unwrap();
        }
        let is_kept = |file: &File| {
            let mut data = [0; 4];
            file.read_exact_at(&mut data, 0).unwrap();
            assert_eq!(&data, b"kept");
        };
        held.hold();
        std::thread::scope(|threads| {
            threads.spawn(|| is_kept(&first));
            wait_for(|| held.came() > 0);
            let mut remover = program("exec rm -f $1/y", dir);
            wait_until_it_waits(&remover, "rm");
            threads.spawn(|| is_kept(&second));
            sleep(Duration::from_millis(100));
            // The remover looks the name up. The file's other name waits behind the second read.
            held.let_through(2);
            wait_for(|| held.came() > 2);
            remover.kill().unwrap();
            assert!(ends_within(10, &mut remover));
            held.let_through(u64::MAX);
        });
        fs::remove_file(dir.join("y")).unwrap();
        is_kept(&file);
        drop(file);
        wait_for(|| model.at("").unwrap().names.len() == 2);
    });
}

/// Whether a forced unmount can end what programs wait for: users need the kernel's list of
/// connections for it.
fn can_abort() -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    fs::metadata("/proc/self").unwrap().uid() == 0 || mounts.contains(" - fusectl ")
}

#[test]
fn a_forced_unmount_ends_although_the_server_is_gone() {
    if !can_abort() {
        println!("SKIP: this is not root, and /sys/fs/fuse/connections is not mounted");
        return;
    }
    let model = Model::default();
    model.put("x", &common::noise(10_000));
    let server = model.serve();
    let Some((dir, mounted)) = mount(&server, "&timeo=5") else { return };
    let mut file = File::create(dir.path().join("y")).unwrap();
    file.write_all(b"never durable").unwrap();
    model.fail(|_, _| Some(Fault::RestartBefore));
    let mut reader = program("exec cat $1/x", dir.path());
    wait_for(|| model.state().calls > 0);
    fuse::unmount(dir.path(), true).unwrap();
    assert!(ends_within(10, &mut reader), "a program still waits");
    assert!(file.sync_all().is_err());
    let ended = Instant::now();
    let error = mounted.wait().unwrap_err().to_string();
    assert!(error.contains("13 bytes that programs wrote were never made durable"), "{error}");
    assert!(ended.elapsed() < Duration::from_secs(20), "{:?}", ended.elapsed());
}
