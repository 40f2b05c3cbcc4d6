// SPDX-License-Identifier: MIT OR Apache-2.0
//! The off switch: what running files and new ones do while it is off, counted by reason.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use dwell::buffer::Aligned;
use dwell::monitor::{Config, SystemMonitor};
use dwell::off::OffSwitch;
use dwell::parameters::DeviceParameters;
use dwell::policy::{Adaptive, Spin};
use dwell::{File, Mode, Reason, Route, WaitPolicy};
use dwell_policy::Profile;

use common::fake::Fake;

/// A monitor that looks at a switch of this test's own.
fn scene(dir: &std::path::Path) -> (OffSwitch, Arc<SystemMonitor>) {
    let switch = OffSwitch { machine: dir.join("machine"), own: dir.join("own") };
    let off_switch = switch.clone();
    let config = Config {
        window: Duration::from_millis(50),
        threshold: Some(1.0),
        off_switch,
        ..Config::default()
    };
    (switch, Arc::new(SystemMonitor::start(config).unwrap()))
}

fn open(monitor: &Arc<SystemMonitor>, policy: impl WaitPolicy + 'static) -> File {
    let parameters =
        DeviceParameters { profile: Some(Profile::default()), ..DeviceParameters::default() };
    let options = dwell::Options::new()
        .policy(Arc::new(policy))
        .parameters(parameters)
        .monitor(monitor.clone());
    options.open("emu:latency=20us,size=64KiB").unwrap()
}

fn read(file: &File, requests: usize) {
    let mut block = Aligned::new(4096);
    (0..requests).for_each(|_| file.read_exact_at(&mut block, 0).unwrap());
}

/// Waits until the monitor's thread has seen the switch, by itself.
fn until_off_is(monitor: &SystemMonitor, off: bool) {
    let began = Instant::now();
    while monitor.reader().load().off != off {
        assert!(began.elapsed() < Duration::from_secs(30), "the switch is not looked at");
        monitor.reader().note_request();
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn while_it_is_off_every_request_of_running_and_of_new_files_goes_the_kernels_way() {
    let dir = tempfile::tempdir().unwrap();
    let (switch, monitor) = scene(dir.path());
    let running = open(&monitor, Spin);
    read(&running, 10);
    assert_eq!(running.stats().count(Route::Interrupt, "spin"), 10);

    switch.turn_off("the test").unwrap();
    until_off_is(&monitor, true);
    let new = open(&monitor, Spin);
    for file in [&running, &new] {
        read(file, 10);
        let stats = file.stats();
        assert_eq!(stats.because(Reason::Off), 10, "{stats:?}");
        let mut pipeline = file.pipeline::<Aligned>(4).unwrap();
        for at in 0..4 {
            pipeline.read_at(Aligned::new(4096), at * 4096).map_err(|(error, _)| error).unwrap();
        }
        while pipeline.next().is_some() {}
        drop(pipeline);
        let stats = file.stats();
        assert_eq!(stats.because(Reason::Off), 14, "{stats:?}");
        let rows = stats.rows.iter().filter(|row| row.reason == Reason::Off);
        assert!(rows.into_iter().all(|row| row.mode == Mode::Block), "{stats:?}");
    }
    assert_eq!(new.stats().switches_avoided(), 0);

    switch.turn_on().unwrap();
    until_off_is(&monitor, false);
    read(&running, 10);
    let stats = running.stats();
    assert_eq!(stats.because(Reason::Off), 14);
    assert_eq!(stats.count(Route::Interrupt, "spin"), 20);
}

#[test]
fn a_process_that_begins_while_it_is_off_begins_off_and_tries_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (switch, earlier) = scene(dir.path());
    drop(earlier);
    switch.turn_off("").unwrap();
    let off_switch = switch.clone();
    let monitor = SystemMonitor::start(Config {
        window: Duration::from_secs(1),
        off_switch,
        ..Config::default()
    })
    .unwrap();
    // Before its first window.
    assert!(monitor.reader().load().off);
    let file = open(&Arc::new(monitor), Adaptive::default());
    read(&file, 2000);
    let stats = file.stats();
    assert_eq!((stats.because(Reason::Off), stats.requests()), (2000, 2000), "{stats:?}");
    assert_eq!(file.learner().unwrap().state().kinds, 0, "nothing is compared");
}

#[test]
fn quick_calls_that_go_as_the_last_one_did_are_all_counted_and_stop_when_it_is_off() {
    let dir = tempfile::tempdir().unwrap();
    let (switch, monitor) = scene(dir.path());
    let fake = Fake::new(1 << 20, 1).with(|state| state.queue_takes = Duration::from_micros(20));
    let (parameters, policy) = (DeviceParameters::default(), Arc::new(Adaptive::default()));
    let file =
        File::over(fake.clone(), "fake", "fake:quick", parameters, policy, Some(monitor.clone()));
    let mut block = [0; 4096];
    let mut requests = 0;
    let mut read = |times: u64| {
        (0..times).for_each(|_| file.read_exact_at(&mut block, 0).unwrap());
        requests += times;
        (file.stats(), requests)
    };
    let began = Instant::now();
    let (stats, requests) = loop {
        let (stats, requests) = read(1000);
        assert!(began.elapsed() < Duration::from_secs(60), "{stats:?}");
        if stats.because(Reason::Measured) > 10_000 {
            break (stats, requests);
        }
    };
    assert_eq!((stats.requests(), stats.bytes_read), (requests, 4096 * requests));
    assert_eq!(fake.log().calls as u64, stats.count(Route::Inline, "block"), "{stats:?}");

    switch.turn_off("the test").unwrap();
    until_off_is(&monitor, true);
    assert_eq!(read(100).0.because(Reason::Off), 100);
    switch.turn_on().unwrap();
    until_off_is(&monitor, false);
    assert_eq!(read(100).0.because(Reason::Off), 100);
    let kinds = || file.learner().unwrap().state().kinds;
    let before = kinds();
    file.read_exact_at(&mut [0; 512], 0).unwrap();
    assert!(kinds() > before, "another size is asked for");
}
