// SPDX-License-Identifier: MIT OR Apache-2.0
//! From submit to completion nothing is allocated, in any mode, nor by tasks that wait.

mod common;
#[path = "common/counting.rs"]
mod counting;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use common::sources::{decision, read, run, write};
use common::{Fixed, fast};
use counting::allocations;
use dwell::File;
use dwell::emulated::wakeup::WakeMethod;
use dwell::emulated::{Emulated, Spec};
use dwell::executor::Executor;
use dwell::memory::{Memory, Options};
use dwell::queue::{Io, Queue};
use dwell::source::Source;
use dwell_policy::{Decision, Mode, Route};

fn none_allocated<T>(what: &str, work: impl FnOnce() -> T) -> T {
    let before = allocations();
    let answer = work();
    assert_eq!(allocations() - before, 0, "{what} called the allocator");
    answer
}

fn exercise<Q: Queue<Op = Io>>(queue: &mut Q, depth: usize, what: &str) {
    let mut buffer = [0; 4096];
    let data = [3; 4096];
    let expiring = Decision { spin_limit_ns: 0, ..decision(Mode::Spin, 20_000) };
    for (how, name) in [
        (decision(Mode::Spin, 20_000), "spin"),
        (decision(Mode::Block, 20_000), "block"),
        (decision(Mode::Hybrid { sleep_ns: 5_000 }, 20_000), "hybrid"),
        (expiring, "expiring spin"),
    ] {
        none_allocated(&format!("{what}, {name}"), || {
            for round in 0..20 {
                let offset = round % 8 * 4096;
                assert_eq!(run(queue, write(&data, offset), &how).0, 4096);
                assert_eq!(run(queue, read(&mut buffer, offset), &how).0, 4096);
            }
        });
        assert_eq!(buffer, data);
    }
    none_allocated(&format!("{what}, to the full depth"), || {
        for _ in 0..20 {
            while queue.submit(read(&mut buffer, 0), Route::Interrupt).is_ok() {}
            let mut found = 0;
            while found < depth {
                found += queue.poll(&mut |_| {});
            }
        }
    });
}

#[test]
fn submit_drive_and_complete_allocate_nothing() {
    let before = allocations();
    drop(std::hint::black_box(vec![1u8; 10]));
    assert_eq!(allocations() - before, 2, "the counter counts");
    for method in [WakeMethod::Sleep, WakeMethod::TimerFd] {
        let spec: Spec = "emu:latency=20us,jitter=30%,parallel=4,size=1MiB".parse().unwrap();
        let device = Emulated::open(&spec).unwrap().waking_by(method);
        exercise(&mut device.queue(7).unwrap(), 7, method.as_str());
        let mut queue = device.queue(3).unwrap();
        none_allocated("cancel", || {
            let mut buffer = [0; 8];
            let ticket = queue.submit(read(&mut buffer, 0), Route::Interrupt).unwrap();
            queue.cancel(ticket);
            while queue.poll(&mut |_| {}) == 0 {}
        });
    }
    let inline = Emulated::open(&"emu:mram,size=1MiB".parse().unwrap()).unwrap();
    let mut buffer = [0; 4096];
    none_allocated("programmed I/O", || {
        assert_eq!(inline.call(&read(&mut buffer, 0)), 4096);
    });

    let Ok(file) = tempfile::tempfile_in("/dev/shm") else {
        println!("SKIP: /dev/shm cannot be written");
        return;
    };
    file.set_len(1 << 20).unwrap();
    let options = Options { writable: true, assume_stable: true };
    let memory = Memory::from_file(file, "shm", options).unwrap();
    exercise(&mut memory.queue(7).unwrap(), 7, "memory");
}

#[test]
fn tasks_that_wait_allocate_nothing() {
    let executor = Executor::new().unwrap();
    let device = Emulated::open(&"emu:latency=20us,parallel=4,size=1MiB".parse().unwrap()).unwrap();
    let how = [Mode::Spin, Mode::Block, Mode::Hybrid { sleep_ns: 5_000 }];
    let files = how.map(|mode| {
        let policy = Arc::new(Fixed { mode, ..Fixed::block() });
        let file = File::over(device.clone(), "emu", "emu", fast(), policy, None);
        executor.file(Arc::new(file)).unwrap()
    });
    let (near, mut far) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    let near = executor.watch(near).unwrap();
    let round = async |mut buffer: Vec<u8>| {
        for file in &files {
            let (result, back) = file.read_at(buffer, 0).await;
            assert_eq!(result.unwrap(), 512);
            buffer = back;
        }
        executor.sleep(Duration::from_nanos(10_000)).await;
        executor.yield_now().await;
        far.write_all(&[1]).unwrap();
        near.read_with(|mut near| near.read(&mut [0])).await.unwrap();
        let late = executor.timeout(Duration::from_nanos(10_000), near.readable(1)).await;
        assert!(late.is_err());
        buffer
    };
    let mut round = round;
    executor.block_on(async {
        let mut buffer = vec![0; 512];
        for _ in 0..4 {
            buffer = round(buffer).await;
        }
        let before = allocations();
        for _ in 0..50 {
            buffer = round(buffer).await;
        }
        assert_eq!(allocations() - before, 0);
    });
}
