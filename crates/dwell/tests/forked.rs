// SPDX-License-Identifier: MIT OR Apache-2.0
//! A process forks while it has blocking requests in flight, whose rings the child does not have.

mod common;

use std::io::{PipeWriter, Write};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::child::{child, forked, in_a_child_with_a_file};
use common::{Fixed, Uncached, check, uncached};
use dwell::dwell_policy::{Backlog, Call, Kind};
use dwell::emulated::Emulated;
use dwell::emulated::wakeup::WakeMethod;
use dwell::executor::Executor;
use dwell::parameters::DeviceParameters;
use dwell::policy::Block;
use dwell::ring::{self, SpinMethod};
use dwell::{File, Mode};

/// Every way to wait for a ring of every kind.
fn fixed() -> impl Iterator<Item = Fixed> {
    let modes = [Mode::Block, Mode::Spin, Mode::Hybrid { sleep_ns: 20_000 }];
    let of = move |method| modes.map(|mode| Fixed { method, mode, ..Fixed::block() });
    SpinMethod::ALL.into_iter().flat_map(of)
}

/// The end of a pipe as a file, whose reads are in flight until something is written to the other.
fn pipe(fixed: Fixed) -> (File<Uncached>, PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    (common::uncached_over(reader.into(), fixed), writer)
}

/// Ends a child that hangs.
fn watched() {
    // SAFETY: a number.
    unsafe { libc::alarm(60) };
}

fn backlog(file: &File<Uncached>) -> Backlog {
    file.wait_of(Kind::Read, 64, Call::Blocking).backlog
}

#[test]
fn a_child_forked_with_a_pipelines_request_in_flight_ends_it_and_lives() {
    let name = "a_child_forked_with_a_pipelines_request_in_flight_ends_it_and_lives";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    if let Some(why) = ring::unavailable() {
        return common::skip(why);
    }
    for fixed in fixed() {
        let (file, mut writer) = pipe(fixed);
        let other = uncached(&path, fixed);
        let mut pipeline = file.pipeline::<Vec<u8>>(4).unwrap();
        pipeline.read_at(vec![0; 10], 0).unwrap();
        pipeline.flush();
        let ended = forked(|| {
            watched();
            let error = pipeline.next().unwrap().result.unwrap_err();
            assert_eq!(error.errno(), Some(libc::ECANCELED));
            let mut own = other.pipeline::<Vec<u8>>(4).unwrap();
            own.read_at(vec![0; 10], 7).unwrap();
            check(&own.next().unwrap().buffer.unwrap(), 7, 5);
        });
        assert!(ended, "{fixed:?}: the child died");
        let mut pipeline = Some(pipeline);
        let dropped = forked(|| {
            watched();
            drop(pipeline.take());
        });
        assert!(dropped, "{fixed:?}: the child died");
        writer.write_all(b"x").unwrap();
    }
}

#[test]
fn a_child_forked_with_an_executors_request_in_flight_ends_it_and_lives() {
    let name = "a_child_forked_with_an_executors_request_in_flight_ends_it_and_lives";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    if let Some(why) = ring::unavailable() {
        return common::skip(why);
    }
    for fixed in fixed() {
        let (file, mut writer) = pipe(fixed);
        let executor = Executor::new().unwrap();
        let file = executor.file(Arc::new(file)).unwrap();
        let other = executor.file(Arc::new(uncached(&path, fixed))).unwrap();
        let begin = || {
            let file = file.clone();
            executor.spawn(async move { file.read_at(vec![0; 10], 0).await.0 })
        };
        let (first, second) = (begin(), begin());
        common::turns(&executor);
        let ended = forked(|| {
            watched();
            let error = executor.block_on(first).unwrap_err();
            assert_eq!(error.errno(), Some(libc::ECANCELED));
            let (result, buffer) = executor.block_on(other.read_at(vec![0; 10], 7));
            assert_eq!(result.unwrap(), 10);
            check(&buffer, 7, 5);
        });
        assert!(ended, "{fixed:?}: the child died");
        let mut executor = Some(executor);
        let dropped = forked(|| {
            watched();
            drop(executor.take());
        });
        assert!(dropped, "{fixed:?}: the child died");
        writer.write_all(b"xy").unwrap();
        drop(second);
    }
}

#[test]
fn a_forked_child_leaves_the_timer_of_its_parents_device_alone() {
    let name = "a_forked_child_leaves_the_timer_of_its_parents_device_alone";
    if child().is_none() {
        return in_a_child_with_a_file(name);
    }
    let device = Emulated::open(&"emu:latency=300ms,size=64KiB".parse().unwrap()).unwrap();
    let device = device.waking_by(WakeMethod::TimerFd);
    let policy = Arc::new(Block);
    let file = File::over(device, "emu", "emu", DeviceParameters::default(), policy, None);
    let mut pipeline = Some(file.pipeline::<Vec<u8>>(2).unwrap());
    pipeline.as_mut().unwrap().read_at(vec![0; 10], 0).unwrap();
    let began = Instant::now();
    // SAFETY: the child is alone in its process; it ends without running anything of the parent's.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        // The parent sleeps by now.
        std::thread::sleep(Duration::from_millis(100));
        // Whether its copy of the request is over by then depends on how busy the machine is.
        let _ = pipeline.as_mut().unwrap().next_within(Duration::from_millis(1));
        drop(pipeline.take());
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(0) };
    }
    let done = pipeline.as_mut().unwrap().next_within(Duration::from_secs(20)).unwrap();
    assert_eq!(done.result.unwrap(), 10);
    assert!(began.elapsed() < Duration::from_secs(10), "the child has cleared the timer");
    let mut status = 0;
    // SAFETY: a child of this process and a live integer.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0);
}

#[test]
fn the_parents_requests_are_no_backlog_in_a_forked_child() {
    let name = "the_parents_requests_are_no_backlog_in_a_forked_child";
    let Some(path) = child() else { return in_a_child_with_a_file(name) };
    if let Some(why) = ring::unavailable() {
        return common::skip(why);
    }
    let (file, _writer) = pipe(Fixed::block());
    let other = uncached(&path, Fixed::block());
    let mut pipeline = file.pipeline::<Vec<u8>>(4).unwrap();
    (0..2).for_each(|_| assert!(pipeline.read_at(vec![0; 32], 0).is_ok()));
    pipeline.flush();
    let mut pipeline = Some(pipeline);
    let parents = Backlog { bytes: 64, requests: 2 };
    assert_eq!(backlog(&file), parents);
    let lived = forked(|| {
        watched();
        assert_eq!(backlog(&file), Backlog::default(), "they are the parent's");
        let mut own = other.pipeline::<Vec<u8>>(4).unwrap();
        own.read_at(vec![0; 10], 7).unwrap();
        // What ends here as the parent's was never counted here.
        pipeline.as_mut().unwrap().next().unwrap().result.unwrap_err();
        assert_eq!(backlog(&file), Backlog { bytes: 10, requests: 1 });
        own.next().unwrap().result.unwrap();
        drop(pipeline.take());
        assert_eq!(backlog(&file), Backlog::default());
        assert!(forked(|| assert_eq!(backlog(&file), Backlog::default())), "the child's child");
    });
    assert!(lived, "the child died");
    assert_eq!(backlog(&file), parents);
}
