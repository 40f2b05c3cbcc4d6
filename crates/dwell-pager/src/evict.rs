// SPDX-License-Identifier: MIT OR Apache-2.0
//! Pages on their way out: from the region into frames beside it, and from there to the source.
//!
//! A page leaves the region by being moved, which ends all access to it at once; whoever still
//! wants it within the time that its frame waits for another use gets it back without the device.

use dwell::queue::Action;
use dwell::source::Source;
use dwell::{arch, clock};
use dwell_policy::{
    Decision, Driver, Kind as Asked, Mode, Ns, Reason, Route, WaitMachine, Woken, drive,
};

use crate::fault::account;
use crate::frames::Kind;
use crate::memory::PAGE_BYTES;
use crate::pages::{DIRTY, State};
use crate::shared::Shared;
use crate::stats::add;
use crate::thread_queue::{BENCH_PAGES, REQUEST_PAGES, ThreadQueue};
use crate::uffd::Found;

/// Most pages moved out in one go.
const BATCH: usize = 32;
/// Requests and pages written back in one go, at most.
const WRITES: usize = 16;
const WRITTEN_PAGES: usize = 256;

impl ThreadQueue {
    /// Moves up to `want` pages out of the region; how many became frames that can be used again at
    /// once.
    pub fn evict(&mut self, sh: &Shared, want: usize) -> usize {
        let most = if sh.writes { BENCH_PAGES.min(BATCH) } else { BATCH };
        let mut gained = 0;
        let mut left = want;
        while left > 0 {
            let mut pages = [0; BATCH];
            let asked = left.min(most);
            let found = sh.lock().frames.victims(&sh.pages, &mut pages[..asked]);
            if found == 0 {
                break;
            }
            let pages = &mut pages[..found];
            pages.sort_unstable();
            let mut at = 0;
            while at < found {
                let run = sh.run_of(&pages[at..]);
                gained += self.evict_run(sh, pages[at], run as u32);
                at += run;
            }
            left = left.saturating_sub(found);
        }
        self.trim(sh);
        gained
    }

    /// Moves pages out that follow each other in the region and in the frames, and are being moved
    /// by nobody else.
    pub fn evict_run(&mut self, sh: &Shared, page: u32, count: u32) -> usize {
        let mut written = 0u32;
        if sh.writes {
            written = self.written(sh, page, count);
            if !sh.writes_back && sh.spill.is_none() && written != 0 {
                return self.evict_unwritten(sh, page, count, written);
            }
        }
        let frame = sh.pages.frame(page);
        let take_out = || sh.take_out(page, frame, count);
        let taken = match take_out() {
            // The program has locked all its memory: the frames have pages where the region's are
            // to go.
            Err((0, libc::EEXIST | libc::EINVAL)) => {
                sh.area.unlock();
                sh.pool.unlock();
                let _ = sh.pool.advise_range(frame as usize, count as usize, libc::MADV_DONTNEED);
                take_out()
            }
            taken => taken,
        };
        let moved = taken.map_or_else(|(moved, _)| moved, |()| count);
        // One that would not be moved stays for another round: a device has it, say.
        let lost = moved < count && sh.uffd.is_empty(sh.area.at((page + moved) as usize));
        if sh.writes {
            written |= self.changed(sh, frame, moved, written);
        }
        let mut gained = 0;
        let mut books = sh.lock();
        for step in 0..count {
            let (page, frame) = (page + step, frame + step);
            if step == moved && lost {
                // The program itself has given it up.
                sh.pages.set(page, State::Absent, 0);
                books.frames.hollow(frame);
            } else if step >= moved {
                sh.pages.set(page, State::Present, 0);
                books.frames.hold(frame, page, Kind::present(self.class()));
            } else if written >> step & 1 != 0 {
                sh.pages.set(page, State::Standby, DIRTY);
                books.frames.hold(frame, page, Kind::DIRTY);
            } else {
                sh.pages.set(page, State::Standby, 0);
                books.frames.hold(frame, page, Kind::STANDBY);
                gained += 1;
            }
        }
        add(&sh.counters.evicted, u64::from(moved));
        gained
    }

    /// As [`ThreadQueue::evict_run`], where written pages have nowhere to go.
    fn evict_unwritten(&mut self, sh: &Shared, page: u32, count: u32, written: u32) -> usize {
        let mut gained = 0;
        for step in 0..count {
            let (page, frame) = (page + step, sh.pages.frame(page + step));
            let stays = written >> step & 1 != 0 || sh.take_out(page, frame, 1).is_err();
            if !stays && self.differs(sh, frame, step as usize) {
                // Written to between the look at it and its move: it goes back, and stays written
                // beside the region where the kernel refuses that.
                let guard = sh.lock();
                sh.pages.mark(page, DIRTY, 0);
                drop(guard);
                let _ = sh.install(&mut [page], self.class(), page);
                continue;
            }
            let mut books = sh.lock();
            let (state, kind) = match stays {
                true => (State::Present, Kind::present(self.class())),
                false => (State::Standby, Kind::STANDBY),
            };
            sh.pages.set(page, state, 0);
            books.frames.hold(frame, page, kind);
            gained += usize::from(!stays);
            add(&sh.counters.evicted, u64::from(!stays));
        }
        gained
    }

    /// Which pages of a run were written to since they came in, a bit each. What the others hold
    /// now is remembered, because they may be written to until they are moved.
    fn written(&mut self, sh: &Shared, page: u32, count: u32) -> u32 {
        let (start, end) = (sh.area.at(page as usize), sh.area.at((page + count) as usize));
        let mut written = scan(sh, start, end);
        if written.trailing_ones() >= count {
            return written;
        }
        // What the program itself has unmapped or given up cannot be looked at.
        let there = sh.uffd.there(start, count as usize) & !written;
        for step in (0..count as usize).filter(|step| there >> step & 1 != 0) {
            let place = &mut self.bench[step * PAGE_BYTES..][..PAGE_BYTES];
            let seen = sh.uffd.snapshot(start + step * PAGE_BYTES, place);
            written |= u32::from(!seen) << step;
        }
        // A page that is as it came in now was so when it was remembered.
        written | scan(sh, start, end)
    }

    /// Which pages of a run, in their frames by now, are not as they were when last looked at,
    /// besides those `written`.
    fn changed(&self, sh: &Shared, frame: u32, count: u32, written: u32) -> u32 {
        (0..count)
            .filter(|step| written >> step & 1 == 0)
            .filter(|step| self.differs(sh, frame + step, *step as usize))
            .fold(0, |bits, step| bits | 1 << step)
    }

    fn differs(&self, sh: &Shared, frame: u32, step: usize) -> bool {
        sh.pool.page(frame as usize) != &self.bench[step * PAGE_BYTES..][..PAGE_BYTES]
    }

    /// Gives memory beyond the budget up.
    fn trim(&self, sh: &Shared) {
        loop {
            let mut books = sh.lock();
            if books.frames.in_memory() <= books.frames.budget() {
                return;
            }
            let Some(frame) = books.frames.oldest(Kind::FREE) else { return };
            books.frames.unlink(frame);
            drop(books);
            let _ = sh.pool.advise_range(frame as usize, 1, libc::MADV_DONTNEED);
            sh.lock().frames.hollow(frame);
        }
    }

    /// Gives memory up until the region keeps to its budget, or nothing more can leave.
    pub fn shrink(&mut self, sh: &Shared) {
        loop {
            let mut books = sh.lock();
            let beyond = books.frames.in_memory().saturating_sub(books.frames.budget());
            if beyond == 0 {
                return;
            }
            let run = match sh.take(&mut books, beyond) {
                None => sh.take_ahead(&mut books),
                run => run,
            };
            let Some(run) = run else {
                drop(books);
                if self.evict(sh, beyond.min(256) as usize) == 0 && self.write_back(sh) == 0 {
                    return;
                }
                continue;
            };
            drop(books);
            let _ =
                sh.pool.advise_range(run.first as usize, run.count as usize, libc::MADV_DONTNEED);
            let mut books = sh.lock();
            (run.first..run.first + run.count).for_each(|frame| books.frames.hollow(frame));
        }
    }

    /// Sees to it that a frame can be taken; 0 where none could be gained.
    pub fn make_room(&mut self, sh: &Shared) -> usize {
        let gained = self.evict(sh, 1 + sh.ready_target() as usize / 2);
        if gained > 0 || sh.lock().frames.ready() > 0 {
            return gained.max(1);
        }
        self.write_back(sh)
    }

    /// Makes a frame free where none could be gained: that of a page read ahead, or one beyond the
    /// budget. Whether there was any.
    pub fn make_last_room(&mut self, sh: &Shared) -> bool {
        let mut books = sh.lock();
        let Some(run) = sh.take_last(&mut books) else { return false };
        if run.hollow {
            drop(books);
            let filled = sh.fill(run);
            books = sh.lock();
            if filled.is_err() {
                books.frames.hollow(run.first);
                return false;
            }
        }
        books.frames.push(run.first, Kind::FREE);
        true
    }

    /// Writes pages back that have left the region; how many became frames that can be used again.
    pub fn write_back(&mut self, sh: &Shared) -> usize {
        let before = self.writes_alone;
        let gained = self.write_some(sh);
        // Of pages that were refused together, most may be taken one by one.
        if gained == 0 && self.writes_alone > before { self.write_some(sh) } else { gained }
    }

    fn write_some(&mut self, sh: &Shared) -> usize {
        if sh.spill.is_none() && !sh.writes_back {
            return 0;
        }
        let before = sh.counters.written_back.load(std::sync::atomic::Ordering::Relaxed);
        let (mut requests, mut sent) = (0, 0);
        // Several at once, the one that a fault may be waiting for left aside.
        let room = if self.has_queue() { (self.room() as usize).max(1) } else { WRITES };
        let mut decided = None;
        while requests < WRITES.min(room) && sent < WRITTEN_PAGES {
            let mut books = sh.lock();
            let Some(frame) = books.frames.oldest(Kind::DIRTY) else { break };
            let most = if self.writes_alone > 0 { 1 } else { REQUEST_PAGES };
            self.writes_alone = self.writes_alone.saturating_sub(1);
            let run = books.frames.run_around(frame, most);
            let first = books.frames.page(run.first);
            for (frame, page) in run.frames().zip(first..) {
                books.frames.unlink(frame);
                sh.pages.set(page, State::Writing, DIRTY);
                books.frames.assign(frame, page, self.number);
            }
            drop(books);
            let mut decision = self.decide(sh, Asked::Write, sh.bytes_of(first, run.count));
            // By calls they would not overlap.
            decision.route = Route::Interrupt;
            decided = Some(decision);
            match self.send(sh, Action::Write, first, run, &decision) {
                Some(flight) => {
                    self.requests[flight].timed = true;
                    requests += 1;
                    sent += run.count as usize;
                }
                None => {
                    let mut books = sh.lock();
                    for (frame, page) in run.frames().zip(first..) {
                        sh.pages.set(page, State::Standby, DIRTY);
                        books.frames.hold(frame, page, Kind::DIRTY);
                    }
                    break;
                }
            }
        }
        self.flush();
        if let Some(decision) = decided {
            self.await_writes(sh, &decision);
        }
        let after = sh.counters.written_back.load(std::sync::atomic::Ordering::Relaxed);
        ((after - before) as usize).min(sent)
    }

    /// Waits until no write of this thread queue is in flight: nobody else could see to it.
    fn await_writes(&mut self, sh: &Shared, decision: &Decision) {
        self.land(sh);
        if !self.is_writing() {
            return;
        }
        let now = clock::now();
        let machine = WaitMachine::new(decision, now, now);
        account(sh, &drive(machine, &mut Landing { sh, thread_queue: self, all: false }));
    }

    /// Waits until nothing of this thread queue is in flight, or until `until`; whether nothing is.
    pub fn drain(&mut self, sh: &Shared, until: Ns) -> bool {
        if self.in_flight > 0 {
            let decision = Decision::new(Route::Interrupt, Mode::Block, 0, Reason::Fixed);
            let machine = WaitMachine::new(&decision, clock::now(), clock::now()).until(until);
            drive(machine, &mut Landing { sh, thread_queue: self, all: true });
        }
        self.in_flight == 0
    }
}

/// Which pages of a range were written to since they were protected, a bit each.
fn scan(sh: &Shared, start: usize, end: usize) -> u32 {
    let mut found = [Found::default(); BENCH_PAGES];
    let Ok((ranges, _)) = sh.uffd.written(start, end, false, &mut found) else {
        // Not to know is to assume the worst.
        return u32::MAX;
    };
    let page_of = |address: u64| (address as usize - start) / PAGE_BYTES;
    let pages = found[..ranges].iter().flat_map(|range| page_of(range.start)..page_of(range.end));
    pages.fold(0, |bits, page| bits | 1 << page)
}

/// The wait for all writes of a thread queue, or for all that it has in flight.
struct Landing<'a> {
    sh: &'a Shared,
    thread_queue: &'a mut ThreadQueue,
    all: bool,
}

impl Landing<'_> {
    fn is_over(&self) -> bool {
        if self.all { self.thread_queue.in_flight == 0 } else { !self.thread_queue.is_writing() }
    }
}

impl Driver for Landing<'_> {
    fn now(&mut self) -> Ns {
        clock::now()
    }

    fn poll(&mut self) -> bool {
        for _ in 0..16 {
            self.thread_queue.look();
            self.thread_queue.land(self.sh);
            if self.is_over() {
                return true;
            }
            arch::relax();
        }
        false
    }

    fn sleep(&mut self, until: Ns) {
        let _let_in = self.thread_queue.mask.let_in();
        clock::sleep_until(until);
    }

    fn park(&mut self, until: Option<Ns>) -> Woken {
        self.thread_queue.land(self.sh);
        if self.is_over() { Woken::Look } else { self.thread_queue.park(until) }
    }
}

/// Whether a source takes what is written at any length.
pub(crate) fn takes_tail(source: &impl Source, bytes: u64) -> bool {
    bytes.is_multiple_of(u64::from(source.alignment().max(1)))
}

#[cfg(test)]
mod tests;
