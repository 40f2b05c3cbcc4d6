// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handler of SIGBUS among others: whose stack it takes, and what becomes of the handler before
//! it.
#![allow(unsafe_code)]

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::{mem, ptr, thread};

use common::alone::{forked, is_child, succeeds};
use common::gate::gated;
use common::{byte_at, emulated, file, open, pages, read, region, shared, write};
use dwell_pager::{Ahead, PAGE_BYTES, Region};

const BYTES: usize = 128 * PAGE_BYTES;
/// What a forked child ends with where the machine has no regions.
const SKIPPED: i32 = 200;

#[test]
fn regions_that_come_and_go_in_many_threads_are_never_looked_at_after_their_end() {
    let name = "regions_that_come_and_go_in_many_threads_are_never_looked_at_after_their_end";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(BYTES);
    let data = open(&path, false);
    if region(data.clone(), &pages(8)).is_none() {
        return;
    }
    thread::scope(|scope| {
        for id in 0..6 {
            let data = &data;
            scope.spawn(move || {
                for round in 0..400 {
                    let region = Region::open(data.clone(), &pages(8)).unwrap();
                    let at = (round * 7 + id) % 128 * PAGE_BYTES;
                    assert_eq!(read(&region, at), byte_at(at));
                }
            });
        }
    });
}

/// Gives the calling thread an alternate stack, painted so that its use can be told.
struct Painted {
    memory: Vec<u8>,
    before: libc::stack_t,
}

const PAINT: u8 = 0xa7;

impl Painted {
    fn new(bytes: usize) -> Painted {
        let mut memory = vec![PAINT; bytes];
        // SAFETY: memory that stays where it is as long as it is the thread's alternate stack.
        unsafe {
            let mut before = mem::zeroed();
            let stack =
                libc::stack_t { ss_sp: memory.as_mut_ptr().cast(), ss_flags: 0, ss_size: bytes };
            assert_eq!(libc::sigaltstack(&stack, &mut before), 0);
            Painted { memory, before }
        }
    }

    /// Bytes used since it was painted last.
    fn used(&mut self) -> usize {
        // SAFETY: signals write here without the compiler's knowledge.
        let bytes = unsafe { ptr::read_volatile(&raw const self.memory) };
        let bytes = mem::ManuallyDrop::new(bytes);
        let used = bytes.iter().position(|byte| *byte != PAINT).map_or(0, |at| bytes.len() - at);
        self.memory.fill(PAINT);
        used
    }
}

impl Drop for Painted {
    fn drop(&mut self) {
        // SAFETY: the stack that was there before.
        unsafe { libc::sigaltstack(&self.before, ptr::null_mut()) };
    }
}

/// Installs a handler with these flags.
fn install(signal: i32, handler: usize, flags: i32, mask: &[i32]) {
    // SAFETY: all zeros is a valid action, and the handler is of the kind that the flags say.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        action.sa_sigaction = handler;
        action.sa_flags = flags;
        for signal in mask {
            libc::sigaddset(&mut action.sa_mask, *signal);
        }
        assert_eq!(libc::sigaction(signal, &action, ptr::null_mut()), 0);
    }
}

extern "C" fn nothing(_: i32) {}

#[test]
fn a_fault_takes_little_of_the_threads_alternate_stack_however_it_goes() {
    let name = "a_fault_takes_little_of_the_threads_alternate_stack_however_it_goes";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(BYTES);
    let mut stack = Painted::new(256 << 10);
    // What the kernel takes itself.
    install(libc::SIGUSR1, nothing as *const () as usize, libc::SA_ONSTACK, &[]);
    // SAFETY: sends the calling thread a signal.
    unsafe { libc::raise(libc::SIGUSR1) };
    let of_kernel = stack.used();
    assert!(of_kernel > 0);
    let sources = [
        (open(&path, true), true),
        (open(&path, true), false),
        (Arc::new(emulated(&path, "latency=20us,short-every=7")), true),
        (Arc::new(emulated(&path, "latency=20us")), false),
    ];
    for (source, registers) in sources {
        let Some(region) = region(source, &shared(16)) else { return };
        let _registered = registers.then(|| region.register_thread().unwrap());
        for at in (0..4 * BYTES).step_by(PAGE_BYTES) {
            let at = at * 37 % BYTES;
            assert_eq!(read(&region, at), byte_at(at));
            write(&region, at, byte_at(at));
        }
        let used = stack.used();
        assert!(used > 0, "the handler does not run on the alternate stack");
        let ours = used.saturating_sub(of_kernel);
        println!("of the kernel {of_kernel} bytes, of the handler {ours}");
        assert!(ours <= 4096, "{ours} bytes");
    }
}

/// Where a context of its own touches memory, and what it read.
static ADDRESS: AtomicUsize = AtomicUsize::new(0);
static SEEN: AtomicUsize = AtomicUsize::new(0);

extern "C" fn touch() {
    // SAFETY: within a region that lives.
    let byte = unsafe { (ADDRESS.load(Ordering::SeqCst) as *const u8).read_volatile() };
    SEEN.store(byte.into(), Ordering::SeqCst);
}

#[test]
fn a_fault_on_a_stack_of_two_pages_is_handled_on_the_alternate_stack() {
    let name = "a_fault_on_a_stack_of_two_pages_is_handled_on_the_alternate_stack";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(BYTES);
    let Some(region) = region(open(&path, false), &pages(16)) else { return };
    let _registered = region.register_thread().unwrap();
    // As threads of Go and of Rust have one.
    let _alternate = Painted::new(32 << 10);
    const STACK: usize = 2 * PAGE_BYTES;
    // SAFETY: a fresh mapping of the kernel's choice, whose first page nobody may touch; a context
    // on the rest of it, which comes back to this one.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = libc::mmap(ptr::null_mut(), PAGE_BYTES + STACK, libc::PROT_NONE, flags, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        let stack = memory.byte_add(PAGE_BYTES);
        assert_eq!(libc::mprotect(stack, STACK, libc::PROT_READ | libc::PROT_WRITE), 0);
        for page in 0..100 {
            let at = page * PAGE_BYTES + 11;
            ADDRESS.store(region.as_ptr() as usize + at, Ordering::SeqCst);
            let (mut here, mut there): (libc::ucontext_t, libc::ucontext_t) =
                (mem::zeroed(), mem::zeroed());
            assert_eq!(libc::getcontext(&mut there), 0);
            there.uc_stack.ss_sp = stack;
            there.uc_stack.ss_size = STACK;
            there.uc_link = &mut here;
            libc::makecontext(&mut there, touch, 0);
            assert_eq!(libc::swapcontext(&mut here, &there), 0);
            assert_eq!(SEEN.load(Ordering::SeqCst), usize::from(byte_at(at)));
        }
    }
}

/// Set when the handler has come, and when the thread beside it has brought the page in.
static CAME: AtomicBool = AtomicBool::new(false);
static BROUGHT: AtomicBool = AtomicBool::new(false);

/// As Rust's own handler does where it does not know an address: the default action is installed,
/// and the access is tried again. Meanwhile another thread brings the page in.
extern "C" fn gives_up(signal: i32, _: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the default action.
    unsafe { libc::signal(signal, libc::SIG_DFL) };
    CAME.store(true, Ordering::SeqCst);
    while !BROUGHT.load(Ordering::SeqCst) {
        std::hint::spin_loop();
    }
}

/// A file of which the first read of the second page fails, or every read of it.
fn refusing(path: &std::path::Path, times: usize) -> Arc<dwell::File> {
    let refused = AtomicUsize::new(0);
    gated(path, move |io| {
        let refuse =
            io.offset() == PAGE_BYTES as u64 && refused.fetch_add(1, Ordering::SeqCst) < times;
        refuse.then_some(-libc::EIO)
    })
}

#[test]
fn a_refused_page_that_another_thread_brings_in_leaves_the_handler_installed() {
    let name = "a_refused_page_that_another_thread_brings_in_leaves_the_handler_installed";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(BYTES);
    let status = forked(|| {
        install(libc::SIGBUS, gives_up as *const () as usize, libc::SA_SIGINFO, &[]);
        let options = pages(16).ahead(Ahead::Nothing);
        let Some(region) = region(refusing(&path, 1), &options) else { return SKIPPED };
        thread::scope(|scope| {
            scope.spawn(|| {
                while !CAME.load(Ordering::SeqCst) {
                    thread::yield_now();
                }
                region.prefault(PAGE_BYTES..PAGE_BYTES + 1).unwrap();
                BROUGHT.store(true, Ordering::SeqCst);
            });
            for page in 1..64 {
                assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
            }
        });
        0
    });
    assert!(status == 0 || status == SKIPPED, "{status}");
}

#[test]
fn a_refused_page_ends_the_process_where_the_handler_before_gives_up_or_there_is_none() {
    let name = "a_refused_page_ends_the_process_where_the_handler_before_gives_up_or_there_is_none";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(BYTES);
    BROUGHT.store(true, Ordering::SeqCst);
    for handler in [libc::SIG_DFL, libc::SIG_IGN, gives_up as *const () as usize] {
        let status = forked(|| {
            install(libc::SIGBUS, handler, libc::SA_SIGINFO, &[]);
            // By the time that the access is tried again, it would succeed.
            let Some(region) = region(refusing(&path, 1), &pages(16).ahead(Ahead::Nothing)) else {
                return SKIPPED;
            };
            read(&region, PAGE_BYTES);
            1
        });
        assert!(status == -libc::SIGBUS || status == SKIPPED, "{handler:#x}: {status}");
    }
}

#[test]
fn a_signal_that_is_sent_is_ignored_where_it_was_before_and_faults_go_on() {
    let name = "a_signal_that_is_sent_is_ignored_where_it_was_before_and_faults_go_on";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(BYTES);
    BROUGHT.store(true, Ordering::SeqCst);
    for handler in [libc::SIG_IGN, gives_up as *const () as usize] {
        let status = forked(|| {
            install(libc::SIGBUS, handler, libc::SA_SIGINFO, &[]);
            let Some(region) = region(open(&path, false), &pages(16)) else { return SKIPPED };
            // SAFETY: sends the calling thread a signal.
            unsafe { libc::raise(libc::SIGBUS) };
            for page in 0..64 {
                assert_eq!(read(&region, page * PAGE_BYTES), byte_at(page * PAGE_BYTES));
            }
            0
        });
        assert!(status == 0 || status == SKIPPED, "{handler:#x}: {status}");
    }
}

/// Where the stack of a handler is.
static STACK: AtomicUsize = AtomicUsize::new(0);

extern "C" fn tells_its_stack(_: i32) {
    let here = 0u8;
    STACK.store(&raw const here as usize, Ordering::SeqCst);
}

#[test]
fn a_handler_that_was_there_before_is_called_on_the_stack_that_it_asked_for() {
    let name = "a_handler_that_was_there_before_is_called_on_the_stack_that_it_asked_for";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(BYTES);
    for flags in [0, libc::SA_ONSTACK] {
        let status = forked(|| {
            let alternate = Painted::new(64 << 10);
            install(libc::SIGBUS, tells_its_stack as *const () as usize, flags, &[]);
            let Some(region) = region(refusing(&path, 1), &pages(16).ahead(Ahead::Nothing)) else {
                return SKIPPED;
            };
            assert_eq!(read(&region, PAGE_BYTES), byte_at(PAGE_BYTES));
            let at = STACK.load(Ordering::SeqCst);
            let on_it = alternate.memory.as_ptr_range().contains(&(at as *const u8));
            assert!(at != 0 && on_it == (flags == libc::SA_ONSTACK));
            0
        });
        assert!(status == 0 || status == SKIPPED, "{flags:#x}: {status}");
    }
}

/// A handler of the plain kind: what it saw, and what was kept out of its thread then.
static TIMES: AtomicUsize = AtomicUsize::new(0);
static KEPT_OUT: AtomicUsize = AtomicUsize::new(0);

extern "C" fn plain(signal: i32) {
    assert_eq!(signal, libc::SIGBUS);
    TIMES.fetch_add(1, Ordering::SeqCst);
    // SAFETY: asks, with room for the answer.
    unsafe {
        let mut mask = mem::zeroed();
        libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut mask);
        let kept = [libc::SIGBUS, libc::SIGUSR1, libc::SIGUSR2, libc::SIGINT];
        let kept = kept.iter().enumerate();
        let bits = kept.fold(0, |bits, (at, signal)| {
            bits | (libc::sigismember(&mask, *signal) as usize) << at
        });
        KEPT_OUT.store(bits, Ordering::SeqCst);
    }
}

#[test]
fn a_plain_handler_that_was_there_before_is_called_with_the_mask_that_it_asked_for() {
    let name = "a_plain_handler_that_was_there_before_is_called_with_the_mask_that_it_asked_for";
    if !is_child() {
        return succeeds(name, "-");
    }
    let (_dir, path) = file(BYTES);
    for once in [false, true] {
        let status = forked(|| {
            let flags = if once { libc::SA_RESETHAND } else { 0 };
            install(libc::SIGBUS, plain as *const () as usize, flags, &[libc::SIGUSR2]);
            // The first refusals are what the handler sees; it returns, and the access is tried
            // again.
            let times = if once { 1 } else { 3 };
            let Some(region) = region(refusing(&path, times), &pages(16).ahead(Ahead::Nothing))
            else {
                return SKIPPED;
            };
            assert_eq!(read(&region, PAGE_BYTES), byte_at(PAGE_BYTES));
            assert_eq!(TIMES.load(Ordering::SeqCst), times);
            assert_eq!(KEPT_OUT.load(Ordering::SeqCst), 0b101);
            // SAFETY: sends the calling thread a signal, which ends it where the handler is for
            // once.
            unsafe { libc::raise(libc::SIGBUS) };
            assert_eq!(TIMES.load(Ordering::SeqCst), times + 1);
            i32::from(once)
        });
        let expected = if once { -libc::SIGBUS } else { 0 };
        assert!(status == expected || status == SKIPPED, "once: {once}: {status}");
    }
}

static SYNCED: AtomicUsize = AtomicUsize::new(0);
static REGION: AtomicUsize = AtomicUsize::new(0);

extern "C" fn syncs(_: i32) {
    let region = REGION.load(Ordering::SeqCst) as *const Region;
    // SAFETY: stored while the region lives, and taken back before it ends.
    let result = unsafe { &*region }.sync();
    let errno = result.map_or_else(|error| error.errno().unwrap_or(-1), |()| 0);
    SYNCED.store(errno as usize + 1, Ordering::SeqCst);
}

#[test]
fn a_handler_that_syncs_during_a_sync_of_its_thread_is_refused_and_waits_for_nobody() {
    let name = "a_handler_that_syncs_during_a_sync_of_its_thread_is_refused_and_waits_for_nobody";
    if !is_child() {
        return succeeds(name, "-");
    }
    // SAFETY: a number: who waits for ever dies of it.
    unsafe { libc::alarm(60) };
    let (_dir, path) = file(BYTES);
    install(libc::SIGUSR1, syncs as *const () as usize, 0, &[]);
    let source = gated(&path, |io| {
        if io.action() == dwell::queue::Action::Write && SYNCED.load(Ordering::SeqCst) == 0 {
            // SAFETY: sends the calling thread a signal.
            unsafe { libc::raise(libc::SIGUSR1) };
        }
        None
    });
    let Some(region) = region(source, &shared(16)) else { return };
    REGION.store(&raw const region as usize, Ordering::SeqCst);
    write(&region, 0, 7);
    region.sync().unwrap();
    assert_eq!(SYNCED.load(Ordering::SeqCst), libc::EDEADLK as usize + 1);
    assert_eq!(std::fs::read(&path).unwrap()[0], 7);
    // Outside, a handler may.
    write(&region, 1, 8);
    // SAFETY: sends the calling thread a signal.
    unsafe { libc::raise(libc::SIGUSR1) };
    assert_eq!(SYNCED.load(Ordering::SeqCst), 1);
    assert_eq!(std::fs::read(&path).unwrap()[1], 8);
}
