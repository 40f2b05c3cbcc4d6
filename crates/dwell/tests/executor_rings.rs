// SPDX-License-Identifier: MIT OR Apache-2.0
//! A thread sleeps in one ring and has others to be woken by: none of them is slept through.

mod common;

use std::io::{PipeWriter, Write};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use common::{Fixed, executor};
use dwell::File;
use dwell::executor::Executor;
use dwell::ring::{self, SpinMethod};

/// Runs `work` in a thread of its own; panics when it does not end.
fn ends(what: &str, work: impl FnOnce() + Send + 'static) {
    let (done, ended) = mpsc::channel();
    let worker = thread::spawn(move || {
        work();
        let _ = done.send(());
    });
    match ended.recv_timeout(Duration::from_secs(60)) {
        Err(mpsc::RecvTimeoutError::Timeout) => panic!("{what}: it sleeps for ever"),
        _ => worker.join().unwrap(),
    }
}

/// The end of a pipe as a file, read by a ring of this method; and the other end.
fn pipe(method: SpinMethod) -> (File<common::Uncached>, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    (common::uncached_over(reader.into(), Fixed { method, ..Fixed::block() }), writer)
}

/// Has a request in flight that nothing will end.
fn waits_for_nothing(executor: &Executor, method: SpinMethod) -> PipeWriter {
    let (file, writer) = pipe(method);
    let file = executor.file(Arc::new(file)).unwrap();
    executor.spawn(async move { drop(file.read_at(vec![0; 1], 0).await) }).detach();
    common::turns(executor);
    writer
}

const ROUNDS: u8 = 3;

#[test]
fn a_taskrun_ring_wakes_a_thread_that_sleeps_in_another() {
    if let Some(why) = ring::unavailable() {
        return common::skip(why);
    }
    for slept_in in SpinMethod::ALL {
        for watched in SpinMethod::ALL {
            ends(&format!("{watched} beside {slept_in}"), move || {
                let executor = executor();
                let _writer = waits_for_nothing(&executor, slept_in);
                let (file, mut writer) = pipe(watched);
                let file = executor.file(Arc::new(file)).unwrap();
                let helper = thread::spawn(move || {
                    for byte in 0..ROUNDS {
                        thread::sleep(Duration::from_millis(10));
                        writer.write_all(&[byte]).unwrap();
                    }
                });
                executor.block_on(async {
                    for byte in 0..ROUNDS {
                        let (result, buffer) = file.read_at(vec![9; 1], 0).await;
                        assert_eq!((result.unwrap(), buffer[0]), (1, byte));
                    }
                });
                helper.join().unwrap();
                assert_eq!(executor.counts().slept_ns, 0, "it is woken, and does not nap");
            });
        }
    }
}

#[derive(Default)]
struct Word(AtomicU32);

impl AsRef<AtomicU32> for Word {
    fn as_ref(&self) -> &AtomicU32 {
        &self.0
    }
}

#[test]
fn a_word_wakes_a_thread_that_sleeps_in_a_ring() {
    if let Some(why) = ring::unavailable() {
        return common::skip(why);
    }
    for slept_in in SpinMethod::ALL {
        ends(&format!("a word beside {slept_in}"), move || {
            let executor = executor();
            let _writer = waits_for_nothing(&executor, slept_in);
            let word = Arc::new(Word::default());
            let changer = {
                let word = word.clone();
                thread::spawn(move || {
                    for _ in 0..ROUNDS {
                        thread::sleep(Duration::from_millis(10));
                        word.0.fetch_add(1, Ordering::Release);
                        let at = word.0.as_ptr();
                        // SAFETY: the word lives as long as this thread's handle of it.
                        unsafe { libc::syscall(libc::SYS_futex, at, libc::FUTEX_WAKE, i32::MAX) };
                    }
                })
            };
            executor.block_on(async {
                let mut seen = 0;
                while seen < u32::from(ROUNDS) {
                    seen = executor.changed(word.clone(), seen).await;
                }
            });
            changer.join().unwrap();
        });
    }
}
