// SPDX-License-Identifier: MIT OR Apache-2.0
//! The executor where a process is special: forked, or forbidden to use rings.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use common::child::{child, forked, in_a_child_with_a_file};
use common::forbid::forbid;
use common::{Fixed, RING_CALLS, check, read_all, skip, uncached};
use dwell::executor::Executor;
use dwell::park::Parker;
use dwell::{Reason, Route};

#[derive(Default)]
struct Word(std::sync::atomic::AtomicU32);

impl AsRef<std::sync::atomic::AtomicU32> for Word {
    fn as_ref(&self) -> &std::sync::atomic::AtomicU32 {
        &self.0
    }
}

fn pair() -> (UnixStream, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    (near, far)
}

/// Has this executor wait for a file, a socket, a timer, a word and another thread.
fn serves(executor: &Executor, path: &std::path::Path, fixed: &[Fixed]) {
    let (near, mut far) = pair();
    let near = executor.watch(near).unwrap();
    let word = Arc::new(Word::default());
    let changer = {
        let word = word.clone();
        thread::spawn(move || {
            for byte in 0..10u8 {
                thread::sleep(Duration::from_millis(1));
                far.write_all(&[byte]).unwrap();
                word.0.fetch_add(1, std::sync::atomic::Ordering::Release);
                // SAFETY: the word lives as long as this thread's handle of it.
                unsafe {
                    let at = word.0.as_ptr();
                    libc::syscall(libc::SYS_futex, at, libc::FUTEX_WAKE, i32::MAX)
                };
            }
        })
    };
    let reads: Vec<_> = fixed
        .iter()
        .map(|fixed| {
            let file = executor.file(Arc::new(uncached(path, *fixed))).unwrap();
            executor.spawn(read_all(file, 64 << 10, 4, 5))
        })
        .collect();
    let all = async {
        for byte in 0..10u8 {
            let mut got = [0xee];
            near.read_with(|mut near| near.read(&mut got)).await.unwrap();
            assert_eq!(got, [byte]);
            executor.sleep(Duration::from_nanos(50_000)).await;
        }
        let mut seen = 0;
        while seen < 10 {
            seen = executor.changed(word.clone(), seen).await;
        }
        for read in reads {
            read.await;
        }
    };
    let in_time = executor.timeout(Duration::from_nanos(60_000_000_000), all);
    assert_eq!(executor.block_on(in_time), Ok(()));
    changer.join().unwrap();
}

#[test]
fn without_rings_files_are_served_by_calls_and_the_rest_is_waited_for() {
    let name = "without_rings_files_are_served_by_calls_and_the_rest_is_waited_for";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    if !forbid(&RING_CALLS, libc::EPERM) {
        return skip("no seccomp filters here");
    }
    let executor = Executor::new().unwrap();
    serves(&executor, &path, &Fixed::all());
    let file = executor.file(Arc::new(uncached(&path, Fixed::spin()))).unwrap();
    let (result, buffer) = executor.block_on(file.read_at(vec![0; 100], 7));
    assert_eq!(result.unwrap(), 100);
    check(&buffer, 7, 5);
    executor.block_on(file.sync()).unwrap();
    let stats = file.file().stats();
    assert_eq!((stats.count(Route::Inline, "block"), stats.because(Reason::NoQueue)), (2, 2));
}

#[test]
fn rings_that_are_forbidden_later_are_done_without() {
    let name = "rings_that_are_forbidden_later_are_done_without";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    let executor = Executor::new().unwrap();
    let mut fixed = Fixed::all();
    fixed.retain(|fixed| fixed.route == Route::Interrupt);
    serves(&executor, &path, &fixed);
    if !forbid(&RING_CALLS, libc::EPERM) {
        return skip("no seccomp filters here");
    }
    serves(&executor, &path, &fixed);
}

#[test]
fn a_kernel_without_precise_polling_of_an_epoll_is_served_too() {
    let name = "a_kernel_without_precise_polling_of_an_epoll_is_served_too";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    if !forbid(&[libc::SYS_epoll_pwait2], libc::ENOSYS) {
        return skip("no seccomp filters here");
    }
    serves(&Executor::new().unwrap(), &path, &[Fixed::spin(), Fixed::block()]);
}

#[test]
fn a_forked_child_and_its_parent_go_on_with_what_each_has() {
    let name = "a_forked_child_and_its_parent_go_on_with_what_each_has";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    let executor = Executor::new().unwrap();
    serves(&executor, &path, &[Fixed::spin(), Fixed::block()]);
    let (near, mut far) = pair();
    let near = executor.watch(near).unwrap();
    let file = executor.file(Arc::new(uncached(&path, Fixed::block()))).unwrap();
    let pending = executor.spawn({
        let file = file.clone();
        async move { file.read_at(vec![0; 10], 3).await.0 }
    });
    // It goes in, and nobody has looked for it yet.
    executor.block_on(executor.yield_now());
    let child = forked(|| {
        let ended = executor.block_on(pending);
        assert!(ended.is_ok() || ended.unwrap_err().errno() == Some(libc::ECANCELED));
        serves(&executor, &path, &[Fixed::spin(), Fixed::block()]);
        assert!(forked(|| serves(&executor, &path, &[Fixed::block()])), "the child's child");
    });
    assert!(child, "the child died");
    far.write_all(b"x").unwrap();
    let mut got = [0];
    executor.block_on(near.read_with(|mut near| near.read(&mut got))).unwrap();
    assert_eq!(&got, b"x");
    serves(&executor, &path, &[Fixed::spin(), Fixed::block()]);
}

#[test]
fn a_parker_leaves_the_threads_timers_as_it_found_them() {
    thread::spawn(|| {
        // SAFETY: integers in and out.
        let slack = || unsafe { libc::prctl(libc::PR_GET_TIMERSLACK, 0, 0, 0, 0) };
        let before = slack();
        let parker = Parker::new().unwrap();
        assert_eq!(slack(), 1);
        drop(parker);
        assert_eq!(slack(), before);
    })
    .join()
    .unwrap();
}
