// SPDX-License-Identifier: MIT OR Apache-2.0
//! What this process is: what it was told, and whether it still is the one that was told it.
#![allow(unsafe_code)]

use std::io;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};

use dwell_host::settings::RunOrder;

/// What this process is told, once it is known.
static ORDER: AtomicPtr<RunOrder> = AtomicPtr::new(ptr::null_mut());
/// Whether anything is decided here.
static ON: AtomicBool = AtomicBool::new(false);
static RETIRED: AtomicBool = AtomicBool::new(false);
/// A word that reads zero in a process that was forked behind this library's back.
static MARK: AtomicPtr<AtomicU64> = AtomicPtr::new(ptr::null_mut());

/// What this process was told.
pub fn order() -> Option<&'static RunOrder> {
    // SAFETY: set once, to what is never freed.
    unsafe { ORDER.load(Ordering::Acquire).as_ref() }
}

/// Tells this process.
pub fn set_order(order: RunOrder) {
    ORDER.store(Box::into_raw(Box::new(order)), Ordering::Release);
}

/// Whether it is only recorded what would be decided.
pub fn is_shadow() -> bool {
    order().is_some_and(|order| order.shadow)
}

/// Whether anything is decided in this process.
#[inline]
pub fn is_on() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Decides from now on.
pub fn switch_on() {
    ON.store(true, Ordering::Relaxed);
}

/// Leaves everything to the kernel from now on.
pub fn switch_off() {
    ON.store(false, Ordering::Relaxed);
}

/// Whether the engine was ended before the process.
pub fn is_retired() -> bool {
    RETIRED.load(Ordering::Relaxed)
}

/// It is now.
pub fn set_retired() {
    RETIRED.store(true, Ordering::Relaxed);
}

/// Begins to tell this process from those that are forked behind this library's back.
pub fn mark() -> io::Result<()> {
    const BYTES: usize = 4096;
    let (access, kind) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: fresh memory at an address of the kernel's choice, then advice about that memory.
    let word = unsafe {
        let page = libc::mmap(ptr::null_mut(), BYTES, access, kind, -1, 0);
        if page == libc::MAP_FAILED || libc::madvise(page, BYTES, libc::MADV_WIPEONFORK) != 0 {
            return Err(io::Error::last_os_error());
        }
        page.cast::<AtomicU64>()
    };
    MARK.store(word, Ordering::Relaxed);
    claim();
    Ok(())
}

static PROCESS: AtomicI32 = AtomicI32::new(0);

/// The id of this process.
pub fn id() -> i32 {
    PROCESS.load(Ordering::Relaxed)
}

/// This process is ours from now on.
pub fn claim() {
    PROCESS.store(std::process::id() as i32, Ordering::Relaxed);
    // SAFETY: null, or a page that stays mapped.
    if let Some(word) = unsafe { MARK.load(Ordering::Relaxed).as_ref() } {
        word.store(1, Ordering::Relaxed);
    }
}

fn marked() -> Option<bool> {
    // SAFETY: null, or a page that stays mapped.
    let word = unsafe { MARK.load(Ordering::Relaxed).as_ref() };
    word.map(|word| word.load(Ordering::Relaxed) == 1)
}

/// Whether this is the process that the engine began in, or a child whose fork it saw.
#[inline]
pub fn is_ours() -> bool {
    marked() == Some(true)
}

/// Whether this process was forked behind this library's back: whatever other threads were at, they
/// left it half done.
#[inline]
pub fn is_foreign() -> bool {
    marked() == Some(false)
}
