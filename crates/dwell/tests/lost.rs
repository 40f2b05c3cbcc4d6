// SPDX-License-Identifier: MIT OR Apache-2.0
//! The kernel refuses what would bring completions out while requests are in flight.

mod common;

use std::io::{PipeWriter, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use common::child::{child, in_a_child_with_a_file};
use common::forbid::forbid;
use common::{Fixed, Uncached, check, uncached};
use dwell::buffer::{IoBuf, IoBufMut};
use dwell::dwell_policy::{Backlog, Call, Kind, Routes};
use dwell::executor::Executor;
use dwell::kernel::Kernel;
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

fn fixed() -> Vec<Fixed> {
    let modes = [Mode::Block, Mode::Spin];
    let of = |method| modes.map(|mode| Fixed { method, mode, ..Fixed::block() });
    SpinMethod::ALL.into_iter().flat_map(of).collect()
}

/// The end of a pipe as a file, whose reads are in flight until something is written to the other.
fn pipe(fixed: Fixed) -> (File<Uncached>, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    (common::uncached_over(reader.into(), fixed), writer)
}

extern "C" fn nothing(_: i32) {}

/// Has a thread of this process leave the call that it sleeps in.
fn interrupt(thread: libc::pid_t) {
    // SAFETY: numbers; the handler was set before.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
}

/// Carries out `call` in a thread, in flight on its ring as long as the pipe's other end does
/// nothing, and takes the ring away from it. What it comes to after `then`.
fn cut_off<R: Send>(call: impl FnOnce() -> R + Send, then: impl FnOnce()) -> Option<R> {
    // SAFETY: a handler that does nothing, which ends the calls that it interrupts.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    std::thread::scope(|scope| {
        let (send, receive) = std::sync::mpsc::channel();
        let calling = scope.spawn(move || {
            // SAFETY: no argument.
            send.send(unsafe { libc::gettid() }).unwrap();
            call()
        });
        let thread = receive.recv().unwrap();
        let inside = || {
            let call = std::fs::read_to_string(format!("/proc/self/task/{thread}/syscall"));
            call.ok()?.split(' ').next()?.parse::<libc::c_long>().ok()
        };
        // The call that it is in sends its request, or was made after that.
        while inside() != Some(libc::SYS_io_uring_enter) {
            std::thread::yield_now();
        }
        let forbidden = without_enter();
        interrupt(thread);
        // It is out of that call, and the filter keeps it from another.
        while forbidden && inside() != Some(libc::SYS_clock_nanosleep) {
            std::thread::yield_now();
        }
        then();
        let result = calling.join().unwrap();
        forbidden.then_some(result)
    })
}

/// A pipe's buffer, with no room for more.
fn full() -> (std::io::PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: an open descriptor and numbers.
    let bytes =
        unsafe { libc::fcntl(std::os::fd::AsRawFd::as_raw_fd(&writer), libc::F_GETPIPE_SZ) };
    writer.write_all(&vec![1; bytes as usize]).unwrap();
    (reader, writer)
}

/// One child for each method: a filter is for good.
fn blocking_calls_that_are_cut_off(name: &str, of: impl Fn(SpinMethod)) {
    if let Some(why) = ring::unavailable() {
        return common::skip(why);
    }
    match std::env::var("DWELL_TEST_METHOD") {
        Ok(at) if child().is_some() => of(SpinMethod::ALL[at.parse::<usize>().unwrap()]),
        _ => {
            static TURN: std::sync::Mutex<()> = std::sync::Mutex::new(());
            let _turn = TURN.lock();
            for at in 0..SpinMethod::ALL.len() {
                // SAFETY: set by whose turn it is, and read by its children alone.
                unsafe { std::env::set_var("DWELL_TEST_METHOD", at.to_string()) };
                in_a_child_with_a_file(name);
            }
        }
    }
}

#[test]
fn a_blocking_read_whose_ring_is_forbidden_is_carried_out_by_a_call() {
    let name = "a_blocking_read_whose_ring_is_forbidden_is_carried_out_by_a_call";
    blocking_calls_that_are_cut_off(name, |method| {
        let (file, mut writer) = pipe(Fixed { method, ..Fixed::block() });
        let mut buffer = [0; 10];
        let read = || file.read_at(&mut buffer, 0);
        let Some(result) = cut_off(read, || writer.write_all(b"x").unwrap()) else {
            return common::skip("no seccomp filters here");
        };
        match method {
            // A completion in shared memory arrives all the same.
            SpinMethod::CqPeek => assert_eq!((result.unwrap(), buffer[0]), (1, b'x')),
            // No call reads a pipe at an offset.
            _ => assert_eq!(result.unwrap_err().errno(), Some(libc::ESPIPE), "{method}"),
        }
    });
}

#[test]
fn a_blocking_write_whose_ring_is_forbidden_ends_with_an_error() {
    let name = "a_blocking_write_whose_ring_is_forbidden_ends_with_an_error";
    blocking_calls_that_are_cut_off(name, |method| {
        let (mut reader, writer) = full();
        let file = common::uncached_over(writer.into(), Fixed { method, ..Fixed::block() });
        let written = [2; 10];
        let write = || file.write_at(&written, 0);
        let room = || std::io::Read::read_exact(&mut reader, &mut [0; 8192]).unwrap();
        let Some(result) = cut_off(write, room) else {
            return common::skip("no seccomp filters here");
        };
        match method {
            SpinMethod::CqPeek => assert_eq!(result.unwrap(), 10),
            // It may have been carried out.
            _ => assert_eq!(result.unwrap_err().errno(), Some(libc::ENOTRECOVERABLE), "{method}"),
        }
    });
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
    let files: Vec<_> = fixed().into_iter().map(|fixed| (fixed, pipe(fixed))).collect();
    let mut pipelines: Vec<_> = files
        .iter()
        .map(|(fixed, (file, writer))| {
            let mut pipeline = file.pipeline::<Counted>(4).unwrap();
            (0..2).for_each(|_| assert!(pipeline.read_at(buffer(), 0).is_ok()));
            pipeline.flush();
            (fixed.method, writer, pipeline)
        })
        .collect();
    if !without_enter() {
        return common::skip("no seccomp filters here");
    }
    for (method, writer, pipeline) in &mut pipelines {
        // A completion in shared memory arrives all the same.
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
    let fixed = fixed();
    let executors: Vec<_> = fixed
        .iter()
        .filter(|fixed| fixed.method != SpinMethod::CqPeek)
        .map(|fixed| {
            let executor = Executor::new().unwrap();
            let (file, writer) = pipe(*fixed);
            let file = executor.file(Arc::new(file)).unwrap();
            let buffer = || Counted(vec![0; 10], drops.clone());
            let (first, second, again) = (buffer(), buffer(), file.clone());
            let task = executor.spawn(async move { file.read_at(first, 0).await.0 });
            let told = executor.spawn(async move { again.try_read_at(second, 0).await });
            let other = executor.file(Arc::new(uncached(&path, *fixed))).unwrap();
            common::turns(&executor);
            (executor, task, told, other, writer)
        })
        .collect();
    if !without_enter() {
        return common::skip("no seccomp filters here");
    }
    for (executor, task, told, other, _writer) in executors {
        let ended = catch_unwind(AssertUnwindSafe(|| executor.block_on(task)));
        let why = *ended.unwrap_err().downcast::<String>().unwrap();
        assert!(why.contains("hands out no completions"), "{why}");
        let (result, buffer) = executor.block_on(told);
        assert_eq!(result.unwrap_err().errno(), Some(libc::ENOTRECOVERABLE));
        assert!(buffer.is_none(), "the kernel may still write there");
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
