// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver of a blocking call: steps the wait machine over one queue in real time.

use dwell_policy::{Driver, Ns, Outcome, WaitMachine, Woken, drive};

use crate::queue::{Completion, Queue};
use crate::{arch, clock, park};

/// Looks between two readings of the clock, while spinning.
pub(crate) const LOOKS_PER_STEP: usize = 16;

/// Uses the idle time of a wait: returns `false` when there is nothing (more) to do until the
/// completion is due at the given time.
pub type Idle<'a> = dyn FnMut(Ns) -> bool + 'a;

struct Blocking<'a, Q: Queue + ?Sized> {
    queue: &'a mut Q,
    /// Takes a completion; `true` when it is one that was waited for.
    out: &'a mut dyn FnMut(Completion) -> bool,
    idle: Option<&'a mut Idle<'a>>,
    several: Several,
    /// Whether the wait ends when the queue is lost.
    may_lose: bool,
    taken: u32,
    /// When fewer than `min_complete` were first seen.
    since: Option<Ns>,
}

/// How many completions end a wait.
#[derive(Clone, Copy, Debug)]
pub struct Several {
    /// So many.
    pub min_complete: u32,
    /// Fewer do once they have been there for so long, in nanoseconds.
    pub patience_ns: Ns,
}

impl Several {
    /// The first one.
    pub const ONE: Several = Several { min_complete: 1, patience_ns: 0 };
}

impl<'a, Q: Queue + ?Sized> Blocking<'a, Q> {
    fn new(queue: &'a mut Q, out: &'a mut dyn FnMut(Completion) -> bool) -> Self {
        let (several, may_lose) = (Several::ONE, false);
        Blocking { queue, out, idle: None, several, may_lose, taken: 0, since: None }
    }

    fn over(&mut self) -> bool {
        if self.taken >= self.several.min_complete {
            return true;
        }
        if self.may_lose && self.queue.is_lost() {
            return true;
        }
        self.taken > 0 && {
            let now = clock::now();
            now - *self.since.get_or_insert(now) >= self.several.patience_ns
        }
    }
}

impl<Q: Queue + ?Sized> Driver for Blocking<'_, Q> {
    #[inline]
    fn now(&mut self) -> Ns {
        clock::now()
    }

    #[inline]
    fn poll(&mut self) -> bool {
        for look in 0..LOOKS_PER_STEP {
            if self.taken >= self.several.min_complete {
                break;
            }
            if look > 0 {
                arch::relax();
            }
            let (taken, out) = (&mut self.taken, &mut self.out);
            self.queue.poll(&mut |completion| *taken += u32::from(out(completion)));
        }
        self.over()
    }

    fn offer(&mut self, until: Ns) -> bool {
        self.idle.as_mut().is_some_and(|idle| idle(until))
    }

    fn sleep(&mut self, until: Ns) {
        clock::sleep_until(until);
    }

    fn park(&mut self, until: Option<Ns>) -> Woken {
        let min_complete = self.several.min_complete - self.taken;
        let (taken, out) = (&mut self.taken, &mut self.out);
        let take = &mut |completion| *taken += u32::from(out(completion));
        let woken = park::park(self.queue, until, min_complete, take);
        // After a sleep, one completion is enough: the thread takes those that are there.
        self.several = Several::ONE;
        woken
    }
}

/// Waits on `queue` as `machine` says, until `out` returns `true` for a completion (or the
/// machine's time limit passes). Completions of other requests on the same queue go to `out` too.
///
/// A request that is waited for so may only borrow its memory: on a queue that is lost
/// ([`Queue::is_lost`]) the wait goes on, in naps, while the device may still write there.
///
/// Allocates nothing and takes no lock of its own.
#[inline]
pub fn wait<'a, Q: Queue + ?Sized>(
    queue: &'a mut Q,
    machine: WaitMachine,
    out: &'a mut dyn FnMut(Completion) -> bool,
) -> Outcome {
    drive(machine, &mut Blocking::new(queue, out))
}

/// As [`wait`], until `out` has returned `true` for several completions, or the queue is lost.
#[inline]
pub fn wait_for<'a, Q: Queue + ?Sized>(
    queue: &'a mut Q,
    machine: WaitMachine,
    several: Several,
    out: &'a mut dyn FnMut(Completion) -> bool,
) -> Outcome {
    drive(machine, &mut Blocking { several, may_lose: true, ..Blocking::new(queue, out) })
}

/// As [`wait`], handing idle time to `idle`.
pub fn wait_and_use<'a, Q: Queue + ?Sized>(
    queue: &'a mut Q,
    machine: WaitMachine,
    out: &'a mut dyn FnMut(Completion) -> bool,
    idle: &'a mut Idle<'a>,
) -> Outcome {
    drive(machine, &mut Blocking { idle: Some(idle), ..Blocking::new(queue, out) })
}
