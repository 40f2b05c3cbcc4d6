// SPDX-License-Identifier: MIT OR Apache-2.0
//! The cap on the CPU time of waiting holds under every policy: counted by reason.

use std::sync::Arc;
use std::time::{Duration, Instant};

use dwell::buffer::Aligned;
use dwell::executor::Executor;
use dwell::monitor::{Config, SystemMonitor};
use dwell::parameters::DeviceParameters;
use dwell::policy::{Adaptive, Hybrid, Predictive, SmartCon, Spin};
use dwell::{File, Reason, WaitPolicy};
use dwell_policy::Profile;

fn monitor(spin_cap: f32) -> Arc<SystemMonitor> {
    let (threshold, spin_cap) = (Some(1.0), Some(spin_cap));
    let config =
        Config { window: Duration::from_millis(50), threshold, spin_cap, ..Config::default() };
    Arc::new(SystemMonitor::start(config).unwrap())
}

fn open(monitor: &Arc<SystemMonitor>, policy: Arc<dyn WaitPolicy>) -> File {
    let parameters =
        DeviceParameters { profile: Some(Profile::default()), ..DeviceParameters::default() };
    let options =
        dwell::Options::new().policy(policy).parameters(parameters).monitor(monitor.clone());
    options.open("emu:latency=20us,size=64KiB").unwrap()
}

fn read(file: &File, requests: usize) {
    let mut block = Aligned::new(4096);
    (0..requests).for_each(|_| file.read_exact_at(&mut block, 0).unwrap());
}

#[test]
fn a_cap_of_nothing_lets_no_policy_spin_nor_adaptive_try_to() {
    let monitor = monitor(0.0);
    let policies: [Arc<dyn WaitPolicy>; 5] = [
        Arc::new(Spin),
        Arc::new(Hybrid),
        Arc::new(SmartCon::default()),
        Arc::new(Predictive),
        Arc::new(Adaptive::default()),
    ];
    for policy in policies {
        let file = open(&monitor, policy);
        let began = Instant::now();
        // Until one has been held to it: some want a lease or a reason first.
        while file.stats().because(Reason::SpinCap) == 0 {
            if began.elapsed() > Duration::from_secs(30) && monitor.spinner_limit() == 0 {
                println!("SKIP: what else runs here leaves {} no spinner", file.policy().name());
                break;
            }
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", file.stats());
            read(&file, 20);
        }
        let until = Instant::now() + Duration::from_millis(400);
        while Instant::now() < until {
            read(&file, 20);
        }
        let stats = file.stats();
        let name = file.policy().name();
        assert_eq!((stats.spins(), stats.latency.spun.count()), (0, 0), "{name}: {stats:?}");
    }
}

#[test]
fn a_cap_leaves_some_spinning_and_many_in_flight_keep_to_it_too() {
    let monitor = monitor(1.0);
    let file = open(&monitor, Arc::new(Spin));
    let began = Instant::now();
    while file.stats().switches_avoided() < 100 {
        assert!(began.elapsed() < Duration::from_secs(60), "{:?}", file.stats());
        read(&file, 20);
    }
    drop(file);
    let none = self::monitor(0.0);
    let file = Arc::new(open(&none, Arc::new(Spin)));
    let mut pipeline = file.pipeline::<Aligned>(4).unwrap();
    for at in 0..4 {
        pipeline.read_at(Aligned::new(4096), at * 4096).map_err(|(error, _)| error).unwrap();
    }
    while pipeline.next().is_some() {}
    drop(pipeline);
    let executor = Executor::new().unwrap();
    let shared = executor.file(file.clone()).unwrap();
    executor.block_on(async {
        shared.read_at(Aligned::new(4096), 0).await.0.unwrap();
    });
    let stats = file.stats();
    assert_eq!((stats.switches_avoided(), stats.because(Reason::SpinCap)), (0, 5), "{stats:?}");
}
