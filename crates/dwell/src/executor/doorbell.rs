// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a thread that is about to sleep and others that bring news do not miss each other.

use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that threads share: the standard library's, or that of a model checker.
pub(super) trait Flag: Default {
    fn load(&self, order: Ordering) -> bool;
    fn store(&self, value: bool, order: Ordering);
    fn swap(&self, value: bool, order: Ordering) -> bool;
}

impl Flag for AtomicBool {
    #[inline]
    fn load(&self, order: Ordering) -> bool {
        self.load(order)
    }
    #[inline]
    fn store(&self, value: bool, order: Ordering) {
        self.store(value, order);
    }
    #[inline]
    fn swap(&self, value: bool, order: Ordering) -> bool {
        self.swap(value, order)
    }
}

#[derive(Default)]
pub(super) struct Doorbell<F = AtomicBool> {
    /// There is news: looked at by a thread that spins.
    news: F,
    /// The thread sleeps, or is about to: whoever brings news rings.
    asleep: F,
}

impl<F: Flag> Doorbell<F> {
    /// Tells of news, and rings where the thread may not see it by itself.
    pub fn tell(&self, ring: impl FnOnce()) {
        self.news.store(true, Ordering::Release);
        // Both sides exchange this word, so one of them sees what the other did before.
        if self.asleep.swap(false, Ordering::AcqRel) {
            ring();
        }
    }

    #[inline]
    pub fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire)
    }

    /// To be followed by a look at what there is. What was told of before is seen by that look;
    /// what comes later is told of again.
    pub fn answer(&self) {
        self.news.swap(false, Ordering::AcqRel);
    }

    /// Has others ring from here on; `false`, and they need not, when there is news already.
    pub fn fall_asleep(&self) -> bool {
        self.asleep.swap(true, Ordering::AcqRel);
        let quiet = !self.has_news();
        if !quiet {
            self.wake_up();
        }
        quiet
    }

    /// Nobody has to ring any more. A store would hide from the next exchange what was told before
    /// it.
    pub fn wake_up(&self) {
        self.asleep.swap(false, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use loom::sync::atomic::{AtomicBool, AtomicU32};
    use loom::sync::{Arc, Notify};
    use loom::thread;

    use super::*;

    #[derive(Default)]
    struct Checked(AtomicBool);

    impl Flag for Checked {
        fn load(&self, order: Ordering) -> bool {
            self.0.load(order)
        }
        // Loom lets a store come before an exchange that did not read it, which no machine does.
        fn store(&self, value: bool, order: Ordering) {
            self.0.swap(value, order);
        }
        fn swap(&self, value: bool, order: Ordering) -> bool {
            self.0.swap(value, order)
        }
    }

    struct House {
        bell: Doorbell<Checked>,
        /// How many items the bringers left and no look has taken yet.
        brought: AtomicU32,
        /// The alarm that a ring sounds; it wakes a thread that sleeps only afterwards too, as an
        /// eventfd does.
        alarm: Notify,
    }

    /// So many threads bring something, some of them twice; the model ends with a deadlock where
    /// one is slept through.
    fn nobody_is_slept_through(bringers: &'static [u32]) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(move || {
            let house = Arc::new(House {
                bell: Doorbell::default(),
                brought: AtomicU32::new(0),
                alarm: Notify::new(),
            });
            for times in bringers {
                let house = house.clone();
                thread::spawn(move || {
                    for _ in 0..*times {
                        house.brought.fetch_add(1, Ordering::Relaxed);
                        house.bell.tell(|| house.alarm.notify());
                    }
                });
            }
            let mut missing: u32 = bringers.iter().sum();
            loop {
                house.bell.answer();
                missing -= house.brought.swap(0, Ordering::Relaxed);
                if missing == 0 {
                    break;
                }
                if house.bell.fall_asleep() {
                    house.alarm.wait();
                    house.bell.wake_up();
                }
            }
        });
    }

    #[test]
    fn a_thread_that_falls_asleep_sleeps_through_nobodys_news() {
        for bringers in [&[1][..], &[2], &[1, 1]] {
            nobody_is_slept_through(bringers);
        }
    }
}
