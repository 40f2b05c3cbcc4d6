// SPDX-License-Identifier: MIT OR Apache-2.0
//! One page fault, from entry to return.
//!
//! Runs in a signal handler: nothing here allocates, and the one lock it takes is never held by
//! code that a handler could interrupt. A fault ends when its page is there or the source has
//! refused it, and waits until then.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use dwell::{arch, clock};
use dwell_policy::{Decision, Driver, Kind as Asked, Mode, Ns, Outcome, Reason, Route};
use dwell_policy::{WaitMachine, Woken, drive};

use crate::ahead::Plan;
use crate::futex;
use crate::mask::Mask;
use crate::memory::PAGE_BYTES;
use crate::pages::{AHEAD, DIRTY, HINTED, POISONED, State};
use crate::shared::{Books, Shared};
use crate::stages::Stages;
use crate::stats::add;
use crate::thread_queue::ThreadQueue;

/// Looks between two readings of the clock.
const LOOKS: usize = 16;
/// Pages brought in by one fault at most.
pub(crate) const INSTALLS: usize = 576;
/// A thread that waits for another's step looks again after this long in any case, in nanoseconds.
const RECHECK_NS: Ns = 1_000_000;
/// What such a step takes, in nanoseconds: two switches cost more.
const STEP_NS: Ns = 5_000;
/// A fault goes beyond the budget only after it has waited so long for frames that others have, in
/// nanoseconds.
pub(crate) const PATIENCE_NS: Ns = 10_000_000;
/// Nobody tells that a frame has come back: it is looked for this often, in nanoseconds.
const ROOM_NS: Ns = 50_000;

impl ThreadQueue {
    /// Brings a page into the region; the fault began at `began`.
    ///
    /// # Errors
    /// What the source answered.
    pub fn fault(&mut self, sh: &Shared, page: u32, began: Ns) -> Result<(), i32> {
        if sh.stages {
            self.stages = Stages::begun(began, clock::now());
        }
        add(&sh.counters.faults, 1);
        sh.thread_queues.set_inside(self.number, true);
        self.look();
        self.land(sh);
        self.alone = None;
        let result = self.bring(sh, page, began);
        sh.thread_queues.set_inside(self.number, false);
        add(&sh.counters.read_errors, u64::from(result.is_err()));
        let left = clock::now();
        self.stages.left = left;
        add(&sh.counters.fault_ns, left.saturating_sub(began));
        result
    }

    fn bring(&mut self, sh: &Shared, page: u32, began: Ns) -> Result<(), i32> {
        let mut plan = None;
        let mut read = false;
        loop {
            if sh.is_closing() {
                return Ok(());
            }
            let books = sh.lock();
            let word = sh.pages.get(page);
            let state = State::of(word);
            if plan.is_none() && matches!(state, State::Absent | State::Reading | State::Standby) {
                plan = Some(self.plan(sh, &books, page));
            }
            let plan = plan.get_or_insert_default();
            match state {
                State::Present => {
                    drop(books);
                    if !sh.is_lost(page) {
                        return Ok(());
                    }
                }
                State::Moving | State::Writing => {
                    let seen = sh.pages.expect_change(page);
                    drop(books);
                    self.await_word(sh, page, seen);
                }
                State::Standby => {
                    let mut books = books;
                    // The wait for a page has sent all that there was to send.
                    if !read || plan.count > 0 {
                        drop(books);
                        // The device is at work while pages are moved, and what has come meanwhile
                        // moves with them.
                        while self.issue(sh, plan) {}
                        while self.follow_hints(sh) {}
                        self.flush();
                        self.look();
                        self.land(sh);
                        books = sh.lock();
                        let word = sh.pages.get(page);
                        if State::of(word) != State::Standby {
                            continue;
                        }
                    }
                    if !read {
                        add(&sh.counters.rescued, 1);
                        sh.asked_again(&mut books, page);
                    }
                    let mut pages = [0; INSTALLS];
                    let count = self.gather(sh, &mut books, page, plan, &mut pages);
                    drop(books);
                    let installed = sh.install(&mut pages[..count], self.class(), page);
                    self.passed(sh, Stages::moved);
                    self.keep_ready(sh);
                    match installed {
                        Ok(()) => return Ok(()),
                        // Others are at its memory: a fork, a device.
                        Err(libc::EAGAIN | libc::EBUSY) => {
                            let books = sh.lock();
                            let seen = sh.pages.expect_change(page);
                            drop(books);
                            self.await_word(sh, page, seen);
                        }
                        Err(errno) => return Err(errno),
                    }
                }
                State::Reading => {
                    let frame = sh.pages.frame(page);
                    add(&sh.counters.joined, u64::from(!read));
                    if word & AHEAD != 0 {
                        sh.pages.mark(page, 0, AHEAD | HINTED);
                        add(&sh.counters.prefetched_used, 1);
                    }
                    if let Some(flight) = self.flight_of(page, frame) {
                        drop(books);
                        read = true;
                        let on_its_way = self.requests[flight];
                        let bytes = sh.bytes_of(on_its_way.page, on_its_way.count);
                        let decision = self.decide(sh, Asked::Read, bytes);
                        match self.await_flight(sh, flight, &decision, plan) {
                            Err(_) if on_its_way.count > 1 => self.alone = Some(page),
                            outcome => outcome?,
                        }
                    } else if sh.thread_queues.is_inside(books.frames.owner(frame)) {
                        let seen = sh.pages.expect_change(page);
                        drop(books);
                        self.await_word(sh, page, seen);
                    } else {
                        // Begun by a thread that is busy with something else, and may be for long.
                        read |= self.read(sh, books, page, plan, began)?;
                    }
                }
                State::Absent => read |= self.read(sh, books, page, plan, began)?,
            }
        }
    }

    /// What this fault asks for ahead.
    pub fn plan(&mut self, sh: &Shared, books: &Books, page: u32) -> Plan {
        // Where the program says itself what it will touch, its faults are no trend.
        let told = sh.pages.get(page) & HINTED != 0;
        if told || books.said.is_random(page) {
            return Plan::default();
        }
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let used = count(&sh.counters.prefetched_used);
        self.prefetcher.heed(used, count(&sh.counters.prefetched_wasted), sh.ahead_limit());
        let absent = sh.pages.state(page) == State::Absent;
        self.prefetcher.fault(page, absent, sh.ahead_limit(), books.said.is_sequential(page))
    }

    /// The pages to be brought in by this fault, taken out of their lists: its own, those that the
    /// plan names, those of its granule, and those that hints asked for.
    pub fn gather(
        &mut self,
        sh: &Shared,
        books: &mut Books,
        page: u32,
        plan: &Plan,
        pages: &mut [u32; INSTALLS],
    ) -> usize {
        let mut count = 0;
        take_in(sh, books, page, 0, pages, &mut count);
        for step in 1..=i64::from(plan.install) {
            let next = i64::from(page) + step * plan.stride;
            if (0..i64::from(sh.pages.count())).contains(&next) {
                take_in(sh, books, next as u32, AHEAD, pages, &mut count);
            }
        }
        let length = self.granule_pages(sh);
        if length > 1 && !self.locality.is_sample(page) {
            let start = page / length * length;
            for along in start..(start + length).min(sh.pages.count()) {
                take_in(sh, books, along, AHEAD, pages, &mut count);
            }
        }
        self.gather_hinted(sh, books, pages, &mut count);
        count
    }

    /// Adds the pages that hints asked for and that are there, as far as there is room.
    pub fn gather_hinted(
        &mut self,
        sh: &Shared,
        books: &mut Books,
        pages: &mut [u32; INSTALLS],
        count: &mut usize,
    ) {
        while *count < INSTALLS
            && let Some(page) = self.landed.pop()
        {
            if sh.pages.get(page) & HINTED != 0 {
                sh.asked_again(books, page);
                take_in(sh, books, page, HINTED, pages, count);
            }
        }
    }

    /// Waits for a flight of this thread queue and lands it.
    pub fn await_flight(
        &mut self,
        sh: &Shared,
        flight: usize,
        decision: &Decision,
        plan: &mut Plan,
    ) -> Result<(), i32> {
        self.awaits(flight);
        if let Some(outcome) = self.landed_awaited(sh) {
            return outcome;
        }
        let now = clock::now();
        let machine = WaitMachine::new(decision, now, now);
        let (slot, nice) = (self.slot, self.nice);
        let mut waiting = Waiting { sh, thread_queue: self, plan, outcome: Ok(()) };
        let outcome = drive(machine, &mut waiting);
        let landed = waiting.outcome;
        account(sh, &outcome);
        self.waited += outcome.spun_ns + outcome.slept_ns + outcome.parked_ns;
        if let (Some(slot), true) = (slot, outcome.parks > 0) {
            sh.board.wants_cpu(slot, nice, true);
        }
        landed
    }

    /// Waits for a frame that another thread has, for a moment and not beyond `until`; whether
    /// there was one to wait for.
    pub fn await_room(&mut self, sh: &Shared, until: Ns) -> bool {
        let now = clock::now();
        if now >= until || !sh.lock().is_passing() {
            return false;
        }
        let decision = Decision::new(Route::Interrupt, Mode::Spin, STEP_NS, Reason::Pays);
        let machine = WaitMachine::new(&decision, now, now).until(until.min(now + RECHECK_NS));
        account(sh, &drive(machine, &mut Room { sh, thread_queue: self, passing: true }));
        true
    }

    /// Waits for a frame that can be used, whoever has it, for a moment.
    pub fn await_any_room(&mut self, sh: &Shared) {
        let now = clock::now();
        let decision = Decision::new(Route::Interrupt, Mode::Block, 0, Reason::Fixed);
        let machine = WaitMachine::new(&decision, now, now).until(now + RECHECK_NS);
        account(sh, &drive(machine, &mut Room { sh, thread_queue: self, passing: false }));
    }

    /// Waits until a page's word is no longer `seen`, or for a moment. The thread that will change
    /// it may wait for what this one has in flight, so that lands first, at each turn.
    fn await_word(&mut self, sh: &Shared, page: u32, seen: u32) {
        self.flush();
        self.look();
        self.land(sh);
        let mut decision = self.decide(sh, Asked::Read, PAGE_BYTES);
        if decision.reason != Reason::Sacrificed {
            decision = Decision::new(Route::Interrupt, Mode::Spin, STEP_NS, Reason::Pays);
        } else {
            decision.route = Route::Interrupt;
        }
        await_change(sh, page, seen, &decision, self.mask);
    }
}

/// Takes a page on standby out of its list to be brought in, if it has the flags `only`. A refused
/// page comes in for who asks for it, without flags.
fn take_in(
    sh: &Shared,
    books: &mut Books,
    page: u32,
    only: u32,
    pages: &mut [u32; INSTALLS],
    count: &mut usize,
) {
    let word = sh.pages.get(page);
    let is_refused = only != 0 && word & POISONED != 0;
    let fits = State::of(word) == State::Standby && word & only == only && !is_refused;
    if !fits || *count == INSTALLS {
        return;
    }
    books.frames.unlink(sh.pages.frame(page));
    sh.pages.set(page, State::Moving, word & DIRTY);
    add(&sh.counters.prefetched_used, u64::from(word & AHEAD != 0));
    pages[*count] = page;
    *count += 1;
}

/// Waits until a page's word is no longer `seen`, or for a moment, as decided.
pub(crate) fn await_change(sh: &Shared, page: u32, seen: u32, decision: &Decision, mask: Mask) {
    let now = clock::now();
    let machine = WaitMachine::new(decision, now, now).until(now + RECHECK_NS);
    let mut waiting = Word { word: sh.pages.word(page), seen, mask };
    account(sh, &drive(machine, &mut waiting));
}

pub(crate) fn account(sh: &Shared, outcome: &Outcome) {
    let counters = &sh.counters;
    add(if outcome.parks > 0 { &counters.waits_parked } else { &counters.waits_spun }, 1);
    add(&counters.spun_ns, outcome.spun_ns);
    add(&counters.stolen_ns, outcome.offered_ns);
    add(&counters.waited_ns, outcome.spun_ns + outcome.slept_ns + outcome.parked_ns);
}

/// The wait for one flight.
struct Waiting<'a> {
    sh: &'a Shared,
    thread_queue: &'a mut ThreadQueue,
    plan: &'a mut Plan,
    /// What came of the flight.
    outcome: Result<(), i32>,
}

impl Driver for Waiting<'_> {
    fn now(&mut self) -> Ns {
        clock::now()
    }

    fn poll(&mut self) -> bool {
        for look in 0..LOOKS {
            if look > 0 {
                arch::relax();
            }
            self.thread_queue.look();
            if let Some(outcome) = self.thread_queue.landed_awaited(self.sh) {
                self.outcome = outcome;
                return true;
            }
        }
        false
    }

    fn offer(&mut self, _: Ns) -> bool {
        self.thread_queue.steal(self.sh, self.plan)
    }

    fn sleep(&mut self, until: Ns) {
        self.idle();
        let _let_in = self.thread_queue.mask.let_in();
        clock::sleep_until(until);
    }

    fn park(&mut self, until: Option<Ns>) -> Woken {
        // What was done while time was idle may have seen it come.
        if self.thread_queue.landed_awaited(self.sh).is_some() {
            return Woken::Look;
        }
        self.idle();
        self.thread_queue.park(until)
    }
}

impl Waiting<'_> {
    /// Says that this thread has no use for the CPU meanwhile.
    fn idle(&self) {
        if let Some(slot) = self.thread_queue.slot {
            self.sh.board.wants_cpu(slot, self.thread_queue.nice, false);
        }
    }
}

/// The wait for a frame that can be used.
struct Room<'a> {
    sh: &'a Shared,
    thread_queue: &'a mut ThreadQueue,
    /// Whether to wait for those alone that come back in a moment.
    passing: bool,
}

impl Driver for Room<'_> {
    fn now(&mut self) -> Ns {
        clock::now()
    }

    fn poll(&mut self) -> bool {
        self.thread_queue.look();
        self.thread_queue.land(self.sh);
        let books = self.sh.lock();
        books.frames.ready() > 0 || self.passing && !books.is_passing()
    }

    fn sleep(&mut self, until: Ns) {
        clock::sleep_until(until);
    }

    fn park(&mut self, until: Option<Ns>) -> Woken {
        let again = clock::now() + ROOM_NS;
        let _let_in = self.thread_queue.mask.let_in();
        clock::sleep_until(until.map_or(again, |until| until.min(again)));
        Woken::Look
    }
}

/// The wait for another thread's step on a page.
struct Word<'a> {
    word: &'a AtomicU32,
    seen: u32,
    mask: Mask,
}

impl Driver for Word<'_> {
    fn now(&mut self) -> Ns {
        clock::now()
    }

    fn poll(&mut self) -> bool {
        for _ in 0..LOOKS {
            if self.word.load(Ordering::Acquire) != self.seen {
                return true;
            }
            arch::relax();
        }
        false
    }

    fn sleep(&mut self, until: Ns) {
        clock::sleep_until(until);
    }

    fn park(&mut self, until: Option<Ns>) -> Woken {
        let _let_in = self.mask.let_in();
        futex::wait(self.word, self.seen, until);
        Woken::Look
    }
}
