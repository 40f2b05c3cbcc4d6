// SPDX-License-Identifier: MIT OR Apache-2.0
//! A backlog is the device's: requests that others have under way count.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dwell::Kind;
use dwell::buffer::Aligned;
use dwell::monitor::{Config, SystemMonitor};
use dwell::policy::SmartCon;
use dwell_bench::fixture::{Fixture, LoopOnTmpfs};
use dwell_policy::{Backlog, Call};

/// Much longer than it takes, for machines that are busy with something else.
const AT_MOST: Duration = Duration::from_secs(60);

#[test]
fn requests_that_others_have_under_way_count_and_stop_counting() {
    let device = match LoopOnTmpfs::new(64 << 20) {
        Ok(device) => device,
        Err(why) => return println!("SKIP: {why}"),
    };
    let monitor = Arc::new(SystemMonitor::start(Config::default()).unwrap());
    let options = dwell::Options::new().direct(true).policy(Arc::new(SmartCon::default()));
    let file = options.monitor(monitor).open(device.path()).unwrap();
    let backlog = || file.wait_of(Kind::Read, 4096, Call::Blocking).backlog;
    assert_eq!(backlog(), Backlog::default());

    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        for reader in 0..8 {
            let (over, path) = (&over, device.path());
            scope.spawn(move || {
                // Past Dwell, as another program would.
                let other =
                    OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(path).unwrap();
                let mut block = Aligned::new(64 << 10);
                while !over.load(Ordering::Relaxed) {
                    other.read_exact_at(&mut block, reader << 20).unwrap();
                }
            });
        }
        let seen =
            wait_for(|| backlog().requests > 0 && backlog().bytes > backlog().requests.into());
        over.store(true, Ordering::Relaxed);
        assert!(seen, "eight readers were never seen");
    });
    assert!(wait_for(|| backlog() == Backlog::default()), "{:?}", backlog());
}

fn wait_for(is_so: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while began.elapsed() < AT_MOST {
        if is_so() {
            return true;
        }
        thread::sleep(Duration::from_millis(5));
    }
    false
}
