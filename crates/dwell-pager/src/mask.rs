// SPDX-License-Identifier: MIT OR Apache-2.0
//! Signals that are kept out while a thread has a thread queue, and those of them that a long wait
//! lets in.
//!
//! A handler of the program's that touched the region would need the thread queue that its own
//! thread is using. So all signals wait until a fault is over, as they do for a fault that the
//! kernel serves. What the kernel lets in there is let in here as well, whenever a thread blocks or
//! calls the device: a signal that nobody handles. No code of the program's runs for it; it ends
//! the process, or stops it.
#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

use dwell::clock;
use dwell_policy::Ns;

/// Which signals nobody handles is asked again after this long, in nanoseconds.
const ASKED_FOR_NS: Ns = 100_000_000;
/// Two signals that the C library keeps for itself; they are never kept out.
const OF_LIBRARY: u64 = bit(32) | bit(33);

/// Signals that the program keeps out of a thread itself, a bit each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Mask(u64);

const fn bit(signal: i32) -> u64 {
    1 << (signal - 1)
}

impl Mask {
    /// All of them: none is let in.
    pub const ALL: Mask = Mask(!0);

    /// What was kept out of a thread when a signal came.
    ///
    /// # Safety
    /// The context is that of a handler that is running.
    pub unsafe fn of_context(context: *mut libc::c_void) -> Mask {
        // SAFETY: a live context, as the caller promises. The kernel's sets are of 64 signals.
        Mask(unsafe {
            ptr::read((&raw const (*context.cast::<libc::ucontext_t>()).uc_sigmask).cast())
        })
    }

    /// Lets in what nobody handles and the program does not keep out itself, for as long as the
    /// guard lives. To be asked where signals are kept out.
    pub fn let_in(self) -> LetIn {
        let open = if self.0 == !0 { 0 } else { unhandled() & !self.0 };
        LetIn((open != 0).then(|| change(libc::SIG_UNBLOCK, open)))
    }

    /// Keeps out what the program keeps out, and some signals more.
    pub fn restore_with(self, more: &libc::sigset_t) {
        let also = (1..=64).filter(|signal| {
            // SAFETY: a live set, and the number of a signal.
            unsafe { libc::sigismember(more, *signal) == 1 }
        });
        change(libc::SIG_SETMASK, also.fold(self.0, |mask, signal| mask | bit(signal)));
    }
}

/// Some signals are let in.
pub(crate) struct LetIn(Option<u64>);

impl LetIn {
    /// When it is to be asked again which signals nobody handles, in a wait that goes on until
    /// `until`.
    pub fn at_most(&self, until: Option<Ns>) -> Option<Ns> {
        let again = self.0.map(|_| clock::now() + ASKED_FOR_NS);
        again.into_iter().chain(until).min()
    }
}

impl Drop for LetIn {
    fn drop(&mut self) {
        if let Some(before) = self.0 {
            change(libc::SIG_SETMASK, before);
        }
    }
}

/// Keeps signals off the calling thread: what holds the region's lock must not be interrupted by a
/// handler that touches the region.
pub(crate) struct Quiet(u64);

impl Quiet {
    pub fn new() -> Quiet {
        Quiet(change(libc::SIG_SETMASK, !OF_LIBRARY))
    }

    /// What was kept out before.
    pub fn mask(&self) -> Mask {
        Mask(self.0)
    }
}

impl Drop for Quiet {
    fn drop(&mut self) {
        change(libc::SIG_SETMASK, self.0);
    }
}

/// Changes the signals that are kept out of the calling thread; those that were before.
fn change(how: i32, mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: two live sets of the kernel's size.
    unsafe { libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const mask, &raw mut before, 8) };
    before
}

/// Signals that nobody handles.
fn unhandled() -> u64 {
    static SIGNALS: AtomicU64 = AtomicU64::new(0);
    static ASKED_AT: AtomicU64 = AtomicU64::new(0);
    let now = clock::now();
    let asked = ASKED_AT.load(Ordering::Acquire);
    if asked != 0 && now.saturating_sub(asked) < ASKED_FOR_NS {
        return SIGNALS.load(Ordering::Relaxed);
    }
    let signals = (1..=64)
        .filter(|signal| bit(*signal) & OF_LIBRARY == 0 && disposition(*signal) == libc::SIG_DFL)
        .fold(0, |signals, signal| signals | bit(signal));
    SIGNALS.store(signals, Ordering::Relaxed);
    ASKED_AT.store(now, Ordering::Release);
    signals
}

/// What a signal does at the moment: `SIG_DFL`, `SIG_IGN`, or the address of a handler.
pub(crate) fn disposition(signal: i32) -> usize {
    let mut action = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: asks, with room for the answer; all zeros is the default action, where there is none.
    unsafe {
        libc::sigaction(signal, ptr::null(), action.as_mut_ptr());
        action.assume_init().sa_sigaction
    }
}
