// SPDX-License-Identifier: MIT OR Apache-2.0
//! The memory of an actor's requests, guarded on both sides, and access to mapped files.

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence};

use super::fail;

/// Bytes that an actor's requests may use.
pub const ARENA_BYTES: usize = 1 << 20;
const PAGE: usize = 4096;
const CANARY: u8 = 0xa5;
const CANARY_BYTES: usize = 512;

/// Memory between two pages that nobody may touch.
pub struct Arena {
    start: *mut u8,
}

// SAFETY: the memory belongs to whoever owns the arena.
unsafe impl Send for Arena {}

impl Arena {
    pub fn new() -> Self {
        // SAFETY: new mappings, and a change to a part of ours.
        unsafe {
            let all = libc::mmap(
                std::ptr::null_mut(),
                ARENA_BYTES + 2 * PAGE,
                libc::PROT_NONE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            );
            if all == libc::MAP_FAILED {
                fail("mmap");
            }
            let start = all.byte_add(PAGE);
            if libc::mprotect(start, ARENA_BYTES, libc::PROT_READ | libc::PROT_WRITE) != 0 {
                fail("mprotect");
            }
            Arena { start: start.cast() }
        }
    }

    /// Memory of so many bytes, `skew` bytes behind the beginning of a page, with canaries behind
    /// it.
    pub fn piece(&mut self, at: usize, bytes: usize, skew: usize) -> &mut [u8] {
        let from = at.next_multiple_of(PAGE) + skew;
        assert!(from + bytes + CANARY_BYTES <= ARENA_BYTES);
        // SAFETY: within the arena, which `self` owns.
        let (piece, canaries) = unsafe {
            let start = self.start.add(from);
            (
                std::slice::from_raw_parts_mut(start, bytes),
                std::slice::from_raw_parts_mut(start.add(bytes), CANARY_BYTES),
            )
        };
        canaries.fill(CANARY);
        piece
    }

    /// Memory whose end is the end of what may be touched.
    pub fn last(&mut self, bytes: usize) -> &mut [u8] {
        assert!(bytes <= ARENA_BYTES);
        // SAFETY: within the arena, which `self` owns.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(ARENA_BYTES - bytes), bytes) }
    }

    /// Whether somebody wrote behind a piece.
    pub fn is_spilled(piece: *const u8, bytes: usize) -> bool {
        // SAFETY: the canaries behind a piece of `Arena::piece`.
        unsafe { std::slice::from_raw_parts(piece.add(bytes), CANARY_BYTES) }
            .iter()
            .any(|byte| *byte != CANARY)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which nobody has a reference to any more.
        unsafe { libc::munmap(self.start.sub(PAGE).cast(), ARENA_BYTES + 2 * PAGE) };
    }
}

thread_local! {
    static BUS_ERROR: AtomicBool = const { AtomicBool::new(false) };
}

/// Installs a handler that puts empty memory where a file has none, and notes that.
pub fn catch_bus_errors() {
    extern "C" fn handler(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the kernel passes the information; the page is one of a mapped file that just
        // failed.
        unsafe {
            let page = (*info).si_addr() as usize & !(PAGE - 1);
            libc::mmap(
                page as *mut libc::c_void,
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
                -1,
                0,
            );
        }
        BUS_ERROR.with(|hit| hit.store(true, Ordering::Relaxed));
    }
    let handler: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) = handler;
    // SAFETY: a whole structure, and a handler that makes one system call.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = libc::SA_SIGINFO;
        libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut());
    }
}

/// Copies memory of which a part may not be there; whether all of it was.
pub fn copied(from: *const u8, to: *mut u8, bytes: usize) -> bool {
    BUS_ERROR.with(|hit| hit.store(false, Ordering::Relaxed));
    // The handler runs in this thread: without the fences the compiler may not see that it stores.
    compiler_fence(Ordering::SeqCst);
    for place in 0..bytes {
        // SAFETY: both are mapped; where the file has no page the handler puts one.
        unsafe { to.add(place).write_volatile(from.add(place).read_volatile()) };
    }
    compiler_fence(Ordering::SeqCst);
    !BUS_ERROR.with(|hit| hit.load(Ordering::Relaxed))
}
