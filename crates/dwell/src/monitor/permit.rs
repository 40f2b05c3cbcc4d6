// SPDX-License-Identifier: MIT OR Apache-2.0
//! What the I/O path touches: the published load, and the permit that bounds spinning threads.

use super::sync::{AtomicU64, LEASES, SharedAtomics, Thread};
use crate::clock;
use dwell_policy::{Decision, Load, Ns};
use std::io;
use std::sync::atomic::Ordering::*;
use std::sync::{Arc, OnceLock};

/// Words shared by the monitor's thread and the I/O path. They read zero in a forked child, which
/// has no monitor: its load then says "do not spin", and it holds no lease.
#[derive(Debug)]
pub(super) struct Shared {
    words: SharedAtomics,
    pub(super) thread: OnceLock<Thread>,
}

// Words of one cache line stand together. The first two lines are read by every request and written
// rarely; the third by who likes; the fourth by every spin under a cap; each of the others by
// whoever spins on its lease.
const LINE: usize = 8;
const LOAD: usize = 0;
const SIGNALS: usize = 1;
const LEASED: usize = LINE;
const MOST_LEASED: usize = LINE + 1;
const SPIN_NS: usize = 2 * LINE;
const WORKER_NS: usize = 2 * LINE + 1;
const CAP: usize = 3 * LINE;
const FIRST_LEASE: usize = 4 * LINE;
pub(super) const SHARED_WORDS: usize = FIRST_LEASE + LEASES * LINE;

/// The words of a lease: whether somebody spins on it, how often that began and how long it took.
const BUSY: usize = 0;
const STARTS: usize = 1;
const SPUN_NS: usize = 2;

/// A request was made since the last window.
pub(super) const REQUESTED: u64 = 1;
/// A thread wanted to spin and could not.
pub(super) const REFUSED: u64 = 2;
/// The monitor sleeps for long: whoever sees this wakes it.
pub(super) const DOZING: u64 = 4;
/// A request was made to a device for which a kernel thread may work.
pub(super) const WORKED: u64 = 8;

/// Leases that this process holds, spins begun on them (wrapping), and threads spinning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Permits {
    pub(super) leased: u32,
    pub(super) starts: u32,
    pub(super) active: u32,
}

/// Adds to a word that only this thread writes now.
#[inline]
fn bump(word: &AtomicU64, more: u64) {
    word.store(word.load(Relaxed).wrapping_add(more), Relaxed);
}

impl Shared {
    pub(super) fn new() -> io::Result<Shared> {
        let shared =
            Shared { words: SharedAtomics::wiped_on_fork(SHARED_WORDS)?, thread: OnceLock::new() };
        Ok(shared)
    }

    #[inline]
    fn word(&self, at: usize) -> &AtomicU64 {
        &self.words[at]
    }

    pub(super) fn publish(&self, load: Load) {
        self.word(LOAD).store(load.pack(), Relaxed);
    }

    /// Raises signals; in the steady state of a window this is one load.
    #[inline]
    fn signal(&self, bits: u64) {
        if self.word(SIGNALS).load(Relaxed) & (bits | DOZING) != bits {
            self.signal_slowly(bits);
        }
    }

    /// Ends a long sleep of the monitor. At other times it sees spins by how many began.
    #[inline]
    fn rouse(&self) {
        if self.dozes() {
            self.signal_slowly(REQUESTED);
        }
    }

    #[cold]
    fn signal_slowly(&self, bits: u64) {
        let before = self.word(SIGNALS).fetch_or(bits, Relaxed);
        let dozed =
            before & DOZING != 0 && self.word(SIGNALS).fetch_and(!DOZING, Relaxed) & DOZING != 0;
        let first_refusal = bits & !before & REFUSED != 0 && self.leased() == 0;
        if (dozed || first_refusal)
            && let Some(thread) = self.thread.get()
        {
            thread.unpark();
        }
    }

    /// Whether a thread wants to spin in a process that has no lease.
    pub(super) fn wants_first(&self) -> bool {
        self.word(SIGNALS).load(Relaxed) & REFUSED != 0 && self.leased() == 0
    }

    /// Forgets refusals: what was refused has been granted.
    pub(super) fn forget_refusals(&self) {
        self.word(SIGNALS).fetch_and(!REFUSED, Relaxed);
    }

    /// The signals since the last call.
    pub(super) fn take_signals(&self) -> u64 {
        self.word(SIGNALS).swap(0, Relaxed)
    }

    /// Announces a long sleep; `false` when a request came in between.
    pub(super) fn doze(&self) -> bool {
        self.word(SIGNALS).fetch_or(DOZING, Relaxed) == 0
    }

    /// Whether nobody has asked for the monitor since it announced a long sleep.
    pub(super) fn dozes(&self) -> bool {
        self.word(SIGNALS).load(Relaxed) & DOZING != 0
    }

    /// The words of one lease.
    #[inline]
    fn lease(&self, at: u32) -> &[AtomicU64] {
        let first = FIRST_LEASE + at as usize % LEASES * LINE;
        &self.words[first..first + LINE]
    }

    /// Of every lease that this process ever held.
    fn sum(&self, word: usize) -> u64 {
        let leases = 0..self.word(MOST_LEASED).load(Relaxed) as u32;
        leases.fold(0, |sum, at| sum.wrapping_add(self.lease(at)[word].load(Relaxed)))
    }

    pub(super) fn leased(&self) -> u32 {
        self.word(LEASED).load(Relaxed) as u32
    }

    pub(super) fn permits(&self) -> Permits {
        let [starts, active] = [STARTS, BUSY].map(|word| self.sum(word) as u32);
        Permits { leased: self.leased(), starts, active }
    }

    /// Fewer leases end no spin: who spins on one that is gone does so once.
    pub(super) fn set_leased(&self, leased: u32) {
        let leased = u64::from(leased).min(LEASES as u64);
        self.word(MOST_LEASED).fetch_max(leased, Relaxed);
        self.word(LEASED).store(leased, Relaxed);
    }

    /// Takes a free lease, the one it had before if that is free: the only read-modify-write of a
    /// spin, on a line that nobody else wants.
    #[inline]
    fn take_lease(&self, before: u32) -> Option<u32> {
        let leased = self.leased();
        let mut leases = (0..leased).map(|more| (before % leased + more) % leased);
        leases.find(|at| {
            let busy = &self.lease(*at)[BUSY];
            busy.load(Relaxed) == 0 && busy.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
        })
    }

    /// Threads may spin for this long until the next call; `None` sets no limit. The rest of the
    /// last allowance is forfeited.
    pub(super) fn set_allowance(&self, allowed_ns: Option<Ns>) {
        self.word(CAP).store(allowed_ns.map_or(0, |ns| ns.saturating_add(1)), Relaxed);
    }

    /// Takes up to `most_ns` of what may still be spun, `least_ns` at least. `None` where there is
    /// less; `Some(None)` without a cap.
    #[inline]
    fn reserve(&self, least_ns: Ns, most_ns: Ns) -> Option<Option<Ns>> {
        // One more than is left; 0 without a cap, as in a forked child.
        let mut word = self.word(CAP).load(Relaxed);
        loop {
            let Some(left_ns) = word.checked_sub(1) else { return Some(None) };
            let taken_ns = most_ns.min(left_ns);
            if taken_ns < least_ns.max(1) {
                return None;
            }
            let rest = word - taken_ns;
            match self.word(CAP).compare_exchange_weak(word, rest, Relaxed, Relaxed) {
                Ok(_) => return Some(Some(taken_ns)),
                Err(now) => word = now,
            }
        }
    }

    /// Puts back what was reserved and not spun.
    fn settle(&self, reserved_ns: Ns, spun_ns: Ns) {
        let _ = self.word(CAP).fetch_update(Relaxed, Relaxed, |word| {
            let left_ns = word.checked_sub(1)?.saturating_add(reserved_ns);
            // A spin that was preempted, or looked once too often, may have taken longer.
            Some(left_ns.saturating_sub(spun_ns).saturating_add(1))
        });
    }

    /// Spun and worked, in all.
    pub(super) fn totals(&self) -> (Ns, Ns) {
        let read = |at: usize| self.word(at).load(Relaxed);
        (read(SPIN_NS).wrapping_add(self.sum(SPUN_NS)), read(WORKER_NS))
    }
}

/// Reads the load; cheap to clone, one per thread or one for all.
#[derive(Clone, Debug)]
pub struct LoadReader(pub(super) Arc<Shared>);

impl LoadReader {
    /// The state of the machine in the last window: one relaxed atomic load.
    #[inline]
    pub fn load(&self) -> Load {
        Load::unpack(self.word())
    }

    /// The same, packed.
    #[inline]
    pub(crate) fn word(&self) -> u64 {
        self.0.word(LOAD).load(Relaxed)
    }

    /// Tells the monitor that there are requests, so that it does not sleep for long. Called for
    /// every request it costs one relaxed load.
    #[inline]
    pub fn note_request(&self) {
        self.0.signal(REQUESTED);
    }

    /// [`LoadReader::note_request`], of a device for which a kernel thread may work, or not.
    #[inline]
    pub(crate) fn note_request_to(&self, worker: bool) {
        self.0.signal(if worker { REQUESTED | WORKED } else { REQUESTED });
    }
}

/// The right of this process's threads to spin: as many at once as the process holds leases.
#[derive(Clone, Debug)]
pub struct SpinPermit(pub(super) Arc<Shared>);

impl SpinPermit {
    /// Begins to spin, if a lease is free: one atomic read-modify-write. A refusal is remembered
    /// as a wish for one more lease. The guard on drop gives the lease back and counts the time.
    #[inline]
    pub fn try_spin(&self) -> Option<SpinGuard<'_>> {
        let mut guard = self.try_spin_at(0, 0)?;
        guard.since_ns = clock::now();
        Some(guard)
    }

    /// [`SpinPermit::try_spin`] for a caller that knows the time (CLOCK_MONOTONIC): no clock is
    /// read. A thread that names the [lease](SpinGuard::lease) of its last spin meets no other
    /// thread on that lease's cache line, as long as there are leases for all.
    #[inline]
    pub fn try_spin_at(&self, now_ns: Ns, lease: u32) -> Option<SpinGuard<'_>> {
        let Some(lease) = self.0.take_lease(lease) else {
            self.want();
            return None;
        };
        bump(&self.0.lease(lease)[STARTS], 1);
        self.0.rouse();
        Some(SpinGuard { shared: &self.0, lease: Some(lease), since_ns: now_ns, reserved_ns: None })
    }

    /// Holds a wait that is to spin to what waiting may still use of the CPUs: its spin may last
    /// that long at most. `None` where less is left than the wait is predicted to take. Without a
    /// cap this is one relaxed load, and `guard` comes back.
    #[inline]
    pub fn within_cap<'a>(
        &'a self,
        guard: Option<SpinGuard<'a>>,
        decision: &mut Decision,
        now_ns: Ns,
    ) -> Option<Option<SpinGuard<'a>>> {
        match self.0.reserve(decision.expected_ns, decision.spin_limit_ns) {
            Some(None) => Some(guard),
            Some(Some(reserved_ns)) => {
                decision.spin_limit_ns = reserved_ns;
                let lease = guard.as_ref().and_then(SpinGuard::lease);
                std::mem::forget(guard);
                let (shared, reserved_ns) = (&*self.0, Some(reserved_ns));
                Some(Some(SpinGuard { shared, lease, since_ns: now_ns, reserved_ns }))
            }
            None => {
                if let Some(guard) = guard {
                    guard.finish(0);
                }
                None
            }
        }
    }

    /// Whether a wait of so long could not be spun for under the cap now: one relaxed load.
    #[inline]
    pub fn is_spent(&self, expected_ns: Ns) -> bool {
        let left_ns = self.0.word(CAP).load(Relaxed).checked_sub(1);
        left_ns.is_some_and(|left_ns| left_ns < expected_ns.max(1))
    }

    /// Whether a lease is free now.
    #[inline]
    pub(crate) fn has_room(&self) -> bool {
        (0..self.0.leased()).any(|at| self.0.lease(at)[BUSY].load(Relaxed) == 0)
    }

    /// Records that a thread would have spun, had there been a lease. A caller whose load says
    /// that it may not spin calls this in place of [`SpinPermit::try_spin`].
    #[inline]
    pub fn want(&self) {
        self.0.signal(REQUESTED | REFUSED);
    }

    /// Counts time that was spun without a guard.
    #[inline]
    pub fn add_spin(&self, spin_ns: Ns) {
        self.0.word(SPIN_NS).fetch_add(spin_ns, Relaxed);
    }

    /// Counts CPU time of kernel workers that served this process's requests.
    pub fn add_worker(&self, worker_ns: Ns) {
        self.0.word(WORKER_NS).fetch_add(worker_ns, Relaxed);
    }

    /// Threads that may spin at once.
    pub fn leased(&self) -> u32 {
        self.0.leased()
    }

    /// Threads that spin now.
    pub fn active(&self) -> u32 {
        self.0.permits().active
    }
}

/// A spin that is going on.
#[derive(Debug)]
#[must_use = "the permit is given back at once"]
pub struct SpinGuard<'a> {
    shared: &'a Shared,
    /// Which of the process's leases it holds; `None` where it needs none.
    lease: Option<u32>,
    since_ns: Ns,
    /// What it took of what may be spun, where there is a cap.
    reserved_ns: Option<Ns>,
}

impl SpinGuard<'_> {
    /// The lease on which it spins, if it needs one: the next spin of this thread does best to ask
    /// for it.
    pub fn lease(&self) -> Option<u32> {
        self.lease
    }

    fn give_back(&self, spun_ns: Ns) {
        match self.lease {
            Some(at) => {
                let lease = self.shared.lease(at);
                bump(&lease[SPUN_NS], spun_ns);
                lease[BUSY].store(0, Release);
            }
            None => {
                self.shared.word(SPIN_NS).fetch_add(spun_ns, Relaxed);
            }
        }
        if let Some(reserved_ns) = self.reserved_ns {
            self.shared.settle(reserved_ns, spun_ns);
        }
    }

    /// Ends the spin of a caller that measured it: no clock is read.
    pub fn finish(self, spun_ns: Ns) {
        self.give_back(spun_ns);
        std::mem::forget(self);
    }
}

impl Drop for SpinGuard<'_> {
    fn drop(&mut self) {
        self.give_back(clock::now().saturating_sub(self.since_ns));
    }
}
