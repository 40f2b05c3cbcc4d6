// SPDX-License-Identifier: MIT OR Apache-2.0
//! What an executor needs of the platform: a clock, and a way to block.

use std::io;
use std::os::fd::BorrowedFd;

use dwell_policy::Ns;

use crate::queue::Wake;

/// What has become of a watched descriptor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ready {
    /// It can be read, or an error or the end be read from it.
    pub readable: bool,
    /// It can be written, or an error be had by trying.
    pub writable: bool,
    /// The other side sends nothing more.
    pub ended: bool,
}

/// Wakes a thread that is in [`Platform::wait`], from any other thread.
pub type Alarm = Box<dyn Fn() + Send + Sync>;

/// The clock and the bed of an executor. [`Parker`](crate::park::Parker) is the real one; another
/// may keep a virtual clock, and then the same executor runs in virtual time.
pub trait Platform {
    /// The time, in nanoseconds.
    fn now(&mut self) -> Ns;

    /// One turn of a spin loop passes.
    fn relax(&mut self) {}

    /// What other threads wake this one by.
    fn alarm(&self) -> Alarm;

    /// A descriptor that is readable once the alarm or a watched descriptor is to end a wait:
    /// queues whose ring a thread sleeps in watch it.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// Forgets what was armed and never waited for: it may since be over, and nothing would end the
    /// wait.
    fn disarm(&mut self) {}

    /// Adds something that ends the next wait, a ring, a descriptor, a connection or a word;
    /// whether it can. Moments are told to [`Platform::wait`].
    fn arm(&mut self, wake: &Wake<'_>) -> bool;

    /// What was armed lately may be gone, a word's memory included.
    fn forget(&mut self) {}

    /// Blocks until something armed, the alarm, a watched descriptor or `until`; it may
    /// come back early. Whether [`Platform::look`] has to be asked.
    fn wait(&mut self, until: Option<Ns>) -> bool;

    /// Hands out the keys of watched descriptors that have become ready since.
    fn look(&mut self, ready: &mut dyn FnMut(usize, Ready));

    /// Watches a descriptor from here on. It is handed out whenever something has changed.
    ///
    /// # Errors
    /// What the system refuses.
    fn watch(&mut self, descriptor: BorrowedFd<'_>, key: usize) -> io::Result<()>;

    /// Watches it no more.
    fn unwatch(&mut self, descriptor: BorrowedFd<'_>);
}
