// SPDX-License-Identifier: MIT OR Apache-2.0
//! Which region an address belongs to: a table that a signal handler reads without a lock.
//!
//! A reader counts itself into a slot before it looks at the region there, and looks at the range
//! again after that. The thread that takes a region out clears the range first and then waits until
//! the slot's count is zero, so a region outlives all its readers. Nobody else looks at a region in
//! the table.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};

use dwell::clock;
use dwell_policy::{Decision, Driver, Mode, Ns, Reason, Route, WaitMachine, Woken, drive};

use crate::memory::{Area, PAGE_BYTES};

/// Regions with faults inline, at once.
const REGIONS: usize = 64;
/// What a reader takes, in nanoseconds, where the device does not keep it longer.
const READER_NS: Ns = 5_000;

/// A region and its addresses; all zeros where there is none.
#[repr(C)]
struct Slot<T> {
    region: AtomicPtr<T>,
    start: AtomicUsize,
    end: AtomicUsize,
    /// Threads that are at the region. Never set back: a late reader counts itself out after the
    /// slot has gone to another region.
    inside: AtomicU32,
}

/// The regions of a process. A forked child finds it empty.
#[repr(C)]
pub(crate) struct Regions<T> {
    slots: [Slot<T>; REGIONS],
}

impl<T> Regions<T> {
    /// An empty table, which stays for as long as the process lives.
    pub fn new() -> io::Result<&'static Regions<T>> {
        const { assert!(size_of::<Regions<T>>() <= PAGE_BYTES) };
        let area = Area::new(1)?;
        area.advise_range(0, 1, libc::MADV_DOFORK)?;
        area.advise_range(0, 1, libc::MADV_WIPEONFORK)?;
        let start = area.start() as *const Regions<T>;
        std::mem::forget(area);
        // SAFETY: a page that stays mapped, of zeros, which are valid in all fields; all are
        // atomic.
        Ok(unsafe { &*start })
    }

    /// Adds a region; its place, or `None` where there are too many. The region stays where it is
    /// until [`Regions::leave`] has come back.
    pub fn enter(&self, region: *const T, addresses: Range<usize>) -> Option<usize> {
        let at = self.slots.iter().position(|slot| {
            slot.region
                .compare_exchange(
                    ptr::null_mut(),
                    region.cast_mut(),
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok()
        })?;
        self.slots[at].end.store(addresses.end, Ordering::SeqCst);
        self.slots[at].start.store(addresses.start, Ordering::SeqCst);
        Some(at)
    }

    /// Takes a region out, and waits until no thread is at it; `wake` wakes those that sleep there.
    pub fn leave(&self, at: usize, wake: impl Fn(&T)) {
        let slot = &self.slots[at];
        slot.start.store(0, Ordering::SeqCst);
        slot.end.store(0, Ordering::SeqCst);
        let decision = Decision::new(Route::Interrupt, Mode::Spin, READER_NS, Reason::Pays);
        let now = clock::now();
        drive(WaitMachine::new(&decision, now, now), &mut Leaving { slot, wake });
        slot.region.store(ptr::null_mut(), Ordering::Release);
    }

    /// Does something with the region of an address, which stays until that is done.
    pub fn with<R>(&self, address: usize, act: impl FnOnce(&T) -> R) -> Option<R> {
        for slot in self.slots.iter().filter(|slot| slot.holds(address)) {
            slot.inside.fetch_add(1, Ordering::SeqCst);
            // The first look may have met the start of one region and the end of the next.
            if slot.holds(address) {
                // SAFETY: the thread that takes the region out clears the range first, and waits
                // for `inside` then.
                let region = unsafe { slot.region.load(Ordering::Acquire).as_ref() };
                let done = region.map(act);
                slot.inside.fetch_sub(1, Ordering::SeqCst);
                return done;
            }
            slot.inside.fetch_sub(1, Ordering::SeqCst);
        }
        None
    }
}

impl<T> Slot<T> {
    fn holds(&self, address: usize) -> bool {
        let start = self.start.load(Ordering::SeqCst);
        start != 0 && address >= start && address < self.end.load(Ordering::SeqCst)
    }
}

/// The wait for the readers of a region. They do not tell when they are done: it is looked for.
struct Leaving<'a, T, F> {
    slot: &'a Slot<T>,
    wake: F,
}

impl<T, F: Fn(&T)> Driver for Leaving<'_, T, F> {
    fn now(&mut self) -> Ns {
        clock::now()
    }

    fn poll(&mut self) -> bool {
        if self.slot.inside.load(Ordering::SeqCst) == 0 {
            return true;
        }
        // SAFETY: the region stands there until this wait is over.
        if let Some(region) = unsafe { self.slot.region.load(Ordering::Acquire).as_ref() } {
            (self.wake)(region);
        }
        false
    }

    fn sleep(&mut self, until: Ns) {
        clock::sleep_until(until);
    }

    fn park(&mut self, _: Option<Ns>) -> Woken {
        Woken::Unwakeable
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    /// Something that says when it is looked at after its end.
    struct Mortal {
        alive: AtomicBool,
    }

    #[test]
    fn a_region_outlives_the_threads_that_look_at_it_while_regions_come_and_go() {
        let known: &'static Regions<Mortal> = Regions::new().unwrap();
        let over = AtomicBool::new(false);
        // Addresses are used again at once, as those of mappings are.
        let addresses = |id: usize| (id + 1) << 12..(id + 2) << 12;
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut at = 0;
                    while !over.load(Ordering::Relaxed) {
                        at = (at + 1) % 15;
                        let alive = |region: &Mortal| region.alive.load(Ordering::SeqCst);
                        assert_ne!(known.with(addresses(at).start + 5, alive), Some(false));
                    }
                });
            }
            let owners: Vec<_> = (0..3)
                .map(|id| {
                    scope.spawn(move || {
                        for round in 0..20_000 {
                            let region = Box::new(Mortal { alive: AtomicBool::new(true) });
                            let addresses = addresses(id + 3 * (round * 7 % 5));
                            let at = known.enter(&*region, addresses.clone()).unwrap();
                            // Others come and go beside it: it is found all the same.
                            assert_eq!(known.with(addresses.start + 5, |_| ()), Some(()));
                            known.leave(at, |_| {});
                            region.alive.store(false, Ordering::SeqCst);
                        }
                    })
                })
                .collect();
            owners.into_iter().for_each(|owner| owner.join().unwrap());
            over.store(true, Ordering::Relaxed);
        });
        // Nobody was counted out twice, or never.
        assert!(known.slots.iter().all(|slot| slot.inside.load(Ordering::SeqCst) == 0));
    }

    #[test]
    fn a_late_reader_of_a_slot_that_has_gone_to_another_region_counts_itself_out_of_it() {
        let known: &'static Regions<Mortal> = Regions::new().unwrap();
        let region = Mortal { alive: AtomicBool::new(true) };
        let at = known.enter(&region, 4096..8192).unwrap();
        // A reader found the range, and was interrupted before it could look at it again.
        known.slots[at].inside.fetch_add(1, Ordering::SeqCst);
        known.slots[at].start.store(0, Ordering::SeqCst);
        known.slots[at].region.store(ptr::null_mut(), Ordering::Release);
        assert_eq!(known.enter(&region, 8192..12288), Some(at));
        known.slots[at].inside.fetch_sub(1, Ordering::SeqCst);
        assert_eq!(known.with(9000, |_| ()), Some(()));
        known.leave(at, |_| {});
    }
}
