// SPDX-License-Identifier: MIT OR Apache-2.0
//! The posts of the serving threads: what others leave there for a thread, and what it shows them.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::event::{EventfdFlags, eventfd};

use crate::channel::serving::Serving;

/// One serving thread's post.
pub(crate) struct Post {
    /// Channels that the thread has not taken up yet.
    given: Mutex<Vec<Serving>>,
    news: AtomicBool,
    /// Wakes the thread.
    wake: OwnedFd,
    /// How often the thread has heard that something has changed.
    heard: Mutex<u64>,
    hears: Condvar,
    /// Channels that it serves, resting ones too, and those given to it.
    channels: AtomicU32,
    /// How many thousandths of its time it lately worked; 0 when it goes to sleep.
    busy: AtomicU32,
}

impl Post {
    pub fn new() -> io::Result<Post> {
        Ok(Post {
            given: Mutex::default(),
            news: AtomicBool::new(false),
            wake: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            heard: Mutex::default(),
            hears: Condvar::new(),
            channels: AtomicU32::new(0),
            busy: AtomicU32::new(0),
        })
    }

    /// What ends a sleep of the thread.
    pub fn wake(&self) -> &OwnedFd {
        &self.wake
    }

    fn given(&self) -> MutexGuard<'_, Vec<Serving>> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives the thread channels to serve.
    pub fn give(&self, channels: Vec<Serving>) {
        self.channels.fetch_add(channels.len() as u32, Ordering::Relaxed);
        self.given().extend(channels);
        self.tell();
    }

    /// Tells the thread that something has changed.
    pub fn tell(&self) {
        self.news.store(true, Ordering::Release);
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Whether something has changed.
    pub fn has_news(&self) -> bool {
        self.news.load(Ordering::Acquire)
    }

    /// What was given to the thread, which has heard now of all that changed until now.
    pub fn hear(&self) -> Vec<Serving> {
        self.news.store(false, Ordering::Release);
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        *self.heard.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        self.hears.notify_all();
        std::mem::take(&mut self.given())
    }

    /// Tells the thread, and how often it had heard before.
    pub fn ask(&self) -> u64 {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        self.tell();
        *heard
    }

    /// Whether the thread, once asked, takes notice by that time.
    pub fn has_answered(&self, before: u64, by: Instant) -> bool {
        let heard = self.heard.lock().unwrap_or_else(PoisonError::into_inner);
        let within = by.saturating_duration_since(Instant::now());
        let wait = self.hears.wait_timeout_while(heard, within, |heard| *heard == before);
        let (heard, _) = wait.unwrap_or_else(PoisonError::into_inner);
        *heard != before
    }

    /// The thread has so many channels fewer.
    pub fn lost(&self, channels: usize) {
        self.channels.fetch_sub(channels as u32, Ordering::Relaxed);
    }

    pub fn channels(&self) -> u32 {
        self.channels.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub fn show_channels(&self, channels: u32) {
        self.channels.store(channels, Ordering::Relaxed);
    }

    pub fn busy(&self) -> u32 {
        self.busy.load(Ordering::Relaxed)
    }

    pub fn show_busy(&self, per_mille: u32) {
        self.busy.store(per_mille, Ordering::Relaxed);
    }
}
