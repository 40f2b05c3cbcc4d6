// SPDX-License-Identifier: MIT OR Apache-2.0
//! What each of a region's threads has, its thread queue, found by the id of the calling thread
//! without a lock.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Threads that may be registered with one region at once.
pub(crate) const THREADS: usize = 256;
/// The owner of what a thread without a thread queue does: it never leaves a request behind.
pub(crate) const GUEST: u16 = THREADS as u16;

/// The owner of what the handler thread does.
pub(crate) const HANDLER: u16 = GUEST + 1;

/// A place that was used before: looking for a thread goes on behind it.
const LEFT: u32 = u32::MAX;

struct Place<Q> {
    /// The thread's id, 0 where the place was never used.
    thread: AtomicU32,
    /// Whether the thread is in a handler, and will see to its requests before it leaves.
    inside: AtomicBool,
    thread_queue: UnsafeCell<Option<Box<Q>>>,
}

/// The table.
pub(crate) struct ThreadQueues<Q> {
    places: Box<[Place<Q>]>,
}

// SAFETY: the thread queue in a place is touched by the thread alone whose id stands there, and by
// the one that takes or leaves the place, which is the same.
unsafe impl<Q: Send> Sync for ThreadQueues<Q> {}

impl<Q> ThreadQueues<Q> {
    pub fn new() -> Self {
        let place = || Place {
            thread: AtomicU32::new(0),
            inside: AtomicBool::new(false),
            thread_queue: UnsafeCell::new(None),
        };
        ThreadQueues { places: (0..THREADS).map(|_| place()).collect() }
    }

    fn order(thread: u32) -> impl Iterator<Item = usize> {
        (0..THREADS).map(move |step| (thread as usize + step) % THREADS)
    }

    /// The place of the calling thread.
    pub fn find(&self, thread: u32) -> Option<u16> {
        for at in Self::order(thread) {
            match self.places[at].thread.load(Ordering::Acquire) {
                0 => return None,
                id if id == thread => return Some(at as u16),
                _ => {}
            }
        }
        None
    }

    /// Gives the calling thread a place for the thread queue that `make` makes for it.
    pub fn enter<E>(
        &self,
        thread: u32,
        make: impl FnOnce(u16) -> Result<Q, E>,
    ) -> Result<Option<u16>, E> {
        let at = Self::order(thread).find(|at| {
            let word = &self.places[*at].thread;
            // Taken under a number that no thread has, until the thread queue is there.
            [0, LEFT].iter().any(|free| {
                word.compare_exchange(*free, TAKEN, Ordering::AcqRel, Ordering::Relaxed).is_ok()
            })
        });
        let Some(at) = at else { return Ok(None) };
        match make(at as u16) {
            Ok(thread_queue) => {
                // SAFETY: the place was just taken, and no thread has its number.
                unsafe { *self.places[at].thread_queue.get() = Some(Box::new(thread_queue)) };
                self.places[at].inside.store(false, Ordering::Relaxed);
                self.places[at].thread.store(thread, Ordering::Release);
                Ok(Some(at as u16))
            }
            Err(error) => {
                self.places[at].thread.store(LEFT, Ordering::Release);
                Err(error)
            }
        }
    }

    /// Takes the thread queue of the calling thread out.
    pub fn leave(&self, at: u16) -> Option<Box<Q>> {
        let place = &self.places[at as usize];
        place.thread.store(TAKEN, Ordering::Release);
        // SAFETY: the calling thread's own place, under a number that no thread has.
        let thread_queue = unsafe { (*place.thread_queue.get()).take() };
        place.thread.store(LEFT, Ordering::Release);
        thread_queue
    }

    /// The thread queue of the calling thread.
    ///
    /// # Safety
    /// The place is the calling thread's, and neither it nor a signal handler on it uses the thread
    /// queue meanwhile.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn get(&self, at: u16) -> Option<&mut Q> {
        // SAFETY: as the caller promises.
        unsafe { (*self.places[at as usize].thread_queue.get()).as_deref_mut() }
    }

    /// Whether requests of this owner are seen to without anybody's doing.
    pub fn is_inside(&self, owner: u16) -> bool {
        self.places.get(owner as usize).is_none_or(|place| place.inside.load(Ordering::Acquire))
    }

    pub fn set_inside(&self, owner: u16, inside: bool) {
        if let Some(place) = self.places.get(owner as usize) {
            place.inside.store(inside, Ordering::Release);
        }
    }
}

const TAKEN: u32 = u32::MAX - 1;
