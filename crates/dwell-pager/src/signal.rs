// SPDX-License-Identifier: MIT OR Apache-2.0
//! The handler of SIGBUS, and which region an address belongs to.
//!
//! It is installed when the first region with faults inline is opened, and stays. What is not a fault of a
//! region goes to the handler that was there before.
#![allow(unsafe_code)]

use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicUsize, Ordering};
use std::{io, ptr};

use crate::board;
use crate::lane::Lane;
use crate::shared::Shared;

/// Regions with faults inline, at once.
const REGIONS: usize = 64;

/// A region that the handler knows.
struct Known {
    region: AtomicPtr<Shared>,
    start: AtomicUsize,
    end: AtomicUsize,
    /// Threads that are in the handler with it.
    inside: AtomicU32,
}

static KNOWN: [Known; REGIONS] = [const {
    Known {
        region: AtomicPtr::new(ptr::null_mut()),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        inside: AtomicU32::new(0),
    }
}; REGIONS];

/// What was installed for SIGBUS before, written once before the handler is installed.
struct Before(UnsafeCell<MaybeUninit<libc::sigaction>>);

// SAFETY: written by one thread before anybody can read it.
unsafe impl Sync for Before {}

static BEFORE: Before = Before(UnsafeCell::new(MaybeUninit::zeroed()));
/// 0: nothing installed, 1: being installed, 2: installed.
static INSTALLED: AtomicU32 = AtomicU32::new(0);

/// Keeps signals off the calling thread: what holds the region's lock must not be interrupted by a handler that
/// touches the region.
pub(crate) struct Quiet(libc::sigset_t);

impl Quiet {
    pub fn new() -> Quiet {
        let mut before = MaybeUninit::uninit();
        // SAFETY: two live sets, of which the first is filled before it is used, the second by the call.
        unsafe {
            let mut all = MaybeUninit::uninit();
            libc::sigfillset(all.as_mut_ptr());
            libc::pthread_sigmask(libc::SIG_SETMASK, all.as_ptr(), before.as_mut_ptr());
            Quiet(before.assume_init())
        }
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        // SAFETY: the set that was in force before.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &self.0, ptr::null_mut()) };
    }
}

/// Installs the handler, once in a process and its children.
pub(crate) fn install() -> io::Result<()> {
    loop {
        match INSTALLED.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => break,
            Err(2) => return Ok(()),
            // Another thread is at it.
            Err(_) => std::thread::yield_now(),
        }
    }
    // SAFETY: all zeros is a valid sigaction; what was installed before is written to a place that nobody reads
    // before the handler is installed, which the second call does.
    let done = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handle as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigfillset(&mut action.sa_mask);
        libc::sigaction(libc::SIGBUS, ptr::null(), (*BEFORE.0.get()).as_mut_ptr()) == 0
            && libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) == 0
    };
    let error = io::Error::last_os_error();
    INSTALLED.store(if done { 2 } else { 0 }, Ordering::Release);
    if done { Ok(()) } else { Err(error) }
}

/// Has the handler know a region; its place, or `None` where there are too many.
pub(crate) fn enter(region: &Arc<Shared>) -> Option<usize> {
    let address = Arc::as_ptr(region).cast_mut();
    let at = KNOWN.iter().position(|known| {
        let there = known.region.load(Ordering::Acquire);
        // A child forgets the regions of its parent, which it does not have.
        // SAFETY: what stands there lives, or was copied by fork with all that it owns.
        let free = there.is_null() || unsafe { !(*there).is_here() };
        free && known
            .region
            .compare_exchange(there, address, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    })?;
    let known = &KNOWN[at];
    known.inside.store(0, Ordering::SeqCst);
    known.end.store(region.area.at(region.area.pages()), Ordering::SeqCst);
    known.start.store(region.area.start(), Ordering::SeqCst);
    Some(at)
}

/// Has the handler forget a region, and waits until no thread is in the handler with it.
pub(crate) fn leave(at: usize) {
    let known = &KNOWN[at];
    known.start.store(0, Ordering::SeqCst);
    known.end.store(0, Ordering::SeqCst);
    while known.inside.load(Ordering::SeqCst) > 0 {
        // SAFETY: it stands there until below.
        if let Some(region) = unsafe { known.region.load(Ordering::Acquire).as_ref() } {
            region.pages.wake_all();
        }
        dwell::clock::sleep_until(dwell::clock::now() + 50_000);
    }
    known.region.store(ptr::null_mut(), Ordering::Release);
}

/// Does something with the region of an address, which stays until that is done.
fn with<R>(address: usize, act: impl FnOnce(&Shared) -> R) -> Option<R> {
    let holds = |known: &Known| {
        let start = known.start.load(Ordering::SeqCst);
        start != 0 && address >= start && address < known.end.load(Ordering::SeqCst)
    };
    for known in &KNOWN {
        if !holds(known) {
            continue;
        }
        known.inside.fetch_add(1, Ordering::SeqCst);
        let mut done = None;
        if holds(known) {
            // SAFETY: whoever takes the region away clears the range first and then waits for `inside`.
            let region = unsafe { known.region.load(Ordering::Acquire).as_ref() };
            done = region.filter(|region| region.is_here()).map(act);
        }
        known.inside.fetch_sub(1, Ordering::SeqCst);
        return done;
    }
    None
}

extern "C" fn handle(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the calling thread's own errno; the kernel passes a live siginfo.
    let (errno, address, code) =
        unsafe { (*libc::__errno_location(), (*info).si_addr() as usize, (*info).si_code) };
    let handled =
        if code == libc::BUS_ADRERR { with(address, |sh| fault(sh, address)) } else { None };
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
    // A page that the source refused is an error at its address, as in a file that the kernel maps.
    if handled != Some(true) {
        pass_on(signal, info, context);
    }
}

/// Whether the page of an address is there now.
fn fault(sh: &Shared, address: usize) -> bool {
    let Some(page) = sh.area.page_of(address) else { return false };
    bring(sh, page as u32).is_ok()
}

/// Brings a page in. With signals kept out.
pub(crate) fn bring(sh: &Shared, page: u32) -> Result<(), i32> {
    with_some_lane(sh, |lane| lane.fault(sh, page))
}

/// Does something with the calling thread's lane, or with one that it borrows. With signals kept out.
pub(crate) fn with_some_lane<R>(sh: &Shared, act: impl FnOnce(&mut Lane) -> R) -> R {
    let thread = board::own_id();
    // SAFETY: the calling thread's own lane. Signals are kept out, so nothing else on this thread uses it.
    if let Some(lane) = sh.lanes.find(thread).and_then(|at| unsafe { sh.lanes.lane(at) }) {
        return act(lane);
    }
    crate::stats::add(&sh.counters.unregistered, 1);
    let at = thread as usize % sh.guests.len();
    let guest = sh.guests.iter().cycle().skip(at).take(sh.guests.len());
    let free = guest.clone().find_map(|guest| guest.try_lock().ok());
    let mut lane = match free {
        Some(lane) => lane,
        None => sh.guests[at].lock().unwrap_or_else(std::sync::PoisonError::into_inner),
    };
    lane.nice = board::own_nice();
    act(&mut lane)
}

/// Does something with the lane of the calling thread. With signals kept out.
pub(crate) fn with_own_lane(sh: &Shared, act: impl FnOnce(&mut Lane)) {
    if let Some(at) = sh.lanes.find(board::own_id()) {
        with_lane(sh, at, act);
    }
}

/// Does something with a lane that is the calling thread's. With signals kept out.
pub(crate) fn with_lane(sh: &Shared, at: u16, act: impl FnOnce(&mut Lane)) {
    // SAFETY: the calling thread's own lane, and nothing else on this thread uses it: signals are kept out.
    if let Some(lane) = unsafe { sh.lanes.lane(at) } {
        act(lane);
    }
}

/// Hands a signal to the handler that was there before.
fn pass_on(signal: i32, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: written before this handler was installed.
    let before = unsafe { (*BEFORE.0.get()).assume_init_ref() };
    match before.sa_sigaction {
        // The instruction is tried again when this returns, and ends the process as it would have without us.
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: all zeros is the default action with an empty mask.
            unsafe {
                let default: libc::sigaction = std::mem::zeroed();
                libc::sigaction(signal, &default, ptr::null_mut());
                // One that was sent, by kill(2) say, does not come again by itself.
                if (*info).si_code <= 0 {
                    libc::raise(signal);
                }
            }
        }
        handler => {
            let with_info = before.sa_flags & libc::SA_SIGINFO != 0;
            // SAFETY: what was installed as a handler of this kind is called as one, with the mask that it asked
            // for; it may leave by a jump, which sets a mask of its own.
            unsafe {
                let mut mask = (*context.cast::<libc::ucontext_t>()).uc_sigmask;
                for number in 1..=64 {
                    if libc::sigismember(&before.sa_mask, number) == 1 {
                        libc::sigaddset(&mut mask, number);
                    }
                }
                if before.sa_flags & libc::SA_NODEFER == 0 {
                    libc::sigaddset(&mut mask, signal);
                }
                libc::pthread_sigmask(libc::SIG_SETMASK, &mask, ptr::null_mut());
                if with_info {
                    let call: extern "C" fn(i32, *mut libc::siginfo_t, *mut libc::c_void) =
                        std::mem::transmute(handler);
                    call(signal, info, context);
                } else {
                    let call: extern "C" fn(i32) = std::mem::transmute(handler);
                    call(signal);
                }
            }
        }
    }
}
