// SPDX-License-Identifier: MIT OR Apache-2.0
//! A program that opens one file after the other pays for what they share once.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// The threads of this process that watch the machine.
fn monitors() -> Vec<u32> {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let ids = tasks.map(|task| task.unwrap().file_name().to_str().unwrap().parse().unwrap());
    ids.filter(|id: &u32| {
        let name = std::fs::read_to_string(format!("/proc/self/task/{id}/comm"));
        name.is_ok_and(|name| name.trim() == "dwell-monitor")
    })
    .collect()
}

/// The one of them, once it has given itself its name.
fn monitor() -> u32 {
    let began = Instant::now();
    loop {
        match monitors()[..] {
            [one] => return one,
            [] if began.elapsed() < Duration::from_secs(60) => std::thread::yield_now(),
            ref seen => panic!("{seen:?}"),
        }
    }
}

#[test]
fn files_opened_one_after_the_other_find_the_same_monitor() {
    let dir = tempfile::tempdir().unwrap();
    let mut seen = BTreeSet::new();
    for at in 0..20 {
        let path = dir.path().join(format!("file-{at}"));
        let file = dwell::options().write(true).create(true).open(path).unwrap();
        file.write_at(b"some bytes", 0).unwrap();
        seen.insert(monitor());
    }
    // A host that stops this process for longer than a monitor lingers may cost another.
    assert!(seen.len() < 5, "{seen:?}");
}
