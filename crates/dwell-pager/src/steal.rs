// SPDX-License-Identifier: MIT OR Apache-2.0
//! What a thread does with the time of its own wait: reading ahead, following hints, moving pages
//! out.

use dwell::clock;
use dwell::queue::Action;
use dwell_policy::{Decision, Mode, Ns, Reason, Route};

use crate::ahead::Plan;
use crate::fault::INSTALLS;
use crate::frames::Kind;
use crate::memory::{self, PAGE_BYTES};
use crate::pages::{AHEAD, HINTED, POISONED, SPILLED, State};
use crate::shared::Shared;
use crate::stats::add;
use crate::thread_queue::{REQUEST_PAGES, ThreadQueue};

/// No page in particular.
const NONE: u32 = u32::MAX;
/// Frames that are given memory in one turn.
const FILLED_A_TURN: u32 = 8;
/// Hints followed in one turn.
const HINTS_A_TURN: usize = 32;
/// The length of batches of hints is judged this often, in nanoseconds.
const PACED_NS: Ns = 1_000_000;

impl ThreadQueue {
    /// Sends one request of a plan; whether it did.
    pub fn issue(&mut self, sh: &Shared, plan: &mut Plan) -> bool {
        if self.room() == 0 || !self.has_queue() {
            return false;
        }
        let Some(first) = plan.next(sh.pages.count()) else { return false };
        if !is_absent(sh, first) {
            return true;
        }
        let mut want = 1;
        while plan.stride == 1 && want < REQUEST_PAGES {
            let mut rest = *plan;
            match rest.next(sh.pages.count()) {
                Some(page) if is_absent(sh, page) => want += 1,
                _ => break,
            }
            *plan = rest;
        }
        let mut page = first;
        while want > 0 {
            let sent = self.read_ahead(sh, page, want, 0);
            if sent == 0 {
                // The rest has another turn.
                (plan.first, plan.count) = (page.into(), plan.count + want);
                return false;
            }
            (page, want) = (page + sent, want - sent);
        }
        true
    }

    /// Sends a request for absent pages that follow each other; for how many.
    fn read_ahead(&mut self, sh: &Shared, page: u32, want: u32, flags: u32) -> u32 {
        if self.room() == 0 || sh.pages.get(page) & SPILLED != 0 {
            return 0;
        }
        let mut books = sh.lock();
        let under_way = books.frames.ahead() - books.frames.len(Kind::AHEAD);
        if under_way + want > sh.ahead_most() {
            return 0;
        }
        // What was read ahead before and never asked for makes room for what is read ahead now.
        let mut wasted = 0;
        while books.frames.ahead() + want > sh.ahead_most()
            && let Some(frame) = books.frames.oldest(Kind::AHEAD)
        {
            books.frames.unlink(frame);
            sh.pages.set(books.frames.page(frame), State::Absent, 0);
            books.frames.push(frame, Kind::FREE);
            wasted += 1;
        }
        add(&sh.counters.prefetched_wasted, wasted);
        if books.frames.ready() < want {
            drop(books);
            self.evict(sh, want.max(sh.ready_target() / 2) as usize);
            books = sh.lock();
        }
        let want = absent_run(sh, page, want);
        if want == 0 {
            return 0;
        }
        let Some(run) = sh.take(&mut books, want) else { return 0 };
        for step in 0..run.count {
            let (page, frame) = (page + step, run.first + step);
            sh.pages.set_frame(page, frame);
            sh.pages.set(page, State::Reading, AHEAD | flags);
            books.frames.assign(frame, page, self.number);
            books.frames.set_ahead_out(frame, true);
        }
        drop(books);
        // Nobody waits for it, so nothing is to be decided but the route.
        let decision = Decision::new(Route::Interrupt, Mode::Spin, 0, Reason::Pays);
        let sent =
            sh.fill(run).is_ok() && self.send(sh, Action::Read, page, run, &decision).is_some();
        if !sent {
            self.abandon(sh, page, run);
            return 0;
        }
        add(&sh.counters.prefetched, u64::from(run.count));
        run.count
    }

    /// Takes hints out of the ring: pages that are absent are read, cache lines of those that are
    /// there are fetched. Whether there may be more.
    pub fn follow_hints(&mut self, sh: &Shared) -> bool {
        if !self.has_queue() {
            return false;
        }
        let (mut first, mut want) = (0u32, 0u32);
        for _ in 0..HINTS_A_TURN {
            if self.room() < 2 {
                break;
            }
            let Some(page) = self.next_hint(sh) else { break };
            if want > 0 && page == first + want && want < REQUEST_PAGES {
                want += 1;
                continue;
            }
            if want > 0 && page >= first && page < first + want {
                continue;
            }
            self.read_hinted(sh, first, want);
            (first, want) = (page, 1);
        }
        let followed = want > 0;
        self.read_hinted(sh, first, want);
        followed
    }

    /// Follows all hints, brings in what earlier ones asked for and moves out what gives them room,
    /// without a wait.
    pub fn run_ahead(&mut self, sh: &Shared) {
        self.look();
        self.land(sh);
        while self.follow_hints(sh) {}
        self.flush();
        self.install_hinted(sh);
        let ready = sh.lock().frames.ready();
        self.evict(sh, sh.ready_target().saturating_sub(ready) as usize);
        self.pace_hints(sh);
    }

    fn pace_hints(&mut self, sh: &Shared) {
        let span = clock::now().saturating_sub(self.paced);
        if span >= PACED_NS {
            sh.hints.pace(std::mem::take(&mut self.waited), span);
            self.paced += span;
        }
    }

    fn read_hinted(&mut self, sh: &Shared, mut page: u32, mut want: u32) {
        while want > 0 {
            let sent = self.read_ahead(sh, page, want, HINTED).max(1);
            (page, want) = (page + sent, want.saturating_sub(sent));
        }
    }

    /// The next absent page that a hint names, or that the program said it wants soon.
    fn next_hint(&mut self, sh: &Shared) -> Option<u32> {
        while let Some(offset) = sh.hints.take() {
            add(&sh.counters.hints, 1);
            let page = (offset / PAGE_BYTES as u64) as u32;
            if page >= sh.pages.count() {
                continue;
            }
            match sh.pages.state(page) {
                State::Absent => return Some(page),
                State::Present => {
                    add(&sh.counters.hints_warmed, 1);
                    memory::warm(sh.area.start() + offset as usize);
                }
                State::Standby => self.recall(sh, page),
                _ => {}
            }
        }
        let mut books = sh.lock();
        std::iter::from_fn(|| books.said.next_wanted())
            .find(|page| sh.pages.state(*page) == State::Absent)
    }

    /// Has a page on standby come in with the next ones that hints asked for.
    fn recall(&mut self, sh: &Shared, page: u32) {
        let mut books = sh.lock();
        let word = sh.pages.get(page);
        let is_new = State::of(word) == State::Standby && word & HINTED == 0;
        if is_new && self.landed.len() < self.landed.capacity() {
            // Reads meanwhile take the frames of other pages first.
            let frame = sh.pages.frame(page);
            let kind = books.frames.kind(frame);
            books.frames.unlink(frame);
            books.frames.push(frame, kind);
            sh.pages.mark(page, HINTED, 0);
            self.landed.push(page);
        }
    }

    /// Gives so many unused frames memory before a fault takes them; whether it did.
    pub fn keep_filled(&self, sh: &Shared, want: u32) -> bool {
        let mut books = sh.lock();
        if books.frames.len(Kind::FREE) > 0 {
            return false;
        }
        let Some(run) = books.frames.take_fresh(want) else { return false };
        drop(books);
        let filled = sh.fill(run).is_ok();
        let mut books = sh.lock();
        for frame in run.first..run.first + run.count {
            match filled {
                true => books.frames.push(frame, Kind::FREE),
                false => books.frames.hollow(frame),
            }
        }
        filled
    }

    /// Moves pages out while fewer frames are ready than the next faults should find.
    pub fn keep_ready(&mut self, sh: &Shared) -> bool {
        let (ready, dirty) = {
            let books = sh.lock();
            (books.frames.ready(), books.frames.len(Kind::DIRTY))
        };
        if ready >= sh.ready_target() {
            return false;
        }
        // Written pages fill what is kept ready: they have to go first.
        if ready + dirty >= sh.ready_target() {
            return self.write_back(sh) > 0;
        }
        self.evict(sh, (sh.ready_target() - ready - dirty) as usize) > 0
    }

    /// Uses idle time; whether there may be more to do.
    pub fn steal(&mut self, sh: &Shared, plan: &mut Plan) -> bool {
        let sent = self.issue(sh, plan) || self.follow_hints(sh);
        if sent {
            self.flush();
            return true;
        }
        // Where more is read at once, frames that were never used lie in longer rows.
        if self.keep_ready(sh) || plan.install == 0 && self.keep_filled(sh, FILLED_A_TURN) {
            return true;
        }
        self.land(sh);
        self.install_hinted(sh)
    }

    /// Brings in what hints asked for and is there.
    pub fn install_hinted(&mut self, sh: &Shared) -> bool {
        if self.landed.is_empty() {
            return false;
        }
        let mut pages = [0; INSTALLS];
        let mut count = 0;
        self.gather_hinted(sh, &mut sh.lock(), &mut pages, &mut count);
        let _ = sh.install(&mut pages[..count], self.class(), NONE);
        true
    }
}

/// Pages from here on that are absent and whose data the source has, at most `most`.
pub(crate) fn absent_run(sh: &Shared, page: u32, most: u32) -> u32 {
    let most = most.min(sh.pages.count().saturating_sub(page));
    (0..most).find(|step| !is_absent(sh, page + step)).unwrap_or(most)
}

/// Whether a page is absent, the source has its data, and nobody has to ask for it first: a copy
/// would take the place of the mark that makes accesses to a refused page fail.
pub(crate) fn is_absent(sh: &Shared, page: u32) -> bool {
    let word = sh.pages.get(page);
    State::of(word) == State::Absent && word & (SPILLED | POISONED) == 0
}
