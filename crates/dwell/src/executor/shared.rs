// SPDX-License-Identifier: MIT OR Apache-2.0
//! The part of an executor that other threads reach: tasks that are ready, and the alarm.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Wake;

use async_task::Runnable;

use super::doorbell::Doorbell;
use super::platform::Alarm;

/// As a waker, it wakes the future of `block_on`.
pub(super) struct Shared {
    ready: Mutex<VecDeque<Runnable>>,
    /// Something is ready.
    bell: Doorbell,
    /// The future of `block_on` was woken.
    main: AtomicBool,
    alarm: Alarm,
}

impl Shared {
    pub fn new(alarm: Alarm) -> Self {
        let (ready, bell) = (Mutex::default(), Doorbell::default());
        Shared { ready, bell, main: AtomicBool::new(false), alarm }
    }

    fn ready(&self) -> MutexGuard<'_, VecDeque<Runnable>> {
        self.ready.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn schedule(&self, task: Runnable) {
        self.ready().push_back(task);
        self.tell();
    }

    fn tell(&self) {
        self.bell.tell(|| (self.alarm)());
    }

    #[inline]
    pub fn has_news(&self) -> bool {
        self.bell.has_news()
    }

    /// Moves what is ready behind `batch`; whether the future of `block_on` was woken too.
    pub fn take(&self, batch: &mut VecDeque<Runnable>) -> bool {
        self.bell.answer();
        batch.append(&mut self.ready());
        self.main.swap(false, Ordering::AcqRel)
    }

    /// Has others ring from here on; `false`, and they need not, when there is news already.
    pub fn fall_asleep(&self) -> bool {
        self.bell.fall_asleep()
    }

    pub fn wake_up(&self) {
        self.bell.wake_up();
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
