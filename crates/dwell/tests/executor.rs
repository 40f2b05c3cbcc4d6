// SPDX-License-Identifier: MIT OR Apache-2.0
//! The executor on this machine: files, sockets, timers, words, other threads.

mod common;

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use common::fake::{Answer, Fake, Waking};
use common::machine::{Loop, MIB, disk, pattern_file};
use common::{BLOCK, Way, check, fast, skip, uncached, voluntary_switches};
use dwell::buffer::Aligned;
use dwell::executor::{Elapsed, Executor};
use dwell::policy::{Block, SmartCon, Spin};
use dwell::ring::SpinMethod;
use dwell::{File, Options, Reason, Route, clock};

fn executor() -> Executor {
    Executor::new().unwrap()
}

fn tcp() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let far = listener.accept().unwrap().0;
    near.set_nonblocking(true).unwrap();
    near.set_nodelay(true).unwrap();
    far.set_nodelay(true).unwrap();
    (near, far)
}

#[test]
fn tasks_run_in_turn_and_their_results_are_joined() {
    let executor = executor();
    let order = Rc::new(std::cell::RefCell::new(String::new()));
    let task = |name: char| {
        let (order, tasks) = (order.clone(), executor.handle());
        executor.spawn(async move {
            for _ in 0..3 {
                order.borrow_mut().push(name);
                tasks.yield_now().await;
            }
            name
        })
    };
    let (a, b, c) = (task('a'), task('b'), task('c'));
    let names = executor.block_on(async { [a.await, b.await, c.await] });
    assert_eq!(names, ['a', 'b', 'c']);
    assert_eq!(*order.borrow(), "abcabcabc");
}

#[test]
fn a_panic_of_a_task_goes_on_in_who_joins_it() {
    let executor = executor();
    let task = executor.spawn(async { panic!("on purpose") });
    let panic = catch_unwind(AssertUnwindSafe(|| executor.block_on(task))).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"on purpose"));
    assert_eq!(executor.block_on(async { 7 }), 7, "the executor goes on");
}

#[test]
fn a_dropped_handle_cancels_and_a_detached_one_does_not() {
    struct Dropped(Rc<Cell<u32>>);
    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    let executor = executor();
    let (drops, runs) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(0)));
    let task = || {
        let (dropped, runs, tasks) = (Dropped(drops.clone()), runs.clone(), executor.handle());
        executor.spawn(async move {
            tasks.yield_now().await;
            runs.set(runs.get() + 1);
            drop(dropped);
        })
    };
    drop(task());
    executor.block_on(executor.sleep(1_000_000));
    assert_eq!((drops.get(), runs.get()), (1, 0));
    task().detach();
    executor.block_on(executor.sleep(2_000_000));
    assert_eq!((drops.get(), runs.get()), (2, 1));
    let handle = task();
    assert_eq!(executor.block_on(handle.cancel()), None);
    assert_eq!((drops.get(), runs.get()), (3, 1));
    let handle = task();
    executor.block_on(executor.sleep(2_000_000));
    assert!(handle.is_finished());
    assert_eq!(executor.block_on(handle.cancel()), Some(()));
}

#[test]
fn a_dropped_executor_drops_its_tasks_and_what_is_spawned_later() {
    let alive = Arc::new(());
    let executor = executor();
    let tasks = executor.handle();
    for _ in 0..10 {
        let (alive, tasks) = (alive.clone(), executor.handle());
        executor.spawn(async move {
            let _alive = alive;
            tasks.sleep(u64::MAX).await;
        }).detach();
    }
    executor.block_on(executor.yield_now());
    assert_eq!(Arc::strong_count(&alive), 11);
    drop(executor);
    assert_eq!(Arc::strong_count(&alive), 1);
    let late = tasks.spawn({
        let alive = alive.clone();
        async move { drop(alive) }
    });
    assert_eq!(Arc::strong_count(&alive), 1);
    assert!(late.is_finished());
}

#[test]
fn block_on_within_a_task_of_the_same_executor_says_so() {
    let executor = Rc::new(executor());
    let inner = executor.clone();
    let what = AssertUnwindSafe(|| executor.block_on(async { inner.block_on(async {}) }));
    let panic = catch_unwind(what).unwrap_err();
    assert!(panic.downcast_ref::<&str>().unwrap().contains("same executor"));
}

#[test]
fn sleeps_end_in_order_and_never_early() {
    let executor = executor();
    let ended = Rc::new(std::cell::RefCell::new(Vec::new()));
    let start = executor.now();
    let sleeps: Vec<_> = [3, 1, 2, 1, 0]
        .into_iter()
        .enumerate()
        .map(|(task, ms)| {
            let (tasks, ended) = (executor.handle(), ended.clone());
            executor.spawn(async move {
                let at = start + ms * 1_000_000;
                tasks.sleep_until(at).await;
                assert!(clock::now() >= at);
                ended.borrow_mut().push(task);
            })
        })
        .collect();
    executor.block_on(async {
        for sleep in sleeps {
            sleep.await;
        }
    });
    assert_eq!(*ended.borrow(), [4, 1, 3, 2, 0]);
}

#[test]
fn a_timeout_drops_what_it_ends() {
    let executor = executor();
    let alive = Rc::new(());
    let kept = alive.clone();
    let never = async move {
        let _kept = kept;
        std::future::pending::<()>().await
    };
    let ended = executor.block_on(executor.timeout_at(executor.now() + 1_000_000, never));
    assert_eq!((ended, Rc::strong_count(&alive)), (Err(Elapsed), 1));
    let soon = executor.timeout_at(executor.now() + 1_000_000_000_000, async { 5 });
    assert_eq!(executor.block_on(soon), Ok(5));
}
