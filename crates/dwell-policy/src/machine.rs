// SPDX-License-Identifier: MIT OR Apache-2.0
//! The one wait loop.

use crate::{Decision, Mode, Ns};

/// What the waiting thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Look for the completion.
    Poll,
    /// Use the idle time for something else; the completion is due at `until`.
    Offer {
        /// When the completion is due (it may be past).
        until: Ns,
    },
    /// Sleep by a timer.
    Sleep {
        /// When to ask the timer to fire; the measured overshoot is already taken off.
        until: Ns,
    },
    /// Block until the queue wakes this thread.
    Park {
        /// When to come back in any case.
        until: Option<Ns>,
    },
    /// The wait is over.
    Done,
}

/// How a park ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Woken {
    /// By the queue, by the time limit, or spuriously: look again.
    Look,
    /// Not at all: this queue cannot wake anyone.
    Unwakeable,
}

/// Where the time of one wait went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Whether the completion came; `false` only where the wait had a time limit.
    pub ready: bool,
    /// Whether a spin passed its deadline.
    pub expired: bool,
    /// Busy-waiting, in nanoseconds.
    pub spun_ns: Ns,
    /// Doing offered work, in nanoseconds.
    pub offered_ns: Ns,
    /// Asleep on a timer, in nanoseconds.
    pub slept_ns: Ns,
    /// Parked, in nanoseconds.
    pub parked_ns: Ns,
    /// Number of times the thread parked.
    pub parks: u32,
    /// When the wait ended, on the driver's clock.
    pub ended: Ns,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Sleeping {
        until: Ns,
    },
    Spinning {
        deadline: Ns,
    },
    Parking,
    /// Parking on a queue that cannot wake anyone: timed polling, ever more slowly.
    Napping {
        nap_ns: Ns,
    },
    Over,
}

/// One wait, as a pure state machine: [`WaitMachine::step`] is told the time and whether the
/// completion is there, and says what to do. It never blocks, reads no clock and allocates
/// nothing; the same machine runs in a blocking call, an executor, a fault handler and a simulator.
///
/// A spin ends at the decision's deadline and parks, so a stalled device never holds a core.
#[derive(Clone, Debug)]
pub struct WaitMachine {
    phase: Phase,
    spin_limit_ns: Ns,
    due: Ns,
    give_up_at: Option<Ns>,
    offering: bool,
    last: Option<Step>,
    stepped_at: Ns,
    outcome: Outcome,
}

impl WaitMachine {
    /// First nap on a queue that cannot wake anyone, in nanoseconds; each next one is twice as
    /// long, up to [`WaitMachine::MAX_NAP_NS`].
    pub const MIN_NAP_NS: Ns = 50_000;
    /// Longest nap on a queue that cannot wake anyone, in nanoseconds.
    pub const MAX_NAP_NS: Ns = 2_000_000;

    /// A wait that begins at `now` for a request submitted at `submitted`, on the same clock.
    pub fn new(decision: &Decision, submitted: Ns, now: Ns) -> Self {
        let phase = match decision.mode {
            Mode::Block => Phase::Parking,
            Mode::Spin => Phase::Spinning { deadline: now.saturating_add(decision.spin_limit_ns) },
            Mode::Hybrid { sleep_ns } => {
                Phase::Sleeping { until: submitted.saturating_add(sleep_ns) }
            }
        };
        WaitMachine {
            phase,
            spin_limit_ns: decision.spin_limit_ns,
            due: submitted.saturating_add(decision.expected_ns),
            give_up_at: None,
            offering: true,
            last: None,
            stepped_at: now,
            outcome: Outcome::default(),
        }
    }

    /// Ends the wait at `at` even without a completion.
    #[must_use]
    pub fn until(mut self, at: Ns) -> Self {
        self.give_up_at = Some(at);
        self
    }

    /// The next step, given the time and whether the completion is there.
    pub fn step(&mut self, now: Ns, ready: bool) -> Step {
        self.account(now);
        let step = if ready {
            self.outcome.ready = true;
            self.phase = Phase::Over;
            Step::Done
        } else {
            self.next(now)
        };
        if matches!(step, Step::Park { .. }) {
            self.outcome.parks += 1;
        }
        self.last = Some(step);
        step
    }

    /// The offer was not taken: there is nothing (more) to do in this wait. No time was spent on
    /// it, so a thread that is to park need not look again before.
    pub fn declined(&mut self) {
        self.offering = false;
        self.last = None;
    }

    /// The queue cannot wake this thread: timed polling takes the place of parking.
    pub fn unwakeable(&mut self) {
        if self.phase == Phase::Parking {
            self.phase = Phase::Napping { nap_ns: Self::MIN_NAP_NS };
            self.outcome.parks -= 1;
        }
    }

    /// Where the time went so far.
    pub const fn outcome(&self) -> Outcome {
        Outcome { ended: self.stepped_at, ..self.outcome }
    }

    fn account(&mut self, now: Ns) {
        let spent_ns = now.saturating_sub(self.stepped_at);
        self.stepped_at = self.stepped_at.max(now);
        match self.last {
            Some(Step::Poll) => self.outcome.spun_ns += spent_ns,
            Some(Step::Offer { .. }) => self.outcome.offered_ns += spent_ns,
            Some(Step::Sleep { .. }) => self.outcome.slept_ns += spent_ns,
            Some(Step::Park { .. }) => self.outcome.parked_ns += spent_ns,
            Some(Step::Done) | None => {}
        }
    }

    fn next(&mut self, now: Ns) -> Step {
        let looked = matches!(self.last, Some(Step::Poll));
        if self.give_up_at.is_some_and(|at| now >= at) {
            // The completion may have come during the park, the sleep or the offered work.
            if !looked {
                return Step::Poll;
            }
            self.phase = Phase::Over;
        }
        let left_the_loop =
            matches!(self.last, Some(Step::Offer { .. } | Step::Sleep { .. } | Step::Park { .. }));
        if let Phase::Spinning { deadline } = self.phase
            && now >= deadline
            && looked
        {
            self.outcome.expired = true;
            self.phase = Phase::Parking;
        }
        match self.phase {
            Phase::Over => Step::Done,
            // A hybrid wait spins from when it wakes, also when the timer came early.
            Phase::Sleeping { until } if now >= until || left_the_loop => {
                self.phase = Phase::Spinning { deadline: now.saturating_add(self.spin_limit_ns) };
                Step::Poll
            }
            Phase::Sleeping { until } => Step::Sleep { until: self.bounded(until) },
            _ if left_the_loop => Step::Poll,
            Phase::Spinning { .. } if looked && self.offering => Step::Offer { until: self.due },
            Phase::Spinning { .. } => Step::Poll,
            Phase::Parking if self.offering => Step::Offer { until: self.due },
            Phase::Parking => Step::Park { until: self.give_up_at },
            Phase::Napping { nap_ns } => {
                self.phase = Phase::Napping { nap_ns: (nap_ns * 2).min(Self::MAX_NAP_NS) };
                Step::Sleep { until: self.bounded(now.saturating_add(nap_ns)) }
            }
        }
    }

    fn bounded(&self, until: Ns) -> Ns {
        self.give_up_at.map_or(until, |at| at.min(until))
    }
}

/// What the machine needs of the world: a clock, a queue, and ways to block.
pub trait Driver {
    /// The time, on the clock of the machine's `submitted` and `now`.
    fn now(&mut self) -> Ns;
    /// Looks for the completion, once or a few times.
    fn poll(&mut self) -> bool;
    /// Uses idle time; `false` when there is nothing (more) to do in this wait.
    fn offer(&mut self, until: Ns) -> bool {
        let _ = until;
        false
    }
    /// Sleeps by a timer that was asked to fire at `until`.
    fn sleep(&mut self, until: Ns);
    /// Arms the queue, looks once more, and blocks if there is still nothing.
    fn park(&mut self, until: Option<Ns>) -> Woken;
}

/// Steps `machine` until the wait is over. Every wait for a completion in Dwell runs this loop.
#[inline]
pub fn drive<D: Driver + ?Sized>(mut machine: WaitMachine, driver: &mut D) -> Outcome {
    let mut ready = false;
    loop {
        match machine.step(driver.now(), ready) {
            Step::Poll => ready = driver.poll(),
            Step::Offer { until } => {
                if !driver.offer(until) {
                    machine.declined();
                }
            }
            Step::Sleep { until } => driver.sleep(until),
            Step::Park { until } => {
                if driver.park(until) == Woken::Unwakeable {
                    machine.unwakeable();
                }
            }
            Step::Done => return machine.outcome(),
        }
    }
}
