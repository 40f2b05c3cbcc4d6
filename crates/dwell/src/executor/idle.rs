// SPDX-License-Identifier: MIT OR Apache-2.0
//! The executor as a driver of the wait machine: what the thread does when no task can go on.

use std::rc::Rc;

use dwell_policy::{Decision, Driver, Mode, Ns, Outcome, Reason, Route, WaitMachine, Woken, drive};

use super::reactor::{Flight, Owner, Reactor};
use super::shared::Shared;
use crate::in_flight::InFlight;
use crate::learner::Asked;
use crate::queue::{Queue, Wake, Watch};
use crate::wait::{LOOKS_PER_STEP, Several};

/// How long completions may be kept waiting for others, as a multiple of the time in which those
/// usually come; and the least and the most of that, in nanoseconds. It only bounds what a device
/// that stalls does to the requests it had finished and to what else the thread waits for.
const TOGETHER: Ns = 4;
const TOGETHER_NS: std::ops::RangeInclusive<Ns> = 50_000..=2_000_000;

struct Idle<'a> {
    reactor: &'a mut Reactor,
    shared: &'a Shared,
    several: Several,
    /// How long a sleep may wait for several completions, in nanoseconds.
    together_ns: Ns,
    /// When fewer than `min_complete` were first seen.
    since: Option<Ns>,
}

/// What [`Idle::arm`] came to.
struct Armed {
    /// Everything can wake this thread.
    wakeable: bool,
    /// When to come back in any case.
    until: Option<Ns>,
    /// Something may have come before it was armed.
    look: bool,
}

impl Idle<'_> {
    fn over(&mut self) -> bool {
        let taken = self.reactor.landed.len() as u32;
        if taken >= self.several.min_complete
            || !self.reactor.after.wakers.is_empty()
            || self.shared.has_news()
            || self.reactor.has_lost_some()
        {
            return true;
        }
        taken > 0 && {
            let now = self.reactor.platform.now();
            now - *self.since.get_or_insert(now) >= self.several.patience_ns
        }
    }

    /// Arms everything.
    fn arm(&mut self, until: Option<Ns>) -> Armed {
        let min_complete =
            self.several.min_complete.saturating_sub(self.reactor.landed.len() as u32).max(1);
        let Reactor { platform, lines, words, .. } = &mut *self.reactor;
        platform.disarm();
        let mut armed = Armed { wakeable: true, until, look: false };
        let mut in_ring = false;
        for (_, line) in lines.iter_mut().filter(|(_, line)| line.is_busy()) {
            // One ring is slept in; it watches what the others are to be woken by.
            let watches = !in_ring
                && platform
                    .descriptor()
                    .is_none_or(|watcher| line.queue.watch(watcher) == Watch::Waiting);
            let wake = match watches {
                true => line.queue.arm(min_complete),
                false => line.queue.arm_beside(min_complete),
            };
            if let Wake::At(at) | Wake::Socket { at: Some(at), .. } = wake {
                armed.until = Some(armed.until.map_or(at, |until| until.min(at)));
            }
            in_ring |= matches!(wake, Wake::Ring { .. });
            // A ring looks before it puts anyone to sleep; the others are to be looked at again.
            armed.look |= !matches!(wake, Wake::Ring { .. });
            armed.wakeable &= match wake {
                Wake::Never => false,
                Wake::At(_) => true,
                wake => platform.arm(&wake),
            };
        }
        for (_, wait) in words.iter() {
            let word = (*wait.word).as_ref();
            armed.look = true;
            armed.wakeable &= platform.arm(&Wake::Word { word, seen: wait.seen });
        }
        armed
    }

    /// Whether the ring that is slept in has seen that a descriptor is ready.
    fn ring_fired(&mut self) -> bool {
        let Reactor { platform, lines, .. } = &mut *self.reactor;
        let Some(watcher) = platform.descriptor() else { return false };
        let mut busy = lines.iter_mut().filter(|(_, line)| line.is_busy());
        let watch = busy.find_map(|(_, line)| match line.queue.watch(watcher) {
            Watch::Cannot => None,
            watch => Some(watch),
        });
        watch == Some(Watch::Fired)
    }

    fn leave(&mut self, until: Option<Ns>) {
        self.reactor.counts.parks += 1;
        if self.reactor.platform.wait(until) {
            let now = self.reactor.platform.now();
            self.reactor.look_at_descriptors(now);
        }
    }
}

impl Driver for Idle<'_> {
    fn now(&mut self) -> Ns {
        self.reactor.platform.now()
    }

    fn poll(&mut self) -> bool {
        let now = self.reactor.platform.now();
        // A thread that something else has woken, or that waits for nothing on a queue, looks only
        // once.
        let spins = self.reactor.in_flight() > 0
            && self.reactor.after.wakers.is_empty()
            && self.reactor.timers.next().is_none_or(|at| at > now);
        for look in 0..if spins { LOOKS_PER_STEP } else { 1 } {
            if look > 0 {
                self.reactor.platform.relax();
            }
            self.reactor.look_at_queues();
            if self.reactor.landed.len() as u32 >= self.several.min_complete
                || self.shared.has_news()
            {
                break;
            }
        }
        self.reactor.look_at_words();
        // A thread that waits for nothing on a queue blocks next, and the call for that looks by
        // itself.
        if self.reactor.in_flight() > 0 {
            let now = self.reactor.platform.now();
            self.reactor.look_at_descriptors_at_times(now);
        }
        self.over()
    }

    /// Naps by a timer, which only what no queue is needed for may end early.
    fn sleep(&mut self, until: Ns) {
        if self.shared.fall_asleep() {
            self.leave(Some(until));
            self.shared.wake_up();
        }
    }

    fn park(&mut self, until: Option<Ns>) -> Woken {
        if self.ring_fired() {
            let now = self.reactor.platform.now();
            self.reactor.look_at_descriptors(now);
            if !self.reactor.after.wakers.is_empty() {
                return Woken::Look;
            }
        }
        if !self.shared.fall_asleep() {
            return Woken::Look;
        }
        let Armed { wakeable, until, look } = self.arm(until);
        if wakeable && (!look || self.look_once_more()) {
            let until = match self.several.min_complete {
                0 | 1 => until,
                _ => {
                    let together = self.reactor.platform.now().saturating_add(self.together_ns);
                    Some(until.map_or(together, |until| until.min(together)))
                }
            };
            self.leave(until);
        }
        self.shared.wake_up();
        for (_, line) in self.reactor.lines.iter_mut().filter(|(_, line)| line.is_busy()) {
            line.queue.disarm();
        }
        // After a sleep, one completion is min_complete: the thread takes those that are there.
        self.several = Several::ONE;
        if wakeable { Woken::Look } else { Woken::Unwakeable }
    }
}

impl Idle<'_> {
    /// Whether there is still nothing.
    fn look_once_more(&mut self) -> bool {
        let found = self.reactor.look_at_queues() > 0;
        let changed = self.reactor.words.iter().any(|(_, wait)| wait.has_changed());
        !found && !changed
    }
}

impl Reactor {
    /// Waits until a task can go on, as was decided for the request due first.
    pub fn wait(&mut self, shared: &Shared) {
        let now = self.platform.now();
        let first = self.lines.iter_mut().filter_map(|(_, line)| {
            let flight = line.in_flight.first_due()?;
            let Flight { submitted, decision, asked, owner, .. } = flight;
            Some((flight.due(), (*submitted, *decision, *asked, owner.clone())))
        });
        let first = first.min_by_key(|(due, _)| *due).map(|(_, waited)| waited);
        // A thread that will block sends its requests with the call that waits for them.
        if first.as_ref().is_some_and(|(_, decision, ..)| decision.mode != Mode::Block) {
            let before = self.counts.completions;
            self.look();
            // What was over decides for nobody, even if no task wanted it.
            if !self.after.wakers.is_empty() || self.counts.completions > before {
                return;
            }
        }
        let (submitted, mut decision, asked, owner) = match first {
            Some((submitted, decision, asked, owner)) => (submitted, decision, asked, Some(owner)),
            None => {
                let block = Decision::new(Route::Interrupt, Mode::Block, 0, Reason::Fixed);
                (now, block, None, None)
            }
        };
        let outcome = self.wait_as(shared, now, submitted, (&mut decision, asked), owner.as_ref());
        if let Some(owner) = owner {
            owner.waited(&decision, asked, &outcome);
            self.after.owners.push(owner);
        }
    }

    fn wait_as(
        &mut self,
        shared: &Shared,
        now: Ns,
        submitted: Ns,
        (decision, asked): (&mut Decision, Option<Asked>),
        owner: Option<&Rc<dyn Owner>>,
    ) -> Outcome {
        // A thread spins for all its requests at once, so it needs one permit, at the wait.
        let admission = owner.and_then(|owner| owner.admission());
        let guard = match admission.map_or(Ok(None), |admission| {
            let spares_others = asked.is_some_and(Asked::spares_others);
            admission.admit(decision, now, &mut self.standing, spares_others)
        }) {
            Ok(guard) => guard,
            Err(why) => {
                (decision.mode, decision.reason) = (Mode::Block, why);
                None
            }
        };
        let machine = WaitMachine::new(decision, submitted, now);
        let machine = match self.timers.next() {
            Some(at) => machine.until(at),
            None => machine,
        };
        let switch_ns = owner.map_or(0, |owner| owner.switch_ns());
        let in_flight = self.in_flight();
        let (min_complete, patience_ns) =
            self.pace.worth_waiting_for(decision, in_flight, switch_ns);
        let usual_ns = self.pace.interval_ns().saturating_mul(Ns::from(min_complete));
        let together_ns =
            usual_ns.saturating_mul(TOGETHER).clamp(*TOGETHER_NS.start(), *TOGETHER_NS.end());
        let several = Several { min_complete, patience_ns };
        let outcome =
            drive(machine, &mut Idle { reactor: self, shared, several, together_ns, since: None });
        self.counts.waited(&outcome);
        self.fire_timers(outcome.ended);
        if in_flight > 0 {
            self.pace.note(outcome.ended, self.landed.len() as u32);
            self.land(Some((decision, outcome.expired)));
            self.give_up(false);
        }
        if let Some(admission) = admission {
            admission.spun(guard, outcome.spun_ns);
        }
        outcome
    }

    /// Waits a while for what was cancelled.
    pub fn wait_for_ends(&mut self, until: Ns) {
        let mut woken = Vec::new();
        while self.in_flight() > 0 && self.platform.now() < until {
            let quiet = Shared::new(Box::new(|| ()));
            let timer = self.timers.insert(until, std::task::Waker::noop().clone());
            self.wait(&quiet);
            self.timers.remove(timer);
            woken.append(&mut self.after.wakers);
        }
        self.after.wakers = woken;
    }
}
