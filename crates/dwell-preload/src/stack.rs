// SPDX-License-Identifier: MIT OR Apache-2.0
//! Work on a stack of its own, by the thread that wants it done: the program's stack may be small,
//! and a second thread would make its C library lock whatever it had not locked before.
#![allow(unsafe_code)]

use std::ffi::{c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The end of what can be memory of this process; 0 until it is known.
static END: AtomicUsize = AtomicUsize::new(0);

/// Finds it from the first thread's stack, above which the kernel puts nothing else.
pub fn find_end() {
    const PAGE_BYTES: usize = 4096;
    let here = std::hint::black_box(0u8);
    let address = ptr::from_ref(std::hint::black_box(&here)).addr();
    END.store(address.next_power_of_two() - PAGE_BYTES, Ordering::Relaxed);
}

/// Whether so many bytes there can be memory of a program at all. Where they cannot the kernel
/// moves none of them, and a route that moves them piece by piece would move the first.
#[inline]
pub fn can_be(memory: *const c_void, bytes: usize) -> bool {
    memory.addr().checked_add(bytes).is_some_and(|end| end <= END.load(Ordering::Relaxed))
}

/// Enough for reading and making whatever a device or a thread needs.
pub const STACK_BYTES: usize = 512 << 10;

/// The function to call on the other stack, and the place of its result.
struct Job<W, R> {
    work: Option<W>,
    result: Option<R>,
}

/// Memory with a page before it that nobody may touch.
struct Stack {
    start: *mut libc::c_void,
    bytes: usize,
}

const GUARD_BYTES: usize = 64 << 10;

impl Stack {
    fn new(bytes: usize) -> Option<Stack> {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK | libc::MAP_NORESERVE;
        let bytes = bytes + GUARD_BYTES;
        // SAFETY: fresh memory at an address of the kernel's choice, a part of which is then
        // closed.
        unsafe {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let start = libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0);
            if start == libc::MAP_FAILED {
                return None;
            }
            let stack = Stack { start, bytes };
            (libc::mprotect(start, GUARD_BYTES, libc::PROT_NONE) == 0).then_some(stack)
        }
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and nobody runs on it any more.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}

/// Does `work` on a fresh stack of `bytes`. `None` where there is no memory for one, or where
/// `work` panicked.
pub fn on_its_own<R, W: FnOnce() -> R>(bytes: usize, work: W) -> Option<R> {
    let stack = Stack::new(bytes)?;
    let mut job = Job { work: Some(work), result: None };
    let address = ptr::from_mut(&mut job) as u64;
    let (mut back, mut there) = (MaybeUninit::uninit(), MaybeUninit::<libc::ucontext_t>::uninit());
    // SAFETY: `getcontext` fills `there` in, whose stack is then set as makecontext(3) asks; both
    // contexts, the stack and the job stay where they are until the entry has returned, which leads
    // back to `back`.
    unsafe {
        if libc::getcontext(there.as_mut_ptr()) != 0 {
            return None;
        }
        let context = there.assume_init_mut();
        context.uc_stack.ss_sp = stack.start;
        context.uc_stack.ss_size = stack.bytes;
        context.uc_link = back.as_mut_ptr();
        let enter: extern "C" fn(c_uint, c_uint) = entry::<R, W>;
        let enter = std::mem::transmute::<extern "C" fn(c_uint, c_uint), extern "C" fn()>(enter);
        // Arguments are passed as ints: an address is two of them.
        libc::makecontext(context, enter, 2, (address >> 32) as c_int, address as u32 as c_int);
        if libc::swapcontext(back.as_mut_ptr(), context) != 0 {
            return None;
        }
    }
    job.result
}

extern "C" fn entry<R, W: FnOnce() -> R>(high: c_uint, low: c_uint) {
    let job = (u64::from(high) << 32 | u64::from(low)) as *mut Job<W, R>;
    // SAFETY: the address of the job of `on_its_own`, which waits for this.
    let job = unsafe { &mut *job };
    let Some(work) = job.work.take() else { return };
    // A panic must not leave this stack by another way than its own.
    job.result = catch_unwind(AssertUnwindSafe(work)).ok();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_has_all_of_its_stack_and_answers() {
        let small = std::thread::Builder::new().stack_size(32 << 10).spawn(|| {
            let before = std::thread::current().id();
            on_its_own(512 << 10, || {
                let mut large = [0u8; 300 << 10];
                std::hint::black_box(&mut large)[7] = 9;
                assert_eq!(std::thread::current().id(), before);
                u32::from(large[7]) + 1
            })
        });
        assert_eq!(small.unwrap().join().unwrap(), Some(10));
    }

    #[test]
    fn a_panic_stays_there() {
        let quiet = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let nothing = on_its_own(256 << 10, || panic!("on purpose"));
        std::panic::set_hook(quiet);
        assert_eq!(nothing, None::<()>);
        assert_eq!(on_its_own(64 << 10, || "again"), Some("again"));
    }
}
