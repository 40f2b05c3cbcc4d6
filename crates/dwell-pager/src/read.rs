// SPDX-License-Identifier: MIT OR Apache-2.0
//! What one fault reads: its page, and those of its granule.

use std::ops::Range;

use dwell::queue::Action;
use dwell_policy::{Kind as Asked, Ns, Route};

use crate::ahead::Plan;
use crate::fault::PATIENCE_NS;
use crate::frames::{Kind, Run};
use crate::pages::{AHEAD, HINTED, SPILLED, State};
use crate::shared::{Books, Shared};
use crate::stages::Stages;
use crate::stats::add;
use crate::steal::{absent_run, is_absent};
use crate::thread_queue::{REQUEST_PAGES, ThreadQueue};

/// Frames that are given memory beside a read that is a call.
const FILLED_A_CALL: u32 = 16;

impl ThreadQueue {
    /// Reads a page that is absent (or that another thread reads and does not take care of) and
    /// waits for it. `false` where there was no frame yet.
    pub fn read(
        &mut self,
        sh: &Shared,
        mut books: std::sync::MutexGuard<'_, Books>,
        page: u32,
        plan: &mut Plan,
        began: Ns,
    ) -> Result<bool, i32> {
        // Without a queue a long request takes the place of many that follow, of which the source
        // has the data.
        let is_spilled = sh.pages.get(page) & SPILLED != 0;
        let alone = self.alone == Some(page);
        let wanted = match plan {
            Plan { stride: 1, first, count, .. }
                if !self.has_queue() && !is_spilled && !alone && *first == i64::from(page) + 1 =>
            {
                let along = absent_run(sh, page + 1, (*count).min(REQUEST_PAGES - 1));
                page..page + 1 + along
            }
            _ => self.granule(sh, &books, page, plan),
        };
        let Some((first, run)) = self.reserve(sh, &mut books, page, wanted.clone()) else {
            drop(books);
            if self.make_room(sh) == 0
                && !self.await_room(sh, began + PATIENCE_NS)
                && !self.make_last_room(sh)
            {
                // All places are taken: some come back when the device is done with them.
                self.await_any_room(sh);
            }
            return Ok(false);
        };
        drop(books);
        if (run.count as usize) < wanted.len() && plan.install == 0 {
            // Too few frames lay in a row: the rest of the granule has requests of its own.
            let (first, count) = (i64::from(wanted.start), wanted.end - wanted.start);
            *plan = Plan { stride: 1, first, count, install: 0 };
        }
        add(&sh.counters.reads_awaited, 1);
        let bytes = sh.bytes_of(first, run.count);
        let decision = self.decide(sh, Asked::Read, bytes);
        if let Err(errno) = sh.fill(run) {
            self.abandon(sh, first, run);
            return Err(errno);
        }
        if run.hollow && wanted.len() == 1 && plan.install == 0 && decision.route == Route::Inline {
            // A call leaves no wait in which frames could be filled for the next faults. One system
            // call for many costs less than one for each.
            self.keep_filled(sh, FILLED_A_CALL.min(sh.ready_target()));
        }
        self.passed(sh, Stages::framed);
        if decision.route == Route::Inline && self.has_queue() {
            // The call keeps this thread; what can be under way meanwhile is sent before.
            while self.issue(sh, plan) {}
            while self.follow_hints(sh) {}
            self.flush();
        }
        let Some(flight) = self.send(sh, Action::Read, first, run, &decision) else {
            self.abandon(sh, first, run);
            self.await_any_room(sh);
            return Ok(false);
        };
        self.requests[flight].timed = true;
        self.flush();
        self.passed(sh, Stages::requested);
        let arrived = self.await_flight(sh, flight, &decision, plan);
        self.passed(sh, Stages::arrived);
        match arrived {
            // What could not be read may be a page beside it.
            Err(_) if run.count > 1 => {
                self.alone = Some(page);
                Ok(false)
            }
            arrived => arrived.map(|()| true),
        }
    }

    /// Takes frames for a page that is to be read, and for those of the absent pages `wanted`
    /// around it for which there are frames in a row; the first page, and the frames.
    pub fn reserve(
        &mut self,
        sh: &Shared,
        books: &mut Books,
        page: u32,
        wanted: Range<u32>,
    ) -> Option<(u32, Run)> {
        let run = sh.take(books, wanted.end - wanted.start)?;
        let first = wanted.start.max((page + 1).saturating_sub(run.count));
        for step in 0..run.count {
            let (along, frame) = (first + step, run.first + step);
            sh.pages.set_frame(along, frame);
            sh.pages.set(along, State::Reading, if along == page { 0 } else { AHEAD });
            books.frames.assign(frame, along, self.number);
            books.frames.set_ahead_out(frame, along != page);
        }
        add(&sh.counters.prefetched, u64::from(run.count - 1));
        Some((first, run))
    }

    /// The absent pages that are read together with one that nothing expected.
    pub fn granule(&mut self, sh: &Shared, books: &Books, page: u32, plan: &Plan) -> Range<u32> {
        let word = sh.pages.get(page);
        if sh.granule == 0
            && sh.ahead_limit() > 0
            && plan.install == 0
            && word & HINTED == 0
            && !books.said.is_random(page)
        {
            let count = sh.pages.count();
            let is_there = |page| page < count && sh.pages.state(page) != State::Absent;
            let beside = self.locality.beside(page, is_there);
            let occupancy = u64::from(books.frames.in_memory()) * 256 / u64::from(count);
            let is_used = |page| is_there(page) && sh.pages.get(page) & AHEAD == 0;
            self.locality.miss(beside, occupancy as u32, sh.granule_most(), is_used);
        }
        let length = self.granule_pages(sh);
        let alone = self.alone == Some(page) || sh.granule == 0 && books.said.is_random(page);
        if length == 1 || alone || !is_absent(sh, page) {
            return page..page + 1;
        }
        let start = page / length * length;
        let end = page + absent_run(sh, page, start + length - page);
        let start =
            (start..page).rev().take_while(|page| is_absent(sh, *page)).last().unwrap_or(page);
        if sh.granule == 0 && plan.install == 0 && end - start > 1 {
            self.locality.sample(start..end, page);
        }
        start..end
    }

    /// Pages of a granule.
    pub fn granule_pages(&self, sh: &Shared) -> u32 {
        match sh.granule {
            0 if sh.ahead_limit() == 0 => 1,
            0 => self.locality.pages(sh.granule_most()),
            pages => pages.min(sh.granule_most()),
        }
    }

    /// Gives frames back whose request could not be sent.
    pub fn abandon(&self, sh: &Shared, page: u32, run: Run) {
        let mut books = sh.lock();
        for step in 0..run.count {
            books.frames.set_ahead_out(run.first + step, false);
            sh.pages.set(page + step, State::Absent, 0);
            if run.hollow {
                books.frames.hollow(run.first + step);
            } else {
                books.frames.push(run.first + step, Kind::FREE);
            }
        }
    }
}
