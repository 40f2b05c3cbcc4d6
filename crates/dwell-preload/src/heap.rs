// SPDX-License-Identifier: MIT OR Apache-2.0
//! The allocator of this library. The program's may call functions of this library, and may have
//! been interrupted by a signal handler that does.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};

use dlmalloc::Dlmalloc;

use crate::raw::bare;
use crate::{futex, process};

/// Memory for all threads of this process.
pub struct Heap {
    held: AtomicU32,
    memory: UnsafeCell<Dlmalloc>,
}

// SAFETY: `memory` is used by whoever holds the lock alone.
unsafe impl Sync for Heap {}

const FREE: u32 = 0;
const HELD: u32 = 1;
const AWAITED: u32 = 2;

impl Heap {
    /// An empty one.
    pub const fn new() -> Heap {
        Heap { held: AtomicU32::new(FREE), memory: UnsafeCell::new(Dlmalloc::new()) }
    }

    /// Keeps all other threads out: a child that is forked meanwhile finds nothing half done.
    pub fn hold(&self) {
        let (known, taken) = (Ordering::Relaxed, Ordering::Acquire);
        if self.held.compare_exchange(FREE, HELD, taken, known).is_err() {
            while self.held.swap(AWAITED, Ordering::Acquire) != FREE {
                futex::wait(self.held.as_ptr(), AWAITED);
            }
        }
    }

    /// Lets them in again; so does the child.
    pub fn let_go(&self) {
        if self.held.swap(FREE, Ordering::Release) == AWAITED {
            futex::wake_all(self.held.as_ptr());
        }
    }

    fn with<R>(&self, act: impl FnOnce(&mut Dlmalloc) -> R) -> R {
        self.hold();
        // SAFETY: the lock is held, and nothing in the allocator comes back here.
        let result = act(unsafe { &mut *self.memory.get() });
        self.let_go();
        result
    }
}

/// Memory in a process that was forked behind this library's back, in the middle of another
/// thread's allocation perhaps: fresh from the kernel, and never given back.
fn apart(layout: Layout) -> *mut u8 {
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    let (bytes, nowhere) = (layout.size().max(1), ptr::null_mut::<u8>());
    let start: isize = bare!(SYS_mmap, nowhere, bytes, access, kind, -1, 0);
    // Pages are aligned for all that this library has.
    if start == -1 { nowhere } else { start as *mut u8 }
}

// SAFETY: memory of the inner allocator, which one thread at a time uses, or whole pages; each is
// as long and as aligned as was asked.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if process::is_foreign() {
            return apart(layout);
        }
        // SAFETY: the caller's layout.
        self.with(|memory| unsafe { memory.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if process::is_foreign() {
            return apart(layout);
        }
        // SAFETY: the caller's layout.
        self.with(|memory| unsafe { memory.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, start: *mut u8, layout: Layout) {
        if !process::is_foreign() {
            // SAFETY: the caller's promise: it came from here.
            self.with(|memory| unsafe { memory.free(start, layout.size(), layout.align()) });
        }
    }

    unsafe fn realloc(&self, start: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        if process::is_foreign() {
            let Ok(larger) = Layout::from_size_align(bytes, layout.align()) else {
                return ptr::null_mut();
            };
            let fresh = apart(larger);
            if !fresh.is_null() {
                // SAFETY: both are so long, and one is fresh.
                unsafe { ptr::copy_nonoverlapping(start, fresh, bytes.min(layout.size())) };
            }
            return fresh;
        }
        // SAFETY: the caller's promise.
        self.with(|memory| unsafe { memory.realloc(start, layout.size(), layout.align(), bytes) })
    }
}
