// SPDX-License-Identifier: MIT OR Apache-2.0
//! Stats pages across a fork: a child has no part in its parent's.
#![allow(unsafe_code)]

use std::fs;

use dwell::Stats;
use dwell_host::stats_page::{Device, Header, Snapshot, StatsPage, gather, order};

fn told(bytes_read: u64) -> Snapshot {
    let mut stats = Stats::default();
    stats.bytes_read = bytes_read;
    let device = Device { name: "loop0".into(), stats, ..Device::default() };
    Snapshot { processes: 1, devices: vec![device], ..Snapshot::default() }
}

/// What `work` says in a forked child.
fn in_a_child(work: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child only works on memory of its own, with an allocator that survives a fork,
    // and ends without destructors.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let said = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or(false);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(said.into()) };
    }
    let mut status = -1;
    // SAFETY: a child of ours and a place to write to.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 1
}

#[test]
fn a_forked_child_neither_writes_nor_removes_its_parents_stats_page() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("dwell");
    let header = Header { run: 1, ..Header::default() };
    let mut stats_page = Some(StatsPage::create(&dir, &header).unwrap());
    stats_page.as_ref().unwrap().publish(&told(10)).unwrap();
    let before = fs::read(stats_page.as_ref().unwrap().path()).unwrap();
    order(&dir, std::process::id(), "off").unwrap();
    assert!(in_a_child(|| {
        let inherited = stats_page.take().unwrap();
        // It still hears what its parent is told.
        let heard = inherited.reader().is_off();
        let refused = inherited.publish(&told(1)).unwrap_err().to_string();
        heard && !inherited.is_ours() && refused.contains("is the stats page of process")
    }));
    let stats_page = stats_page.unwrap();
    let after = fs::read(stats_page.path()).unwrap();
    // Only the order is new.
    assert_eq!(before[64..], after[64..]);

    // One of its own is kept for the run when the child has ended.
    let header = stats_page.header().clone();
    let parent_pid = std::process::id();
    assert!(in_a_child(|| {
        let own = StatsPage::create(&dir, &header).unwrap();
        let ours = own.is_ours() && own.header().root_pid == parent_pid && own.reader().is_off();
        own.publish(&told(1)).unwrap();
        std::mem::forget(own);
        ours
    }));
    let sum = gather(&dir, 1).unwrap();
    assert_eq!((sum.stats().bytes_read, sum.processes), (11, 2));
    assert_eq!(dwell_host::stats_page::list(&dir).unwrap().len(), 1);
    assert_eq!(gather(&dir, 1).unwrap().stats().bytes_read, 11);
}
