// SPDX-License-Identifier: MIT OR Apache-2.0
//! Regions in a process that locks its memory.
#![allow(unsafe_code)]

mod common;

use common::alone::{is_child, succeeds};
use common::{byte_at, file, open, read, region, shared, write};
use dwell_pager::PAGE_BYTES;

const BYTES: usize = 128 * PAGE_BYTES;
const FRAMES: usize = 16;

/// Locks memory as `flags` say before or after a region is made, and goes through four times as
/// many pages as are kept.
fn goes_through_a_region(name: &str, flags: i32, before: bool) {
    if !is_child() {
        return succeeds(name, "-");
    }
    // SAFETY: a number.
    unsafe { libc::alarm(60) };
    let lock = || {
        // SAFETY: numbers.
        let locked = unsafe { libc::mlockall(flags) } == 0;
        if !locked {
            println!("SKIP: mlockall: {}", std::io::Error::last_os_error());
        }
        locked
    };
    let (_dir, path) = file(BYTES);
    if before && !lock() {
        return;
    }
    let Some(region) = region(open(&path, true), &shared(FRAMES)) else { return };
    write(&region, 5, 3);
    if !before && !lock() {
        return;
    }
    for round in 0..3u8 {
        for at in (0..BYTES).step_by(PAGE_BYTES) {
            assert_eq!(read(&region, at), if round == 0 { byte_at(at) } else { round });
            write(&region, at, round + 1);
        }
        region.sync().unwrap();
        let bytes = std::fs::read(&path).unwrap();
        assert!(bytes.iter().step_by(PAGE_BYTES).all(|byte| *byte == round + 1));
    }
    assert_eq!(read(&region, 5), 3);
    assert!(region.statistics().peak <= FRAMES as u64, "{:?}", region.statistics());
}

#[test]
fn a_region_made_after_mlockall_of_all_future_memory_keeps_its_budget_and_its_bytes() {
    let name = "a_region_made_after_mlockall_of_all_future_memory_keeps_its_budget_and_its_bytes";
    goes_through_a_region(name, libc::MCL_CURRENT | libc::MCL_FUTURE, true);
}

#[test]
fn a_region_made_before_mlockall_keeps_its_budget_and_its_bytes() {
    let name = "a_region_made_before_mlockall_keeps_its_budget_and_its_bytes";
    goes_through_a_region(name, libc::MCL_CURRENT | libc::MCL_FUTURE, false);
}
