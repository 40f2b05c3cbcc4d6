// SPDX-License-Identifier: MIT OR Apache-2.0
//! Forks, signals and the end of a thread, amid requests.

mod common;

use std::cell::RefCell;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::thread;

use common::child::{child, forked, in_a_child_with_a_file};
use common::machine::{disk, pattern_file};
use common::{Fixed, Uncached, check, uncached};
use dwell::File;
use dwell::ring::SpinMethod;

/// Signals and descriptor counts want the process to themselves.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn a_forked_child_makes_rings_of_its_own_and_harms_neither_side() {
    let name = "a_forked_child_makes_rings_of_its_own_and_harms_neither_side";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    for fixed in Fixed::all() {
        let file = uncached(&path, fixed);
        let read = |times: u64| {
            let mut buffer = vec![0; 1000];
            for at in 0..times {
                file.read_exact_at(&mut buffer, at * 31).unwrap();
                check(&buffer, at * 31, 5);
            }
        };
        read(10);
        let child = forked(|| {
            // What the child maps now lies where the parent's ring is not.
            let early: Vec<Vec<u8>> =
                (1..40).map(|at| vec![at as u8; at * 4096 + 200_000]).collect();
            read(10);
            let late: Vec<Vec<u8>> =
                (1..40).map(|at| vec![at as u8; at * 4096 + 200_000]).collect();
            read(10);
            for (at, bytes) in (1..40).chain(1..40).zip(early.iter().chain(&late)) {
                assert!(bytes.iter().all(|byte| *byte == at as u8));
            }
            assert!(forked(|| read(10)), "the child's child");
            thread::spawn(|| ()).join().unwrap();
        });
        assert!(child, "{fixed:?}: the child died");
        read(100);
    }
}

#[test]
fn a_pipeline_in_a_forked_child_ends_its_requests_and_the_parent_keeps_them() {
    let name = "a_pipeline_in_a_forked_child_ends_its_requests_and_the_parent_keeps_them";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    for method in SpinMethod::ALL {
        let file = uncached(&path, Fixed { method, ..Fixed::spin() });
        let mut pipeline = file.pipeline::<Vec<u8>>(4).unwrap();
        (0..4).for_each(|at| assert!(pipeline.read_at(vec![0; 10], at).is_ok()));
        pipeline.flush();
        let child = forked(|| {
            for _ in 0..4 {
                let error = pipeline.next().unwrap().result.unwrap_err();
                assert_eq!(error.errno(), Some(libc::ECANCELED));
            }
            pipeline.read_at(vec![0; 10], 7).unwrap();
            check(&pipeline.next().unwrap().buffer.unwrap(), 7, 5);
            (0..2).for_each(|at| assert!(pipeline.read_at(vec![0; 10], at).is_ok()));
            drop(pipeline);
        });
        assert!(child, "{method}: the child died");
    }
}

/// The files that the signal handler reads.
static HANDLED: OnceLock<[File<Uncached>; 2]> = OnceLock::new();
static SIGNALS: AtomicUsize = AtomicUsize::new(0);
static WRONG: AtomicUsize = AtomicUsize::new(0);

extern "C" fn reads_too(_: libc::c_int) {
    for file in HANDLED.get().into_iter().flatten() {
        let mut buffer = [0u8; 64];
        let read = file.read_at(&mut buffer, 1000);
        let right = (0..64).all(|at| buffer[at as usize] == common::byte_at(1000 + at, 5));
        if !matches!(read, Ok(64)) || !right {
            WRONG.fetch_add(1, Ordering::Relaxed);
        }
    }
    SIGNALS.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn a_signal_handler_may_read_while_its_thread_waits() {
    let _alone = alone();
    let place = disk();
    let path = place.path().join("file");
    pattern_file(&path, 64 << 10, 5);
    let files = [Fixed::spin(), Fixed::block()].map(|fixed| uncached(&path, fixed));
    assert!(HANDLED.set(files).is_ok());
    // SAFETY: a zeroed sigaction with a handler is valid; SIGUSR1 has no other use here.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = reads_too as *const () as usize;
        libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut());
    }
    let (enough, rounds) = (AtomicBool::new(false), AtomicU64::new(0));
    thread::scope(|scope| {
        let (ready, told) = mpsc::channel();
        let (enough, rounds) = (&enough, &rounds);
        let reader = scope.spawn(move || {
            let files = HANDLED.get().unwrap();
            let mut buffer = vec![0; 3000];
            // What a thread's first request allocates is there before the first signal.
            files.iter().for_each(|file| file.read_exact_at(&mut buffer, 0).unwrap());
            // SAFETY: names the calling thread.
            ready.send(unsafe { libc::pthread_self() }).unwrap();
            while !enough.load(Ordering::Relaxed) {
                for file in files {
                    let at = rounds.fetch_add(1, Ordering::Relaxed) * 13 % 60_000;
                    let now = file.read_at(&mut buffer, at).unwrap();
                    assert_eq!(now, 3000);
                    check(&buffer, at, 5);
                }
            }
        });
        let thread = told.recv().unwrap();
        // Signals that come while the thread has no CPU are one.
        let seen = || SIGNALS.load(Ordering::Relaxed) > 100 && rounds.load(Ordering::Relaxed) > 0;
        for sent in (0..200_000).take_while(|sent| *sent < 2000 || !seen()) {
            // SAFETY: the thread runs until it is told to end.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR1) };
            thread::sleep(std::time::Duration::from_micros(sent % 300));
        }
        enough.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        assert!(seen());
    });
    assert_eq!(WRONG.load(Ordering::Relaxed), 0);
}

fn open_rings() -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let targets = links.filter_map(|link| fs::read_link(link.path()).ok());
    targets.filter(|target| target.to_string_lossy().contains("io_uring")).count()
}

#[test]
fn threads_take_their_rings_with_them() {
    let _alone = alone();
    let place = disk();
    let path = place.path().join("file");
    pattern_file(&path, 64 << 10, 5);
    let before = open_rings();
    let files: Vec<_> = Fixed::all().into_iter().map(|fixed| uncached(&path, fixed)).collect();
    for _ in 0..20 {
        thread::scope(|scope| {
            scope.spawn(|| {
                for file in &files {
                    let mut pipeline = file.pipeline::<Vec<u8>>(8).unwrap();
                    let mut buffer = vec![0; 100];
                    file.read_exact_at(&mut buffer, 9).unwrap();
                    check(&buffer, 9, 5);
                    (0..8).for_each(|at| assert!(pipeline.read_at(vec![0; 100], at).is_ok()));
                }
                assert!(open_rings() > before);
            });
        });
    }
    // A thread's last words, its rings' end among them, may come after its scope ended.
    for _ in 0..200 {
        if open_rings() == before {
            return;
        }
        thread::sleep(std::time::Duration::from_millis(10));
    }
    panic!("{} rings are left", open_rings() - before);
}

#[test]
fn a_read_in_a_threads_last_moments_is_served() {
    struct LastWords(Arc<File<Uncached>>, mpsc::Sender<Vec<u8>>);
    impl Drop for LastWords {
        fn drop(&mut self) {
            let mut buffer = vec![0; 100];
            self.0.read_exact_at(&mut buffer, 9).unwrap();
            self.1.send(buffer).unwrap();
        }
    }
    thread_local! {
        static FIRST: RefCell<Vec<LastWords>> = const { RefCell::new(Vec::new()) };
        static SECOND: RefCell<Vec<LastWords>> = const { RefCell::new(Vec::new()) };
    }
    let _alone = alone();
    let place = disk();
    let path = place.path().join("file");
    pattern_file(&path, 64 << 10, 5);
    let file = Arc::new(uncached(&path, Fixed::spin()));
    let (said, heard) = mpsc::channel();
    let thread = thread::spawn(move || {
        // One is registered before the thread's rings, the other after: one of both outlives them.
        FIRST.with_borrow_mut(|words| words.push(LastWords(file.clone(), said.clone())));
        file.read_exact_at(&mut [0; 100], 0).unwrap();
        SECOND.with_borrow_mut(|words| words.push(LastWords(file.clone(), said)));
    });
    thread.join().unwrap();
    let last: Vec<Vec<u8>> = heard.iter().collect();
    assert_eq!(last.len(), 2);
    last.iter().for_each(|buffer| check(buffer, 9, 5));
}
