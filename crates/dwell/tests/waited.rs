// SPDX-License-Identifier: MIT OR Apache-2.0
//! Requests of one thread that are in flight together count as they were waited for.

mod common;

use std::sync::Arc;
use std::thread;

use common::child::{child, in_a_child_with_a_file};
use common::fake::{Answer, Fake};
use common::forbid::forbid;
use common::machine::MIB;
use common::{Fixed, RING_CALLS, executor, fast, skip, uncached};
use dwell::dwell_policy::{Kind, Wait};
use dwell::monitor::{Config, SystemMonitor};
use dwell::ring;
use dwell::{Decision, File, Mode, Reason, Route, Stats, WaitPolicy};

/// Writes are due at once, reads in a second, and each is waited for in its own way.
struct ByKind {
    read: Mode,
    write: Mode,
}

impl WaitPolicy for ByKind {
    fn name(&self) -> &str {
        "by-kind"
    }

    fn choose(&self, wait: &Wait<'_>) -> Decision {
        let (mode, expected_ns) = match wait.kind {
            Kind::Read => (self.read, 1_000_000_000),
            _ => (self.write, 0),
        };
        Decision::new(Route::Interrupt, mode, expected_ns, Reason::Pays)
    }
}

/// Two requests in flight, of which that comes out first which is due last; what was counted then.
fn one_then_the_other(read: Mode, write: Mode, answer: Answer, in_pipeline: bool) -> Stats {
    let fake = Fake::new(MIB, 1).with(|state| state.queued.extend([answer, Answer::Held]));
    let file = Arc::new(fake.open(fast(), ByKind { read, write }));
    thread::scope(|scope| {
        if answer == Answer::Held {
            scope.spawn(|| {
                fake.wait_until_armed();
                fake.release();
            });
        }
        if in_pipeline {
            let mut pipeline = file.pipeline::<Vec<u8>>(2).unwrap();
            pipeline.read_at(vec![0; 100], 0).unwrap();
            pipeline.write_at(vec![0; 100], 0).unwrap();
            assert_eq!(pipeline.next().unwrap().result.unwrap(), 100);
            let seen = file.stats();
            fake.release();
            assert_eq!(pipeline.next().unwrap().result.unwrap(), 100);
            seen
        } else {
            let executor = executor();
            let asynchronous = executor.file(file.clone()).unwrap();
            let first = asynchronous.clone();
            let reading = executor.spawn(async move { first.read_at(vec![0; 100], 0).await.0 });
            let writing =
                executor.spawn(async move { asynchronous.write_at(vec![0; 100], 0).await.0 });
            assert_eq!(executor.block_on(reading).unwrap(), 100);
            let seen = file.stats();
            fake.release();
            assert_eq!(executor.block_on(writing).unwrap(), 100);
            seen
        }
    })
}

#[test]
fn a_request_that_came_out_while_its_thread_was_blocked_counts_as_blocked() {
    for in_pipeline in [true, false] {
        let stats = one_then_the_other(Mode::Spin, Mode::Block, Answer::Held, in_pipeline);
        assert_eq!(stats.requests(), 1, "{stats:?}");
        assert_eq!(stats.count(Route::Interrupt, "block"), 1, "{in_pipeline}: {stats:?}");
        assert_eq!((stats.latency.blocked.count(), stats.latency.spun.count()), (1, 0));
    }
}

#[test]
fn a_request_that_came_out_while_its_thread_was_spinning_counts_as_spun() {
    for in_pipeline in [true, false] {
        let stats = one_then_the_other(Mode::Block, Mode::Spin, Answer::Late(5), in_pipeline);
        assert_eq!(stats.requests(), 1, "{stats:?}");
        assert_eq!(stats.count(Route::Interrupt, "spin"), 1, "{in_pipeline}: {stats:?}");
        assert_eq!((stats.latency.blocked.count(), stats.latency.spun.count()), (0, 1));
    }
}

#[test]
fn a_spin_that_is_not_admitted_counts_as_blocked() {
    let config = Config { threshold: Some(1.0), ..Config::default() };
    for in_pipeline in [true, false] {
        let monitor = SystemMonitor::start(config.clone()).unwrap();
        // Nobody may spin before its first window is over, and it never is.
        monitor.end();
        let monitor = Some(Arc::new(monitor));
        let fake = Fake::new(MIB, 1).with(|state| state.queued.push_back(Answer::Held));
        let policy = Arc::new(ByKind { read: Mode::Spin, write: Mode::Spin });
        let device = format!("not-admitted-{in_pipeline}");
        let file = File::over(fake.clone(), "fake", &device, fast(), policy, monitor);
        let file = Arc::new(file);
        thread::scope(|scope| {
            scope.spawn(|| {
                fake.wait_until_armed();
                fake.release();
            });
            if in_pipeline {
                let mut pipeline = file.pipeline::<Vec<u8>>(2).unwrap();
                pipeline.read_at(vec![0; 100], 0).unwrap();
                assert_eq!(pipeline.next().unwrap().result.unwrap(), 100);
            } else {
                let executor = executor();
                let asynchronous = executor.file(file.clone()).unwrap();
                let read = executor.block_on(asynchronous.read_at(vec![0; 100], 0));
                assert_eq!(read.0.unwrap(), 100);
            }
        });
        let stats = file.stats();
        assert_eq!(stats.count(Route::Interrupt, "block"), 1, "{in_pipeline}: {stats:?}");
        assert_eq!(stats.because(Reason::SpinnerLimit), 1, "{in_pipeline}: {stats:?}");
        assert_eq!((stats.latency.blocked.count(), stats.latency.spun.count()), (1, 0));
    }
}

#[test]
fn calls_in_the_place_of_a_ring_count_as_calls() {
    let name = "calls_in_the_place_of_a_ring_count_as_calls";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    if let Some(why) = ring::unavailable() {
        return skip(why);
    }
    let file = Arc::new(uncached(&path, Fixed::spin()));
    let mut pipeline = file.pipeline::<Vec<u8>>(4).unwrap();
    let executor = executor();
    let asynchronous = executor.file(file.clone()).unwrap();
    pipeline.read_at(vec![0; 10], 0).unwrap();
    pipeline.next().unwrap().result.unwrap();
    executor.block_on(asynchronous.read_at(vec![0; 10], 0)).0.unwrap();
    assert_eq!(file.stats().count(Route::Interrupt, "spin"), 2);
    if !forbid(&RING_CALLS, libc::EPERM) {
        return skip("no seccomp filters here");
    }
    let calls = |by: &mut dyn FnMut()| {
        let before = file.stats();
        (0..10).for_each(|_| by());
        let since = file.stats().since(&before);
        assert_eq!(since.count(Route::Inline, "block"), 10, "{since:?}");
        assert_eq!(since.because(Reason::NoQueue), 10, "{since:?}");
        assert_eq!(since.latency.spun.count(), 0, "{since:?}");
    };
    calls(&mut || {
        pipeline.read_at(vec![0; 10], 0).unwrap();
        assert_eq!(pipeline.next().unwrap().result.unwrap(), 10);
    });
    calls(&mut || {
        let read = executor.block_on(asynchronous.read_at(vec![0; 10], 0));
        assert_eq!(read.0.unwrap(), 10);
    });
}
