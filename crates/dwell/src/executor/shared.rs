// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of an executor that other threads reach: tasks that are ready, and the alarm.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use async_task::Runnable;

use super::world::Alarm;

/// As a waker, it wakes the future of `block_on`.
pub(super) struct Shared {
    ready: Mutex<VecDeque<Runnable>>,
    /// Something is ready: looked at by a thread that spins, without the lock.
    news: AtomicBool,
    /// The future of `block_on` was woken.
    main: AtomicBool,
    /// The thread sleeps, or is about to: whoever brings news rings.
    asleep: AtomicBool,
    alarm: Alarm,
}

impl Shared {
    pub fn new(alarm: Alarm) -> Self {
        let (ready, no) = (Mutex::default(), || AtomicBool::new(false));
        Shared { ready, news: no(), main: no(), asleep: no(), alarm }
    }

    fn ready(&self) -> MutexGuard<'_, VecDeque<Runnable>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn schedule(&self, task: Runnable) {
        self.ready().push_back(task);
        self.tell();
    }

    fn tell(&self) {
        self.news.store(true, Ordering::Release);
        // Both sides exchange this word, so one of them sees what the other did before.
        if self.asleep.swap(false, Ordering::AcqRel) {
            (self.alarm)();
        }
    }

    #[inline]
    pub fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire)
    }

    /// Moves what is ready behind `batch`; whether the future of `block_on` was woken too.
    pub fn take(&self, batch: &mut VecDeque<Runnable>) -> bool {
        // What was told of before is seen below; what comes later is told of again.
        self.news.swap(false, Ordering::AcqRel);
        batch.append(&mut self.ready());
        self.main.swap(false, Ordering::AcqRel)
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

    pub fn wake_up(&self) {
        self.asleep.store(false, Ordering::Relaxed);
    }
}

impl Wake for Shared {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.main.store(true, Ordering::Release);
        self.tell();
    }
}
