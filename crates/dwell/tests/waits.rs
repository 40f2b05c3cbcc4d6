// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether threads spin or block as decided, and whether the statistics tell the truth.

mod common;

use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use common::fake::{Answer, Fake, Waking};
use common::machine::{Loop, MIB};
use common::{BLOCK, Fixed, Under, check, fast, skip, voluntary_switches};
use dwell::buffer::Aligned;
use dwell::dwell_policy::{Backlog, Load, Routes, WaitMachine, Woken};
use dwell::parameters::DeviceParameters;
use dwell::park::park;
use dwell::policy::{Adaptive, Block, Hybrid, SmartCon, Spin};
use dwell::queue::{Completion, Full, Io, Queue, Ticket, Wake};
use dwell::ring::SpinMethod;
use dwell::{Decision, DeviceClass, File, Mode, Options, Reason, Route, Stats, WaitPolicy, clock};

const REQUESTS: u64 = 400;

fn direct(path: &Path, parameters: DeviceParameters, policy: Arc<dyn WaitPolicy>) -> File {
    let options = Options::new().write(true).direct(true).parameters(parameters).policy(policy);
    options.open(path).unwrap_or_else(|error| panic!("{error}"))
}

/// Voluntary switches of this thread during so many reads, once everything is set up.
fn switches_of(file: &File, requests: u64) -> u64 {
    switches(requests, |block, at| file.read_exact_at(block, at).unwrap())
}

fn switches(requests: u64, mut read_at: impl FnMut(&mut [u8], u64)) -> u64 {
    let mut block = Aligned::new(BLOCK);
    let mut read = |at: u64| read_at(&mut block, at % 64 * BLOCK as u64);
    (0..16).for_each(&mut read);
    let before = voluntary_switches();
    (0..requests).for_each(&mut read);
    voluntary_switches() - before
}

#[test]
fn making_a_queue_is_not_time_that_the_first_request_took() {
    let takes = Duration::from_millis(300);
    let fake = Fake::new(MIB, 1).with(|state| state.queue_takes = takes);
    let file = fake.open(fast(), Spin);
    file.read_exact_at(&mut [0; BLOCK], 0).unwrap();
    let stats = file.stats();
    assert_eq!(stats.because(Reason::SpinExpired), 0, "{stats:?}");
    assert!(u128::from(stats.latencies().max_ns()) < takes.as_nanos(), "{stats:?}");
}

#[test]
fn spinning_never_leaves_the_cpu() {
    let device = match Loop::new(MIB) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    for method in SpinMethod::ALL {
        let parameters = DeviceParameters { method, ..fast() };
        let file = direct(&device.device, parameters, Arc::new(Under::patient(Spin)));
        let switches = switches_of(&file, REQUESTS);
        assert!(switches <= REQUESTS / 100, "{method}: {switches} for {REQUESTS} requests");
        let stats = file.stats();
        assert_eq!(stats.count(Route::Interrupt, "spin"), REQUESTS + 16);
        assert_eq!(stats.switches_avoided(), REQUESTS + 16);
        assert_eq!((stats.parked_ns, stats.slept_ns), (0, 0));
        assert!(stats.spun_ns > 0);
    }
}

#[test]
fn blocking_leaves_the_cpu_for_each_request() {
    let device = match Loop::new(MIB) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    let mut plain = std::fs::File::options();
    let plain = plain.read(true).custom_flags(libc::O_DIRECT).open(&device.device).unwrap();
    let blocks = |parameters: DeviceParameters, policy: Arc<dyn WaitPolicy>| {
        // On a busy machine the kernel's worker often finishes, on the other processor or by
        // preempting the thread, before that gets to sleep. It does so for plain reads as well.
        let mut seen = Vec::new();
        while seen.len() < 20 && seen.iter().all(|(own, _)| *own < REQUESTS / 2) {
            let file = direct(&device.device, parameters, policy.clone());
            let own = switches_of(&file, REQUESTS);
            seen.push((own, switches(REQUESTS, |to, at| plain.read_exact_at(to, at).unwrap())));
            let stats = file.stats();
            assert_eq!(stats.switches_avoided(), 0);
            let blocked =
                stats.count(Route::Inline, "block") + stats.count(Route::Interrupt, "block");
            assert_eq!(blocked, REQUESTS + 16);
        }
        let own: u64 = seen.iter().map(|(own, _)| own).sum();
        let plain: u64 = seen.iter().map(|(_, plain)| plain).sum();
        assert!(own >= (plain / 4).min(REQUESTS / 10), "{}: {seen:?}", policy.name());
    };
    for fixed in [Fixed { route: Route::Inline, ..Fixed::block() }, Fixed::block()] {
        blocks(fixed.parameters(), Arc::new(fixed));
    }
    blocks(fast(), Arc::new(Block));
}

#[test]
fn smartcon_blocks_above_the_size_threshold_and_spins_at_it() {
    let device = match Loop::new(MIB) {
        Ok(device) => device,
        Err(why) => return skip(why),
    };
    let file = direct(&device.device, fast(), Arc::new(Under::patient(SmartCon::default())));
    let threshold = fast().profile.unwrap().size_threshold_bytes as usize;
    let mut buffer = Aligned::new(threshold + BLOCK);
    for (bytes, times) in [(BLOCK, 5), (threshold, 7), (threshold + BLOCK, 11)] {
        (0..times).for_each(|_| file.read_exact_at(&mut buffer[..bytes], 0).unwrap());
    }
    file.sync().unwrap();
    let stats = file.stats();
    assert_eq!((stats.because(Reason::Pays), stats.because(Reason::Size)), (12, 11));
    assert_eq!(stats.because(Reason::Sync), 1);
    assert_eq!(stats.count(Route::Interrupt, "spin"), 12);
    assert_eq!(stats.count(Route::Inline, "block"), 12);
    assert_eq!((stats.requests(), stats.syncs), (24, 1));
}

#[test]
fn smartcon_counts_the_backlog_of_other_threads() {
    let fake = Fake::new(MIB, 1).with(|state| state.queued.push_back(Answer::Held));
    let file = fake.open(fast(), SmartCon::default());
    thread::scope(|scope| {
        let (submitted, told) = std::sync::mpsc::channel();
        let (file, fake) = (&file, &fake);
        scope.spawn(move || {
            let mut pipeline = file.pipeline::<Vec<u8>>(1).unwrap();
            pipeline.read_at(vec![0; 62 << 10], 0).unwrap();
            submitted.send(()).unwrap();
            let done = pipeline.next().unwrap();
            check(&done.buffer.unwrap(), 0, 1);
        });
        told.recv().unwrap();
        assert_eq!(file.read_at(&mut [0; 2 << 10], 0).unwrap(), 2 << 10);
        assert_eq!(file.stats().because(Reason::Backlog), 0);
        assert_eq!(file.read_at(&mut [0; (2 << 10) + 1], 0).unwrap(), (2 << 10) + 1);
        assert_eq!(file.stats().because(Reason::Backlog), 1);
        fake.release();
    });
    assert_eq!(file.read_at(&mut [0; 4096], 0).unwrap(), 4096);
    let stats = file.stats();
    assert_eq!((stats.because(Reason::Backlog), stats.requests()), (1, 4));
}

#[test]
fn smartcon_counts_no_backlog_of_the_thread_that_waits() {
    let file = Fake::new(MIB, 1).open(fast(), SmartCon::default());
    let mut pipeline = file.pipeline::<Vec<u8>>(32).unwrap();
    for at in 0..32 {
        pipeline.read_at(vec![0; 4096], at * 4096).unwrap();
    }
    while let Some(done) = pipeline.next() {
        assert_eq!(done.result.unwrap(), 4096);
    }
    assert_eq!(file.stats().because(Reason::Pays), 32);
}

#[test]
fn smartcon_blocks_on_a_busy_machine() {
    let mut no_spinner_left = Load::default();
    no_spinner_left.may_spin = false;
    for (load, why) in [
        (Load::new(0.9, 1.0, 0.5), Reason::CpuBusy),
        (Load::new(0.1, 1.0, 0.5), Reason::Pays),
        (no_spinner_left, Reason::SpinnerLimit),
    ] {
        let policy = Under { policy: SmartCon::default(), load, spin_limit_ns: None };
        let file = Fake::new(MIB, 1).open(fast(), policy);
        (0..10).for_each(|_| file.read_exact_at(&mut [0; 100], 0).unwrap());
        assert_eq!(file.stats().because(why), 10, "{load:?}");
    }
}

#[test]
fn requests_that_find_no_spinner_go_by_the_call_and_few_are_timed() {
    let mut no_spinner_left = Load::default();
    no_spinner_left.may_spin = false;
    let policy = Under { policy: Adaptive::default(), load: no_spinner_left, spin_limit_ns: None };
    let file = Fake::new(MIB, 1).open(fast(), policy);
    let until = clock::now() + 60_000_000_000;
    let few_are_timed = |stats: &Stats| {
        stats.because(Reason::SpinnerLimit) > 10_000
            && stats.latency.inline.count() * 2 < stats.requests()
    };
    while !few_are_timed(&file.stats()) && clock::now() < until {
        (0..1000).for_each(|_| file.read_exact_at(&mut [0; 100], 0).unwrap());
    }
    let stats = file.stats();
    assert!(few_are_timed(&stats), "{stats:?}");
    assert_eq!(stats.latency.spun.count(), 0);
}

#[test]
fn a_decision_that_no_size_or_load_can_change_is_never_queued() {
    let mut profile = fast().profile.unwrap();
    for (class, why) in
        [(DeviceClass::VeryFast, Reason::VeryFast), (DeviceClass::Mainstream, Reason::Mainstream)]
    {
        profile.class = class;
        let fake = Fake::new(MIB, 1);
        let parameters = DeviceParameters { profile: Some(profile), ..DeviceParameters::default() };
        let file = fake.open(parameters, SmartCon::default());
        (0..100).for_each(|_| file.read_exact_at(&mut [0; 100], 0).unwrap());
        let stats = file.stats();
        assert_eq!(
            (
                stats.because(why),
                stats.count(Route::Inline, "block") + stats.count(Route::Inline, "spin")
            ),
            (100, 100)
        );
        assert_eq!((fake.log().submitted.len(), stats.switches_avoided()), (0, 0));
        assert!(stats.inline_sampled > 0, "a few are timed");
    }
}

#[test]
fn every_request_of_every_thread_is_counted_once() {
    let fake = Fake::new(MIB, 1).with(|state| {
        state.queued.extend((0..400).map(|at| match at % 5 {
            0 => Answer::Late(2),
            1 => Answer::Refused(libc::EAGAIN),
            2 => Answer::Refused(libc::EIO),
            _ => Answer::Done,
        }));
    });
    let file = fake.open(fast(), SmartCon::default());
    thread::scope(|scope| {
        for _ in 0..4 {
            let file = &file;
            scope.spawn(move || {
                let mut pipeline = file.pipeline::<Vec<u8>>(4).unwrap();
                let mut large = vec![0; 100 << 10];
                for at in 0..50 {
                    let _ = file.read_at(&mut [0; 100], at);
                    let _ = file.write_at(&[0; 100], at);
                    let _ = file.read_at(&mut large, at);
                    while pipeline.has_room() {
                        pipeline.read_at(vec![0; 100], at).unwrap();
                    }
                    while pipeline.next().is_some() {}
                    let _ = file.sync();
                }
            });
        }
    });
    let stats = file.stats();
    assert_eq!(stats.requests(), 4 * 50 * (4 + 4), "{stats:?}");
    let by_reason: u64 = Reason::ALL.iter().map(|why| stats.because(*why)).sum();
    assert_eq!(by_reason, stats.requests());
    assert_eq!(stats.errors, 80, "{stats:?}");
}

#[test]
fn a_stalled_queue_is_left_to_itself() {
    for waking in [Waking::Word, Waking::Never] {
        for in_pipeline in [false, true] {
            let fake = Fake::new(MIB, 1).with(|state| {
                state.queued.push_back(Answer::Held);
                state.waking = waking;
            });
            let file = fake.open(fast(), SmartCon::default());
            let (cpu, wall) = (clock::thread_cpu(), clock::now());
            thread::scope(|scope| {
                scope.spawn(|| {
                    fake.wait_until_armed();
                    thread::sleep(Duration::from_millis(300));
                    fake.release();
                });
                let mut buffer = vec![0; 100];
                if in_pipeline {
                    let mut pipeline = file.pipeline::<Vec<u8>>(1).unwrap();
                    pipeline.read_at(buffer, 3).unwrap();
                    buffer = pipeline.next().unwrap().buffer.unwrap();
                } else {
                    assert_eq!(file.read_at(&mut buffer, 3).unwrap(), 100);
                }
                check(&buffer, 3, 1);
            });
            let (cpu, wall) = (clock::thread_cpu() - cpu, clock::now() - wall);
            assert!(cpu < wall / 4, "{waking:?}: {cpu} ns of CPU time in {wall} ns");
            let stats = file.stats();
            assert_eq!((stats.because(Reason::SpinExpired), stats.requests()), (1, 1));
            assert_eq!(stats.switches_avoided(), 0);
        }
    }
}

#[test]
fn a_pipeline_that_is_looked_at_late_did_not_spin_in_vain() {
    let fake = Fake::new(MIB, 1);
    let file = fake.open(fast(), SmartCon::default());
    let mut pipeline = file.pipeline::<Vec<u8>>(8).unwrap();
    for at in 0..8 {
        pipeline.read_at(vec![0; 100], at).unwrap();
    }
    // Longer than a blind spin's deadline: the thread did something else meanwhile.
    thread::sleep(Duration::from_millis(5));
    while pipeline.next().is_some() {}
    let stats = file.stats();
    assert_eq!((stats.because(Reason::Pays), stats.because(Reason::SpinExpired)), (8, 0));
}

#[test]
fn hybrid_sleeps_first() {
    let mut profile = fast().profile.unwrap();
    (profile.latency_ns, profile.sleep_overshoot_ns) = (2_000_000, 50_000);
    let parameters = DeviceParameters { profile: Some(profile), ..DeviceParameters::default() };
    let slept_ns = || {
        let fake = Fake::new(MIB, 1).with(|state| state.queued.push_back(Answer::Late(5)));
        let file = fake.open(parameters, Hybrid);
        assert_eq!(file.read_at(&mut [0; 100], 0).unwrap(), 100);
        let stats = file.stats();
        assert_eq!(stats.count(Route::Interrupt, "hybrid"), 1);
        stats.slept_ns
    };
    // A thread that loses the CPU between submitting and the wait has less left to sleep.
    assert!((0..20).any(|_| slept_ns() >= 900_000));
}

#[test]
fn a_request_that_blocks_leaves_the_polled_queue() {
    let fake = Fake::new(MIB, 1)
        .with(|state| state.routes = Routes::POLLED | Routes::INTERRUPT | Routes::INLINE);
    let file = fake.open(fast(), SmartCon::default());
    let mut large = vec![0; 128 << 10];
    assert_eq!(file.read_at(&mut large[..4096], 0).unwrap(), 4096);
    assert_eq!(file.read_at(&mut large, 0).unwrap(), 128 << 10);
    assert_eq!((fake.log().submitted, fake.log().calls), (vec![Route::Polled], 1));

    // One of several must not hold the others up: it goes by interrupt, not inline.
    let mut pipeline = file.pipeline::<Vec<u8>>(2).unwrap();
    pipeline.read_at(large, 0).unwrap();
    pipeline.next().unwrap().result.unwrap();
    assert_eq!(fake.log().submitted.last(), Some(&Route::Interrupt));
}

/// A queue whose other side posts its one completion right after it was looked for.
struct PostsAfterTheLook {
    word: AtomicU32,
    posted: bool,
    looks: u32,
}

// SAFETY: it takes no request.
unsafe impl Queue for PostsAfterTheLook {
    type Op = Io;

    fn submit(&mut self, op: Io, _: Route) -> Result<Ticket, (Full, Io)> {
        Err((Full, op))
    }

    fn flush(&mut self) {}

    fn poll(&mut self, out: &mut dyn FnMut(Completion)) -> usize {
        self.looks += 1;
        if self.posted {
            out(Completion { ticket: Ticket(1), result: 0 });
            return 1;
        }
        self.posted = true;
        self.word.fetch_add(1, Ordering::Release);
        0
    }

    fn arm(&mut self, _: u32) -> Wake<'_> {
        Wake::Word { word: &self.word, seen: self.word.load(Ordering::Acquire) }
    }

    fn cancel(&mut self, _: Ticket) {}

    fn backlog(&self) -> Backlog {
        Backlog { bytes: 0, requests: 1 }
    }
}

#[test]
fn a_completion_between_the_last_look_and_the_sleep_is_not_slept_through() {
    let (ended, told) = std::sync::mpsc::channel();
    thread::spawn(move || {
        let new = || PostsAfterTheLook { word: AtomicU32::new(0), posted: false, looks: 0 };
        let mut queue = new();
        let woken = park(&mut queue, None, 1, &mut |_| {});
        let mut waited = new();
        let decision = Decision::new(Route::Interrupt, Mode::Block, 0, Reason::Fixed);
        let machine = WaitMachine::new(&decision, 0, 0);
        dwell::wait::wait(&mut waited, machine, &mut |_| true);
        ended.send((woken, queue.looks, waited.looks)).unwrap();
    });
    let outcome = told.recv_timeout(Duration::from_secs(20)).expect("it is still asleep");
    assert_eq!(outcome, (Woken::Look, 1, 2));
}

#[test]
fn a_parked_thread_is_woken_by_the_other_side_however_it_waits() {
    for mode in [Mode::Block, Mode::Spin, Mode::Hybrid { sleep_ns: 100_000 }] {
        for waking in [Waking::Word, Waking::Never] {
            let fake = Fake::new(MIB, 1).with(|state| {
                state.queued.extend([Answer::Held; 20]);
                state.waking = waking;
            });
            let file = fake.open(fast(), Fixed { mode, ..Fixed::spin() });
            thread::scope(|scope| {
                scope.spawn(|| {
                    for round in 0..20 {
                        thread::sleep(Duration::from_micros(round * 37));
                        fake.release();
                    }
                });
                let mut buffer = vec![0; 100];
                for at in 0..20 {
                    assert_eq!(file.read_at(&mut buffer, at).unwrap(), 100);
                    check(&buffer, at, 1);
                }
            });
            assert_eq!(file.stats().requests(), 20);
        }
    }
}

#[test]
fn a_write_that_makes_a_file_longer_is_served_inline_and_one_within_it_is_not() {
    let directory = common::machine::disk();
    let path = directory.path().join("grows");
    std::fs::write(&path, [1; 4096]).unwrap();
    let options = || Options::new().write(true).policy(Arc::new(Spin));
    let Ok(file) = options().direct(true).open(&path) else {
        println!("SKIP: no direct I/O here");
        return;
    };
    let of = |byte: u8, bytes: usize| {
        let mut data = Aligned::new(bytes);
        data.fill(byte);
        data
    };
    file.write_all_at(&of(2, 4096), 4096).unwrap();
    file.write_all_at(&of(3, 8192), 4096).unwrap();
    assert_eq!(file.stats().because(Reason::NoQueue), 2);
    if dwell::ring::unavailable().is_some() {
        println!("SKIP: no io_uring");
        return;
    }
    file.write_all_at(&of(4, 4096), 8192).unwrap();
    assert_eq!(file.stats().because(Reason::NoQueue), 2);
    assert_eq!(std::fs::read(&path).unwrap(), [[1; 4096], [3; 4096], [4; 4096]].concat());
}

/// What io_uring leaves to a thread of its own would be one wake-up more. That thread may keep the
/// file open after its end, too, until somebody looks at the ring.
#[test]
fn a_lone_request_for_which_the_kernel_has_a_thread_wait_goes_by_a_call() {
    let directory = common::machine::disk();
    let path = directory.path().join("waited");
    std::fs::write(&path, [1; 8192]).unwrap();
    let file = Options::new().write(true).policy(Arc::new(Spin)).open(&path).unwrap();
    file.write_all_at(&[2; 4096], 4096).unwrap();
    file.sync_data().unwrap();
    file.sync().unwrap();
    assert_eq!((file.stats().requests(), file.stats().because(Reason::NoQueue)), (3, 3));
    // Of several in flight none may block its thread.
    if dwell::ring::unavailable().is_none() {
        let mut pipeline = file.pipeline::<Vec<u8>>(2).unwrap();
        pipeline.write_at(vec![3; 4096], 0).map_err(|(error, _)| error).unwrap();
        pipeline.sync(true).unwrap();
        while let Some(done) = pipeline.next() {
            done.result.unwrap();
        }
        drop(pipeline);
        assert_eq!((file.stats().requests(), file.stats().because(Reason::NoQueue)), (5, 3));
    }
    assert_eq!(std::fs::read(&path).unwrap(), [[3; 4096], [2; 4096]].concat());
}
