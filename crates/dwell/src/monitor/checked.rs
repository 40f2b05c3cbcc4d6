// SPDX-License-Identifier: MIT OR Apache-2.0
//! The monitor's words under every order in which threads and processes can meet: the same sources
//! as above, over the words of a model checker.

// They are loaded twice on purpose.
#![allow(dead_code, clippy::duplicate_mod)]

use loom::sync::{Arc, Mutex};
use loom::thread;

use super::limit;
use member::{Ask, Member, Report};
use permit::{LoadReader, Shared, SpinPermit};
use sync::{AtomicU64, WORDS};
use table::{Identity, Table};

mod sync {
    use std::ops::Deref;

    pub use loom::sync::atomic::AtomicU64;
    pub use loom::thread::Thread;

    pub const SLOTS: usize = 2;
    pub const LEASES: usize = 2;
    pub const WORDS: usize = 16 + SLOTS * 16;

    #[derive(Debug)]
    pub struct SharedAtomics(Vec<AtomicU64>);

    impl SharedAtomics {
        pub fn wiped_on_fork(len: usize) -> std::io::Result<SharedAtomics> {
            Ok(SharedAtomics((0..len).map(|_| AtomicU64::new(0)).collect()))
        }
    }

    impl Deref for SharedAtomics {
        type Target = [AtomicU64];
        fn deref(&self) -> &[AtomicU64] {
            &self.0
        }
    }
}

#[path = "member.rs"]
mod member;
#[path = "permit.rs"]
mod permit;
#[path = "table.rs"]
mod table;

/// Runs a model in the orders in which threads are interrupted so often.
fn explore(interruptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(interruptions);
    // Two whole windows beside each other have too many for a test of every day.
    builder.max_permutations = Some(400);
    builder.check(model);
}

fn shared(leased: u32) -> std::sync::Arc<Shared> {
    let shared = std::sync::Arc::new(Shared::new().unwrap());
    shared.set_leased(leased);
    shared
}

#[test]
fn no_more_threads_spin_than_are_leased_in_any_order() {
    explore(2, || {
        let shared = shared(1);
        let spinning = Arc::new(Mutex::new(0));
        let spinners: Vec<_> = (0..2)
            .map(|_| {
                let (permit, spinning) = (SpinPermit(shared.clone()), spinning.clone());
                thread::spawn(move || {
                    let Some(guard) = permit.try_spin_at(0, 0) else { return 0 };
                    *spinning.lock().unwrap() += 1;
                    assert!(*spinning.lock().unwrap() <= 1);
                    *spinning.lock().unwrap() -= 1;
                    guard.finish(5);
                    1
                })
            })
            .collect();
        let spins: u32 = spinners.into_iter().map(|spinner| spinner.join().unwrap()).sum();
        let permits = shared.permits();
        assert!(spins >= 1);
        assert_eq!((permits.active, permits.leased, permits.starts), (0, 1, spins));
        assert_eq!(shared.totals().0, u64::from(spins) * 5);
    });
}

/// Threads with leases of their own, and a window that ends meanwhile.
#[test]
fn the_spinning_of_each_thread_is_merged_once_whenever_a_window_ends() {
    explore(2, || {
        let shared = shared(2);
        let spinner = |lease| {
            let permit = SpinPermit(shared.clone());
            thread::spawn(move || {
                // Nobody else takes it while the other is free.
                (0..2).for_each(|_| permit.try_spin_at(0, lease).unwrap().finish(5));
            })
        };
        let spinners = [0, 1].map(spinner);
        let so_far = (shared.totals().0, shared.permits().starts);
        spinners.into_iter().for_each(|spinner| spinner.join().unwrap());
        let in_all = (shared.totals().0, shared.permits().starts);
        assert!(so_far.0 <= in_all.0 && so_far.1 <= in_all.1);
        assert_eq!(in_all, (20, 4));
    });
}

/// What the monitor leases and what spinners do to the same word is neither lost.
#[test]
fn a_lease_that_changes_beside_a_spin_stays_and_the_spin_is_counted() {
    explore(2, || {
        let shared = shared(1);
        let permit = SpinPermit(shared.clone());
        let spinner =
            thread::spawn(move || permit.try_spin_at(0, 0).map(|guard| guard.finish(7)).is_some());
        shared.set_leased(0);
        shared.set_leased(2);
        let spun = spinner.join().unwrap();
        let permits = shared.permits();
        assert_eq!((permits.active, permits.leased, permits.starts), (0, 2, u32::from(spun)));
    });
}

/// A monitor that sleeps for long, and requests: the model ends with a deadlock where nobody wakes
/// it.
#[test]
fn a_request_wakes_a_monitor_that_dozes() {
    explore(2, || {
        let shared = shared(0);
        let awake = Arc::new(Mutex::new(false));
        let monitor = {
            let (shared, awake) = (shared.clone(), awake.clone());
            thread::spawn(move || {
                shared.take_signals();
                if shared.doze() {
                    // From here on requests see it.
                    drop(awake.lock().unwrap());
                    while shared.dozes() {
                        thread::park();
                    }
                }
                *awake.lock().unwrap() = true;
            })
        };
        shared.thread.set(monitor.thread().clone()).unwrap();
        let reader = LoadReader(shared.clone());
        while !*awake.lock().unwrap() {
            reader.note_request();
            thread::yield_now();
        }
        monitor.join().unwrap();
    });
}

/// A thread wants to spin while the monitor sleeps through a window: it is woken, and the thread
/// may spin.
#[test]
fn the_first_wish_to_spin_wakes_the_monitor() {
    explore(2, || {
        let shared = shared(0);
        let monitor = {
            let shared = shared.clone();
            thread::spawn(move || {
                while !shared.wants_first() {
                    thread::park();
                }
                shared.set_leased(1);
                shared.forget_refusals();
            })
        };
        shared.thread.set(monitor.thread().clone()).unwrap();
        let permit = SpinPermit(shared.clone());
        assert!(permit.try_spin_at(0, 0).is_none());
        monitor.join().unwrap();
        assert!(permit.try_spin_at(0, 0).is_some());
    });
}

fn page() -> Arc<Vec<AtomicU64>> {
    Arc::new((0..WORDS).map(|_| AtomicU64::new(0)).collect())
}

const NOW_NS: u64 = 5_000_000_000;

fn process(pid: u32) -> Member {
    let mut member = Member::new(Identity::new(pid, u64::from(pid), 1));
    member.set_cpus(0..1);
    member
}

/// Its window at a time; the spinners that it may have afterwards.
fn window(
    member: &mut Member,
    page: &[AtomicU64],
    now_ns: u64,
    gone: &dyn Fn(Identity) -> bool,
) -> u32 {
    let table = Table::new(page).unwrap();
    let report = Report { elapsed_ns: 100_000_000, period_ms: 100, ..Report::default() };
    // A slot that is being freed may be the last.
    if !member.report(table, now_ns, &report, gone) {
        return 0;
    }
    let ask = Ask { limit: 1, wanted: 1, window_ms: 100, turn_ms: 1000 };
    member.share(table, now_ns, &ask, gone)
}

#[test]
fn processes_that_join_at_once_have_slots_of_their_own_and_soon_one_may_spin() {
    explore(1, || {
        let page = page();
        let theirs = page.clone();
        let other = thread::spawn(move || {
            let mut member = process(2);
            window(&mut member, &theirs, NOW_NS, &|_| false);
            member
        });
        // Both look for a slot at the same place first.
        let mut member = process(4);
        window(&mut member, &page, NOW_NS, &|_| false);
        let mut other = other.join().unwrap();
        assert!(member.slot().is_some() && other.slot().is_some() && member.slot() != other.slot());
        // In the middle of a turn.
        let later = NOW_NS + 500_000_000;
        let next = |member: &mut Member| window(member, &page, later, &|_| false);
        // Both show that they are still there.
        next(&mut member);
        next(&mut other);
        assert_eq!(next(&mut member) + next(&mut other), 1);
    });
}

/// One is dead, and found so by the other two at once.
#[test]
fn of_two_that_find_a_third_dead_one_may_spin_and_both_find_a_slot() {
    explore(1, || {
        let page = page();
        assert_eq!(window(&mut process(2), &page, NOW_NS, &|_| false), 1);
        let later = NOW_NS + 2_500_000_000;
        let gone = |who: Identity| who.pid() == 2;
        let theirs = page.clone();
        let other = thread::spawn(move || {
            let mut member = process(6);
            window(&mut member, &theirs, later, &gone);
            member
        });
        // There is room for one more beside the dead one; the other takes its slot, now or with a
        // later window.
        let mut member = process(4);
        window(&mut member, &page, later, &gone);
        let mut other = other.join().unwrap();
        let next = |member: &mut Member| window(member, &page, later + 100_000_000, &gone);
        next(&mut member);
        next(&mut other);
        assert_eq!(next(&mut member) + next(&mut other), 1);
        assert!(member.slot().is_some() && other.slot().is_some());
    });
}

#[test]
fn a_process_that_leaves_beside_one_that_looks_leaves_nothing_behind() {
    explore(1, || {
        let page = page();
        let mut first = process(2);
        assert_eq!(window(&mut first, &page, NOW_NS, &|_| false), 1);
        let theirs = page.clone();
        let leaving = thread::spawn(move || first.leave(Table::new(&theirs).unwrap()));
        let later = NOW_NS + 200_000_000;
        let mut member = process(3);
        window(&mut member, &page, later, &|_| false);
        leaving.join().unwrap();
        assert_eq!(window(&mut member, &page, later + 200_000_000, &|_| false), 1);
    });
}
