// SPDX-License-Identifier: MIT OR Apache-2.0
//! A stack for the work of a fault, whatever stack the signal came on.
//!
//! The kernel delivers a signal on the thread's alternate stack, which may have room for little
//! more than that, or on a stack that the program has made itself. A fault takes more than either
//! need have.
#![allow(unsafe_code)]

use std::ffi::c_void;
use std::io;

use crate::memory::PAGE_BYTES;

/// Bytes of a stack; memory is taken as far as it is used.
pub(crate) const STACK_BYTES: usize = 64 << 10;

/// Memory with a page below it that nobody may touch.
#[derive(Debug)]
pub(crate) struct Stack {
    start: usize,
}

impl Stack {
    pub fn new() -> io::Result<Stack> {
        let bytes = PAGE_BYTES + STACK_BYTES;
        let (prot, flags) = (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, prot, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let stack = Stack { start: start as usize };
        // SAFETY: the mapping just made, without its first page.
        let rc = unsafe {
            let above = start.byte_add(PAGE_BYTES);
            libc::mprotect(above, STACK_BYTES, libc::PROT_READ | libc::PROT_WRITE)
        };
        if rc != 0 { Err(io::Error::last_os_error()) } else { Ok(stack) }
    }

    /// Bytes of it that were ever used, as far as they are not zero.
    #[cfg(test)]
    pub fn used(&self) -> usize {
        // SAFETY: the mapping without its first page, on which nothing runs.
        let bytes = unsafe {
            std::slice::from_raw_parts((self.start + PAGE_BYTES) as *const u8, STACK_BYTES)
        };
        bytes.iter().position(|byte| *byte != 0).map_or(0, |first| STACK_BYTES - first)
    }

    fn top(&self) -> usize {
        self.start + PAGE_BYTES + STACK_BYTES
    }

    /// Runs `work` on this stack, and comes back on the caller's.
    ///
    /// # Safety
    /// Nothing else runs on this stack meanwhile, and `work` neither unwinds nor leaves by a jump.
    pub unsafe fn run(&self, work: impl FnOnce()) {
        // SAFETY: the top of a stack that is nobody's, as the caller promises.
        unsafe { run_below(self.top(), work) };
    }
}

/// Runs `work` on a stack, below an address, and comes back on the caller's.
///
/// # Safety
/// The memory below the address is a stack's, of which nothing is in use. `work` does not unwind.
pub(crate) unsafe fn run_below<F: FnOnce()>(top: usize, work: F) {
    extern "C" fn call<F: FnOnce()>(work: *mut c_void) {
        // SAFETY: the caller's own, which waits meanwhile; taken once.
        if let Some(work) = unsafe { (*work.cast::<Option<F>>()).take() } {
            work();
        }
    }
    let mut work = Some(work);
    // SAFETY: as the caller promises, and live work of the kind that the function takes.
    unsafe { switch(top & !15, call::<F>, (&raw mut work).cast()) };
}

/// Where the stack goes on that a signal's handler has left for the thread's alternate one; `None`
/// where it has not, or where that cannot be told.
///
/// # Safety
/// The context is that of the handler that asks.
pub(crate) unsafe fn left_by(context: *mut c_void) -> Option<usize> {
    // What a function may use below its stack pointer.
    const RED_ZONE: usize = 128;
    // SAFETY: a live context, as the caller promises.
    let context = unsafe { &*context.cast::<libc::ucontext_t>() };
    #[cfg(target_arch = "x86_64")]
    let pointer = context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize;
    #[cfg(target_arch = "aarch64")]
    let pointer = context.uc_mcontext.sp as usize;
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let pointer = 0;
    let stack = &context.uc_stack;
    let is_on = |address: usize| address.wrapping_sub(stack.ss_sp as usize) < stack.ss_size;
    let here = std::ptr::from_ref(&pointer) as usize;
    let left = stack.ss_flags & libc::SS_DISABLE == 0 && is_on(here) && !is_on(pointer);
    (left && pointer != 0).then(|| pointer - RED_ZONE)
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's own.
        unsafe { libc::munmap(self.start as *mut c_void, PAGE_BYTES + STACK_BYTES) };
    }
}

/// Calls `function` with `argument` on the stack that ends at `top`.
///
/// # Safety
/// `top` is the end of memory that nobody else uses, aligned to 16; `function` comes back, and
/// takes `argument`.
unsafe fn switch(top: usize, function: extern "C" fn(*mut c_void), argument: *mut c_void) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: r12 is kept by the function called, and holds the stack to come back to.
    unsafe {
        std::arch::asm!(
            "mov r12, rsp",
            "mov rsp, {top}",
            "call {function}",
            "mov rsp, r12",
            top = in(reg) top,
            function = in(reg) function,
            in("rdi") argument,
            out("r12") _,
            clobber_abi("C"),
        );
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above, with x20.
    unsafe {
        std::arch::asm!(
            "mov x20, sp",
            "mov sp, {top}",
            "blr {function}",
            "mov sp, x20",
            top = in(reg) top,
            function = in(reg) function,
            in("x0") argument,
            out("x20") _,
            clobber_abi("C"),
        );
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    {
        // Elsewhere the work is done on the stack that the signal came on.
        let _ = top;
        function(argument);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_on_the_stack_and_its_result_comes_back() {
        let stack = Stack::new().unwrap();
        let mut seen = (0, 0.0);
        let more = 1.5;
        // SAFETY: nothing else uses the stack.
        unsafe {
            stack.run(|| {
                let here = [0u8; 100];
                seen = (std::hint::black_box(&here).as_ptr() as usize, more * 2.0);
            });
        }
        let on_it = stack.start + PAGE_BYTES..stack.top();
        let switches = cfg!(any(target_arch = "x86_64", target_arch = "aarch64"));
        assert_eq!(on_it.contains(&seen.0), switches);
        assert_eq!(seen.1, 3.0);
    }
}
