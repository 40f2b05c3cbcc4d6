// SPDX-License-Identifier: MIT OR Apache-2.0
//! Writing back what was written to a shared region, while the program goes on.
//!
//! A sync goes through its range once. It either has a page stay in the region, where a scan then
//! tells whether it was written to, or finds it beside the region and unchanged, or writes it from
//! there. So no page is missed that leaves and comes back meanwhile.

use std::cell::Cell;
use std::ops::Range;
use std::sync::PoisonError;

use dwell::buffer::Aligned;
use dwell::{Error, Result};
use dwell_policy::{Decision, Mode, Reason, Route};

use crate::fault::await_change;
use crate::frames::Kind;
use crate::mask::{Mask, Quiet};
use crate::memory::PAGE_BYTES;
use crate::pages::{DIRTY, SYNCING, State};
use crate::shared::Shared;
use crate::stats::add;
use crate::uffd::Found;

/// Pages written by one request at most, and held at once.
const PAGES: usize = 64;

/// Whether the calling thread is in a sync.
struct Turn;

thread_local! {
    static IN_TURN: Cell<bool> = const { Cell::new(false) };
}

impl Turn {
    /// # Errors
    /// EDEADLK in a signal handler that interrupted a sync of its own thread: that one goes on only
    /// after it, and two threads could wait for each other's.
    fn take(sh: &Shared) -> Result<Turn> {
        if IN_TURN.replace(true) {
            let error = std::io::Error::from_raw_os_error(libc::EDEADLK);
            return Err(Error::io("sync within a sync of the same thread", sh.path(), None, error));
        }
        Ok(Turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        IN_TURN.set(false);
    }
}

/// Writes all pages of a range back that were written to. All are tried; the first error is told.
pub(crate) fn write_back(sh: &Shared, pages: Range<u32>) -> Result<()> {
    let _turn = Turn::take(sh)?;
    write_back_last(sh, pages)
}

/// As [`write_back`], of a region that nobody else has any more.
pub(crate) fn write_back_last(sh: &Shared, pages: Range<u32>) -> Result<()> {
    let _one = sh.one_sync.lock().unwrap_or_else(PoisonError::into_inner);
    Sync::new(sh).write_back(pages)
}

/// As [`write_back`], and makes the pages durable. Those of which the device says that they may not
/// be count as written once more.
pub(crate) fn make_durable(sh: &Shared, pages: Range<u32>) -> Result<()> {
    let _turn = Turn::take(sh)?;
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
            let held = Held::hold(self.sh, page..pages.end);
            page = held.next;
            self.write_held(held);
            if page == pages.end {
                break;
            }
            let word = self.sh.pages.get(page);
            match State::of(word) {
                State::Moving | State::Writing => await_step(self.sh, page),
                State::Standby if word & DIRTY != 0 => {
                    page += u32::from(self.write_standby(page));
                }
                _ => {}
            }
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

    /// Writes those of the held pages back that were written to, and lets go of all.
    fn write_held(&mut self, mut held: Held) {
        let sh = self.sh;
        let (Some(first), Some(last)) = (held.pages().next(), held.pages().last()) else { return };
        let (mut at, end) = (sh.area.at(first as usize), sh.area.at(last as usize + 1));
        let mut written = 0;
        while at < end {
            let mut found = [Found::default(); PAGES];
            let (ranges, walked) = match sh.uffd.written(at, end, false, &mut found) {
                Ok(scanned) => scanned,
                Err(error) => {
                    self.keep(Error::io("PAGEMAP_SCAN", sh.path(), None, error));
                    break;
                }
            };
            for range in &found[..ranges] {
                written |= held.those_of(&page_range(sh, range));
            }
            if walked <= at {
                break;
            }
            at = walked;
        }
        // The device takes its time: pages that were not written to need not stay for it.
        held.let_go_but(sh, written);
        while let Some(run) = held.next_run() {
            self.write_run(run.clone());
            let_go(sh, run);
        }
    }

    /// Writes held pages back that were written to when last looked at. They stay until then, so
    /// that nobody takes them for clean between the moment that they are protected again and the
    /// end of their write.
    fn write_run(&mut self, run: Range<u32>) {
        let sh = self.sh;
        let (start, end) = (sh.area.at(run.start as usize), sh.area.at(run.end as usize));
        let mut found = [Found::default(); PAGES];
        // From here on what is written counts anew.
        let ranges = match sh.uffd.written(start, end, true, &mut found) {
            Ok((ranges, _)) => ranges,
            Err(error) => return self.keep(Error::io("PAGEMAP_SCAN", sh.path(), None, error)),
        };
        for range in &found[..ranges] {
            let pages = page_range(sh, range);
            // A device may write to what is pinned, which no page table tells: it counts as written
            // until then.
            for page in pages.clone().filter(|page| sh.pages.pins(*page) > 0) {
                count_as_written(sh, page..page + 1);
            }
            for (page, place) in pages.clone().zip(self.buffer.chunks_exact_mut(PAGE_BYTES)) {
                sh.area.snapshot(page as usize, place);
            }
            if !self.write(pages.start, pages.end - pages.start) {
                count_as_written(sh, pages);
            }
        }
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

    /// What was written back may not have arrived: as far as it is still in memory it counts as
    /// written again.
    fn take_back(&mut self) {
        let sh = self.sh;
        for page in std::mem::take(&mut self.written).into_iter().flatten() {
            while !take_back(sh, page) {
                await_step(sh, page);
            }
        }
    }
}

/// Has a page count as written where it is in memory; `false` where somebody is at it.
fn take_back(sh: &Shared, page: u32) -> bool {
    if let Some(run) = Held::hold(sh, page..page + 1).next_run() {
        count_as_written(sh, run.clone());
        let_go(sh, run);
        return true;
    }
    let _quiet = Quiet::new();
    let mut books = sh.lock();
    match State::of(sh.pages.get(page)) {
        State::Standby => {
            let frame = sh.pages.frame(page);
            books.frames.unlink(frame);
            sh.pages.set(page, State::Standby, DIRTY);
            books.frames.hold(frame, page, Kind::DIRTY);
            true
        }
        State::Absent | State::Reading => true,
        // It came in since it was looked for.
        State::Present | State::Moving | State::Writing => false,
    }
}

/// Pages that stay in the region for the moment, in their order.
struct Held {
    pages: [u32; PAGES],
    count: usize,
    /// Those of them that are still held, a bit each.
    bits: u64,
    /// The first page of the range that was not looked at.
    next: u32,
}

impl Held {
    /// Pages looked at while the lock is held, at most.
    const LOOKS: u32 = 4096;

    /// Has pages of a range stay that are in the region. Passes over those that are as the source
    /// has them, and ends before one that somebody is at or that is to be written beside the
    /// region.
    fn hold(sh: &Shared, pages: Range<u32>) -> Held {
        let mut held = Held { pages: [0; PAGES], count: 0, bits: 0, next: pages.start };
        let _quiet = Quiet::new();
        let mut books = sh.lock();
        let end = pages.end.min(pages.start.saturating_add(Self::LOOKS));
        while held.next < end && held.count < PAGES {
            let page = held.next;
            let word = sh.pages.get(page);
            match State::of(word) {
                State::Present => {
                    sh.pages.mark(page, SYNCING, 0);
                    held.pages[held.count] = page;
                    held.bits |= 1 << held.count;
                    held.count += 1;
                }
                State::Moving | State::Writing => break,
                State::Standby if word & DIRTY != 0 => break,
                State::Standby | State::Absent | State::Reading => {}
            }
            held.next += 1;
        }
        books.syncing += held.count as u32;
        held
    }

    fn pages(&self) -> impl Iterator<Item = u32> {
        self.pages[..self.count].iter().copied()
    }

    /// Which of them lie in a range.
    fn those_of(&self, range: &Range<u32>) -> u64 {
        let within = |(at, page)| u64::from(range.contains(&page)) << at;
        self.pages().enumerate().map(within).fold(0, |bits, bit| bits | bit)
    }

    /// Lets go of all but those of these bits.
    fn let_go_but(&mut self, sh: &Shared, bits: u64) {
        let gone = self.bits & !bits;
        if gone != 0 {
            let _quiet = Quiet::new();
            let mut books = sh.lock();
            books.syncing -= gone.count_ones();
            for (_, page) in self.pages().enumerate().filter(|(at, _)| gone >> at & 1 != 0) {
                sh.pages.mark(page, 0, SYNCING);
            }
        }
        self.bits &= bits;
    }

    /// Takes the next ones out that follow each other.
    fn next_run(&mut self) -> Option<Range<u32>> {
        let first = (self.bits != 0).then(|| self.bits.trailing_zeros() as usize)?;
        let start = self.pages[first];
        let mut end = start;
        for at in first..self.count {
            if self.bits >> at & 1 == 0 || self.pages[at] != end {
                break;
            }
            self.bits &= !(1 << at);
            end += 1;
        }
        Some(start..end)
    }
}

/// The pages of a range of addresses.
fn page_range(sh: &Shared, found: &Found) -> Range<u32> {
    let page_of = |address: u64| ((address as usize - sh.area.start()) / PAGE_BYTES) as u32;
    page_of(found.start)..page_of(found.end)
}

/// Lets go of pages that were held.
fn let_go(sh: &Shared, pages: Range<u32>) {
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
pub(crate) fn await_step(sh: &Shared, page: u32) {
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
