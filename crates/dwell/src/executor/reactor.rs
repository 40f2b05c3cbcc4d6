// SPDX-License-Identifier: MIT OR Apache-2.0
//! Everything that tasks wait for: requests on queues, timers, descriptors, words.

use std::any::{Any, TypeId};
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::Waker;

use dwell_policy::{Backlog, Decision, Ns, Outcome, Pace};
use slab::Slab;

use super::Counts;
use super::platform::Platform;
use super::readiness::Readiness;
use crate::admission::{Admission, Standing};
use crate::async_submission::{as_taken, as_waited};
use crate::in_flight::{InFlight, InFlightTable};
use crate::learner::Asked;
use crate::parameters::Entered;
use crate::queue::{Completion, Full, Io, Queue, Ticket};
use crate::timers::Timers;

/// Descriptors are asked for news at most that often while there is other work, in nanoseconds.
const LOOK_EVERY_NS: Ns = 20_000;

/// The file that a request belongs to.
pub(super) trait Owner {
    fn admission(&self) -> Option<&Admission>;
    fn switch_ns(&self) -> Ns;
    /// Accounts for a wait as was decided for one of its requests.
    fn waited(&self, decision: &Decision, asked: Option<Asked>, outcome: &Outcome);
    /// A request is about to go in.
    fn begin(&self, asked: Option<Asked>, now: Ns);
    /// Counts a request that went in.
    fn enter(&self, io: &Io) -> Entered;
    /// Counts out a request that is in flight and never completes.
    fn gave_up(&self, flight: &Flight);
    /// Accounts for a completion, as of a request that was decided so; the latency is given where
    /// it is known. The final result.
    fn landed(
        &self,
        flight: &Flight,
        decision: &Decision,
        result: i32,
        latency_ns: Option<Ns>,
        expired: bool,
    ) -> i32;
}

/// One request in flight.
pub(super) struct Flight {
    ticket: Ticket,
    pub io: Io,
    pub submitted: Ns,
    pub decision: Decision,
    pub asked: Option<Asked>,
    pub entered: Entered,
    /// Whether somebody still wants the result.
    pub wanted: bool,
    request: usize,
    pub owner: Rc<dyn Owner>,
}

impl InFlight for Flight {
    fn ticket(&self) -> Ticket {
        self.ticket
    }
    fn due(&self) -> Ns {
        self.submitted.saturating_add(self.decision.expected_ns)
    }
}

/// Sources with one key are served by one queue.
pub(super) type Key = (TypeId, u64);

/// One queue.
pub(super) struct Line {
    pub queue: Box<dyn Queue<Op = Io>>,
    pub in_flight: InFlightTable<Flight>,
    depth: u32,
    /// Requests for which there was no room, first come first served.
    waiting: VecDeque<usize>,
    /// Those of them that were told of room and have not taken it yet.
    granted: u32,
    users: u32,
    key: Option<Key>,
}

impl Line {
    pub fn is_busy(&self) -> bool {
        self.in_flight.len() > 0
    }

    fn has_room(&self) -> bool {
        (self.in_flight.len() as u32).saturating_add(self.granted) < self.depth
    }

    fn grant(&mut self, requests: &mut Slab<Request>, woken: &mut Vec<Waker>) {
        while self.has_room()
            && let Some(next) = self.waiting.pop_front()
        {
            requests[next].state = State::Granted;
            self.granted += 1;
            woken.extend(requests[next].waker.take());
        }
    }
}

/// What has become of a request whose task waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// It waits for room on its queue.
    Waiting,
    /// There is room.
    Granted,
    InFlight(Ticket),
    /// It is over, with this result.
    Landed(i32),
    /// It never completes, and the device may write to its memory for good.
    GivenUp,
}

pub(super) struct Request {
    state: State,
    waker: Option<Waker>,
    /// The memory of a request that its task has given up.
    orphan: Option<Box<dyn Any>>,
}

/// A word that a task waits for.
pub(super) struct WordWait {
    pub word: Arc<dyn AsRef<AtomicU32>>,
    pub seen: u32,
    pub waker: Waker,
}

impl WordWait {
    pub fn has_changed(&self) -> bool {
        (*self.word).as_ref().load(Ordering::Acquire) != self.seen
    }
}

/// Wake-ups and drops to carry out once the reactor's borrow is over, because they may come back to
/// it.
#[derive(Default)]
pub(super) struct After {
    pub wakers: Vec<Waker>,
    pub owners: Vec<Rc<dyn Owner>>,
    orphans: Vec<Box<dyn Any>>,
    queues: Vec<Box<dyn Queue<Op = Io>>>,
}

impl After {
    pub fn is_empty(&self) -> bool {
        self.wakers.is_empty()
            && self.owners.is_empty()
            && self.orphans.is_empty()
            && self.queues.is_empty()
    }

    pub fn run(&mut self) {
        self.wakers.drain(..).for_each(Waker::wake);
        self.orphans.clear();
        self.owners.clear();
        self.queues.clear();
    }
}

pub(super) struct Reactor {
    pub platform: Box<dyn Platform>,
    pub timers: Timers<Waker>,
    pub lines: Slab<Line>,
    pub requests: Slab<Request>,
    pub descriptors: Slab<Readiness>,
    pub words: Slab<WordWait>,
    pub after: After,
    pub pace: Pace,
    pub standing: Standing,
    pub counts: Counts,
    /// Completions of the present look or wait: queue, what, when seen.
    pub landed: Vec<(usize, Completion, Ns)>,
    looked: Ns,
}

impl Reactor {
    pub fn new(platform: Box<dyn Platform>) -> Self {
        Reactor {
            platform,
            timers: Timers::new(),
            lines: Slab::new(),
            requests: Slab::new(),
            descriptors: Slab::new(),
            words: Slab::new(),
            after: After::default(),
            pace: Pace::default(),
            standing: Standing::default(),
            counts: Counts::default(),
            landed: Vec::new(),
            looked: 0,
        }
    }

    /// The queue of sources with this key, if there is one that takes requests.
    pub fn shared_line(&mut self, key: Key) -> Option<usize> {
        let found = self.lines.iter_mut().find(|(_, line)| line.key == Some(key));
        found.map(|(at, line)| {
            line.users += 1;
            at
        })
    }

    pub fn add_line(
        &mut self,
        queue: Box<dyn Queue<Op = Io>>,
        depth: u32,
        key: Option<Key>,
    ) -> usize {
        let (in_flight, waiting) = (InFlightTable::new(depth), VecDeque::new());
        self.lines.insert(Line { queue, in_flight, depth, waiting, granted: 0, users: 1, key })
    }

    /// A file lets go of its queue. One that several files can use stays for the next.
    pub fn leave_line(&mut self, at: usize) {
        if let Some(line) = self.lines.get_mut(at) {
            line.users -= 1;
            self.retire(at);
        }
    }

    fn retire(&mut self, at: usize) {
        let line = &self.lines[at];
        if line.users == 0 && line.key.is_none() && !line.is_busy() {
            self.after.queues.push(self.lines.remove(at).queue);
            self.platform.forget();
        }
    }

    pub fn backlog(&self, line: usize) -> Backlog {
        self.lines[line].queue.backlog()
    }

    /// Whether a request may be submitted now. If not, it waits for room under the name given back.
    pub fn admit(
        &mut self,
        line: usize,
        granted: Option<usize>,
        waker: &Waker,
    ) -> Result<(), usize> {
        let line = &mut self.lines[line];
        if let Some(request) = granted {
            self.requests.remove(request);
            line.granted -= 1;
        } else if !line.has_room() || !line.waiting.is_empty() {
            return Err(Self::wait_for_room(line, &mut self.requests, waker));
        }
        Ok(())
    }

    fn wait_for_room(line: &mut Line, requests: &mut Slab<Request>, waker: &Waker) -> usize {
        let waker = Some(waker.clone());
        let request = requests.insert(Request { state: State::Waiting, waker, orphan: None });
        line.waiting.push_back(request);
        request
    }

    /// Gives a request that was admitted to its queue.
    ///
    /// # Errors
    /// The queue takes no more now; the request waits for room under the name given back. Without a
    /// name: it takes nothing at all.
    pub fn submit(
        &mut self,
        line: usize,
        io: Io,
        again: Io,
        (decision, asked): (Decision, Option<Asked>),
        owner: &Rc<dyn Owner>,
        waker: &Waker,
    ) -> Result<usize, (Option<usize>, Io)> {
        let submitted = self.platform.now();
        let idle = self.in_flight() == 0;
        let line = &mut self.lines[line];
        owner.begin(asked, submitted);
        match line.queue.submit(io, decision.route) {
            Ok(ticket) => {
                let (state, waker) = (State::InFlight(ticket), Some(waker.clone()));
                let request = self.requests.insert(Request { state, waker, orphan: None });
                let (entered, owner, wanted) = (owner.enter(&again), owner.clone(), true);
                let io = again;
                let decision = as_taken(decision, line.queue.is_call(ticket));
                line.in_flight.insert(Flight {
                    ticket,
                    io,
                    submitted,
                    decision,
                    asked,
                    entered,
                    wanted,
                    request,
                    owner,
                });
                if idle {
                    self.pace.note(submitted, 0);
                }
                Ok(request)
            }
            Err((Full, io)) if line.is_busy() => {
                Err((Some(Self::wait_for_room(line, &mut self.requests, waker)), io))
            }
            Err((Full, io)) => {
                // Those behind it find out for themselves.
                line.grant(&mut self.requests, &mut self.after.wakers);
                Err((None, io))
            }
        }
    }

    /// What has become of a request; one that is over is forgotten. Otherwise `waker` is woken.
    pub fn ask(&mut self, request: usize, waker: &Waker) -> State {
        let known = &mut self.requests[request];
        let state = known.state;
        match state {
            State::Landed(_) => drop(self.requests.remove(request)),
            State::Granted | State::GivenUp => {}
            State::Waiting | State::InFlight(_) => match &mut known.waker {
                Some(kept) => kept.clone_from(waker),
                none => *none = Some(waker.clone()),
            },
        }
        state
    }

    /// Nobody wants a request any more. Its memory is kept until it is over; whether it is.
    pub fn abandon(
        &mut self,
        line: usize,
        request: usize,
        memory: impl FnOnce() -> Box<dyn Any>,
    ) -> bool {
        let state = self.requests[request].state;
        let line = &mut self.lines[line];
        match state {
            State::InFlight(ticket) => {
                self.requests[request].orphan = Some(memory());
                self.after.wakers.extend(self.requests[request].waker.take());
                if let Some(flight) = line.in_flight.get_mut(ticket) {
                    flight.wanted = false;
                }
                line.queue.cancel(ticket);
                return false;
            }
            State::Waiting => line.waiting.retain(|other| *other != request),
            State::Granted => {
                line.granted -= 1;
                line.grant(&mut self.requests, &mut self.after.wakers);
            }
            State::Landed(_) | State::GivenUp => {}
        }
        self.after.wakers.extend(self.requests.remove(request).waker);
        state != State::GivenUp
    }

    pub fn in_flight(&self) -> u32 {
        self.lines.iter().map(|(_, line)| line.in_flight.len() as u32).sum()
    }

    /// Takes what queues have, and sends what they hold back.
    pub fn look_at_queues(&mut self) -> usize {
        let before = self.landed.len();
        for (at, line) in self.lines.iter_mut().filter(|(_, line)| line.is_busy()) {
            let (landed, platform) = (&mut self.landed, &mut self.platform);
            line.queue.poll(&mut |completion| landed.push((at, completion, platform.now())));
        }
        self.landed.len() - before
    }

    pub fn look_at_descriptors(&mut self, now: Ns) {
        self.looked = now;
        let Reactor { platform, descriptors, after, .. } = self;
        platform.look(&mut |key, news| {
            if let Some(descriptor) = descriptors.get_mut(key) {
                descriptor.tell(news, &mut after.wakers);
            }
        });
    }

    pub fn look_at_descriptors_at_times(&mut self, now: Ns) {
        if !self.descriptors.is_empty() && now.saturating_sub(self.looked) >= LOOK_EVERY_NS {
            self.look_at_descriptors(now);
        }
    }

    pub fn look_at_words(&mut self) {
        for (_, wait) in self.words.iter().filter(|(_, wait)| wait.has_changed()) {
            self.after.wakers.push(wait.waker.clone());
        }
    }

    pub fn fire_timers(&mut self, now: Ns) {
        while let Some((_, waker)) = self.timers.pop_due(now) {
            self.after.wakers.push(waker);
        }
    }

    /// Looks once at everything, between tasks that are ready.
    pub fn look(&mut self) {
        let now = self.platform.now();
        self.fire_timers(now);
        self.look_at_words();
        self.look_at_descriptors_at_times(now);
        if self.in_flight() > 0 {
            let taken = self.look_at_queues();
            self.pace.note(now, taken as u32);
            self.land(None);
            self.give_up(false);
        }
    }

    /// Turns completions into results. How long ago they came is known where they were waited for:
    /// by which decision, and whether its spin expired.
    pub fn land(&mut self, waited: Option<(&Decision, bool)>) {
        let mut landed = std::mem::take(&mut self.landed);
        for (at, completion, seen) in landed.drain(..) {
            // It is gone if a completion of nothing comes after the last of a file that was let go
            // of.
            let Some(line) = self.lines.get_mut(at) else { continue };
            let Some(flight) = line.in_flight.take(completion.ticket) else { continue };
            let (decision, latency_ns, expired) = match waited {
                Some((wait, expired)) => {
                    let latency_ns = seen.saturating_sub(flight.submitted);
                    (as_waited(flight.decision, wait), Some(latency_ns), expired)
                }
                None => (flight.decision, None, false),
            };
            let result = completion.result;
            let result = flight.owner.landed(&flight, &decision, result, latency_ns, expired);
            self.counts.completions += 1;
            if flight.wanted {
                let request = &mut self.requests[flight.request];
                request.state = State::Landed(result);
                self.after.wakers.extend(request.waker.take());
            } else {
                self.after.orphans.extend(self.requests.remove(flight.request).orphan);
            }
            self.after.owners.push(flight.owner);
            line.grant(&mut self.requests, &mut self.after.wakers);
            self.retire(at);
        }
        self.landed = landed;
    }

    /// Asks to end whatever is in flight.
    pub fn cancel_all(&mut self) {
        for (_, line) in &mut self.lines {
            let tickets: Vec<Ticket> = line.in_flight.iter().map(|flight| flight.ticket).collect();
            tickets.into_iter().for_each(|ticket| line.queue.cancel(ticket));
        }
    }

    /// Whether a queue has requests in flight that it will never complete.
    pub fn has_lost_some(&self) -> bool {
        self.lines.iter().any(|(_, line)| line.is_busy() && line.queue.is_lost())
    }

    /// Leaves the memory of what is still in flight, on queues that are lost or on all, to whoever
    /// may write there.
    pub fn give_up(&mut self, all: bool) {
        let Reactor { lines, requests, after, .. } = self;
        let lost = |line: &Line| line.is_busy() && (all || line.queue.is_lost());
        for (_, line) in lines.iter_mut().filter(|(_, line)| lost(line)) {
            line.queue.give_up();
            for flight in line.in_flight.drain() {
                flight.owner.gave_up(&flight);
                if flight.wanted {
                    let request = &mut requests[flight.request];
                    request.state = State::GivenUp;
                    after.wakers.extend(request.waker.take());
                } else {
                    std::mem::forget(requests.remove(flight.request).orphan);
                }
                after.owners.push(flight.owner);
            }
            line.grant(requests, &mut after.wakers);
        }
    }
}
