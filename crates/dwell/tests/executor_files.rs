// SPDX-License-Identifier: MIT OR Apache-2.0
//! Files whose requests are futures: in every way, dropped, refused, many at once.

mod common;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::fake::{Answer, Fake, Waking};
use common::machine::{Loop, MIB, disk, pattern_file};
use common::{
    BLOCK, Fixed, check, executor, fast, read_all, skip, tcp, turns, uncached, voluntary_switches,
};
use dwell::buffer::Aligned;
use dwell::executor::Executor;
use dwell::policy::{Block, SmartCon, Spin};
use dwell::ring::SpinMethod;
use dwell::{File, Options, Reason, Route};

#[test]
fn files_are_read_and_written_in_every_way() {
    let place = disk();
    let path = place.path().join("file");
    pattern_file(&path, MIB, 5);
    let executor = Executor::with_depth(8).unwrap();
    for fixed in Fixed::all() {
        let file = executor.file(Arc::new(uncached(&path, fixed))).unwrap();
        executor.block_on(read_all(file.clone(), MIB, 32, 5));
        let requests = file.file().stats().requests();
        assert_eq!(requests, MIB / BLOCK as u64, "{fixed:?}");
        executor.block_on(async {
            let mut data = vec![0; 5000];
            common::fill(&mut data, MIB, 5);
            let (result, data) = file.write_at(data, MIB).await;
            assert_eq!(result.unwrap(), 5000);
            file.sync_data().await.unwrap();
            file.sync().await.unwrap();
            let (result, back) = file.read_at(vec![0; 6000], MIB).await;
            assert_eq!((result.unwrap(), &back[..5000]), (5000, &data[..]));
            assert_eq!(file.read_at(vec![0; 10], MIB + 5000).await.0.unwrap(), 0);
        });
        std::fs::File::options().write(true).open(&path).unwrap().set_len(MIB).unwrap();
    }
}

#[test]
fn devices_of_every_kind_are_read_by_one_thread_at_once() {
    let device = match Loop::new(MIB) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    let mut data = vec![0; MIB as usize];
    common::fill(&mut data, 0, 7);
    std::fs::write(&device.device, &data).unwrap();
    let executor = executor();
    let mut reads = Vec::new();
    for policy in [
        Arc::new(Spin) as Arc<dyn dwell::WaitPolicy>,
        Arc::new(Block),
        Arc::new(SmartCon::default()),
    ] {
        for method in SpinMethod::ALL {
            let parameters = dwell::parameters::DeviceParameters { method, ..fast() };
            let options = Options::new().direct(true).parameters(parameters).policy(policy.clone());
            let file = executor.file(Arc::new(options.open(&device.device).unwrap())).unwrap();
            reads.push(executor.spawn(read_all(file, MIB, 8, 7)));
        }
        for spec in ["emu:latency=20us,jitter=30%,parallel=4,size=1MiB", "emu:z-nand,size=1MiB"] {
            let file = Options::new().write(true).policy(policy.clone()).open(spec).unwrap();
            file.write_all_at(&data, 0).unwrap();
            let file = executor.file(Arc::new(file)).unwrap();
            reads.push(executor.spawn(read_all(file, MIB, 8, 7)));
        }
    }
    let (near, mut far) = tcp();
    let near = executor.watch(near).unwrap();
    let echo = thread::spawn(move || {
        let mut byte = [0];
        while far.read_exact(&mut byte).is_ok() {
            far.write_all(&byte).unwrap();
        }
    });
    executor.block_on(async {
        for byte in 0..=255u8 {
            near.write_with(|mut near| near.write(&[byte])).await.unwrap();
            let mut back = [0];
            near.read_with(|mut near| near.read(&mut back)).await.unwrap();
            assert_eq!(back, [byte]);
            executor.sleep(Duration::from_nanos(20_000)).await;
        }
        for read in reads {
            read.await;
        }
    });
    drop(near);
    echo.join().unwrap();
}

#[test]
fn a_request_that_is_dropped_keeps_its_memory_until_it_is_over() {
    struct Counted(Vec<u8>, Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    // SAFETY: the heap memory of a Vec does not move with it.
    unsafe impl dwell::buffer::IoBuf for Counted {
        fn data(&self) -> (*const u8, usize) {
            (self.0.as_ptr(), self.0.len())
        }
    }

    // SAFETY: as above.
    unsafe impl dwell::buffer::IoBufMut for Counted {
        fn room(&mut self) -> (*mut u8, usize) {
            (self.0.as_mut_ptr(), self.0.len())
        }
    }
    let fake = Fake::new(MIB, 3).with(|state| {
        state.queued.extend([Answer::Held, Answer::Cancellable(libc::ECANCELED), Answer::Never]);
    });
    let drops = Arc::new(AtomicUsize::new(0));
    let executor = executor();
    let file = executor.file(Arc::new(fake.open(fast(), Block))).unwrap();
    let read = || {
        let (file, buffer) = (file.clone(), Counted(vec![0; 64], drops.clone()));
        executor.spawn(async move { drop(file.read_at(buffer, 0).await) })
    };
    let (held, cancellable, never) = (read(), read(), read());
    turns(&executor);
    executor.block_on(async {
        assert_eq!(held.cancel().await, None);
        assert_eq!(drops.load(Ordering::Relaxed), 0, "the device may still write there");
        fake.release();
        assert_eq!(file.read_at(vec![0; 10], 5).await.0.unwrap(), 10);
        executor.sleep(Duration::from_nanos(1_000_000)).await;
        assert_eq!(drops.load(Ordering::Relaxed), 1);
        cancellable.cancel().await;
        executor.sleep(Duration::from_nanos(1_000_000)).await;
        assert_eq!(drops.load(Ordering::Relaxed), 2);
    });
    drop(never);
    drop(file);
    drop(executor);
    assert_eq!(drops.load(Ordering::Relaxed), 2, "the last is never over: its memory is given up");
    assert_eq!(fake.log().cancelled, 4, "the last once when dropped, once with the executor");
}

#[test]
fn more_requests_than_a_queue_takes_wait_for_room_and_pass_it_on() {
    let fake = Fake::new(MIB, 3).with(|state| {
        state.room = 2;
        state.queued.extend([Answer::Held; 2]);
    });
    let executor = Executor::with_depth(4).unwrap();
    let file = executor.file(Arc::new(fake.open(fast(), Block))).unwrap();
    let mut reads: Vec<_> = (0..50u64)
        .map(|at| {
            let file = file.clone();
            executor.spawn(async move {
                let (result, buffer) = file.read_at(vec![0; 100], at * 100).await;
                check(&buffer, at * 100, 3);
                result.unwrap()
            })
        })
        .collect();
    turns(&executor);
    assert_eq!(fake.log().submitted.len(), 2);
    // Some that wait are given up, also between being told of room and taking it.
    drop(reads.drain(2..20));
    fake.release();
    fake.release();
    executor.block_on(async {
        for read in reads {
            assert_eq!(read.await, 100);
        }
    });
    assert_eq!(fake.log().submitted.len(), 32);
}

#[test]
fn errors_name_path_and_offset_and_give_the_buffer_back() {
    let fake = Fake::new(MIB, 3).with(|state| state.queued.push_back(Answer::Refused(libc::EIO)));
    let executor = executor();
    let file = executor.file(Arc::new(fake.open(fast(), Spin))).unwrap();
    let (result, buffer) = executor.block_on(file.read_at(vec![1; 10], 77));
    let error = result.unwrap_err().to_string();
    assert!(error.starts_with("fake: read at byte 77: "), "{error}");
    assert_eq!(buffer.len(), 10);
    let fake = fake.with(|state| state.alignment = 512);
    let (result, buffer) = executor.block_on(file.read_at(vec![1; 10], 77));
    assert!(result.unwrap_err().to_string().contains("multiples of 512"));
    assert_eq!(buffer, [1; 10]);
    drop(executor);
    let late = self::executor().block_on(file.read_at(Aligned::new(512), 0)).0;
    assert!(late.unwrap_err().to_string().contains("has ended"));
    assert_eq!(fake.log().submitted.len(), 1);
}

#[test]
fn a_queue_that_wakes_nobody_is_looked_at_by_a_timer_and_the_rest_still_wakes() {
    let fake = Fake::new(MIB, 3).with(|state| {
        state.waking = Waking::Never;
        state.queued.extend([Answer::Held; 3]);
    });
    let executor = executor();
    let file = executor.file(Arc::new(fake.open(fast(), Block))).unwrap();
    let reads: Vec<_> = (0..3)
        .map(|at| {
            let file = file.clone();
            executor.spawn(async move { file.read_at(vec![0; 10], at).await.0.unwrap() })
        })
        .collect();
    let (near, mut far) = tcp();
    let near = executor.watch(near).unwrap();
    let helper = thread::spawn(move || {
        for byte in 0..3 {
            thread::sleep(Duration::from_millis(5));
            far.write_all(&[byte]).unwrap();
            fake.release();
        }
        far
    });
    executor.block_on(async {
        for expected in 0..3 {
            let mut byte = [9];
            near.read_with(|mut near| near.read(&mut byte)).await.unwrap();
            assert_eq!(byte, [expected]);
        }
        for read in reads {
            assert_eq!(read.await, 10);
        }
    });
    helper.join().unwrap();
}

#[test]
fn completions_that_come_together_cost_one_wake_up() {
    let device = match dwell::emulated::Emulated::open(
        &"emu:latency=2ms,parallel=64,size=1MiB".parse().unwrap(),
    ) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    let file = File::over(device, "emu", "emu", fast(), Arc::new(Block), None);
    let executor = executor();
    let file = executor.file(Arc::new(file)).unwrap();
    let round = || async {
        let reads: Vec<_> = (0..32)
            .map(|at| {
                let file = file.clone();
                executor.spawn(async move { file.read_at(vec![0; 512], at * 512).await.0.unwrap() })
            })
            .collect();
        for read in reads {
            assert_eq!(read.await, 512);
        }
    };
    executor.block_on(round());
    let (before, switches) = (executor.counts(), voluntary_switches());
    executor.block_on(async {
        for _ in 0..10 {
            round().await;
        }
    });
    let (after, switches) = (executor.counts(), voluntary_switches() - switches);
    assert_eq!(after.completions - before.completions, 320);
    // They are submitted over some microseconds, and end so: a few wake-ups for 32.
    let parks = after.parks - before.parks;
    assert!(parks <= 160 && switches <= parks + 10, "{parks} parks, {switches} switches");
}

#[test]
fn statistics_say_how_requests_were_waited_for() {
    let executor = executor();
    let fake = Fake::new(MIB, 3).with(|state| state.queued.extend([Answer::Late(40); 10]));
    let file = executor.file(Arc::new(fake.open(fast(), common::Under::patient(Spin)))).unwrap();
    executor.block_on(async {
        for at in 0..10 {
            assert_eq!(file.read_at(vec![0; 10], at).await.0.unwrap(), 10);
        }
    });
    let stats = file.file().stats();
    assert_eq!((stats.count(Route::Interrupt, "spin"), stats.because(Reason::Fixed)), (10, 10));
    assert_eq!((stats.bytes_read, stats.parked_ns), (100, 0));
    assert!(stats.spun_ns > 0 && stats.latency.spun.count() == 10);
    let fake = Fake::new(MIB, 3).with(|state| state.queued.push_back(Answer::Held));
    let hasty = common::Under { spin_limit_ns: Some(100_000), ..common::Under::patient(Spin) };
    let file = executor.file(Arc::new(fake.open(fast(), hasty))).unwrap();
    let helper = thread::spawn(move || {
        fake.wait_until_armed();
        thread::sleep(Duration::from_millis(20));
        fake.release();
    });
    executor.block_on(file.read_at(vec![0; 10], 0)).0.unwrap();
    helper.join().unwrap();
    let stats = file.file().stats();
    assert_eq!(stats.because(Reason::SpinExpired), 1);
    assert!(stats.parked_ns > 0);
}

/// The end of a pipe as a file, read by a ring of this method; and the other end.
fn pipe(method: SpinMethod) -> (File<common::Uncached>, std::io::PipeWriter) {
    let (reader, writer) = std::io::pipe().unwrap();
    let fixed = Fixed { method, ..Fixed::block() };
    (common::uncached_over(reader.into(), fixed), writer)
}

#[test]
fn whichever_ring_has_something_wakes_the_thread() {
    let executor = executor();
    let ends: Vec<_> = SpinMethod::ALL.into_iter().map(pipe).collect();
    let (files, writers): (Vec<_>, Vec<_>) = ends.into_iter().unzip();
    let reads: Vec<_> = files
        .into_iter()
        .map(|file| {
            let file = executor.file(Arc::new(file)).unwrap();
            executor.spawn(async move {
                for byte in 0..5 {
                    let (result, buffer) = file.read_at(vec![9; 1], 0).await;
                    assert_eq!((result.unwrap(), buffer[0]), (1, byte));
                }
            })
        })
        .collect();
    let helper = thread::spawn(move || {
        for byte in 0..5u8 {
            for mut writer in &writers {
                thread::sleep(Duration::from_millis(2));
                writer.write_all(&[byte]).unwrap();
            }
        }
    });
    executor.block_on(async {
        for read in reads {
            read.await;
        }
    });
    helper.join().unwrap();
    let counts = executor.counts();
    assert!(counts.slept_ns == 0 && counts.parks <= 60, "{counts:?}");
}

#[test]
fn a_request_that_nothing_would_end_is_ended_by_dropping_it() {
    struct Told(Vec<u8>, Arc<AtomicUsize>);
    impl Drop for Told {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
        }
    }
    // SAFETY: the heap memory of a Vec does not move with it.
    unsafe impl dwell::buffer::IoBuf for Told {
        fn data(&self) -> (*const u8, usize) {
            (self.0.as_ptr(), self.0.len())
        }
    }

    // SAFETY: as above.
    unsafe impl dwell::buffer::IoBufMut for Told {
        fn room(&mut self) -> (*mut u8, usize) {
            (self.0.as_mut_ptr(), self.0.len())
        }
    }
    for method in SpinMethod::ALL {
        let executor = executor();
        let drops = Arc::new(AtomicUsize::new(0));
        let (file, _writer) = pipe(method);
        let file = executor.file(Arc::new(file)).unwrap();
        let read = file.read_at(Told(vec![0; 8], drops.clone()), 0);
        let ended = executor.block_on(executor.timeout(Duration::from_nanos(2_000_000), read));
        assert!(ended.is_err());
        for _ in 0..1000 {
            if drops.load(Ordering::Relaxed) == 0 {
                executor.block_on(executor.sleep(Duration::from_nanos(1_000_000)));
            }
        }
        assert_eq!(drops.load(Ordering::Relaxed), 1);
        let task = executor.spawn({
            let (file, buffer) = (file.clone(), Told(vec![0; 8], drops.clone()));
            async move { drop(file.read_at(buffer, 0).await) }
        });
        executor.block_on(executor.sleep(Duration::from_nanos(1_000_000)));
        drop(executor);
        assert_eq!(drops.load(Ordering::Relaxed), 2);
        assert!(task.is_finished());
    }
}

#[test]
fn short_transfers_are_gone_on_with_until_all_is_done() {
    let fake = Fake::new(MIB, 3).with(|state| {
        state.queued.extend([Answer::Short(30), Answer::Short(1), Answer::Done]);
        state.queued.extend([Answer::Short(7), Answer::Done]);
    });
    let executor = executor();
    let file = executor.file(Arc::new(fake.open(fast(), Block))).unwrap();
    executor.block_on(async {
        let (result, buffer) = file.read_exact_at(vec![0; 100], 50).await;
        result.unwrap();
        check(&buffer, 50, 3);
        let (result, data) = file.write_all_at(vec![5; 100], 1000).await;
        result.unwrap();
        assert_eq!(fake.lock().data[1000..1100], data);
        assert_eq!(fake.log().submitted.len(), 5);
        let (result, _) = file.read_exact_at(vec![0; 100], MIB - 40).await;
        let error = result.unwrap_err().to_string();
        assert!(error.starts_with("fake: read at byte 1048576: "), "{error}");
        let (result, _) = file.write_all_at(vec![0; 100], MIB).await;
        assert!(result.unwrap_err().to_string().starts_with("fake: write at byte 1048576: "));
    });
}
