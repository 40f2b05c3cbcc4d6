// SPDX-License-Identifier: MIT OR Apache-2.0
//! What opening, one direct read and closing a file cost, beside the same by the standard library.
//!
//! `cargo run --release -p dwell --example open_cost [DIRECTORY] [THREADS]`

use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;

use dwell::buffer::Aligned;
use dwell::monitor::{Config, SystemMonitor};
use dwell::parameters::DeviceParameters;
use dwell::{DeviceClass, Options, clock};
use dwell_policy::Profile;

const TIMES: u64 = 20_000;
const BYTES: usize = 4096;
const O_DIRECT: i32 = 0o40000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let directory = arguments.next().unwrap_or_else(|| "/dev/shm".into());
    let threads: usize = arguments.next().map_or(Ok(1), |text| text.parse())?;
    let path = tempfile::NamedTempFile::new_in(directory)?.into_temp_path();
    std::fs::write(&path, [7; BYTES])?;
    let monitor = Arc::new(SystemMonitor::start(Config::default())?);
    let profile = Profile {
        class: DeviceClass::Fast,
        size_threshold_bytes: 65536,
        async_threshold_bytes: 65536,
        ring_threshold_bytes: 0,
        switch_ns: 5_000,
        reload_ns: 0,
        sleep_overshoot_ns: 50_000,
        latency_ns: 10_000,
        latency_ps_per_byte: 100,
    };
    let parameters = DeviceParameters { profile: Some(profile), ..DeviceParameters::default() };
    let options = Options::new().direct(true).write(true).parameters(parameters).monitor(monitor);
    // What a thread keeps per file depends on how many threads there are.
    std::thread::scope(|scope| {
        for last in 1..=threads {
            let (options, path) = (&options, &path);
            let work = move || {
                let file = options.open(path).unwrap();
                file.read_at(&mut Aligned::new(BYTES), 0).unwrap();
                if last < threads {
                    std::thread::sleep(std::time::Duration::from_secs(3));
                    return;
                }
                std::thread::sleep(std::time::Duration::from_millis(200));
                let mut buffer = Aligned::new(BYTES);
                let per = |mut what: Box<dyn FnMut() + '_>| {
                    let started = clock::now();
                    (0..TIMES).for_each(|_| what());
                    (clock::now() - started) / TIMES
                };
                let plain = || {
                    let mut open = std::fs::OpenOptions::new();
                    open.read(true).write(true).custom_flags(O_DIRECT).open(path).unwrap()
                };
                let plainly = per(Box::new(|| drop(plain())));
                let ours = per(Box::new(|| drop(options.open(path).unwrap())));
                println!("open and close: {ours} ns; std {plainly} ns");
                let mut again = Aligned::new(BYTES);
                let plainly =
                    per(Box::new(|| assert_eq!(plain().read_at(&mut again, 0).unwrap(), BYTES)));
                let ours = per(Box::new(|| {
                    let file = options.open(path).unwrap();
                    assert_eq!(file.read_at(&mut buffer, 0).unwrap(), BYTES);
                }));
                println!("open, read, close: {ours} ns; std {plainly} ns");
            };
            scope.spawn(work);
        }
    });
    Ok(())
}
