// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writing back what was written to a shared region, while the program goes on.
//!
//! A sync goes through its range once. It either holds a page in the region, where a scan then tells whether it
//! was written to, or finds it beside the region and unchanged, or writes it from there. A page that came back
//! after that was written back before, or is written by the program after the sync had begun.

use std::ops::Range;
use std::sync::PoisonError;

use dwell::buffer::Aligned;
use dwell::{Error, Result};
use dwell_policy::{Decision, Mode, Reason, Route};

use crate::fault::await_change;
use crate::frames::Kind;
use crate::mask::{Mask, Quiet};
use crate::options::PAGE_BYTES;
use crate::pages::{DIRTY, SYNCING, State};
use crate::shared::Shared;
use crate::stats::add;
use crate::uffd::Found;

/// Pages written by one request at most, and held at once.
const PAGES: usize = 64;

/// Writes all pages of a range back that were written to. All are tried; the first error is told.
pub(crate) fn write_back(sh: &Shared, pages: Range<u32>) -> Result<()> {
    let _one = sh.one_sync.lock().unwrap_or_else(PoisonError::into_inner);
    Sync::new(sh).write_back(pages)
}

/// As [`write_back`], and makes the pages durable. Those of which the device says that they may not be count as
/// written once more.
pub(crate) fn make_durable(sh: &Shared, pages: Range<u32>) -> Result<()> {
    let _one = sh.one_sync.lock().unwrap_or_else(PoisonError::into_inner);
    let mut sync = Sync::new(sh);
    let result = sync.write_back(pages);
    // What failed earlier is told once, and first.
    if let Some(error) = sh.taken_failure() {
        return Err(error);
    }
    result?;
    let durable = sh.file.sync_data();
    if durable.is_err() {
        sync.take_back();
    }
    durable
}

/// One sync.
struct Sync<'a> {
    sh: &'a Shared,
    buffer: Aligned,
    /// The first error.
    first: Result<()>,
    /// Pages written back so far.
    written: Vec<Range<u32>>,
}

impl<'a> Sync<'a> {
    fn new(sh: &'a Shared) -> Sync<'a> {
        let buffer = Aligned::new(PAGES * PAGE_BYTES);
        Sync { sh, buffer, first: Ok(()), written: Vec::new() }
    }

    fn write_back(&mut self, pages: Range<u32>) -> Result<()> {
        let mut page = pages.start;
        while page < pages.end {
            let word = self.sh.pages.get(page);
            let held = match State::of(word) {
                State::Present => hold(self.sh, page..pages.end),
                State::Moving | State::Writing => {
                    await_step(self.sh, page);
                    continue;
                }
                State::Standby if word & DIRTY != 0 => {
                    if self.write_standby(page) {
                        page += 1;
                    }
                    continue;
                }
                State::Standby | State::Absent | State::Reading => {
                    page += 1;
                    continue;
                }
            };
            page = held.end;
            self.write_held(held);
        }
        std::mem::replace(&mut self.first, Ok(()))
    }

    /// Writes a page back that has left the region; whether it still was to be written.
    fn write_standby(&mut self, page: u32) -> bool {
        let sh = self.sh;
        let frame = {
            let _quiet = Quiet::new();
            let mut books = sh.lock();
            let word = sh.pages.get(page);
            if State::of(word) != State::Standby || word & DIRTY == 0 {
                return false;
            }
            let frame = sh.pages.frame(page);
            books.frames.unlink(frame);
            sh.pages.set(page, State::Writing, DIRTY);
            self.buffer[..PAGE_BYTES].copy_from_slice(sh.pool.page(frame as usize));
            frame
        };
        let written = self.write(page, 1);
        let _quiet = Quiet::new();
        let mut books = sh.lock();
        sh.pages.set(page, State::Standby, if written { 0 } else { DIRTY });
        books.frames.hold(frame, page, if written { Kind::STANDBY } else { Kind::DIRTY });
        true
    }

    /// Writes those of the held pages back that were written to, and lets go of all. They stay until then, so that
    /// nobody takes them for clean between the moment that they are protected again and the end of their write.
    fn write_held(&mut self, held: Range<u32>) {
        let sh = self.sh;
        let (start, end) = (sh.area.at(held.start as usize), sh.area.at(held.end as usize));
        let mut found = [Found::default(); PAGES];
        // From here on what is written counts anew.
        let ranges = match sh.uffd.written(start, end, true, &mut found) {
            Ok((ranges, _)) => ranges,
            Err(error) => {
                self.keep(Error::io("PAGEMAP_SCAN", sh.path(), None, error));
                0
            }
        };
        let page_of = |address: u64| ((address as usize - sh.area.start()) / PAGE_BYTES) as u32;
        let mut done = held.start;
        for range in &found[..ranges] {
            let pages = page_of(range.start)..page_of(range.end);
            // The device takes its time: those before that were not written to need not stay for it.
            let_go(sh, done..pages.start);
            // A device may write to what is pinned, which no page table tells: it counts as written until then.
            for page in pages.clone().filter(|page| sh.pages.pins(*page) > 0) {
                count_as_written(sh, page..page + 1);
            }
            for (page, place) in pages.clone().zip(self.buffer.chunks_exact_mut(PAGE_BYTES)) {
                sh.area.snapshot(page as usize, place);
            }
            if !self.write(pages.start, pages.end - pages.start) {
                count_as_written(sh, pages.clone());
            }
            let_go(sh, pages.clone());
            done = pages.end;
        }
        let_go(sh, done..held.end);
    }

    /// Writes so many pages from the buffer; whether the source took them.
    fn write(&mut self, page: u32, count: u32) -> bool {
        let bytes = &self.buffer[..self.sh.bytes_of(page, count)];
        match self.sh.file.write_all_at(bytes, u64::from(page) * PAGE_BYTES as u64) {
            Ok(()) => {
                add(&self.sh.counters.written_back, count.into());
                self.written.push(page..page + count);
                true
            }
            Err(error) => {
                add(&self.sh.counters.write_errors, 1);
                self.keep(error);
                false
            }
        }
    }

    fn keep(&mut self, error: Error) {
        if self.first.is_ok() {
            self.first = Err(error);
        }
    }

    /// What was written back may not have arrived: as far as it is still in memory it counts as written again.
    fn take_back(&mut self) {
        for mut pages in std::mem::take(&mut self.written) {
            while let Some(page) = pages.next() {
                match self.sh.pages.state(page) {
                    State::Present => {
                        let held = hold(self.sh, page..pages.end);
                        count_as_written(self.sh, held.clone());
                        let_go(self.sh, held.clone());
                        pages.start = held.end;
                    }
                    State::Moving | State::Writing => {
                        await_step(self.sh, page);
                        pages.start = page;
                    }
                    State::Standby => {
                        let _quiet = Quiet::new();
                        let mut books = self.sh.lock();
                        if self.sh.pages.state(page) != State::Standby {
                            pages.start = page;
                            continue;
                        }
                        let frame = self.sh.pages.frame(page);
                        books.frames.unlink(frame);
                        self.sh.pages.set(page, State::Standby, DIRTY);
                        books.frames.hold(frame, page, Kind::DIRTY);
                    }
                    State::Absent | State::Reading => {}
                }
            }
        }
    }
}

/// Has pages stay in the region that are there, from the first on as far as they follow each other.
fn hold(sh: &Shared, pages: Range<u32>) -> Range<u32> {
    let _quiet = Quiet::new();
    let mut books = sh.lock();
    let most = pages.end.min(pages.start.saturating_add(PAGES as u32));
    let end = (pages.start..most).find(|page| sh.pages.state(*page) != State::Present);
    let held = pages.start..end.unwrap_or(most);
    held.clone().for_each(|page| sh.pages.mark(page, SYNCING, 0));
    books.syncing += held.end - held.start;
    held
}

/// Lets go of pages that were held.
fn let_go(sh: &Shared, pages: Range<u32>) {
    if pages.is_empty() {
        return;
    }
    let _quiet = Quiet::new();
    let mut books = sh.lock();
    books.syncing -= pages.end - pages.start;
    pages.for_each(|page| sh.pages.mark(page, 0, SYNCING));
}

/// Has held pages count as written.
fn count_as_written(sh: &Shared, pages: Range<u32>) {
    let bytes = (pages.end - pages.start) as usize * PAGE_BYTES;
    let _ = sh.uffd.protect(sh.area.at(pages.start as usize), bytes, false);
}

/// Waits until somebody who moves or writes a page is done, or for a moment.
fn await_step(sh: &Shared, page: u32) {
    let seen = {
        let _quiet = Quiet::new();
        let _books = sh.lock();
        match sh.pages.state(page) {
            State::Moving | State::Writing => sh.pages.expect_change(page),
            _ => return,
        }
    };
    let leaves = Decision::new(Route::Interrupt, Mode::Block, 0, Reason::Sync);
    await_change(sh, page, seen, &leaves, Mask::ALL);
}
