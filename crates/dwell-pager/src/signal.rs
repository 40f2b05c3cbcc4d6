// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handler of SIGBUS.
//!
//! It is installed when the first region with faults inline is opened, and stays. A signal that is
//! not a fault of a region goes to the handler that was there before. So does a page that the
//! source refuses.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::{io, ptr};

use dwell::clock;
use dwell_policy::{Decision, Driver, Mode, Ns, Reason, Route, WaitMachine, Woken, drive};

use crate::board;
use crate::mask::{Mask, disposition};
use crate::pages::State;
use crate::regions::Regions;
use crate::shared::Shared;
use crate::stack;
use crate::thread_queue::ThreadQueue;

/// The regions of this process, made before the handler is installed.
static KNOWN: AtomicPtr<Regions<Shared>> = AtomicPtr::new(ptr::null_mut());

/// What was installed for SIGBUS before, written once before the handler is installed.
struct Before(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written by one thread before anybody can read it.
unsafe impl Sync for Before {}

static BEFORE: Before = Before(UnsafeCell::new(MaybeUninit::zeroed()));
/// The handler that was there before has given up: the default action has taken its place.
static GAVE_UP: AtomicBool = AtomicBool::new(false);
/// Whether the handler is installed.
static INSTALLED: Mutex<bool> = Mutex::new(false);

/// Installs the handler, once in a process and its children.
pub(crate) fn install() -> io::Result<()> {
    let mut installed = INSTALLED.lock().unwrap_or_else(PoisonError::into_inner);
    if *installed {
        return Ok(());
    }
    KNOWN.store(ptr::from_ref(Regions::new()?).cast_mut(), Ordering::Release);
    // SAFETY: what was installed before is written to a place that nobody reads before the handler
    // is installed, which comes next.
    if unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), (*BEFORE.0.get()).as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    take_over()?;
    *installed = true;
    Ok(())
}

/// Has SIGBUS come to the handler. A thread whose own stack is small, or not to be written to, has
/// another one for signals: the handler takes that, and little of it.
fn take_over() -> io::Result<()> {
    // SAFETY: all zeros is a valid sigaction; the handler is of the kind that the flags say.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigfillset(&mut action.sa_mask);
        match libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn known() -> Option<&'static Regions<Shared>> {
    // SAFETY: null, or a table that stays.
    unsafe { KNOWN.load(Ordering::Acquire).as_ref() }
}

/// Has the handler know a region; its place, or `None` where there are too many.
pub(crate) fn enter(region: &Arc<Shared>) -> Option<usize> {
    let area = &region.area;
    known()?.enter(Arc::as_ptr(region), area.start()..area.at(area.pages()))
}

/// Has the handler forget a region, and waits until no thread is in the handler with it.
pub(crate) fn leave(at: usize) {
    if let Some(known) = known() {
        known.leave(at, |region| region.pages.wake_all());
    }
}

extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let began = clock::now();
    // SAFETY: the calling thread's own errno; the kernel passes a live siginfo.
    let (errno, address, code) =
        unsafe { (*libc::__errno_location(), (*info).si_addr() as usize, (*info).si_code) };
    // SAFETY: the kernel's own context.
    let mask = unsafe { Mask::of_context(context) };
    let handled = match known() {
        Some(known) if code == libc::BUS_ADRERR => {
            known.with(address, |sh| fault(sh, address, began, mask)) == Some(true)
        }
        _ => false,
    };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    // A page that the source refused is an error at its address, as in a file that the kernel maps.
    if !handled {
        pass_on(signal, info, context, mask);
    }
}

/// Whether the page of an address is there now.
fn fault(sh: &Shared, address: usize, began: Ns, mask: Mask) -> bool {
    let Some(page) = sh.area.page_of(address) else { return false };
    with_some_queue(sh, mask, |thread_queue| {
        thread_queue.on_stack(|thread_queue| thread_queue.fault(sh, page as u32, began))
    })
    .is_ok()
}

/// Whether the page of an address has come into its region, by another thread's trying again.
fn has_come(address: usize) -> bool {
    let is_there = |sh: &Shared| {
        let page = sh.area.page_of(address);
        page.is_some_and(|page| sh.pages.state(page as u32) == State::Present)
    };
    known().and_then(|known| known.with(address, is_there)) == Some(true)
}

/// Does something with the calling thread's thread queue, or with one that it borrows. With signals
/// kept out; `mask` are those that the program keeps out itself.
pub(crate) fn with_some_queue<R>(
    sh: &Shared,
    mask: Mask,
    act: impl FnOnce(&mut ThreadQueue) -> R,
) -> R {
    let thread = board::own_id();
    // SAFETY: the calling thread's own thread queue. Signals are kept out, so nothing else on this
    // thread uses it.
    let own = unsafe { sh.thread_queues.find(thread).and_then(|at| sh.thread_queues.get(at)) };
    if let Some(thread_queue) = own {
        thread_queue.mask = mask;
        return act(thread_queue);
    }
    crate::stats::add(&sh.counters.unregistered, 1);
    let mut turn = Turn { guests: &sh.guests, first: thread as usize, mask, thread_queue: None };
    if !turn.poll() {
        let decision = Decision::new(Route::Interrupt, Mode::Block, 0, Reason::Fixed);
        let now = clock::now();
        drive(WaitMachine::new(&decision, now, now), &mut turn);
    }
    match turn.thread_queue {
        Some(mut thread_queue) => {
            thread_queue.mask = mask;
            thread_queue.nice = board::own_nice();
            act(&mut thread_queue)
        }
        // The wait is over with one.
        None => unreachable!(),
    }
}

/// The wait for a thread queue to borrow. It is not told when one is given back: it is looked for.
struct Turn<'a> {
    guests: &'a [Mutex<ThreadQueue>],
    first: usize,
    mask: Mask,
    thread_queue: Option<MutexGuard<'a, ThreadQueue>>,
}

impl Driver for Turn<'_> {
    fn now(&mut self) -> Ns {
        clock::now()
    }

    fn poll(&mut self) -> bool {
        let count = self.guests.len();
        self.thread_queue =
            (0..count).find_map(|step| match self.guests[(self.first + step) % count].try_lock() {
                Ok(thread_queue) => Some(thread_queue),
                Err(TryLockError::Poisoned(thread_queue)) => Some(thread_queue.into_inner()),
                Err(TryLockError::WouldBlock) => None,
            });
        self.thread_queue.is_some()
    }

    fn sleep(&mut self, until: Ns) {
        let _let_in = self.mask.let_in();
        clock::sleep_until(until);
    }

    fn park(&mut self, _: Option<Ns>) -> Woken {
        Woken::Unwakeable
    }
}

/// Does something with the thread queue of the calling thread. With signals kept out, of which the
/// program kept out `mask`.
pub(crate) fn with_own_queue(sh: &Shared, mask: Mask, act: impl FnOnce(&mut ThreadQueue)) {
    if let Some(at) = sh.thread_queues.find(board::own_id()) {
        with_thread_queue(sh, at, |thread_queue| {
            thread_queue.mask = mask;
            act(thread_queue);
        });
    }
}

/// Does something with a thread queue that is the calling thread's. With signals kept out.
pub(crate) fn with_thread_queue(sh: &Shared, at: u16, act: impl FnOnce(&mut ThreadQueue)) {
    // SAFETY: the calling thread's own thread queue, and nothing else on this thread uses it:
    // signals are kept out.
    if let Some(thread_queue) = unsafe { sh.thread_queues.get(at) } {
        act(thread_queue);
    }
}

/// Hands a signal to the handler that was there before.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void, mask: Mask) {
    // SAFETY: the kernel's own siginfo.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    // One that was sent, by kill(2) say, not raised by an access.
    let sent = code <= 0;
    // SAFETY: written before this handler was installed.
    let before = unsafe { (*BEFORE.0.get()).assume_init_ref() };
    match before.sa_sigaction {
        _ if GAVE_UP.load(Ordering::Acquire) => end(signal, info),
        libc::SIG_IGN if sent => {}
        // An access cannot be ignored.
        libc::SIG_DFL | libc::SIG_IGN => end(signal, info),
        handler => {
            // The handler is called with the mask that it asked for; it may leave by a jump, which
            // sets a mask of its own.
            let mut more = before.sa_mask;
            if before.sa_flags & libc::SA_NODEFER == 0 {
                // SAFETY: a live set, and the number of a signal.
                unsafe { libc::sigaddset(&mut more, signal) };
            }
            if before.sa_flags & libc::SA_RESETHAND != 0 {
                GAVE_UP.store(true, Ordering::Release);
            }
            mask.restore_with(&more);
            // SAFETY: what was installed as a handler of this kind is called as one.
            let call = || unsafe {
                if before.sa_flags & libc::SA_SIGINFO != 0 {
                    let call: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(handler);
                    call(signal, info, context);
                } else {
                    let call: extern "C" fn(i32) = std::mem::transmute(handler);
                    call(signal);
                }
            };
            // SAFETY: the kernel's own context.
            match unsafe { stack::left_by(context) } {
                // SAFETY: nothing is in use below the place where the thread was interrupted.
                Some(top) if before.sa_flags & libc::SA_ONSTACK == 0 => unsafe {
                    stack::run_below(top, call);
                },
                _ => call(),
            }
            // One that installs the default action and returns, as Rust's own does, has the access
            // tried again to end the process. Where that would not end it, later faults still need
            // this handler.
            if disposition(signal) == libc::SIG_DFL {
                GAVE_UP.store(true, Ordering::Release);
                if sent || has_come(address) {
                    let _ = take_over();
                } else {
                    end(signal, info);
                }
            }
        }
    }
}

/// Has a signal end the process, as it would have without this handler, as soon as the handler
/// returns.
fn end(signal: i32, info: *mut libc::siginfo_t) {
    // SAFETY: all zeros is the default action with an empty mask; a process may send itself any
    // siginfo.
    unsafe {
        let default: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, &default, ptr::null_mut());
        let (process, thread) = (libc::getpid(), libc::gettid());
        libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info);
    }
}
