// SPDX-License-Identifier: MIT OR Apache-2.0
//! The permit of spinning threads, and the signals of the I/O path.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::permit::*;
use crate::clock;

fn permit(leased: u32) -> SpinPermit {
    let shared = Shared::new().unwrap();
    shared.set_leased(leased);
    SpinPermit(Arc::new(shared))
}

#[test]
fn no_more_threads_spin_than_there_are_leases() {
    let permit = permit(3);
    let most = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                for _ in 0..2000 {
                    if let Some(guard) = permit.try_spin() {
                        most.fetch_max(permit.active().into(), Relaxed);
                        guard.finish(5);
                    }
                }
            });
        }
    });
    assert!((1..=3).contains(&most.load(Relaxed)));
    let permits = permit.0.permits();
    assert_eq!((permits.active, permit.0.totals().0), (0, u64::from(permits.starts) * 5));
}

#[test]
fn a_spinner_that_never_ends_keeps_its_lease_and_no_more() {
    let permit = permit(1);
    let stalled = permit.try_spin().unwrap();
    for _ in 0..100 {
        assert!(permit.try_spin().is_none());
    }
    // A lease that was lost meanwhile is not overdrawn, and one more admits one more.
    permit.0.set_leased(0);
    assert!(permit.try_spin().is_none());
    permit.0.set_leased(2);
    let second = permit.try_spin().unwrap();
    assert!(permit.try_spin().is_none());
    drop((stalled, second));
    assert_eq!(permit.active(), 0);
    // Time is counted from what the caller said it was.
    let (spun_ns, _, _) = permit.0.totals();
    drop(permit.try_spin_at(clock::now() - 5_000_000, 0).unwrap());
    assert!(permit.0.totals().0 - spun_ns >= 5_000_000);
}

#[test]
fn signals_are_raised_once_per_window_and_end_a_doze() {
    let shared = permit(0).0;
    assert_eq!(shared.take_signals(), 0);
    SpinPermit(shared.clone()).want();
    assert!(!shared.doze() && shared.take_signals() == REQUESTED | REFUSED | DOZING);
    assert!(shared.doze() && shared.dozes());
    LoadReader(shared.clone()).note_request();
    assert!(!shared.dozes() && shared.take_signals() == REQUESTED);
}

#[test]
fn a_thread_that_names_its_lease_gets_it_again_unless_somebody_spins_on_it() {
    let permit = permit(2);
    let first = permit.try_spin().unwrap();
    let second = permit.try_spin_at(0, first.lease()).unwrap();
    assert_ne!(first.lease(), second.lease());
    let had = second.lease();
    second.finish(1);
    first.finish(1);
    assert_eq!(permit.try_spin_at(0, had).unwrap().lease(), had);
    // A lease that this process no longer holds.
    assert!(permit.try_spin_at(0, 200).is_some());
}
