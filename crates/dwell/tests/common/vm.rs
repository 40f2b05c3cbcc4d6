// SPDX-License-Identifier: MIT OR Apache-2.0
//! The VM that `vm/test` boots, as tests within see it: what it does with a polled read, and how
//! often its drive interrupts.
#![allow(dead_code)]

use std::env;
use std::fs;
use std::thread;
use std::time::Duration;

/// What this boot does with a polled read, as `vm/test` says in `DWELL_VM`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Polling {
    /// The drive has a poll queue.
    Real,
    /// It has none and the kernel completes the read by interrupt without a word.
    Fake,
    /// It has none and the kernel refuses the read.
    Refused,
}

impl Polling {
    pub const ANY: &[Polling] = &[Polling::Real, Polling::Fake, Polling::Refused];

    /// Of this boot, where it is one of those that are wanted; else why the test skips. The serial
    /// number keeps tests, which overwrite the drive, off any drive that is not the VM's.
    pub fn of_this_boot(wanted: &[Polling]) -> Result<Polling, String> {
        let polling = match env::var("DWELL_VM").as_deref() {
            Err(_) => return Err("not in the VM (vm/test boots it)".to_owned()),
            Ok("poll") => Polling::Real,
            Ok("fake") => Polling::Fake,
            Ok("refused") => Polling::Refused,
            Ok(other) => panic!("DWELL_VM={other}: want poll, fake or refused"),
        };
        let serial = fs::read_to_string("/sys/block/nvme0n1/device/serial").unwrap_or_default();
        if serial.trim() != "dwell-vm" {
            return Err("/dev/nvme0n1 is not the VM's drive".to_owned());
        }
        if !wanted.contains(&polling) {
            return Err(format!("wants a boot with polling {wanted:?}, this one has {polling:?}"));
        }
        Ok(polling)
    }
}

/// The drive's interrupt count once nothing from before (a partition scan, say) still changes it.
pub fn settled_interrupts() -> u64 {
    let mut last = nvme_interrupts();
    for _ in 0..100 {
        thread::sleep(Duration::from_millis(20));
        let now = nvme_interrupts();
        if now == last {
            return now;
        }
        last = now;
    }
    panic!("/dev/nvme0n1 raises interrupts without any request from this test");
}

/// Sums every processor's column in the lines of /proc/interrupts that belong to the drive.
fn nvme_interrupts() -> u64 {
    let table = fs::read_to_string("/proc/interrupts").unwrap();
    let mut lines = table.lines();
    let processors = lines.next().unwrap_or_default().split_whitespace().count();
    let counts: Vec<u64> = lines
        .filter(|line| line.contains("nvme0q"))
        .flat_map(|line| line.split_whitespace().skip(1).take(processors))
        .map(|count| count.parse().unwrap())
        .collect();
    assert!(!counts.is_empty(), "no nvme0q line in /proc/interrupts");
    counts.iter().sum()
}
