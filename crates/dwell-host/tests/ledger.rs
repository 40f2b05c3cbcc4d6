// SPDX-License-Identifier: MIT OR Apache-2.0
//! Ledgers across a fork: a child has no part in its parent's.
#![allow(unsafe_code)]

use std::fs;

use dwell::Stats;
use dwell_host::ledger::{Device, Header, Ledger, Snapshot, gather, order};

fn told(bytes_read: u64) -> Snapshot {
    let stats = Stats { bytes_read, ..Stats::default() };
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
fn a_forked_child_neither_writes_nor_removes_its_parents_ledger() {
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("dwell");
    let header = Header { run: 1, ..Header::default() };
    let mut ledger = Some(Ledger::create(&dir, &header).unwrap());
    ledger.as_ref().unwrap().publish(&told(10)).unwrap();
    let before = fs::read(ledger.as_ref().unwrap().path()).unwrap();
    order(&dir, std::process::id(), "off").unwrap();
    assert!(in_a_child(|| {
        let inherited = ledger.take().unwrap();
        // It still hears what its parent is told.
        let heard = inherited.reader().is_off();
        let refused = inherited.publish(&told(1)).unwrap_err().to_string();
        heard && !inherited.is_ours() && refused.contains("is the ledger of process")
    }));
    let ledger = ledger.unwrap();
    let after = fs::read(ledger.path()).unwrap();
    // Only the order is new.
    assert_eq!(before[64..], after[64..]);

    // One of its own is kept for the run when the child has ended.
    let header = ledger.header().clone();
    let parent_pid = std::process::id();
    assert!(in_a_child(|| {
        let own = Ledger::create(&dir, &header).unwrap();
        let ours = own.is_ours() && own.header().root_pid == parent_pid && own.reader().is_off();
        own.publish(&told(1)).unwrap();
        std::mem::forget(own);
        ours
    }));
    let sum = gather(&dir, 1).unwrap();
    assert_eq!((sum.stats().bytes_read, sum.processes), (11, 2));
    assert_eq!(dwell_host::ledger::list(&dir).unwrap().len(), 1);
    assert_eq!(gather(&dir, 1).unwrap().stats().bytes_read, 11);
}
