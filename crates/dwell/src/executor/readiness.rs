// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether a watched descriptor can be read or written, and the tasks that wait for it.

use std::task::Waker;

use super::platform::Ready;

/// The state of one watched descriptor. The kernel tells of each change once, so a bit stays set
/// until an attempt says that it would block.
#[derive(Default)]
pub(super) struct Readiness {
    pub readable: bool,
    writable: bool,
    pub ended: bool,
    /// Bytes that have to be there for it to count as readable; none where it counts no bytes.
    pub low_water: Option<u32>,
    readers: Vec<Waker>,
    writers: Vec<Waker>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

impl Readiness {
    pub fn new(low_water: Option<u32>) -> Self {
        Readiness { low_water, ..Readiness::default() }
    }

    pub fn is_ready(&mut self, direction: Direction) -> &mut bool {
        match direction {
            Direction::Read => &mut self.readable,
            Direction::Write => &mut self.writable,
        }
    }

    pub fn wakers(&mut self, direction: Direction) -> &mut Vec<Waker> {
        match direction {
            Direction::Read => &mut self.readers,
            Direction::Write => &mut self.writers,
        }
    }

    /// Takes news in, and wakes whom they concern.
    pub fn tell(&mut self, news: Ready, woken: &mut Vec<Waker>) {
        self.ended |= news.ended;
        if news.readable {
            self.readable = true;
            woken.append(&mut self.readers);
        }
        if news.writable {
            self.writable = true;
            woken.append(&mut self.writers);
        }
    }
}
