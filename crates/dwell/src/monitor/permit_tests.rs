// SPDX-License-Identifier: MIT OR Apache-2.0
//! The permit of spinning threads, and the signals of the I/O path.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::permit::*;
use crate::clock;
use dwell_policy::{Decision, Mode, Reason, Route};

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
    let (spun_ns, _) = permit.0.totals();
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
    let second = permit.try_spin_at(0, first.lease().unwrap()).unwrap();
    assert_ne!(first.lease(), second.lease());
    let had = second.lease().unwrap();
    second.finish(1);
    first.finish(1);
    assert_eq!(permit.try_spin_at(0, had).unwrap().lease(), Some(had));
    // A lease that this process no longer holds.
    assert!(permit.try_spin_at(0, 200).is_some());
}

fn spinning(expected_ns: u64) -> Decision {
    Decision::new(Route::Interrupt, Mode::Spin, expected_ns, Reason::Fixed)
}

#[test]
fn nobody_spins_longer_than_what_is_left_under_the_cap() {
    let permit = permit(1);
    permit.0.set_allowance(Some(100_000));
    let mut first = spinning(15_000);
    let guard = permit.within_cap(None, &mut first, 0).unwrap().unwrap();
    assert_eq!(first.spin_limit_ns, 60_000);
    // What the first may still use is not the second's.
    let mut second = spinning(15_000);
    let other = permit.within_cap(None, &mut second, 0).unwrap().unwrap();
    assert_eq!(second.spin_limit_ns, 40_000);
    let leased = permit.try_spin();
    assert!(leased.is_some() && permit.within_cap(leased, &mut spinning(15_000), 0).is_none());
    assert_eq!(permit.active(), 0, "the lease is given back");
    guard.finish(10_000);
    other.finish(40_000);
    let mut third = spinning(15_000);
    permit.within_cap(None, &mut third, 0).unwrap().unwrap().finish(50_000);
    assert_eq!(third.spin_limit_ns, 50_000);
    assert!(permit.within_cap(None, &mut spinning(0), 0).is_none(), "all is spent");
    assert_eq!(permit.0.totals().0, 100_000);
}

#[test]
fn time_not_spun_in_its_window_is_forfeited_and_without_a_cap_nothing_changes() {
    let permit = permit(1);
    for _ in 0..3 {
        permit.0.set_allowance(Some(10_000));
    }
    let mut decision = spinning(5_000);
    permit.within_cap(None, &mut decision, 0).unwrap().unwrap().finish(0);
    assert_eq!(decision.spin_limit_ns, 10_000);
    permit.0.set_allowance(Some(0));
    assert!(permit.within_cap(None, &mut spinning(5_000), 0).is_none());
    permit.0.set_allowance(None);
    let mut free = spinning(5_000);
    assert!(permit.within_cap(None, &mut free, 0).unwrap().is_none());
    assert_eq!(free, spinning(5_000));
}

#[test]
fn threads_together_keep_to_the_cap() {
    const ALLOWED_NS: u64 = 1_000_000;
    let permit = permit(8);
    permit.0.set_allowance(Some(ALLOWED_NS));
    std::thread::scope(|scope| {
        for spun_ns in 1..=8 {
            let permit = permit.clone();
            scope.spawn(move || {
                let mut decision = spinning(100);
                let guard = permit.try_spin();
                while let Some(Some(guard)) = permit.within_cap(None, &mut decision, 0) {
                    guard.finish(decision.spin_limit_ns.min(spun_ns * 1_000));
                    decision = spinning(100);
                }
                if let Some(guard) = guard {
                    guard.finish(0);
                }
            });
        }
    });
    let spun_ns = permit.0.totals().0;
    assert!((ALLOWED_NS - 8 * 100..=ALLOWED_NS).contains(&spun_ns), "{spun_ns}");
}
