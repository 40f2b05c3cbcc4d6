// SPDX-License-Identifier: MIT OR Apache-2.0
//! Memory that a region takes at its peak, alone in its process: what the kernel counts.

mod common;

use common::{BOTH, byte_at, file, open, pages, read, region, shared};
use dwell_pager::PAGE_BYTES;

const BYTES: usize = 16_384 * PAGE_BYTES;
const BUDGET: usize = 4096;
/// What besides pages may come and go meanwhile, and what the kernel may not have counted yet on
/// each CPU, in KiB.
const SPARE_KIB: usize = 1024;
const UNCOUNTED_KIB: usize = 128;

/// Memory of this process in KiB, as the kernel names it.
fn memory(name: &str) -> usize {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(name)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

#[test]
fn runs_that_come_in_together_take_no_more_than_the_budget() {
    // The highest peak is forgotten by this.
    if let Err(error) = std::fs::write("/proc/self/clear_refs", "5") {
        println!("SKIP: /proc/self/clear_refs: {error}");
        return;
    }
    let cpus = std::thread::available_parallelism().map_or(1, usize::from);
    let spare = SPARE_KIB + cpus * UNCOUNTED_KIB;
    let (_dir, path) = file(BYTES);
    for writes in [false, true] {
        for faults in BOTH {
            let options = if writes { shared(BUDGET) } else { pages(BUDGET) };
            let Some(region) = region(open(&path, writes), &options.faults(faults)) else { return };
            std::fs::write("/proc/self/clear_refs", "5").unwrap();
            let before = memory("VmRSS");
            for page in 0..BYTES / PAGE_BYTES {
                assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
            }
            let most = before + BUDGET * PAGE_BYTES / 1024 + spare;
            let peak = memory("VmHWM");
            assert!(peak <= most, "{faults:?}, writes {writes}: {peak} KiB of {most}");
        }
    }
}
