// SPDX-License-Identifier: MIT OR Apache-2.0
//! Being inside the engine: no signal comes, no fork happens, and calls of the engine itself go
//! straight through.
#![allow(unsafe_code)]

use std::arch::asm;
use std::cell::Cell;
use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::raw::{bare, errno, set_errno};
use crate::{futex, process};

/// Each thread that was inside calls it before it ends.
static AT_THREAD_END: OnceLock<fn()> = OnceLock::new();

/// Says what each thread that was inside calls before it ends.
pub fn at_thread_end(act: fn()) {
    let _ = AT_THREAD_END.set(act);
}

/// How far a thread has come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    New,
    /// It keeps what its requests need.
    Ready,
    /// It is being taken down.
    Ended,
}

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
    static STAGE: Cell<Stage> = const { Cell::new(Stage::New) };
    /// Whether a request of the thread has been decided.
    static SERVED: Cell<bool> = const { Cell::new(false) };
    static NUMBER: Cell<u32> = const { Cell::new(0) };
    static TURNS: [Cell<u32>; 3] = const { [const { Cell::new(0) }; 3] };
    /// The signals of a thread that is ending.
    static SIGNALS: Cell<u64> = const { Cell::new(0) };
    /// Whether the thread has become two processes in one memory.
    static IN_VFORK: Cell<bool> = const { Cell::new(false) };
    /// The kernel's number of the thread, where another may have these very thread-locals; else 0.
    static OWNER: Cell<i32> = const { Cell::new(0) };
    static LAST: Last = const { Last };
    static FIRST: First = const { First };
}

/// Whether the caller has thread-locals at all: a thread that a program makes by `clone` may have
/// put something of its own where a C library keeps the list of them.
#[inline]
fn has_locals() -> bool {
    let list: usize;
    // SAFETY: reads a word of what the C library's own functions read a word of.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("mov {}, fs:[8]", out(reg) list, options(nostack, preserves_flags, readonly));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("mrs {list}, tpidr_el0", "ldr {list}, [{list}]", list = out(reg) list, options(nostack, preserves_flags, readonly));
    }
    list != 0
}

/// Whether the caller's thread-locals are another's: it was made to share that one's memory.
#[inline]
fn borrows() -> bool {
    let owner = OWNER.with(Cell::get);
    owner != 0 && owner != thread_id()
}

fn thread_id() -> i32 {
    bare!(SYS_gettid)
}

/// Whether the calling thread is the one that its process began with.
pub fn is_first_thread() -> bool {
    thread_id() == std::process::id() as i32
}

/// Whether this thread is inside, or is none of this library's business, so that its calls go
/// straight through.
#[inline]
pub fn is_inside() -> bool {
    !has_locals() || is_marked()
}

/// Apart from its caller, which could otherwise ask for thread-locals before it knows that there
/// are any.
#[inline(never)]
fn is_marked() -> bool {
    INSIDE.with(Cell::get) || borrows()
}

/// Whether a call that goes straight through is the engine's own, and not of a child that borrows
/// its parent's memory.
#[inline]
pub fn is_own_call() -> bool {
    has_locals() && !is_child()
}

#[inline(never)]
fn is_child() -> bool {
    IN_VFORK.with(Cell::get) || borrows()
}

/// The calling thread makes one that has the same thread-locals from now on. Returns what
/// [`end_sharing`] wants.
pub fn begin_sharing() -> i32 {
    OWNER.with(|owner| owner.replace(thread_id()))
}

/// The other thread is gone.
pub fn end_sharing(before: i32) {
    OWNER.with(|owner| owner.set(before));
}

/// Marks the calling thread as one of the engine's own for good.
pub fn belong() {
    INSIDE.with(|inside| inside.set(true));
}

/// Undoes that.
pub fn belong_no_more() {
    INSIDE.with(|inside| inside.set(false));
}

/// A number of the calling thread; 0 where numbers have run out.
#[inline]
pub fn thread_number() -> u32 {
    if has_locals() { number() } else { 0 }
}

#[inline(never)]
fn number() -> u32 {
    static THREADS: AtomicU32 = AtomicU32::new(0);
    NUMBER.with(|number| {
        if number.get() == 0 {
            let last = THREADS.load(Ordering::Relaxed);
            if last == u32::MAX {
                return 0;
            }
            number.set(THREADS.fetch_add(1, Ordering::Relaxed).wrapping_add(1));
        }
        number.get()
    })
}

/// Whether the thread has been inside before, and so can serve what needs nothing new.
#[inline]
pub fn is_ready() -> bool {
    STAGE.with(Cell::get) == Stage::Ready
}

/// Whether a request of this thread has been decided, so that what requests need is there.
#[inline]
pub fn has_served() -> bool {
    SERVED.with(Cell::get)
}

/// Notes that one has.
pub fn now_has_served() {
    SERVED.with(|served| served.set(true));
}

/// What a thread does once in a while, each counted for itself.
#[derive(Clone, Copy)]
pub enum Seldom {
    /// To look closely at what a request's descriptor is.
    CloseLook,
    /// To decide a request like any other where the policy leaves all to the kernel.
    LongWay,
    /// To time a request by the page cache where it is not known yet whether such requests wait.
    Timed,
}

impl Seldom {
    /// Of so many requests it is done with one.
    const fn one_in(self) -> u32 {
        match self {
            Seldom::CloseLook => 64,
            Seldom::LongWay => 16,
            Seldom::Timed => 4,
        }
    }

    /// Whether it is done this time.
    #[inline]
    pub fn is_due(self) -> bool {
        TURNS.with(|turns| {
            let turn = &turns[self as usize];
            turn.set(turn.get().wrapping_add(1));
            turn.get().is_multiple_of(self.one_in())
        })
    }
}

/// Keeps `fork` away while a thread that ends takes down what it kept: made before all that, so
/// taken down after it.
struct First;

impl Drop for First {
    fn drop(&mut self) {
        leave_work();
        INSIDE.with(|inside| inside.set(false));
        set_signals(SIGNALS.with(Cell::get));
    }
}

/// Made after all that, so taken down before it.
struct Last;

impl Drop for Last {
    fn drop(&mut self) {
        // That of the first thread comes only where it ends before its process, cancelled perhaps.
        if let Some(act) = AT_THREAD_END.get() {
            act();
        }
        STAGE.with(|stage| stage.set(Stage::Ended));
        SIGNALS.with(|signals| signals.set(set_signals(u64::MAX)));
        // A descriptor closed from here on is this library's own.
        INSIDE.with(|inside| inside.set(true));
        enter_work();
    }
}

/// The calling thread's stay inside.
pub struct Inside {
    signals: u64,
    errno: i32,
}

unsafe extern "C-unwind" {
    fn pthread_setcancelstate(state: c_int, before: *mut c_int) -> c_int;
    fn pthread_setcanceltype(kind: c_int, before: *mut c_int) -> c_int;
    fn pthread_testcancel();
}

/// A place to be cancelled at, as the functions are that this library stands before.
pub fn cancellation_point() {
    // SAFETY: nothing is held here, nor by what this is called by.
    unsafe { pthread_testcancel() };
}

/// Keeps what has something to drop out of the functions that call it.
#[inline(never)]
fn apart<R>(act: impl FnOnce() -> R) -> R {
    act()
}

/// Does something during which the calling thread cannot be cancelled: whatever may enter the
/// engine. A cancellation is announced by a signal, which does not come inside, and waited for; one
/// that comes at any moment would unwind functions at places from where that is not provided for.
/// So what this is called by has nothing to drop.
pub fn uncancelled<R: Copy>(act: impl FnOnce() -> R) -> R {
    const NEVER: c_int = 1;
    const DEFERRED: c_int = 0;
    let (mut state, mut kind) = (0, 0);
    // A signal that was sent before cancels even who cannot be cancelled any more, unless that is
    // deferred.
    // SAFETY: live places to write to.
    unsafe {
        pthread_setcanceltype(DEFERRED, &mut kind);
        pthread_setcancelstate(NEVER, &mut state);
    }
    let result = apart(act);
    // A thread that ends where it can be cancelled again may lack the result that says so (glibc
    // 2.36), unless that takes effect at a place made for it.
    // SAFETY: live places to write to. The thread may end here.
    unsafe {
        pthread_setcancelstate(state, &mut state);
        if kind != DEFERRED {
            pthread_testcancel();
        }
        pthread_setcanceltype(kind, &mut kind);
    }
    result
}

impl Inside {
    /// `None` where the thread is inside already, or is ending, or nothing here is this process's.
    #[inline]
    pub fn enter() -> Option<Inside> {
        if STAGE.with(Cell::get) == Stage::Ended {
            return None;
        }
        let inside = Inside::enter_at_end()?;
        if STAGE.with(Cell::get) == Stage::New {
            prepare();
        }
        Some(inside)
    }

    /// The same for what needs nothing that a thread keeps.
    #[inline]
    pub fn enter_at_end() -> Option<Inside> {
        if is_inside() || process::is_foreign() {
            return None;
        }
        let errno = errno();
        let signals = set_signals(u64::MAX);
        INSIDE.with(|inside| inside.set(true));
        enter_work();
        Some(Inside { signals, errno })
    }
}

impl Drop for Inside {
    #[inline]
    fn drop(&mut self) {
        leave_work();
        INSIDE.with(|inside| inside.set(false));
        set_signals(self.signals);
        set_errno(self.errno);
    }
}

#[cold]
fn prepare() {
    // A thread that cannot register is ending; `enter` would have seen that.
    let _ = FIRST.try_with(|_| ());
    dwell::file::prepare_thread();
    let _ = LAST.try_with(|_| ());
    STAGE.with(|stage| stage.set(Stage::Ready));
}

/// Blocks exactly these signals, the ones that a C library keeps for itself among them, and returns
/// which were.
fn set_signals(mask: u64) -> u64 {
    let mut before = 0u64;
    // SAFETY: both words live through the call, and the kernel's signal sets are of eight bytes.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            &raw mut before,
            size_of::<u64>(),
        )
    };
    before
}

/// Threads at work inside; the highest bit says that one wants to fork. A thread that waits for it
/// to change sleeps on it. It waits for no request, but for threads that are about to leave, or for
/// a fork.
static WORK: AtomicU32 = AtomicU32::new(0);
const FORKS: u32 = 1 << 31;

fn enter_work() {
    // Of threads that are not in this process the count says nothing.
    while !process::is_foreign() && WORK.fetch_add(1, Ordering::Acquire) & FORKS != 0 {
        leave_work();
        sleep_if(|work| work & FORKS != 0);
    }
}

fn leave_work() {
    if !process::is_foreign() && WORK.fetch_sub(1, Ordering::Release) == FORKS | 1 {
        futex::wake_all(WORK.as_ptr());
    }
}

fn sleep_if(waits: impl Fn(u32) -> bool) {
    let work = WORK.load(Ordering::Acquire);
    if waits(work) {
        futex::wait(WORK.as_ptr(), work);
    }
}

/// Waits until no thread is inside and keeps all out.
pub fn before_fork() {
    while WORK.fetch_or(FORKS, Ordering::Acquire) & FORKS != 0 {
        sleep_if(|work| work & FORKS != 0);
    }
    while WORK.load(Ordering::Acquire) != FORKS {
        sleep_if(|work| work != FORKS);
    }
}

/// Lets them in again.
pub fn after_fork() {
    WORK.fetch_and(!FORKS, Ordering::Release);
    futex::wake_all(WORK.as_ptr());
}

/// In a child, where only the calling thread is left.
pub fn after_fork_in_child() {
    WORK.store(0, Ordering::Release);
}

/// The calling thread becomes two processes in one memory: its calls go straight through until the
/// child is gone.
pub fn begin_vfork() {
    if has_locals() {
        set_vfork(true);
    }
}

/// The child is gone. Nobody forks inside.
pub fn end_vfork() {
    if has_locals() {
        set_vfork(false);
    }
}

#[inline(never)]
fn set_vfork(on: bool) {
    IN_VFORK.with(|here| here.set(on));
    INSIDE.with(|inside| inside.set(on));
}
