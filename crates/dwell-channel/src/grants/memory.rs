// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the kernel remembers of a file that channels may change: its attributes.

use std::fmt;
use std::sync::atomic::{AtomicU8, Ordering, fence};
use std::sync::{Mutex, OnceLock, PoisonError};

/// The kernel remembers nothing.
const NOTHING: u8 = 0;
/// It may remember something.
const SOMETHING: u8 = 1;
/// A thread is making it forget.
const CLEARING: u8 = 2;

/// The kernel's memory of one file.
#[derive(Default)]
pub(super) struct Memory {
    holds: AtomicU8,
    /// Held while the kernel is made to forget.
    clearing: Mutex<()>,
    /// Has it forget.
    clear: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Memory").field("holds", &self.holds).finish_non_exhaustive()
    }
}

impl Memory {
    /// Says how the kernel is made to forget.
    pub fn cleared_by(&self, clear: impl Fn() + Send + Sync + 'static) {
        let _ = self.clear.set(Box::new(clear));
    }

    /// The kernel is about to be told of attributes that are looked at after this; whether it may
    /// remember them.
    pub fn may_hold(&self) -> bool {
        if self.clear.get().is_none() {
            return false;
        }
        self.holds.store(SOMETHING, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        true
    }

    /// What it may remember is no longer so. When this returns, it remembers nothing that it was
    /// told before.
    pub fn clear(&self) {
        fence(Ordering::SeqCst);
        if self.holds.load(Ordering::Relaxed) == NOTHING {
            return;
        }
        let Some(clear) = self.clear.get() else { return };
        // Another thread may be at it, and is not through.
        let _one = self.clearing.lock().unwrap_or_else(PoisonError::into_inner);
        let becomes = |from, to| {
            self.holds.compare_exchange(from, to, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        };
        if becomes(SOMETHING, CLEARING) {
            clear();
            // Unless it was told something since.
            becomes(CLEARING, NOTHING);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::AtomicU32;
    use std::sync::mpsc::channel;
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_change_is_not_over_before_another_thread_has_cleared_what_both_changed() {
        let memory = Arc::new(Memory::default());
        let cleared = Arc::new(AtomicU32::new(0));
        let (began, begins) = channel();
        let (go, goes) = channel::<()>();
        let goes = Mutex::new(goes);
        memory.cleared_by({
            let cleared = cleared.clone();
            move || {
                began.send(()).unwrap();
                goes.lock().unwrap().recv().unwrap();
                cleared.fetch_add(1, Ordering::SeqCst);
            }
        });
        assert!(memory.may_hold());
        let clears = || {
            let (memory, cleared) = (memory.clone(), cleared.clone());
            thread::spawn(move || {
                memory.clear();
                cleared.load(Ordering::SeqCst)
            })
        };
        let first = clears();
        begins.recv().unwrap();
        let second = clears();
        thread::sleep(Duration::from_millis(20));
        assert!(!second.is_finished());
        go.send(()).unwrap();
        assert_eq!([first.join().unwrap(), second.join().unwrap()], [1, 1]);
    }

    #[test]
    fn memory_that_the_kernel_learns_of_while_it_forgets_is_cleared_by_the_next_change() {
        let memory = Arc::new(Memory::default());
        let cleared = Arc::new(AtomicU32::new(0));
        memory.cleared_by({
            let (told, cleared) = (Arc::downgrade(&memory), cleared.clone());
            move || {
                if cleared.fetch_add(1, Ordering::SeqCst) == 0 {
                    told.upgrade().unwrap().may_hold();
                }
            }
        });
        memory.clear();
        assert_eq!(cleared.load(Ordering::SeqCst), 0, "it was told nothing yet");
        memory.may_hold();
        (0..3).for_each(|_| memory.clear());
        assert_eq!(cleared.load(Ordering::SeqCst), 2);
    }
}
