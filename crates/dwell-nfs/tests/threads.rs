// SPDX-License-Identifier: MIT OR Apache-2.0
//! Copies by several threads: what they copy is what one thread copies, and so is what they tell,
//! whatever becomes of the server or of one of them.

mod common;
#[allow(dead_code)]
#[path = "common/fake.rs"]
mod fake;
#[path = "common/model.rs"]
mod model;

use std::cell::Cell;
use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::{Duration, Instant};

use common::{Quiet, copy_up_to, noise, same, tree};
use dwell::executor::Executor;
use dwell_nfs::copy::{self, Options, Progress, Threads, Watcher};
use fake::{Call, Fake, Told, words};
use model::{Fault, Model};

const OPTIONS: Options = Options {
    recursive: true,
    resume: true,
    onto: true,
    verify: true,
    times: true,
    extent_bytes: 16 << 10,
    threads: Threads::Fixed(3),
};
/// One connection for each thread.
const ONE_EACH: &str = "&size=4096&window=4&nconnect=1&timeout=30";

/// Procedures.
const READ: u32 = 6;
const WRITE: u32 = 7;
const LIMITS: u32 = 19;

fn is_mount(call: &Call) -> bool {
    (call.program, call.procedure) == (100_005, 1)
}

/// Serves a model in which data is moved slowly, and only once so many threads have mounted it.
struct Shared {
    server: Fake,
    /// A connection's data is moved by one thread of the server.
    movers: Arc<Mutex<HashSet<ThreadId>>>,
}

impl Shared {
    fn serve(model: &Model, threads: u64) -> Shared {
        let (model, movers) = (model.clone(), Arc::new(Mutex::new(HashSet::new())));
        let (mounted, moved) = (AtomicU64::new(0), movers.clone());
        let server = Fake::start(move |call| {
            mounted.fetch_add(u64::from(call.is_nfs(LIMITS)), Ordering::SeqCst);
            if call.is_nfs(READ) || call.is_nfs(WRITE) {
                moved.lock().unwrap().insert(thread::current().id());
                let until = Instant::now() + Duration::from_secs(20);
                while mounted.load(Ordering::SeqCst) < threads && Instant::now() < until {
                    thread::sleep(Duration::from_millis(1));
                }
                thread::sleep(Duration::from_micros(200));
            }
            model.tell(call)
        });
        Shared { server, movers }
    }

    fn movers(&self) -> usize {
        self.movers.lock().unwrap().len()
    }
}

/// Copies all: how it went, and what was noted.
fn copy(from: &str, to: &str, options: Options) -> (Progress, Vec<String>) {
    let (executor, quiet) = (Executor::new().unwrap(), Quiet::default());
    let tasks = executor.handle();
    let copied = executor.block_on(copy::between(&tasks, from, to, options, &quiet));
    let (progress, failures) = copied.unwrap();
    assert_eq!((failures, quiet.errors()), (0, vec![]));
    (progress, quiet.notes())
}

/// Files of some extents, enough for several threads, some of which have two names.
fn source(at: &Path) {
    tree(at);
    for number in 0..40 {
        fs::write(at.join(format!("inner/more{number}")), noise(20_000 + number * 100)).unwrap();
    }
    fs::hard_link(at.join("file5"), at.join("inner/same")).unwrap();
    fs::hard_link(at.join("inner/more7"), at.join("more7")).unwrap();
    let long_ago = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
    for name in ["inner/more3", "inner/empty", "inner", ""] {
        fs::File::open(at.join(name)).unwrap().set_times(long_ago).unwrap();
    }
}

/// Asserts that a copy of a source has its files, its times and its further names.
fn is_copy(source: &Path, copy: &Path) {
    same(source, copy);
    for name in ["inner/more3", "inner/empty", "inner", ""] {
        assert_eq!(fs::metadata(copy.join(name)).unwrap().mtime(), 0, "{name}");
    }
    let number = |name: &str| fs::metadata(copy.join(name)).unwrap().ino();
    assert_eq!(number("file5"), number("inner/same"));
    assert_eq!(number("more7"), number("inner/more7"));
}

fn is_durable(model: &Model) {
    let state = model.state();
    assert!(state.entries.values().all(|entry| entry.kind != 1 || entry.durable == entry.data));
}

#[test]
fn a_tree_that_three_threads_copy_there_and_back_is_the_same() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (tree, back) = (dir.path().join("tree"), dir.path().join("back"));
    source(&tree);
    let (model, other) = (Model::default(), Model::default());
    let there = Shared::serve(&model, 3);
    let url = there.server.url("/e/tree", ONE_EACH);
    copy(tree.to_str().unwrap(), &url, OPTIONS);
    is_durable(&model);
    assert_eq!(there.movers(), 3);
    // From one server to the other, and from there.
    let further = Shared::serve(&other, 3);
    let further_url = further.server.url("/e/tree", ONE_EACH);
    copy(&url, &further_url, OPTIONS);
    assert_eq!(further.movers(), 3);
    let last = Shared::serve(&other, 3);
    copy(&last.server.url("/e/tree", ONE_EACH), back.to_str().unwrap(), OPTIONS);
    assert_eq!(last.movers(), 3);
    is_copy(&tree, &back);
}

/// Hears that a copy never goes back.
#[derive(Default)]
struct Forward {
    bytes_done: Cell<u64>,
    files_done: Cell<u64>,
}

impl Watcher for Forward {
    fn progress(&self, progress: &Progress) {
        assert!(progress.bytes_done >= self.bytes_done.replace(progress.bytes_done));
        assert!(progress.files_done >= self.files_done.replace(progress.files_done));
        assert!(progress.bytes_done <= progress.bytes && progress.files_done <= progress.files);
    }

    fn failed(&self, error: &dwell_nfs::Error) {
        panic!("{error}");
    }
}

#[test]
fn three_threads_tell_the_sums_that_one_tells() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let tree = dir.path().join("tree");
    source(&tree);
    let sums = [1u32, 3].map(|threads| {
        let model = Model::default();
        let shared = Shared::serve(&model, threads.into());
        let url = shared.server.url("/e/tree", ONE_EACH);
        let options = Options { threads: Threads::Fixed(threads), ..OPTIONS };
        [false, true].map(|is_there| {
            let (executor, watcher) = (Executor::new().unwrap(), Forward::default());
            let tasks = executor.handle();
            let copied = copy::between(&tasks, tree.to_str().unwrap(), &url, options, &watcher);
            let (done, failures) = executor.block_on(copied).unwrap();
            assert_eq!((failures, done.files), (0, done.files_done));
            assert_eq!(
                (watcher.bytes_done.get(), watcher.files_done.get()),
                (done.bytes, done.files)
            );
            if !is_there {
                assert_eq!(shared.movers(), threads as usize);
                assert_eq!(done.window, 4 * threads);
                // A thread that comes too late to copy may make requests that it does not count.
                assert_eq!(done.counters.answered, model.state().seen.len() as u64);
            }
            let files = (done.files, done.files_there, done.verified);
            (files, done.bytes, done.bytes_done, done.bytes_there)
        })
    });
    assert_eq!(sums[0], sums[1]);
}

#[test]
fn a_restart_in_a_copy_by_three_threads_loses_nothing() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (tree, back) = (dir.path().join("tree"), dir.path().join("back"));
    source(&tree);
    for (number, fault) in
        [Fault::RestartBefore, Fault::RestartAfter, Fault::Unanswered].into_iter().enumerate()
    {
        let model = Model::default();
        let shared = Shared::serve(&model, 3);
        // Often enough that it meets each thread.
        let mut writes = number as u64;
        model.fail(move |call, _| {
            writes += u64::from(call.is_nfs(WRITE));
            (call.is_nfs(WRITE) && writes.is_multiple_of(97)).then_some(fault)
        });
        let url = shared.server.url("/e/tree", ONE_EACH);
        let (done, notes) = copy(tree.to_str().unwrap(), &url, OPTIONS);
        assert_eq!(notes, [""; 0]);
        let again = done.bytes_again + done.counters.replays + done.counters.reconnects;
        assert!(again > 3 && shared.movers() > 3, "{done:?}");
        model.fail_never();
        is_durable(&model);
        copy(&url, back.to_str().unwrap(), OPTIONS);
        is_copy(&tree, &back);
        fs::remove_dir_all(&back).unwrap();
    }
}

#[test]
fn a_copy_by_three_threads_that_is_killed_is_resumed_to_the_same_bytes() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (tree, back) = (dir.path().join("tree"), dir.path().join("back"));
    source(&tree);
    let (tree_path, back_path) = (tree.to_str().unwrap(), back.to_str().unwrap());
    for bytes in [1, 300_000, 1_500_000] {
        let model = Model::default();
        let shared = Shared::serve(&model, 3);
        let url = shared.server.url("/e/tree", ONE_EACH);
        assert!(copy_up_to(bytes, tree_path, &url, OPTIONS));
        model.state().restart();
        let (done, _) = copy(tree_path, &url, OPTIONS);
        assert!(bytes < 1_000_000 || done.bytes_there > 0);
        is_durable(&model);
        assert!(copy_up_to(bytes, &url, back_path, OPTIONS));
        copy(&url, back_path, OPTIONS);
        is_copy(&tree, &back);
        fs::remove_dir_all(&back).unwrap();
    }
}

#[test]
fn three_resuming_threads_write_to_no_part_that_has_another_name() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (into, others) = (dir.path().join("into"), dir.path().join("others"));
    fs::create_dir(&others).unwrap();
    let (model, data) = (Model::default(), noise(200_000));
    for number in 0..6 {
        model.put(&format!("x{number}"), &data);
    }
    let shared = Shared::serve(&model, 3);
    let (from, to) = (shared.server.url("/e", ONE_EACH), into.to_str().unwrap());
    assert!(copy_up_to(600_000, &from, to, OPTIONS));
    let mut before = Vec::new();
    for entry in fs::read_dir(&into).unwrap() {
        let entry = entry.unwrap();
        let other = others.join(entry.file_name());
        fs::hard_link(entry.path(), &other).unwrap();
        before.push((fs::read(&other).unwrap(), other));
    }
    assert!(before.len() > 3, "{before:?}");
    copy(&from, to, OPTIONS);
    for (data, other) in before {
        assert!(fs::read(&other).unwrap() == data, "{other:?}");
    }
    assert!((0..6).all(|number| fs::read(into.join(format!("x{number}"))).unwrap() == data));
}

#[test]
fn a_thread_whose_mount_is_refused_leaves_its_files_to_the_others() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (tree, back) = (dir.path().join("tree"), dir.path().join("back"));
    source(&tree);
    let model = Model::default();
    let (served, mounts) = (model.clone(), AtomicU64::new(0));
    let server = Fake::start(move |call| {
        thread::sleep(Duration::from_micros(100));
        // Two threads may.
        match is_mount(call) && mounts.fetch_add(1, Ordering::SeqCst) >= 2 {
            true => Told::Results(words(&[13])),
            false => served.tell(call),
        }
    });
    let options = Options { threads: Threads::Fixed(4), ..OPTIONS };
    let url = server.url("/e/tree", ONE_EACH);
    let (_, notes) = copy(tree.to_str().unwrap(), &url, options);
    let said = "a further thread cannot take part; the others copy its files";
    assert!(notes.len() == 2 && notes.iter().all(|note| note.ends_with(said)), "{notes:?}");
    assert!(notes[0].contains("mounting: "), "{notes:?}");
    // One for MOUNT and one for NFS, and then none at all.
    let served = model.clone();
    let server = Fake::start_for(2, None, move |call| served.tell(call));
    let url = server.url("/e/tree", ONE_EACH);
    copy(&url, back.to_str().unwrap(), OPTIONS);
    is_copy(&tree, &back);
}

#[test]
fn a_thread_that_never_hears_of_its_mount_is_not_waited_for() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let tree = dir.path().join("tree");
    source(&tree);
    let (model, mounts) = (Model::default(), AtomicU64::new(0));
    let served = model.clone();
    let server = Fake::start(move |call| {
        if is_mount(call) && mounts.fetch_add(1, Ordering::SeqCst) > 0 {
            thread::sleep(Duration::from_secs(60));
        }
        served.tell(call)
    });
    let began = Instant::now();
    let (done, notes) = copy(tree.to_str().unwrap(), &server.url("/e/tree", ONE_EACH), OPTIONS);
    assert!(began.elapsed() < Duration::from_secs(20));
    assert_eq!((done.files, &notes[..]), (done.files_done, &[][..]));
    is_durable(&model);
}

#[test]
fn threads_that_are_found_copy_the_same() {
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let (tree, back) = (dir.path().join("tree"), dir.path().join("back"));
    source(&tree);
    let (model, options) = (Model::default(), Options { threads: Threads::Found, ..OPTIONS });
    let server = model.serve();
    let url = server.url("/e/tree", "");
    copy(tree.to_str().unwrap(), &url, options);
    copy(&url, back.to_str().unwrap(), options);
    is_copy(&tree, &back);
}
