// SPDX-License-Identifier: MIT OR Apache-2.0
//! Futures that are still there when their executor is gone.

mod common;

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use common::executor;
use common::fake::{Answer, Fake};
use common::{Fixed, check, fast};
use dwell::buffer::{IoBuf, IoBufMut};
use dwell::dwell_policy::{Backlog, Call, Kind};
use dwell::executor::Executor;
use dwell::policy::Block;
use dwell::{File, Result};

/// A buffer that counts how often it was dropped.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: the heap memory of a Vec does not move with it.
unsafe impl IoBuf for Counted {
    fn data(&self) -> (*const u8, usize) {
        (self.0.as_ptr(), self.0.len())
    }
}

// SAFETY: as above.
unsafe impl IoBufMut for Counted {
    fn room(&mut self) -> (*mut u8, usize) {
        (self.0.as_mut_ptr(), self.0.len())
    }
}

/// A waker that counts.
#[derive(Default)]
struct Woken(AtomicUsize);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

type Read = Pin<Box<dyn Future<Output = (Result<usize>, Counted)>>>;

fn begun(executor: &Executor, file: &Arc<File<Fake>>, drops: &Arc<AtomicUsize>) -> Read {
    let file = executor.file(file.clone()).unwrap();
    let buffer = Counted(vec![0; 64], drops.clone());
    let mut read: Read = Box::pin(async move { file.read_at(buffer, 40).await });
    executor.block_on(poll_fn(|context| {
        assert!(read.as_mut().poll(context).is_pending());
        Poll::Ready(())
    }));
    read
}

fn backlog(file: &File<Fake>) -> Backlog {
    file.wait_of(Kind::Read, 64, Call::Blocking).backlog
}

#[test]
fn a_future_that_outlives_its_executor_keeps_the_memory_that_a_device_may_write() {
    let fake = Fake::new(4096, 3).with(|state| state.queued.extend([Answer::Never; 3]));
    let file = Arc::new(fake.open(fast(), Block));
    let drops = Arc::new(AtomicUsize::new(0));
    let executor = executor();
    let mut reads: Vec<Read> = (0..3).map(|_| begun(&executor, &file, &drops)).collect();
    drop(executor);
    let mut context = Context::from_waker(Waker::noop());
    assert!(reads[0].as_mut().poll(&mut context).is_pending(), "nothing comes any more");
    assert!(reads[0].as_mut().poll(&mut context).is_pending());
    drop(reads);
    assert_eq!(drops.load(Ordering::Relaxed), 0, "the device may still write there");
}

#[test]
fn requests_that_a_dropped_executor_gave_up_are_backlog_for_nobody() {
    let fake = Fake::new(4096, 3).with(|state| state.queued.extend([Answer::Never; 2]));
    let file = Arc::new(fake.open(fast(), Fixed::block()));
    assert_eq!(backlog(&file), Backlog::default(), "from here on it is counted");
    let drops = Arc::new(AtomicUsize::new(0));
    let executor = executor();
    let read = begun(&executor, &file, &drops);
    drop(begun(&executor, &file, &drops));
    assert_eq!(backlog(&file), Backlog { bytes: 128, requests: 2 });
    drop(executor);
    assert_eq!(backlog(&file), Backlog::default());
    drop(read);
    assert_eq!(backlog(&file), Backlog::default());
}

#[test]
fn a_request_that_ends_with_its_executor_still_wakes_its_future() {
    let fake = Fake::new(4096, 3).with(|state| {
        state.queued.extend([Answer::Cancellable(libc::ECANCELED), Answer::Never]);
    });
    let file = Arc::new(fake.open(fast(), Block));
    let drops = Arc::new(AtomicUsize::new(0));
    let executor = executor();
    let mut read = begun(&executor, &file, &drops);
    let never = begun(&executor, &file, &drops);
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(woken.clone());
    let mut context = Context::from_waker(&waker);
    assert!(read.as_mut().poll(&mut context).is_pending());
    drop(executor);
    assert_eq!(woken.0.load(Ordering::Relaxed), 1);
    let Poll::Ready((result, buffer)) = read.as_mut().poll(&mut context) else {
        panic!("it is over");
    };
    assert_eq!(result.unwrap_err().errno(), Some(libc::ECANCELED));
    drop((read, buffer, never));
    assert_eq!(drops.load(Ordering::Relaxed), 1);
}

#[test]
fn an_executor_goes_on_while_futures_of_another_that_is_gone_are_dropped() {
    let fake = Fake::new(4096, 3).with(|state| state.queued.push_back(Answer::Never));
    let file = Arc::new(fake.open(fast(), Block));
    let drops = Arc::new(AtomicUsize::new(0));
    let (first, second) = (executor(), executor());
    let read = begun(&first, &file, &drops);
    let task = second.spawn(async move { drop(read.await) });
    second.block_on(second.yield_now());
    drop(first);
    let file = second.file(file).unwrap();
    second.block_on(async {
        drop(task);
        let (result, buffer) = file.read_at(vec![0; 10], 5).await;
        assert_eq!(result.unwrap(), 10);
        check(&buffer, 5, 3);
    });
    drop(second);
    assert_eq!(drops.load(Ordering::Relaxed), 0);
}
