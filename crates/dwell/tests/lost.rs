// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel refuses what would bring completions out while requests are in flight.

mod common;

use std::io::{PipeWriter, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::child::{child, in_a_child_with_a_file};
use common::forbid::forbid;
use common::{Uncached, Way, check, uncached};
use dwell::dwell_policy::{Backlog, Call, Kind, Routes};
use dwell::executor::Executor;
use dwell::kernel::Kernel;
use dwell::pipeline::Owned;
use dwell::queue::{Action, Io, Queue};
use dwell::ring::{self, SpinMethod};
use dwell::source::Source;
use dwell::{File, Mode, Route};

/// A buffer that counts how often it was dropped.
struct Counted(Vec<u8>, Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.1.fetch_add(1, Ordering::Relaxed);
    }
}

// SAFETY: the heap memory of a Vec does not move with it.
unsafe impl Owned for Counted {
    fn memory(&mut self) -> (*mut u8, usize) {
        (self.0.as_mut_ptr(), self.0.len())
    }
}

fn ways() -> Vec<Way> {
    let modes = [Mode::Block, Mode::Spin];
    let of = |method| modes.map(|mode| Way { method, mode, ..Way::block() });
    SpinMethod::ALL.into_iter().flat_map(of).collect()
}

/// The end of a pipe as a file, whose reads are in flight until something is written to the other.
fn pipe(way: Way) -> (File<Uncached>, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    (common::uncached_over(reader.into(), way), writer)
}

/// Takes the call away that sends requests and brings completions, from a process that ends if it
/// hangs; whether it could.
fn without_enter() -> bool {
    // SAFETY: a number.
    unsafe { libc::alarm(120) };
    forbid(&[libc::SYS_io_uring_enter], libc::EPERM)
}

#[test]
fn a_pipelines_wait_ends_when_its_ring_is_forbidden_and_the_memory_is_given_up() {
    let name = "a_pipelines_wait_ends_when_its_ring_is_forbidden_and_the_memory_is_given_up";
    if child().is_none() {
        return in_a_child_with_a_file(name);
    }
    if let Some(why) = ring::unavailable() {
        return common::skip(why);
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let buffer = || Counted(vec![0; 10], drops.clone());
    let files: Vec<_> = ways().into_iter().map(|way| (way, pipe(way))).collect();
    let mut pipelines: Vec<_> = files
        .iter()
        .map(|(way, (file, writer))| {
            let mut pipeline = file.pipeline::<Counted>(4).unwrap();
            (0..2).for_each(|_| assert!(pipeline.read_at(buffer(), 0).is_ok()));
            pipeline.flush();
            (way.method, writer, pipeline)
        })
        .collect();
    if !without_enter() {
        return common::skip("no seccomp filters here");
    }
    for (method, writer, pipeline) in &mut pipelines {
        // What is completed into shared memory comes all the same.
        if *method == SpinMethod::CqPeek {
            writer.write_all(b"x").unwrap();
            let done = pipeline.next().unwrap();
            assert_eq!(done.result.unwrap(), 1);
            assert_eq!(done.buffer.unwrap().0[0], b'x');
            writer.write_all(b"x").unwrap();
            pipeline.next().unwrap().result.unwrap();
        } else {
            let before = drops.load(Ordering::Relaxed);
            for _ in 0..2 {
                let done = pipeline.next().unwrap();
                let errno = done.result.unwrap_err().errno();
                assert_eq!(errno, Some(libc::ENOTRECOVERABLE), "{method}");
                assert!(done.buffer.is_none() && done.given_up.is_some(), "{method}");
            }
            assert_eq!(drops.load(Ordering::Relaxed), before, "{method}: it may be written to");
        }
        assert!(pipeline.is_empty());
        // No call reads a pipe at an offset.
        pipeline.read_at(buffer(), 0).map_err(|(error, _)| error).unwrap();
        let done = pipeline.next().unwrap();
        assert_eq!(done.result.unwrap_err().errno(), Some(libc::ESPIPE), "{method}");
        assert!(done.buffer.is_some(), "{method}");
    }
    for (_, (file, _)) in &files {
        let backlog = file.wait_of(Kind::Read, 64, Call::Blocking).backlog;
        assert_eq!(backlog, Backlog::default());
    }
}

#[test]
fn a_future_whose_ring_is_forbidden_ends_and_the_executor_goes_on() {
    let name = "a_future_whose_ring_is_forbidden_ends_and_the_executor_goes_on";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    if let Some(why) = ring::unavailable() {
        return common::skip(why);
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let ways = ways();
    let executors: Vec<_> = ways
        .iter()
        .filter(|way| way.method != SpinMethod::CqPeek)
        .map(|way| {
            let executor = Executor::new().unwrap();
            let (file, writer) = pipe(*way);
            let file = executor.file(Arc::new(file)).unwrap();
            let buffer = Counted(vec![0; 10], drops.clone());
            let task = executor.spawn(async move { file.read_at(buffer, 0).await.0 });
            let other = executor.file(Arc::new(uncached(&path, *way))).unwrap();
            common::turns(&executor);
            (executor, task, other, writer)
        })
        .collect();
    if !without_enter() {
        return common::skip("no seccomp filters here");
    }
    for (executor, task, other, _writer) in executors {
        let ended = catch_unwind(AssertUnwindSafe(|| executor.block_on(task)));
        let why = *ended.unwrap_err().downcast::<String>().unwrap();
        assert!(why.contains("hands out no completions"), "{why}");
        let (result, buffer) = executor.block_on(other.read_at(vec![0; 10], 7));
        assert_eq!(result.unwrap(), 10);
        check(&buffer, 7, 5);
    }
    assert_eq!(drops.load(Ordering::Relaxed), 0, "the kernel may still write there");
}

#[test]
fn a_queue_that_another_thread_uses_serves_it_without_a_ring() {
    let name = "a_queue_that_another_thread_uses_serves_it_without_a_ring";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    for method in SpinMethod::ALL {
        let file = std::fs::File::open(&path).unwrap();
        let source = Kernel::new(file.into(), 1, method, false);
        if source.routes() == Routes::INLINE {
            return common::skip("no io_uring here");
        }
        let mut queue = source.queue(4).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut buffer = vec![0u8; 100];
                for at in 0..3u64 {
                    let memory = buffer.as_mut_ptr();
                    let (target, at) = (source.target(), at * 10);
                    // SAFETY: the buffer outlives the looks below, which end with the completion.
                    let io = unsafe { Io::plain(Action::Read, target, memory, 100, at) };
                    let ticket = queue.submit(io, Route::Interrupt).unwrap();
                    queue.flush();
                    let mut result = None;
                    while result.is_none() {
                        queue.poll(&mut |completion| {
                            assert_eq!(completion.ticket, ticket);
                            result = Some(completion.result);
                        });
                    }
                    match result {
                        // To be tried again, and nothing was done.
                        Some(result) if result == -libc::EAGAIN => {}
                        result => {
                            assert_eq!(result, Some(100), "{method}");
                            check(&buffer, at, 5);
                        }
                    }
                    assert_eq!(queue.backlog(), Backlog::default());
                }
            });
        });
    }
}
