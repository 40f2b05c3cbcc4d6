// SPDX-License-Identifier: MIT OR Apache-2.0
//! The executor on this machine: tasks, timers, words, other threads.

mod common;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::task::Poll;
use std::thread;
use std::time::Duration;

use common::machine::{MIB, disk, pattern_file};
use common::{Fixed, executor, read_all, turns, uncached};
use dwell::clock;
use dwell::executor::{Elapsed, Executor};
use dwell::ring::SpinMethod;

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
    turns(&executor);
    assert_eq!((drops.get(), runs.get()), (1, 0));
    task().detach();
    turns(&executor);
    assert_eq!((drops.get(), runs.get()), (2, 1));
    let handle = task();
    assert_eq!(executor.block_on(handle.cancel()), None);
    assert_eq!((drops.get(), runs.get()), (3, 1));
    let handle = task();
    turns(&executor);
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
        executor
            .spawn(async move {
                let _alive = alive;
                tasks.sleep(Duration::MAX).await;
            })
            .detach();
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
    // All are asleep before any is to wake.
    let start = executor.now() + 500_000_000;
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
    let ended = executor.block_on(executor.timeout(Duration::from_nanos(1_000_000), never));
    assert_eq!((ended, Rc::strong_count(&alive)), (Err(Elapsed), 1));
    let soon = executor.timeout(Duration::from_nanos(1_000_000_000_000), async { 5 });
    assert_eq!(executor.block_on(soon), Ok(5));
}

/// A word with an owner.
#[derive(Default)]
struct Word(AtomicU32);

impl AsRef<AtomicU32> for Word {
    fn as_ref(&self) -> &AtomicU32 {
        &self.0
    }
}

impl Word {
    fn change(&self) {
        self.0.fetch_add(1, Ordering::Release);
        // SAFETY: the word lives as long as self.
        unsafe { libc::syscall(libc::SYS_futex, self.0.as_ptr(), libc::FUTEX_WAKE, i32::MAX) };
    }
}

#[test]
fn words_that_others_change_wake_beside_storage_and_sockets() {
    let place = disk();
    let path = place.path().join("file");
    pattern_file(&path, MIB, 5);
    let executor = executor();
    let words: Vec<Arc<Word>> = (0..3).map(|_| Arc::default()).collect();
    let file = executor.file(Arc::new(uncached(&path, Fixed::block()))).unwrap();
    let reads = executor.spawn(async move {
        for _ in 0..4 {
            read_all(file.clone(), MIB, 4, 5).await;
        }
    });
    let changer = {
        let words = words.clone();
        thread::spawn(move || {
            for round in 0..300 {
                words[round % 3].change();
                thread::sleep(Duration::from_micros(100));
            }
        })
    };
    executor.block_on(async {
        let watchers: Vec<_> = words
            .iter()
            .map(|word| {
                let (word, tasks) = (word.clone(), executor.handle());
                executor.spawn(async move {
                    let mut seen = 0;
                    while seen < 100 {
                        let now = tasks.changed(word.clone(), seen).await;
                        assert!(now > seen);
                        seen = now;
                    }
                })
            })
            .collect();
        for watcher in watchers {
            watcher.await;
        }
        reads.await;
    });
    changer.join().unwrap();
    let word = words[0].clone();
    let none = executor.timeout(Duration::from_nanos(3_000_000), executor.changed(word, 100));
    assert_eq!(executor.block_on(none), Err(Elapsed));
}

#[test]
fn wake_ups_from_other_threads_are_never_lost() {
    wakes_by_others_arrive(&executor());
}

#[test]
fn wake_ups_of_a_thread_that_sleeps_in_a_ring_are_never_lost() {
    for method in SpinMethod::ALL {
        let executor = executor();
        // A request that is never over.
        let (reader, _writer) = std::io::pipe().unwrap();
        let fixed = Fixed { method, ..Fixed::block() };
        let file = executor.file(Arc::new(common::uncached_over(reader.into(), fixed))).unwrap();
        let never = executor.spawn(async move { file.read_at(vec![0; 8], 0).await });
        wakes_by_others_arrive(&executor);
        assert!(!never.is_finished());
    }
}

/// Two threads take turns; the other one takes its time, so that this one is now awake, now about
/// to fall asleep, now asleep.
fn wakes_by_others_arrive(executor: &Executor) {
    let (turn, done) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let waker: Arc<std::sync::Mutex<Option<std::task::Waker>>> = Arc::default();
    let other = {
        let (turn, done, waker) = (turn.clone(), done.clone(), waker.clone());
        thread::spawn(move || {
            let mut random = 1u32;
            while !done.load(Ordering::Relaxed) {
                if turn.load(Ordering::Acquire) % 2 == 1 {
                    random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (0..random >> 22).for_each(|_| std::hint::spin_loop());
                    turn.fetch_add(1, Ordering::Release);
                    if let Some(waker) = waker.lock().unwrap().as_ref() {
                        waker.wake_by_ref();
                    }
                }
                std::hint::spin_loop();
                thread::yield_now();
            }
        })
    };
    let task = {
        let turn = turn.clone();
        async move {
            for _ in 0..20_000 {
                turn.fetch_add(1, Ordering::Release);
                std::future::poll_fn(|context| {
                    *waker.lock().unwrap() = Some(context.waker().clone());
                    match turn.load(Ordering::Acquire) % 2 {
                        0 => Poll::Ready(()),
                        _ => Poll::Pending,
                    }
                })
                .await;
            }
        }
    };
    let task = executor.spawn(task);
    let in_time = executor.timeout(Duration::from_nanos(60_000_000_000), task);
    assert_eq!(executor.block_on(in_time), Ok(()));
    done.store(true, Ordering::Relaxed);
    other.join().unwrap();
}

#[test]
fn wakers_outlive_their_executor() {
    let executor = executor();
    let (give, take) = std::sync::mpsc::channel();
    let task = executor.spawn(std::future::poll_fn(move |context| {
        let _ = give.send(context.waker().clone());
        Poll::<()>::Pending
    }));
    turns(&executor);
    let waker = take.recv().unwrap();
    let other = thread::spawn(move || {
        for _ in 0..10_000 {
            waker.wake_by_ref();
        }
        waker
    });
    drop(executor);
    other.join().unwrap().wake();
    assert!(task.is_finished());
}
