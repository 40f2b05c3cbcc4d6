// SPDX-License-Identifier: MIT OR Apache-2.0
//! Mapped memory that others can take away, without the process that touches it dying of SIGBUS.
//!
//! A load or store raises SIGBUS where a file under a mapping has become shorter, and where memory
//! is broken. It also does where the page cannot be had any more: a hole was made, and the system
//! is out of memory that it may promise or the tmpfs is full. Two kinds of memory that the daemon
//! touches are like that. Files of a tmpfs ([`FileMapping`](crate::file_mapping::FileMapping)) are
//! one: somebody may truncate them past the daemon. The memory of channels
//! ([`Shared`](crate::shared::Shared)) is the other. It is sealed against becoming shorter, but not
//! against holes: the client must be able to write it, and a process that may write may make holes.
//!
//! System calls that copy (`process_vm_readv`, `pread`) would answer EFAULT instead, and take
//! longer than the copy. Jumping out of a handler would leave Rust's frames behind. So the handler
//! of SIGBUS puts a page of zeroes in the place of the one that is gone, notes that the memory is
//! lost, and returns: the load or store is done again and succeeds, whatever instruction it was.
//! The thread that touched the memory looks at the note before it believes what it read: a lost
//! channel ends, and a lost mapping is made anew.
//!
//! The pages are kept ready, because a system that cannot give one for the file may not give any.
//! The handler takes no lock, allocates nothing, and hands on what is none of its own. A library
//! installs no handler unasked: whoever serves calls [`survive_lost_memory`], and without that call
//! a SIGBUS ends the process as ever.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::io;
use std::mem::{ManuallyDrop, MaybeUninit};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering, fence};
use std::sync::{Mutex, PoisonError};

use dwell::mapping::Mapping;

/// A mapping that may lose pages.
#[derive(Debug)]
pub(crate) struct Guarded {
    memory: ManuallyDrop<Mapping>,
    /// `None` where no handler is installed: a client takes no lock, which a fork might leave
    /// locked.
    slot: Option<&'static Slot>,
}

/// Where one mapping lies. Slots are used again and never freed: a handler may look at any at any
/// time.
#[derive(Debug)]
struct Slot {
    start: AtomicUsize,
    /// 0 while the slot is free.
    bytes: AtomicUsize,
    lost: AtomicBool,
    next: AtomicPtr<Slot>,
}

/// All slots.
static SLOTS: AtomicPtr<Slot> = AtomicPtr::new(ptr::null_mut());
/// Those that are free.
static FREE: Mutex<Vec<&'static Slot>> = Mutex::new(Vec::new());

impl Guarded {
    /// From now on the loss of any of its pages is noted, if [`survive_lost_memory`] was called
    /// before.
    pub fn new(memory: Mapping) -> Self {
        if !INSTALLED.load(Ordering::Acquire) {
            return Guarded { memory: ManuallyDrop::new(memory), slot: None };
        }
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let slot = free.unwrap_or_else(Slot::fresh);
        slot.lost.store(false, Ordering::Relaxed);
        slot.start.store(memory.start() as usize, Ordering::Relaxed);
        slot.bytes.store(memory.bytes() as usize, Ordering::Release);
        Guarded { memory: ManuallyDrop::new(memory), slot: Some(slot) }
    }

    /// Where it lies.
    #[inline]
    pub fn start(&self) -> *mut u8 {
        self.memory.start()
    }

    /// Length in bytes.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    /// Whether pages of it are gone: what was read from there may be zeroes, and what was written
    /// is nowhere.
    #[inline]
    pub fn is_lost(&self) -> bool {
        // Another thread may have noted it, before it put zeroes where this one then read.
        fence(Ordering::Acquire);
        self.slot.is_some_and(|slot| slot.lost.load(Ordering::Relaxed))
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        let lost = self.is_lost();
        if let Some(slot) = self.slot {
            // Before somebody else's memory may lie there.
            slot.bytes.store(0, Ordering::Release);
        }
        // SAFETY: dropped here and nowhere else.
        unsafe { ManuallyDrop::drop(&mut self.memory) };
        if let Some(slot) = self.slot {
            FREE.lock().unwrap_or_else(PoisonError::into_inner).push(slot);
        }
        if lost {
            // Now that the pages that were put there are free.
            keep_spares();
        }
    }
}

impl Slot {
    fn fresh() -> &'static Slot {
        let slot: &'static mut Slot = Box::leak(Box::new(Slot {
            start: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            lost: AtomicBool::new(false),
            next: AtomicPtr::new(ptr::null_mut()),
        }));
        let mut first = SLOTS.load(Ordering::Relaxed);
        loop {
            *slot.next.get_mut() = first;
            match SLOTS.compare_exchange_weak(first, slot, Ordering::Release, Ordering::Relaxed) {
                Ok(_) => return slot,
                Err(other) => first = other,
            }
        }
    }

    /// Notes that the memory at an address is lost; whether it is any that is guarded.
    fn note(address: usize) -> bool {
        let mut any = false;
        let mut at = SLOTS.load(Ordering::Acquire);
        // SAFETY: slots are never freed.
        while let Some(slot) = unsafe { at.as_ref() } {
            let bytes = slot.bytes.load(Ordering::Acquire);
            let start = slot.start.load(Ordering::Relaxed);
            if address.wrapping_sub(start) < bytes {
                slot.lost.store(true, Ordering::Relaxed);
                any = true;
            }
            at = slot.next.load(Ordering::Relaxed);
        }
        any
    }
}

/// Pages that are kept ready, more than the copies of seven threads touch between two looks at the
/// note; 0 where one was used.
static SPARES: [AtomicUsize; 256] = [const { AtomicUsize::new(0) }; 256];
/// Bytes that a copy may touch between two looks at the note, on either side.
pub(crate) const LOOK_BYTES: usize = 64 << 10;

static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);

/// Makes the pages that were used anew, as far as the system has any.
fn keep_spares() {
    let bytes = PAGE_BYTES.load(Ordering::Relaxed);
    for spare in &SPARES {
        if !INSTALLED.load(Ordering::Relaxed) || spare.load(Ordering::Relaxed) != 0 {
            continue;
        }
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_POPULATE;
        // SAFETY: fresh memory, where the kernel likes.
        let page = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
        if page == libc::MAP_FAILED {
            return;
        }
        let (page, relaxed) = (page as usize, Ordering::Relaxed);
        if spare.compare_exchange(0, page, Ordering::AcqRel, relaxed).is_err() {
            // SAFETY: made above, and nobody knows of it.
            unsafe { libc::munmap(page as *mut libc::c_void, bytes) };
        }
    }
}

/// Puts a page of zeroes at a place where there is none any more. Called by the handler.
fn put_page(at: usize) -> bool {
    let bytes = PAGE_BYTES.load(Ordering::Relaxed);
    let page = (at & !(bytes - 1)) as *mut libc::c_void;
    for spare in &SPARES {
        let from = spare.swap(0, Ordering::AcqRel);
        if from != 0 {
            let (from, flags) =
                (from as *mut libc::c_void, libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED);
            // SAFETY: a page that nobody else has, moved over one of a guarded mapping, whose
            // threads take any bytes there.
            return unsafe { libc::mremap(from, bytes, bytes, flags, page) } != libc::MAP_FAILED;
        }
    }
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: as above.
    unsafe { libc::mmap(page, bytes, access, kind, -1, 0) != libc::MAP_FAILED }
}

/// What was installed for SIGBUS before.
struct Before(UnsafeCell<MaybeUninit<libc::sigaction>>);
// SAFETY: written once, under a lock, before the handler that reads it is installed.
unsafe impl Sync for Before {}
static BEFORE: Before = Before(UnsafeCell::new(MaybeUninit::uninit()));
static INSTALLED: AtomicBool = AtomicBool::new(false);

/// Has this process survive the loss of memory of channels and mappings. It installs a handler of
/// SIGBUS, which hands what is none of its own to the handler that was there before. Call it before
/// a daemon starts: what was mapped before is not covered.
///
/// # Errors
/// What the system says.
pub fn survive_lost_memory() -> io::Result<()> {
    static ONCE: Mutex<()> = Mutex::new(());
    let _once = ONCE.lock().unwrap_or_else(PoisonError::into_inner);
    if INSTALLED.load(Ordering::Relaxed) {
        return Ok(());
    }
    // SAFETY: asks for a number.
    let page_bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    PAGE_BYTES.store(usize::try_from(page_bytes).unwrap_or(4096), Ordering::Relaxed);
    // SAFETY: zeroes are a valid action, of which all that matters is set.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: live structures; nobody else writes to what was before, under the lock.
    let installed = unsafe {
        libc::sigaction(libc::SIGBUS, ptr::null(), (*BEFORE.0.get()).as_mut_ptr()) == 0
            && libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) == 0
    };
    if !installed {
        return Err(io::Error::last_os_error());
    }
    INSTALLED.store(true, Ordering::Release);
    keep_spares();
    Ok(())
}

extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel passes a live structure; where a fault raised the signal, it says at which
    // address.
    let (by_kernel, address) = unsafe { ((*info).si_code > 0, (*info).si_addr() as usize) };
    // SAFETY: the calling thread's own.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    let before = unsafe { *errno };
    let mended = by_kernel && Slot::note(address) && put_page(address);
    // SAFETY: as above.
    unsafe { *errno = before };
    if !mended {
        pass_on(signal, info, context);
    }
}

/// Does what would have been done without this handler.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: written before the handler was installed, and never since.
    let before = unsafe { (*BEFORE.0.get()).assume_init_ref() };
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: the default action; on return the fault is raised anew, and a signal that was
            // sent is sent anew.
            unsafe {
                let mut default: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &default, ptr::null_mut());
                if (*info).si_code <= 0 {
                    libc::raise(signal);
                }
            }
        }
        with_info if before.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: whoever installed it said that it is such a function.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(with_info) };
            handler(signal, info, context);
        }
        plain => {
            // SAFETY: as above.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(i32)>(plain) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dwell::mapping;

    #[test]
    fn memory_that_is_taken_away_reads_as_zeroes_and_is_lost() {
        survive_lost_memory().unwrap();
        let file = tempfile::tempfile_in("/dev/shm").unwrap();
        file.set_len(2 << 20).unwrap();
        let map = || Guarded::new(Mapping::of_file(&file, 2 << 20, true).unwrap());
        let (touched, other) = (map(), map());
        // SAFETY: within the mapping.
        unsafe { touched.start().write(7) };
        file.set_len(0).unwrap();
        let mut seen = vec![1u8; 2 << 20];
        // More pages than are kept ready.
        // SAFETY: the whole mapping, and as much room.
        unsafe { mapping::copy(touched.start(), seen.as_mut_ptr(), 2 << 20) };
        assert!(seen.iter().all(|byte| *byte == 0));
        assert!(touched.is_lost() && !other.is_lost());
        // SAFETY: as above.
        unsafe { mapping::copy(seen.as_ptr(), other.start(), 2 << 20) };
        assert!(other.is_lost());
        drop((touched, other));
        // What comes after is not taken for lost.
        file.set_len(2 << 20).unwrap();
        assert!(!map().is_lost());
    }
}
