// SPDX-License-Identifier: MIT OR Apache-2.0
//! Whether this is the process that made something, or a forked child of it; what each process has
//! of its own.
#![allow(unsafe_code)]

use std::io;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::shared_atomics::SharedAtomics;

/// Tells the process that made a ring, or whatever else both must not use, from its forked
/// children.
#[derive(Debug)]
pub struct ForkMark {
    /// The number of the process that runs; 0 in a child until it makes a mark.
    current: &'static AtomicU64,
    made_by: u64,
}

/// A word that a forked child finds wiped. No lock makes it: a child may be forked meanwhile.
static CURRENT: AtomicPtr<SharedAtomics> = AtomicPtr::new(std::ptr::null_mut());
/// The last number given, here or in a parent: a child has this word as it was.
static LAST: AtomicU64 = AtomicU64::new(0);

impl ForkMark {
    /// A mark of the calling process.
    ///
    /// # Errors
    /// What the system refuses.
    pub fn new() -> io::Result<Self> {
        let current = &page()?[0];
        let made_by = match current.load(Ordering::Relaxed) {
            0 => {
                let number = LAST.fetch_add(1, Ordering::Relaxed) + 1;
                let set = current.compare_exchange(0, number, Ordering::Relaxed, Ordering::Relaxed);
                set.map_or_else(|found| found, |_| number)
            }
            number => number,
        };
        Ok(ForkMark { current, made_by })
    }

    /// Whether the calling process made it: one load.
    #[inline]
    pub fn same_process(&self) -> bool {
        self.current.load(Ordering::Relaxed) == self.made_by
    }
}

/// The page, which is made once and stays.
fn page() -> io::Result<&'static SharedAtomics> {
    let mut page = CURRENT.load(Ordering::Acquire);
    if page.is_null() {
        let made = Box::into_raw(Box::new(SharedAtomics::wiped_on_fork(512)?));
        let (null, release, acquire) = (std::ptr::null_mut(), Ordering::Release, Ordering::Acquire);
        page = match CURRENT.compare_exchange(null, made, release, acquire) {
            Ok(_) => made,
            Err(other) => {
                // SAFETY: it was made above and shown to nobody.
                drop(unsafe { Box::from_raw(made) });
                other
            }
        };
    }
    // SAFETY: not null, and whoever put it there left it there for good.
    Ok(unsafe { &*page })
}

/// A value of the process behind a lock. A forked child gets a lock of its own: another thread of
/// its parent may have held that one, and will never give it back.
pub struct OfProcess<T: 'static>(AtomicPtr<Own<T>>);

struct Own<T> {
    /// `None` where the system gave no memory for it.
    mark: Option<ForkMark>,
    value: Mutex<T>,
}

impl<T: Default> OfProcess<T> {
    /// A value that is made when it is first looked at.
    #[allow(clippy::new_without_default)]
    pub const fn new() -> Self {
        OfProcess(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// The value: a new one at first, and in a child whose parent was changing its own.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let mut own = self.0.load(Ordering::Acquire);
        loop {
            // SAFETY: null, or what stays for good.
            match unsafe { own.as_ref() } {
                Some(own) if own.mark.as_ref().is_none_or(ForkMark::same_process) => {
                    return own.value.lock().unwrap_or_else(PoisonError::into_inner);
                }
                _ => own = self.succeed(own),
            }
        }
    }

    /// Puts a lock of this process in place of its parent's, if no other thread did so.
    fn succeed(&self, before: *mut Own<T>) -> *mut Own<T> {
        // SAFETY: null, or what stays for good.
        let parents = unsafe { before.as_ref() };
        let inherited = parents.and_then(|own| own.value.try_lock().ok());
        let value = inherited.map(|mut value| std::mem::take(&mut *value)).unwrap_or_default();
        let own = Own { mark: ForkMark::new().ok(), value: Mutex::new(value) };
        let made = Box::into_raw(Box::new(own));
        match self.0.compare_exchange(before, made, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => made,
            Err(other) => {
                // SAFETY: it was made above and shown to nobody.
                drop(unsafe { Box::from_raw(made) });
                other
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static VALUE: OfProcess<u32> = OfProcess::new();

    /// What a forked child finds, which ends after some seconds in any case.
    fn found_in_child() -> i32 {
        // SAFETY: the child allocates with an allocator that survives a fork, and exits.
        let child = unsafe { libc::fork() };
        if child == 0 {
            // SAFETY: as above.
            unsafe {
                libc::alarm(5);
                libc::_exit(*VALUE.lock() as i32);
            }
        }
        let mut status = -1;
        // SAFETY: `status` is a valid place to write to.
        assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
        status
    }

    #[test]
    fn a_forked_child_never_waits_for_a_lock_of_its_parent() {
        *VALUE.lock() = 7;
        assert_eq!(libc::WEXITSTATUS(found_in_child()), 7);
        let held = VALUE.lock();
        let found = found_in_child();
        assert!(libc::WIFEXITED(found), "it waited for ever");
        assert_eq!(libc::WEXITSTATUS(found), 0);
        drop(held);
        assert_eq!(*VALUE.lock(), 7);
    }
}
