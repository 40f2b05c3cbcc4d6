// SPDX-License-Identifier: MIT OR Apache-2.0
//! A shadow decides and records, and every request goes the kernel's own way.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use dwell::buffer::Aligned;
use dwell::executor::Executor;
use dwell::monitor::{Config, HostPage, Sharing, SystemMonitor};
use dwell::parameters::DeviceParameters;
use dwell::policy::{Adaptive, SmartCon, Spin};
use dwell::{File, Options, Reason, Route, WaitPolicy};
use dwell_host::profile::Beneath;
use dwell_host::settings::Settings;
use dwell_policy::Profile;

fn options(policy: impl WaitPolicy + 'static) -> Options {
    let parameters =
        DeviceParameters { profile: Some(Profile::default()), ..DeviceParameters::default() };
    dwell::Options::new().policy(Arc::new(policy)).parameters(parameters).shadow(true)
}

/// A device on which a request spins or blocks on a queue.
fn emulated(options: &Options) -> File {
    options.open("emu:latency=20us,size=64KiB").unwrap()
}

fn read(file: &File, requests: usize) {
    let mut block = Aligned::new(4096);
    (0..requests).for_each(|_| file.read_exact_at(&mut block, 0).unwrap());
}

#[test]
fn a_request_that_would_be_spun_for_is_counted_so_and_blocks() {
    let file = emulated(&options(Spin));
    read(&file, 100);
    let stats = file.stats();
    assert_eq!((stats.count(Route::Interrupt, "spin"), stats.requests()), (100, 100), "{stats:?}");
    assert_eq!((stats.latency.spun.count(), stats.latency.blocked.count()), (0, 100));

    let mut pipeline = file.pipeline::<Aligned>(4).unwrap();
    for at in 0..4 {
        pipeline.read_at(Aligned::new(4096), at * 4096).map_err(|(error, _)| error).unwrap();
    }
    while pipeline.next().is_some() {}
    drop(pipeline);
    let file = Arc::new(file);
    let executor = Executor::new().unwrap();
    let shared = executor.file(file.clone()).unwrap();
    executor.block_on(async {
        shared.read_at(Aligned::new(4096), 0).await.0.unwrap();
    });
    let stats = file.stats();
    assert_eq!((stats.count(Route::Interrupt, "spin"), stats.requests()), (105, 105), "{stats:?}");
    assert_eq!(stats.latency.spun.count(), 0);
}

#[test]
fn adaptive_answers_with_its_prior_and_tries_nothing() {
    let file = emulated(&options(Adaptive::default()));
    let until = Instant::now() + Duration::from_millis(600);
    while Instant::now() < until {
        read(&file, 50);
    }
    let stats = file.stats();
    assert_eq!(stats.because(Reason::Pays), stats.requests(), "{stats:?}");
    assert_eq!(file.learner().unwrap().state().trials, 0);
    assert_eq!(file.learner().unwrap().state().kinds, 0);
}

#[test]
fn smartcon_would_spin_where_there_is_a_budget_and_none_of_it_is_used_for_that() {
    let dir = tempfile::tempdir().unwrap();
    let page = dir.path().join("page");
    let (host_page, threshold) = (Some(page.clone()), Some(1.0));
    let config =
        Config { window: Duration::from_millis(50), threshold, host_page, ..Config::default() };
    let monitor = Arc::new(SystemMonitor::start(config).unwrap());
    let file = emulated(&options(SmartCon::default()).monitor(monitor.clone()));
    let began = Instant::now();
    while file.stats().because(Reason::Pays) == 0 {
        if began.elapsed() > Duration::from_secs(30) && monitor.spinner_limit() == 0 {
            return println!("SKIP: what else runs here leaves no budget of spinners");
        }
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", file.stats());
        read(&file, 10);
    }
    let windows = monitor.cost().samples + 3;
    while monitor.cost().samples < windows {
        read(&file, 10);
    }
    let spinners = |path: &Path| {
        let all = HostPage::open(path, Sharing::SameUser).survey();
        all.iter().map(|peer| peer.spinners_leased + peer.spinners_wanted).sum::<u32>()
    };
    assert_eq!((monitor.permit().leased(), spinners(&page)), (0, 0));
}

#[test]
fn a_read_that_the_page_cache_had_would_not_have_been_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    std::fs::write(&path, vec![7u8; 64 << 10]).unwrap();
    // So slow a device that whatever comes from memory is known by its time.
    let slow = Profile { latency_ns: 1_000_000_000, ..Profile::default() };
    let parameters = DeviceParameters { profile: Some(slow), ..DeviceParameters::default() };
    let file = options(Spin).parameters(parameters).open(&path).unwrap();
    read(&file, 100);
    let stats = file.stats();
    assert_eq!((stats.because(Reason::Cached), stats.requests()), (100, 100), "{stats:?}");
}

#[test]
fn settings_make_a_file_a_shadow_and_not_one_that_is_left_alone() {
    let settings = Settings::parse("shadow = true\npolicy = \"spin\"", "a.toml").unwrap();
    let address = Path::new("emu:latency=20us,size=64KiB");
    let beneath = Beneath { device: None, profile: None };
    let opening = settings.opening(address, &beneath, None).unwrap();
    assert!(opening.shadow && opening.left_alone.is_none());
    let file = opening.applied_to(dwell::Options::new()).open(address).unwrap();
    read(&file, 10);
    let stats = file.stats();
    assert_eq!((stats.spins(), stats.latency.spun.count()), (10, 0), "{stats:?}");
}
