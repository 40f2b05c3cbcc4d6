// SPDX-License-Identifier: MIT OR Apache-2.0
//! The driver of a blocking call: steps the wait machine over one queue in real time.

use dwell_policy::{Driver, Ns, Outcome, WaitMachine, Woken, drive};

use crate::queue::{Completion, Queue};
use crate::{arch, clock, park};

/// Looks between two readings of the clock, while spinning.
const LOOKS_PER_STEP: usize = 16;

/// Uses the idle time of a wait: returns `false` when there is nothing (more) to do until the
/// completion is due at the given time.
pub type Idle<'a> = dyn FnMut(Ns) -> bool + 'a;

struct Blocking<'a, Q: Queue + ?Sized> {
    queue: &'a mut Q,
    /// Takes a completion; `true` when the wait is over.
    out: &'a mut dyn FnMut(Completion) -> bool,
    idle: Option<&'a mut Idle<'a>>,
    done: bool,
}

impl<Q: Queue + ?Sized> Driver for Blocking<'_, Q> {
    #[inline]
    fn now(&mut self) -> Ns {
        clock::now()
    }

    #[inline]
    fn poll(&mut self) -> bool {
        for look in 0..LOOKS_PER_STEP {
            if self.done {
                break;
            }
            if look > 0 {
                arch::relax();
            }
            let (done, out) = (&mut self.done, &mut self.out);
            self.queue.poll(&mut |completion| *done |= out(completion));
        }
        self.done
    }

    fn offer(&mut self, until: Ns) -> bool {
        self.idle.as_mut().is_some_and(|idle| idle(until))
    }

    fn sleep(&mut self, until: Ns) {
        clock::sleep_until(until);
    }

    fn park(&mut self, until: Option<Ns>) -> Woken {
        let (done, out) = (&mut self.done, &mut self.out);
        park::park(self.queue, until, &mut |completion| *done |= out(completion))
    }
}

/// Waits on `queue` as `machine` says, until `out` returns `true` for a completion (or the
/// machine's time limit passes). Completions of other requests on the same queue go to `out` too.
///
/// Allocates nothing and takes no lock of its own.
#[inline]
pub fn wait<'a, Q: Queue + ?Sized>(
    queue: &'a mut Q,
    machine: WaitMachine,
    out: &'a mut dyn FnMut(Completion) -> bool,
) -> Outcome {
    drive(machine, &mut Blocking { queue, out, idle: None, done: false })
}

/// As [`wait`], handing idle time to `idle`.
pub fn wait_and_use<'a, Q: Queue + ?Sized>(
    queue: &'a mut Q,
    machine: WaitMachine,
    out: &'a mut dyn FnMut(Completion) -> bool,
    idle: &'a mut Idle<'a>,
) -> Outcome {
    drive(machine, &mut Blocking { queue, out, idle: Some(idle), done: false })
}
