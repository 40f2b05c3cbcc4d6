// SPDX-License-Identifier: MIT OR Apache-2.0
//! The default policy on emulated devices, on which blocking costs a timer's slack: what it tries,
//! what it keeps, and what the next one begins with.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dwell::executor::Executor;
use dwell::learner;
use dwell::monitor::{Config, SystemMonitor};
use dwell::parameters::DeviceParameters;
use dwell::policy::{Adaptive, WaitPolicy};
use dwell::{Decision, File, Kind, Options, Reason};
use dwell_policy::{Arm, Call, DeviceClass, Goal, Profile, Wait};

use common::voluntary_switches;

const SECOND: u64 = 1_000_000_000;
/// Much longer than it takes, for machines that are busy with something else.
const AT_MOST_S: u64 = 300;

fn options(goal: Goal) -> Options {
    dwell::Options::new().policy(Arc::new(Adaptive { goal, ..Adaptive::default() }))
}

/// What a process's own files know of 4 KiB reads.
fn told(file: &File) -> Option<learner::LearnerSummary> {
    let learner = file.learner().expect("adaptive learns");
    learner.told(&file.wait_of(Kind::Read, 4096, Call::Blocking), 1)
}

/// Reads until it is enough; `false` if it never is.
fn read_until(file: &File, is_enough: impl Fn(&learner::LearnerSummary) -> bool) -> bool {
    let until = dwell::clock::now() + AT_MOST_S * SECOND;
    let mut block = [0u8; 4096];
    while dwell::clock::now() < until {
        for _ in 0..100 {
            file.read_exact_at(&mut block, 0).unwrap();
        }
        if told(file).as_ref().is_some_and(&is_enough) {
            return true;
        }
    }
    panic!("after {AT_MOST_S} s: {:?}", told(file));
}

/// Both ways were compared, and the one that came out faster is taken.
fn takes_the_faster(known: &learner::LearnerSummary) -> bool {
    let [_, ring, spin, ..] = known.arms;
    let faster = if spin.cost_ns < ring.cost_ns { Arm::Spin } else { Arm::Ring };
    ring.trials + spin.trials >= 2 && known.incumbent == faster
}

#[test]
fn an_unprobed_device_is_spun_on_once_that_has_turned_out_cheaper() {
    let file = options(Goal::Balanced).open("emu:latency=20us,size=64KiB").unwrap();
    file.read_exact_at(&mut [0; 4096], 0).unwrap();
    assert_eq!(file.stats().because(Reason::Unprobed), 1);
    assert!(read_until(&file, |known| known.incumbent == Arm::Spin && known.trial.is_none()));
    let stats = file.stats();
    assert!(
        stats.because(Reason::Explored) > 0 && stats.because(Reason::Measured) > 0,
        "{stats:?}"
    );
    let [_, ring, spin, ..] = told(&file).unwrap().arms;
    assert!(spin.trials >= 2 && spin.cost_ns < ring.cost_ns, "{spin:?} {ring:?}");
}

#[test]
fn a_pipeline_waits_as_its_requests_came_out_fastest() {
    // Two requests can come out as fast to a thread that blocks: one wake-up serves both.
    let file = options(Goal::Balanced).open("emu:latency=10us,size=64KiB").unwrap();
    let mut pipeline = file.pipeline::<Vec<u8>>(2).unwrap();
    let known = || {
        let learner = file.learner().expect("adaptive learns");
        learner.told(&file.wait_of(Kind::Read, 4096, Call::Async), 2)
    };
    let until = dwell::clock::now() + AT_MOST_S * SECOND;
    let is_found = || known().as_ref().is_some_and(takes_the_faster);
    for at in 0..2 {
        pipeline.read_at(vec![0; 4096], at * 4096).unwrap();
    }
    while !is_found() && dwell::clock::now() < until {
        for _ in 0..100 {
            let done = pipeline.next().unwrap();
            assert_eq!(done.result.unwrap(), 4096);
            pipeline.read_at(done.buffer.unwrap(), 0).unwrap();
        }
    }
    assert!(is_found(), "{:?}", known());
    assert_eq!(known().unwrap().arms[Arm::Call as usize].trials, 0);
    let stats = file.stats();
    assert!(stats.because(Reason::Unprobed) > 0 && stats.because(Reason::Measured) > 0);
    assert_eq!(told(&file), None, "lone requests are compared for themselves");
}

#[test]
fn the_cpu_time_of_one_slow_request_in_flight_is_measured() {
    let file = options(Goal::Balanced).open("emu:latency=1ms,size=64KiB").unwrap();
    let mut pipeline = file.pipeline::<Vec<u8>>(1).unwrap();
    let known = || {
        let learner = file.learner().expect("adaptive learns");
        learner.told(&file.wait_of(Kind::Read, 4096, Call::Async), 1)
    };
    let until = dwell::clock::now() + AT_MOST_S * SECOND;
    let is_tried = || known().is_some_and(|known| known.arms.iter().any(|told| told.trials > 0));
    while !is_tried() && dwell::clock::now() < until {
        pipeline.read_at(vec![0; 4096], 0).unwrap();
        assert_eq!(pipeline.next().unwrap().result.unwrap(), 4096);
    }
    let [_, ring, ..] = known().unwrap().arms;
    assert!(is_tried() && ring.cpu_ns > 0.0, "{:?}", known());
}

#[test]
fn an_executor_waits_as_its_requests_came_out_fastest() {
    let file = options(Goal::Balanced).open("emu:latency=20us,size=64KiB").unwrap();
    let executor = Executor::new().unwrap();
    let known = |file: &File| {
        let learner = file.learner().expect("adaptive learns");
        learner.told(&file.wait_of(Kind::Read, 4096, Call::Async), 1)
    };
    let until = dwell::clock::now() + AT_MOST_S * SECOND;
    let asynchronous = executor.file(Arc::new(file)).unwrap();
    let found = executor.block_on(async {
        let mut buffer = vec![0; 4096];
        while dwell::clock::now() < until {
            for _ in 0..100 {
                let (done, back) = asynchronous.read_at(buffer, 0).await;
                assert_eq!(done.unwrap(), 4096);
                buffer = back;
            }
            if known(asynchronous.file()).as_ref().is_some_and(takes_the_faster) {
                return true;
            }
        }
        false
    });
    assert!(found, "{:?}", known(asynchronous.file()));
    let stats = asynchronous.file().stats();
    assert!(stats.because(Reason::Unprobed) > 0 && stats.because(Reason::Measured) > 0);
}

/// A device of 400 µs, as a probe would find it.
fn slow() -> DeviceParameters {
    let profile = Profile {
        class: DeviceClass::Mainstream,
        latency_ns: 400_000,
        sleep_overshoot_ns: 60_000,
        ..Profile::default()
    };
    DeviceParameters { profile: Some(profile), ..DeviceParameters::default() }
}

#[test]
fn a_timed_sleep_is_tried_where_a_probe_found_that_it_ends_in_time() {
    let open = |parameters| {
        options(Goal::Balanced).parameters(parameters).open("emu:latency=400us,size=64KiB").unwrap()
    };
    let file = open(slow());
    assert!(read_until(&file, |known| known.arms[Arm::Hybrid as usize].trials >= 2));
    let unprobed = open(DeviceParameters::default());
    assert!(read_until(&unprobed, |known| known.arms[Arm::Spin as usize].trials >= 2));
    assert!(!told(&unprobed).unwrap().offered.has(Arm::Hybrid));
}

#[test]
fn a_core_is_not_spun_away_for_a_fifth_of_the_latency_where_cpu_time_has_its_price() {
    // Fast, says the profile, so the first answer is to spin.
    let parameters =
        DeviceParameters { profile: Some(Profile::default()), ..DeviceParameters::default() };
    let open =
        |goal| options(goal).parameters(parameters).open("emu:latency=1ms,size=64KiB").unwrap();
    let file = open(Goal::Efficient);
    assert!(read_until(&file, |known| known.incumbent == Arm::Spin || known.switches > 0));
    assert!(read_until(&file, |known| known.incumbent == Arm::Ring));
    let stats = file.stats();
    assert!(stats.because(Reason::Measured) > 0, "{stats:?}");
}

#[test]
fn a_probe_that_says_spin_is_believed_though_the_first_request_finds_no_spinner() {
    let parameters =
        DeviceParameters { profile: Some(Profile::default()), ..DeviceParameters::default() };
    let dir = tempfile::tempdir().unwrap();
    let host_page = Some(dir.path().join("page"));
    let config = Config {
        window: Duration::from_secs(1),
        threshold: Some(1.0),
        host_page,
        ..Config::default()
    };
    let monitor = Arc::new(SystemMonitor::start(config).unwrap());
    let options = options(Goal::Balanced).parameters(parameters).monitor(monitor.clone());
    let file = options.open("emu:latency=20us,size=64KiB").unwrap();
    let began = Instant::now();
    while monitor.sample_once().others_above() {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", monitor.reader().load());
        std::thread::sleep(Duration::from_millis(60));
    }
    file.read_exact_at(&mut [0; 4096], 0).unwrap();
    assert_eq!(file.stats().because(Reason::SpinnerLimit), 1, "{:?}", file.stats());
    assert_eq!(told(&file).unwrap().incumbent, Arm::Spin);
}

/// Blocks, until half of what is in flight has completed or as few as usual.
struct Blocks(Arm);

impl WaitPolicy for Blocks {
    fn name(&self) -> &str {
        "blocks"
    }

    fn choose(&self, wait: &Wait<'_>) -> Decision {
        self.0.decide(wait, Reason::Fixed)
    }
}

#[test]
fn a_pipeline_that_waits_for_half_leaves_the_cpu_less_often() {
    let switches = |arm| {
        let options = dwell::Options::new().policy(Arc::new(Blocks(arm)));
        // One request after another.
        let file = options.open("emu:latency=100us,parallel=1,size=64KiB").unwrap();
        let mut pipeline = file.pipeline::<Vec<u8>>(16).unwrap();
        let before = voluntary_switches();
        for at in 0..160 {
            while !pipeline.has_room() {
                assert_eq!(pipeline.next().unwrap().result.unwrap(), 4096);
            }
            assert!(pipeline.read_at(vec![0; 4096], at % 16 * 4096).is_ok());
        }
        while pipeline.next().is_some() {}
        voluntary_switches() - before
    };
    // Where others keep a thread off the CPU, it finds many completions whenever it comes back.
    let mut tries = (0..100).map(|_| (switches(Arm::RingHalf), switches(Arm::Ring)));
    assert!(tries.any(|(half, few)| half * 2 < few));
}
