// SPDX-License-Identifier: MIT OR Apache-2.0
//! How a thread that sleeps is woken by a ring, and what else ends a sleep in it.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::atomic::AtomicU32;

use io_uring::{opcode, types};

use super::{Completed, NO_SLOT, Ring, SpinMethod, WATCHED, WORD};
use crate::eventfd::Event;
use crate::queue::{Wake, Watch};

impl Ring {
    /// How the kernel wakes a thread that waits for `min_complete` completions of this ring. Unsent
    /// requests go out with the same call, once. Where the kernel does not take them then, the
    /// thread must not wait ([`Wake::Never`]).
    pub fn arm(&mut self, min_complete: u32) -> Wake<'static> {
        // A forked child does not have the ring's memory.
        if !self.usable() || self.completed == Completed::ByPolling {
            return Wake::Never;
        }
        self.forget_sent();
        if !self.unsent.is_empty() && self.armed_after == Some(self.sent) {
            self.flush();
            if !self.unsent.is_empty() {
                return Wake::Never;
            }
        }
        self.armed_after = Some(self.sent);
        self.armed = true;
        let unsent = self.unsent.len() as u32;
        Wake::Ring { fd: self.uring.as_raw_fd(), unsent, min_complete: min_complete.max(1) }
    }

    /// The sleep that [`Ring::arm`] was for is over.
    pub fn disarm(&mut self) {
        self.slept |= std::mem::take(&mut self.armed);
    }

    /// As [`Ring::arm`], for a thread that sleeps elsewhere and watches a descriptor meanwhile.
    /// Unsent requests go out before. To be followed by a look.
    ///
    /// Where completions are brought out by a call alone (`DEFER_TASKRUN`), Linux from 6.3 on wakes
    /// nobody who polls the ring's own descriptor, but still counts in an eventfd.
    pub fn arm_beside(&mut self) -> Wake<'static> {
        if !self.usable() {
            return Wake::Never;
        }
        self.flush();
        if !self.unsent.is_empty() {
            return Wake::Never;
        }
        match self.completed {
            Completed::ByPolling => Wake::Never,
            Completed::ByInterrupt(SpinMethod::CqPeek) => Wake::Descriptor(self.uring.as_raw_fd()),
            Completed::ByInterrupt(SpinMethod::GetEvents | SpinMethod::TaskrunFlag) => {
                self.news().map_or(Wake::Never, Wake::Descriptor)
            }
        }
    }

    /// An eventfd that the kernel counts completions in, with nothing in it.
    fn news(&mut self) -> Option<RawFd> {
        match &self.news {
            Some(news) => news.drain(),
            None => {
                let news = Event::new().ok()?;
                self.uring.submitter().register_eventfd(news.as_fd().as_raw_fd()).ok()?;
                self.news = Some(news);
            }
        }
        self.news.as_ref().map(|news| news.as_fd().as_raw_fd())
    }

    /// See [`Queue::watch`](crate::queue::Queue::watch).
    pub fn watch(&mut self, descriptor: BorrowedFd<'_>) -> Watch {
        if self.completed == Completed::ByPolling || !self.usable() {
            return Watch::Cannot;
        }
        if std::mem::take(&mut self.fired) {
            return Watch::Fired;
        }
        if !self.watching {
            let entry =
                opcode::PollAdd::new(types::Fd(descriptor.as_raw_fd()), libc::POLLIN as u32)
                    .build();
            self.watching = self.push(&entry.user_data(WATCHED), NO_SLOT);
        }
        if self.watching { Watch::Waiting } else { Watch::Cannot }
    }

    /// Has the wake-up of this word's futex end a sleep in the ring too, if the word is `seen` when
    /// the entry goes out. A word that is watched already still is. Whether the ring can.
    pub(crate) fn watch_word(&mut self, word: &AtomicU32, seen: u32) -> bool {
        let address = word.as_ptr() as usize;
        if self.wordless || self.words.contains(&address) {
            return !self.wordless;
        }
        const SIZE_U32: u32 = 2;
        let mask = u64::from(u32::MAX);
        let entry = opcode::FutexWait::new(word.as_ptr(), u64::from(seen), mask, SIZE_U32).build();
        let pushed = self.push(&entry.user_data(address as u64 | WORD), NO_SLOT);
        if pushed {
            self.words.push(address);
        }
        pushed
    }

    /// Whether a word is watched.
    pub(crate) fn watches_words(&self) -> bool {
        !self.words.is_empty()
    }
}
